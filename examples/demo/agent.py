"""The demo's agent. Its tools do real work on this checkout; with ``--model`` a real model drives the same agent."""

import os
from pathlib import Path
from typing import Annotated

from perdure import Agent, ToolContext, tool

CHECKOUT = Path(__file__).resolve().parents[2]
SCRATCH = CHECKOUT / ".perdure" / "demo"
JOURNAL = SCRATCH / "tool-bodies.log"
"""One line for each tool body that really ran: what the outside world has seen."""

MOST = 40
"""Longest list a tool returns."""


def inside(path: str) -> Path:
    """The path inside the checkout; anything else is refused."""
    found = (CHECKOUT / path).resolve()
    if not found.is_relative_to(CHECKOUT):
        msg = f"{path} is outside the checkout"
        raise PermissionError(msg)
    return found


def note(context: ToolContext, what: str) -> None:
    """Leave a trace of this body in the outside world."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with JOURNAL.open("a", encoding="utf-8") as journal:
        journal.write(f"{context.idempotency_key} {what} {os.getpid()}\n")


@tool(catch=[OSError])
def list_files(folder: Annotated[str, "Relative to the checkout"], context: ToolContext) -> list[str]:
    """List the Python files of a folder."""
    note(context, "list_files")
    found = sorted(inside(folder).rglob("*.py"))
    return [str(path.relative_to(CHECKOUT)) for path in found[:MOST]]


@tool(catch=[OSError])
def read_file(path: Annotated[str, "Relative to the checkout"], context: ToolContext) -> str:
    """Read a text file."""
    note(context, "read_file")
    return inside(path).read_text(encoding="utf-8")


@tool(catch=[OSError])
def count_lines(path: Annotated[str, "Relative to the checkout"], context: ToolContext) -> int:
    """Count the lines of a text file."""
    note(context, "count_lines")
    return len(inside(path).read_text(encoding="utf-8").splitlines())


@tool(catch=[OSError])
def search(text: str, folder: Annotated[str, "Relative to the checkout"], context: ToolContext) -> list[str]:
    """Search the Python files of a folder for a text."""
    note(context, "search")
    hits = [
        f"{path.relative_to(CHECKOUT)}:{number}: {line.strip()}"
        for path in sorted(inside(folder).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if text in line
    ]
    return hits[:MOST]


@tool(catch=[OSError])
def write_report(text: str, context: ToolContext) -> str:
    """Write the report into the scratch folder."""
    note(context, "write_report")
    SCRATCH.mkdir(parents=True, exist_ok=True)
    path = SCRATCH / "report.md"
    path.write_text(text, encoding="utf-8")
    return str(path.relative_to(CHECKOUT))


agent = Agent(
    name="demo",
    model="openai/scripted",
    description="Looks around in a checkout and writes a report.",
    instructions="""
        You look around in the checkout of a Python project with your tools and write a short report about it.
        Write the report with write_report, then say in one sentence what you found.
    """,
    tools=[list_files, read_file, count_lines, search, write_report],
    max_steps=30,
)
