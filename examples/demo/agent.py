"""The demo's agent. Its tools do real work on this checkout; with ``--model`` a real model drives the same agent.

They read nothing outside the checkout and nothing hidden in it, and write only into a folder below ``.perdure/``.
"""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from perdure import Agent, ToolContext, tool

CHECKOUT = Path(__file__).resolve().parents[2]
SCRATCH = CHECKOUT / ".perdure" / "demo"
"""Below it each session has a folder of its own, named by its id."""

JOURNAL = "tool-bodies.log"
"""In a session's folder: one line for each tool body that really ran, which is what the outside world has seen."""

MOST = 200
"""Longest list a tool returns."""

RelativePath = Annotated[str, "Relative to the checkout, '.' for all of it"]


@tool(catch=[OSError])
def list_files(folder: RelativePath, context: ToolContext) -> list[str]:
    """List the files of a folder and the folders below it."""
    note(context, "list_files")
    return shortened(relative(path) for path in files(folder))


@tool(catch=[OSError])
def read_file(path: RelativePath, context: ToolContext) -> str:
    """Read a text file."""
    note(context, "read_file")
    return inside(path).read_text(encoding="utf-8", errors="replace")


@tool(catch=[OSError])
def count_lines(path: RelativePath, context: ToolContext) -> int:
    """Count the lines of a text file."""
    note(context, "count_lines")
    return len(inside(path).read_text(encoding="utf-8", errors="replace").splitlines())


@tool(catch=[OSError])
def search_text(text: str, folder: RelativePath, context: ToolContext) -> list[str]:
    """Search the files of a folder for a text; each hit is ``path:line number: line``."""
    note(context, "search_text")
    return shortened(
        f"{relative(path)}:{number}: {line.strip()}"
        for path in files(folder)
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1)
        if text in line
    )


@tool(catch=[OSError])
def count_matches(text: str, folder: RelativePath, context: ToolContext) -> dict[str, int]:
    """Count the lines with a text in each file of a folder; files without one are left out."""
    note(context, "count_matches")
    hits = Counter(
        relative(path)
        for path in files(folder)
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
        if text in line
    )
    return dict(hits.most_common(MOST))


@tool(catch=[OSError])
def write_report(text: str, context: ToolContext) -> str:
    """Write the report; the answer is where it was written."""
    note(context, "write_report")
    path = SCRATCH / context.session / "report.md"
    path.write_text(text, encoding="utf-8")
    return relative(path)


agent = Agent(
    name="demo",
    model="openai/scripted",
    description="Looks around in a checkout and writes a report.",
    instructions="""
        You look around in the checkout of a Python project with your tools and write a short report about it.
        Write the report with write_report, then say in one sentence what you found.
    """,
    tools=[list_files, read_file, count_lines, search_text, count_matches, write_report],
    max_steps=30,
)


def inside(path: str) -> Path:
    """The path inside the checkout; what is elsewhere or hidden (``.git``, ``.venv``, ``.env``) is refused."""
    found = (CHECKOUT / path).resolve()
    if not found.is_relative_to(CHECKOUT):
        msg = f"{path} is outside the checkout"
        raise PermissionError(msg)
    if any(part.startswith(".") for part in found.relative_to(CHECKOUT).parts):
        msg = f"{path} is hidden"
        raise PermissionError(msg)
    return found


def files(folder: str) -> Iterator[Path]:
    """The files of a folder in the order of their names, without hidden and generated ones."""
    top = inside(folder)
    if not top.is_dir():
        msg = f"there is no folder {folder}"
        raise NotADirectoryError(msg)
    for path, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__pycache__")))
        yield from (Path(path, name) for name in sorted(names) if not name.startswith("."))


def relative(path: Path) -> str:
    """The path as the tools take and return it."""
    return str(path.relative_to(CHECKOUT))


def shortened(rows: Iterator[str]) -> list[str]:
    """The first rows, and how many there are beside them."""
    found = list(rows)
    return found if len(found) <= MOST else [*found[:MOST], f"… and {len(found) - MOST} more"]


def note(context: ToolContext, what: str) -> None:
    """Leave a trace of this body in the outside world."""
    folder = SCRATCH / context.session
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / JOURNAL).open("a", encoding="utf-8") as journal:
        journal.write(f"{context.idempotency_key} {what} {os.getpid()}\n")
