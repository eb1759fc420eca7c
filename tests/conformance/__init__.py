"""Judges that nobody here wrote: official conformance suites, and servers of others."""

import sys
from typing import TextIO


def say(text: str, *, to: TextIO | None = None) -> None:
    """Write a line for the person who runs this."""
    (to or sys.stdout).write(f"{text}\n")
