"""Agents that both releases load from this file: each run of a tool's body says which release ran it."""

import os
from pathlib import Path

import perdure
from perdure import Agent, Delegate, ToolContext, ask_user, tool


@tool
def walk(context: ToolContext, number: int) -> str:
    """Take a step, which must never be taken twice."""
    with Path(os.environ["EFFECTS_FILE"]).open("a", encoding="utf-8") as file:
        file.write(f"{Path(perdure.__file__).parent.parent.name} {context.session} {context.idempotency_key}\n")
    return f"step {number}"


@tool
def read(lines: int) -> str:
    """Read a long text."""
    return "\n".join(f"line {line} of a long text" for line in range(lines))


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


walker = Agent(
    name="walker",
    model="openai/scripted",
    instructions="I am walker.",
    tools=[walk, read, pay, ask_user],
    max_steps=100,
)
lead = Agent(
    name="lead",
    model="openai/scripted",
    instructions="I am lead.",
    tools=[ask_user],
    delegates=[Delegate("walker")],
)
