"""Exceptions of code that perdure did not write: contained, and in words. Such an exception may fail when printed."""

import sys
import traceback
from dataclasses import dataclass
from typing import Any

MOST_LINKS = 100
"""Exceptions of a chain that are looked at."""


class RaisedError(Exception):
    """Stands for an exception that a worker's handlers would not see, or would take for a signal of its own.

    Attributes:
        raised: The exception: ``StopIteration``, or one outside ``Exception``.
    """

    def __init__(self, raised: BaseException) -> None:
        super().__init__()
        self.raised = raised


class BodyExitedError(Exception):
    """A tool tried to end the process, for example with ``sys.exit``."""


@dataclass(frozen=True)
class Failed:
    """Outcome of code that raised."""

    error: Exception


def failure_of(error: BaseException) -> Failed:
    """Whatever the code raised, as an exception that passes futures, coroutines and handlers like any other."""
    kind = type(error)  # the exception's own ``__class__`` is the author's code
    if not can_be_looked_at(error):
        return Failed(RaisedError(error))
    if issubclass(kind, SystemExit | KeyboardInterrupt):
        said = f"the tool tried to end the process: {repr_of(error)}"
        return Failed(BodyExitedError(said).with_traceback(error.__traceback__))
    if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
        return Failed(error)
    return Failed(RaisedError(error).with_traceback(error.__traceback__))


def value_of(came: Any) -> Any:  # noqa: ANN401 - whatever the code returned
    """The value that code came to.

    Raises:
        Exception: The code raised it.
    """
    if type(came) is Failed:  # ``isinstance`` would ask a value of the author's for its class
        raise came.error
    return came


def raised_of(error: BaseException) -> BaseException:
    """The exception that the code raised."""
    # ``isinstance`` would ask the exception itself, whose attributes are the author's code.
    return error.raised if type(error) is RaisedError else error


def kind_of(error: BaseException) -> str:
    """The name of the exception's class."""
    return type(raised_of(error)).__name__


def text_of(error: BaseException) -> str:
    """The exception's text, or "no message" if it has none or cannot be printed."""
    return words_of(error) or "no message"


def words_of(error: BaseException) -> str:
    """The exception's text; empty if it has none or cannot be printed."""
    return _print(raised_of(error)) or ""


def can_be_printed(error: BaseException) -> bool:
    """Whether the exception can be printed."""
    return _print(error) is not None


def _print(error: BaseException) -> str | None:
    try:
        return str.__str__(str(error))  # what an author's class makes of it may be more than a text
    except BaseException:  # noqa: BLE001 - the edge: its ``__str__`` is the author's code
        return None


def repr_of(error: BaseException) -> str:
    """The exception as its author would write it, or its class if that cannot be printed."""
    try:
        return str.__str__(repr(error))
    except BaseException:  # noqa: BLE001 - the edge: its ``__repr__`` is the author's code
        return kind_of(error)


def can_be_looked_at(error: BaseException) -> bool:
    """Whether the attributes of the exception and its causes can be read, as handlers, futures and logs do."""
    link: BaseException | None = error
    try:
        for _ in range(MOST_LINKS):
            if link is None or not (link.__class__ and hasattr(link, "__traceback__")):
                break
            link = link.__cause__ or link.__context__
    except BaseException:  # noqa: BLE001 - the edge: the attributes are the author's code
        return False
    return True


def print_error(error: BaseException) -> str:
    """The exception in one line: its class, and its text."""
    return f"{kind_of(error)}: {text_of(error)}"


def module_of(error: BaseException) -> str:
    """The module that raised an exception, or called the standard library's code that did."""
    modules = modules_of(error)
    named = next((name for name in modules if name.partition(".")[0] not in sys.stdlib_module_names), None)
    return named or next(iter(modules), "an unknown module")


def modules_of(error: BaseException) -> list[str]:
    """The modules of an exception's traceback, the innermost first."""
    try:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    except BaseException:  # noqa: BLE001 - the edge: its attributes are the author's code
        return []
    return [str(frame.f_globals.get("__name__", "")) for frame in reversed(frames)]


def print_traceback(error: BaseException) -> str:
    """The traceback with its causes, or the exception in one line if its attributes cannot be read."""
    try:
        return "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001 - likewise
        return print_error(error)
