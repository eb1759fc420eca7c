"""Output of the verbs: lines, tables and JSON, on a terminal or into a pipe."""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

import click
from pydantic import BaseModel

from perdure.cli.render import Line, Tone, clean, table
from perdure.contracts.values import to_json_line

Item = TypeVar("Item")

_COLOURS: dict[Tone, dict[str, str | bool]] = {
    Tone.PLAIN: {},
    Tone.HEAD: {"bold": True},
    Tone.QUIET: {"dim": True},
    Tone.GOOD: {"fg": "green"},
    Tone.WARNING: {"fg": "yellow"},
    Tone.BAD: {"fg": "red"},
}


def show(line: Line) -> None:
    """Print a line without what steers a terminal, in colour on one unless ``NO_COLOR`` is set."""
    click.echo(style_line(line), color=None if not os.environ.get("NO_COLOR") else False)


def style_line(line: Line) -> str:
    """The line in its colour, without what steers a terminal."""
    return click.style(clean(line.text), **_COLOURS[line.tone])  # type: ignore[arg-type]


def show_paged(rows: Sequence[Line]) -> None:
    """Print lines; at a terminal that is too low for them, through the pager."""
    if sys.stdout.isatty() and len(rows) >= shutil.get_terminal_size().lines:
        plain = False if os.environ.get("NO_COLOR") else None
        click.echo_via_pager((f"{style_line(row)}\n" for row in rows), color=plain)
        return
    for row in rows:
        show(row)


def columns() -> int | None:
    """Width of the terminal; None where stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]], tones: Sequence[Tone] = ()) -> None:
    """Print rows below their heads; as wide as the terminal, or whole where none is."""
    for place, line in enumerate(table([[head.upper() for head in heads], *rows], columns())):
        show(Line(line, Tone.QUIET if place == 0 else tones[place - 1] if tones else Tone.PLAIN))


def print_json(value: object) -> None:
    """Print one JSON object as one line; what steers a terminal and is left as it is by JSON is escaped."""
    click.echo(to_json_line(value.model_dump(mode="json") if isinstance(value, BaseModel) else value))


def print_list(
    values: Sequence[Item], heads: Sequence[str], row: Callable[[Item], Sequence[str]], none: str, *, as_json: bool
) -> None:
    """Print each value as a line of JSON, or all as a table; ``none`` says in place of a table that it is empty."""
    if as_json:
        for value in values:
            print_json(value)
    elif values:
        print_table(heads, [row(value) for value in values])
    else:
        click.echo(none)
