"""What became of a call whose worker was lost: the answers of a tool's reconciler."""

import inspect
import typing
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from perdure.agents.context import ToolContext


@dataclass(frozen=True)
class Happened:
    """The lost attempt has had its effect; ``result`` is what the tool would have returned. The body does not run."""

    result: object


@dataclass(frozen=True)
class DidNotHappen:
    """The lost attempt has had no effect and cannot have one any more, so the body runs again."""


@dataclass(frozen=True)
class EffectUnknown:
    """Nobody can tell; the model reads so, and ``why``."""

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
    taken = _without_context(body)
    context = _context_parameter(function)
    by_name: dict[str, None] = dict.fromkeys(taken if context is None else [*taken, context])
    try:
        inspect.signature(function).bind(**by_name)
    except TypeError as error:
        msg = f"its reconciler cannot be called with the tool's arguments ({error}); give it the parameters of the tool"
        raise TypeError(msg) from error
    return Reconciler(function, context)


def _without_context(body: Callable[..., object]) -> list[str]:
    context = _context_parameter(body)
    return [name for name in inspect.signature(body).parameters if name != context]


def _context_parameter(function: Callable[..., object]) -> str | None:
    hints = typing.get_type_hints(function)
    return next((name for name in inspect.signature(function).parameters if hints.get(name) is ToolContext), None)
