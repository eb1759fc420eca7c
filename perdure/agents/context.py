"""Values that a tool's function takes and returns: the context of its call, errors, and the answers of a reconciler."""

import inspect
import typing
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from perdure.agents.files import File
from perdure.contracts.values import JsonValue


class ToolDefinitionError(TypeError):
    """A function or a toolset cannot become tools; the message names the cause and the fix."""


class ToolUnavailableError(Exception):
    """The tool cannot run here and now, so nothing was done; the caller, such as the model, always gets the message."""


class InvalidInputError(Exception):
    """Arguments do not fit the tool; the caller, such as the model, always gets the message."""


class InvalidOutputError(Exception):
    """A tool returned a value that does not fit its annotation or has no JSON form, or more than may be stored."""


class ToolContext(ABC):
    """Facts of a tool's call: annotate a parameter with it, and the model never sees that parameter.

    Its methods may be called from sync and from async bodies, and from threads of their own.

    Attributes:
        session: The session's id.
        turn: The number of the turn.
        call_id: The call's id, unique in the session.
        idempotency_key: The same on every attempt of this call; hand it to services that deduplicate.
        data: The turn's ``context``, with ``${PERDURE_CONTEXT_…}`` replaced by the worker's variables; a copy.
        tenant: On whose behalf the turn runs; empty if the starter did not say.
        by: Who started the turn, as the starter says; perdure does not check it.
    """

    session: str
    turn: int
    call_id: str
    idempotency_key: str
    data: dict[str, JsonValue] = {}
    tenant: str = ""
    by: str = ""

    @property
    @abstractmethod
    def cancelled(self) -> bool:
        """Whether the turn was cancelled or the call ran out of time; a blocking tool should check this regularly."""

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """Block until cancelled, at most ``seconds``; True if cancelled. For sync tools, instead of ``time.sleep``."""

    def report_progress(self, progress: float, total: float | None = None, message: str = "") -> None:  # noqa: B027 - a context of one's own needs none
        """Say how far the call is, as often as you like: it takes no time, and never fails.

        People see it in the Temporal UI and in the event log, at most once a second; the last report always.
        """

    def stop_turn(self, reason: str) -> None:  # noqa: B027 - the same
        """End the turn as finished once all calls of this answer have their results.

        The model is not asked again; what the body returns is kept as its result. A call that fails does not end it.
        """

    def read_artifact(self, handle: str) -> File:
        """An output, an image or a file of this session by its handle. An async tool calls it with ``to_thread``.

        Raises:
            InvalidInputError: This session has no such artifact; the model is told so unless you catch it.
        """
        raise InvalidInputError(f"there is no artifact {handle!r} here")


@dataclass(frozen=True)
class Happened:
    """The lost attempt has had its effect; ``result`` is what the tool would have returned. The body does not run."""

    result: object


@dataclass(frozen=True)
class DidNotHappen:
    """The lost attempt has had no effect and cannot have one any more, so the body runs again."""


@dataclass(frozen=True)
class EffectUnknown:
    """Nobody can tell whether the effect happened; the model reads that, and ``why``."""

    why: str = ""


Effect = Happened | DidNotHappen | EffectUnknown

Reconcile = Callable[..., Effect | Awaitable[Effect]]
"""Looks in the world outside; takes the tool's arguments by name, and a ``ToolContext`` if a parameter is one."""


@dataclass(frozen=True)
class Reconciler:
    """A function that says what became of a lost call, and which of its parameters takes the context."""

    function: Reconcile
    context_parameter: str | None = None


def reconciler_of(function: Reconcile, body: Callable[..., object]) -> Reconciler:
    """The function as the reconciler of that body.

    Raises:
        TypeError: It cannot be called with the arguments of the body.
    """
    taken = _names_without_context(body)
    context = _context_parameter(function)
    by_name: dict[str, None] = dict.fromkeys(taken if context is None else [*taken, context])
    try:
        inspect.signature(function).bind(**by_name)
    except TypeError as error:
        msg = f"its reconciler cannot be called with the tool's arguments ({error}); give it the parameters of the tool"
        raise TypeError(msg) from error
    return Reconciler(function, context)


def _names_without_context(body: Callable[..., object]) -> list[str]:
    context = _context_parameter(body)
    return [name for name in inspect.signature(body).parameters if name != context]


def _context_parameter(function: Callable[..., object]) -> str | None:
    hints = typing.get_type_hints(function)
    return next((name for name in inspect.signature(function).parameters if hints.get(name) is ToolContext), None)
