"""The live rows at the bottom of a terminal, redrawn in place. The only module that writes control characters."""

import os
import shutil
import sys
from collections.abc import Sequence

import click

from perdure.cli.render import cut

FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def can_be_live() -> bool:
    """Whether stdout is a terminal that obeys control characters."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def erasing(rows: int) -> str:
    """What takes so many rows away, with the cursor behind the last."""
    up = f"\x1b[{rows - 1}A" if rows > 1 else ""
    return f"\r{up}\x1b[J" if rows else ""


class Screen:
    """Rows below all that is printed: :meth:`erase` before printing, :meth:`draw` behind it."""

    def __init__(self) -> None:
        self._drawn = 0
        self._frame = 0

    def erase(self) -> None:
        """Take the rows away."""
        if self._drawn:
            self._write(erasing(self._drawn))
            self._drawn = 0

    def draw(self, rows: Sequence[str]) -> None:
        """Show these rows in place of the last ones; none takes them away."""
        size = shutil.get_terminal_size()
        kept = [cut(row, size.columns - 3) for row in rows[: max(size.lines - 2, 1)]]
        if not kept:
            self.erase()
            return
        self._frame = (self._frame + 1) % len(FRAMES)
        marks = [FRAMES[self._frame], *[" "] * (len(kept) - 1)]
        styled = [click.style(f"{mark} {row}", dim=True) for mark, row in zip(marks, kept, strict=True)]
        text = "\n".join(styled if not os.environ.get("NO_COLOR") else map(click.unstyle, styled))
        self._write(f"{erasing(self._drawn)}{text}")
        self._drawn = len(kept)

    @staticmethod
    def _write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
