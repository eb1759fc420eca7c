"""Lines that the code of authors prints, in the worker's log, which names session and tool, and masks secrets.

What a subprocess writes, what goes to ``sys.stdout.buffer``, and what the worker itself prints pass unchanged.
"""

import io
import logging
import sys
from contextvars import ContextVar
from typing import cast

LONGEST_UNFINISHED = 8_192
"""Characters without an end of line after which they are told all the same."""

LONGEST_LINE = 32_768
"""Characters of a line that are told, to bound the time that masking takes."""


class _Unfinished:
    """The line of each stream that a run of code has not ended yet."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def add(self, stream: str, text: str) -> None:
        """Tell the lines that end, and keep the rest."""
        *lines, rest = (self._texts.pop(stream, "") + text).split("\n")
        self._texts[stream] = rest
        for line in lines:
            _tell(stream, line)
        if len(rest) > LONGEST_UNFINISHED:
            self.tell_rest(stream)

    def tell_rest(self, stream: str) -> None:
        """Tell what is left of a stream."""
        _tell(stream, self._texts.pop(stream, ""))

    def tell_all(self) -> None:
        """Tell what is left of all streams."""
        for stream in list(self._texts):
            self.tell_rest(stream)


_unfinished: ContextVar[_Unfinished | None] = ContextVar("perdure_unfinished", default=None)


class GatheredLines:
    """Lines that a ``with`` block prints; one that has no end is told when the block ends.

    A class, as a generator's context manager looks at the exception that ends the block, which is the author's code.
    """

    def __enter__(self) -> None:
        self._gathered = _Unfinished()
        self._token = _unfinished.set(self._gathered)

    def __exit__(self, *_: object) -> None:
        try:
            self._gathered.tell_all()
        finally:
            _unfinished.reset(self._token)


def _tell(stream: str, line: str) -> None:
    """Write the line into the log at any level. What the log itself prints of its troubles passes unchanged."""
    text = line.rstrip().rpartition("\r")[2]  # what a terminal would show
    if not text.strip():
        return
    token = _unfinished.set(None)
    try:
        logger = logging.getLogger(stream)
        logger.handle(logger.makeRecord(stream, logging.INFO, "", 0, text[:LONGEST_LINE], (), None))
    finally:
        _unfinished.reset(token)


class Printed(io.TextIOWrapper):
    """A standard stream of which the lines of authors' code go into the log."""

    def __init__(self, stream: io.TextIOWrapper, name: str) -> None:
        super().__init__(stream.buffer, stream.encoding, stream.errors, line_buffering=True, write_through=True)
        self._name = name
        self._below = stream  # which would close the buffer when nobody refers to it

    def write(self, text: str, /) -> int:
        """Write the text, or gather its lines."""
        if (unfinished := _unfinished.get()) is None:
            return super().write(text)
        unfinished.add(self._name, text)
        return len(text)

    def flush(self) -> None:
        """Tell what has no end of line yet, too."""
        if (unfinished := _unfinished.get()) is not None:
            unfinished.tell_rest(self._name)
        super().flush()


def log_what_code_prints() -> None:
    """Have this process write what authors' code prints into its log, whose handlers have the streams already."""
    for name in ("stdout", "stderr"):
        stream = cast("io.TextIOWrapper", getattr(sys, name))
        stream.flush()
        setattr(sys, name, Printed(stream, name))
