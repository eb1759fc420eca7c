"""A researcher: it plans, has readers look things up side by side, and stays within a budget for all of them.

NOTES=~/notes perdure dev --agents examples/researcher/agent.py
perdure run researcher "What do my notes say of tides, and do they agree?"
"""

from decimal import Decimal
from pathlib import Path

from perdure import Agent, Budgets, RetryPolicy, Setting, tool

NOTES = {"notes": Setting("NOTES", default=".")}


@tool(needs=NOTES)
def search_notes(word: str, notes: str) -> list[str]:
    """Search the notes for a word; each hit is ``file: line``."""
    return [
        f"{file.name}: {line.strip()}"
        for file in sorted(Path(notes).expanduser().glob("*.md"))
        for line in file.read_text(encoding="utf-8").splitlines()
        if word.lower() in line.lower()
    ][:50]


@tool(needs=NOTES, catch=[OSError])
def read_note(file: str, notes: str) -> str:
    """Read a note."""
    return (Path(notes).expanduser() / Path(file).name).read_text(encoding="utf-8")


reader = Agent(
    name="reader",
    model="openai/gpt-5-mini",
    description="Looks one question up in the notes and names the files.",
    instructions="Answer the question from the notes alone. Name the file of each fact.",
    tools=[search_notes, read_note],
    max_steps=10,
)

critic = Agent(
    name="critic",
    model="openai/gpt-5-mini",
    description="Says what a draft claims without a source.",
    instructions="Name each claim of the draft that has no source. Say 'sound' if there is none.",
    max_steps=1,
)

agent = Agent(
    name="researcher",
    model="openai/gpt-5",
    instructions=(
        "Split the question, have a reader look each part up, write a draft with sources, and have the critic read it. "
        "Both see only what you write to them."
    ),
    delegates=[reader, critic],
    retry=RetryPolicy(max_retries=4),
    budgets=Budgets(cost_usd=Decimal("0.50"), llm_calls=40, depth=1),  # of the delegates too
)
