"""The hook decorator: a Python function becomes a hook of an agent, called with the events of its turns."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, Literal

from perdure.agents.author_warnings import check_hook, warn
from perdure.contracts.budgets import Usage
from perdure.contracts.conditions import AnyCondition
from perdure.contracts.events import Event, ToolEnd
from perdure.contracts.hooks import DEFAULT_HOOK_TIMEOUT, HOOK_EVENTS, AnyReaction, HookDeclaration, HookEvent
from perdure.contracts.messages import Message
from perdure.contracts.values import JsonValue, Value

_OF_HOOKS = frozenset({"react_step", "hook_end"})


class HookDefinitionError(TypeError):
    """A function cannot become a hook; the message names the cause and the fix."""


class StepEnd(Value):
    """A step has ended: the model's text, and the results of the calls it asked for. It stands in no log."""

    type: Literal["step_end"] = "step_end"
    output: str = ""
    results: tuple[ToolEnd, ...] = ()


HookedEvent = Event | StepEnd
"""Event that a hook is called with."""


class HookContext(ABC):
    """Context of the turn that a hook looks at: its second argument, if it takes two.

    Attributes:
        session: The session's id.
        turn: The number of the turn.
        step: The number of the step.
        usage: Tokens that the turn has used so far, its delegates included.
        cost_usd: US dollars that they have cost, as far as prices are known.
        data: The turn's ``context``, with ``${PERDURE_CONTEXT_…}`` replaced by the worker's variables; a copy.
        tenant: On whose behalf the turn runs; empty if the starter did not say.
        by: Who started the turn, as the starter says; perdure does not check it.
    """

    session: str
    turn: int
    step: int
    usage: Usage
    cost_usd: Decimal
    data: dict[str, JsonValue] = {}
    tenant: str = ""
    by: str = ""

    @property
    @abstractmethod
    def cancelled(self) -> bool:
        """Whether the turn was cancelled or the hook ran out of time; a blocking hook should check this regularly."""

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """Block until cancelled, at most ``seconds``; True if cancelled. For sync hooks, instead of ``time.sleep``."""

    @abstractmethod
    def messages(self, last: int = 20) -> tuple[Message, ...]:
        """The last messages of the conversation, up to the model's answer. An async hook calls it with ``to_thread``.

        The results of a step that has just ended are not among them; the events have them.
        """


Wish = AnyReaction | None
"""Reaction that a hook asks for; None leaves the turn alone."""

HookFunction = (
    Callable[[Any], Wish]
    | Callable[[Any, HookContext], Wish]
    | Callable[[Any], Awaitable[Wish]]
    | Callable[[Any, HookContext], Awaitable[Wish]]
)
"""A function that takes an event, and a context if it needs one."""


@dataclass(frozen=True)
class Hook:
    """A function with its declaration. Calling it calls the function, as if it were not decorated."""

    function: Callable[..., Any]
    declaration: HookDeclaration

    def __call__(self, *given: Any, **named: Any) -> Any:  # noqa: ANN401 - the function's own
        """Call the function."""
        return self.function(*given, **named)

    @property
    def name(self) -> str:
        """The name of the hook."""
        return self.declaration.name

    def arguments(self, event: HookedEvent, context: HookContext) -> tuple[object, ...]:
        """Arguments of the two that the function takes."""
        return (event, context)[: len(inspect.signature(self.function).parameters)]


def hook(
    *on: HookEvent | type[HookedEvent],
    when: AnyCondition | None = None,
    tool: str | None = None,
    name: str | None = None,
    timeout: timedelta = DEFAULT_HOOK_TIMEOUT,
) -> Callable[[HookFunction], Hook]:
    """Make a hook of a function: ``@hook("tool_end")``, or ``@hook(ToolEnd)``.

    The function takes the event, and a :class:`HookContext` if it has a second parameter. It returns a reaction, or
    None. Sync functions run in a thread, async ones on a loop of their own, like tools.

    Args:
        on: Events that call the hook: types such as ``"tool_end"``, or classes such as ``ToolEnd``.
        when: A stop condition (``perdure.stop``) that must hold too.
        tool: For events of tools: only this tool, by name or by a pattern with ``*`` and ``?``.
        name: Name of the hook; by default the function's name.
        timeout: Longest time one call may take; a hook that takes longer has failed.

    Raises:
        HookDefinitionError: The function or a setting cannot be used.
    """
    if not on or not all(isinstance(event, str) or _is_value(event) for event in on):
        raise HookDefinitionError(f"name the events: @hook('tool_end'); they are {', '.join(HOOK_EVENTS)}")
    events = [_event(event) for event in on]

    def made(function: HookFunction) -> Hook:
        called = name or str(getattr(function, "__name__", ""))
        _check(function, called)
        reference = f"{function.__module__}:{function.__qualname__}"
        settings = {"name": called, "on": events, "tool": tool, "when": when, "timeout": timeout}
        try:
            declaration = HookDeclaration.model_validate({**settings, "reference": reference})
        except ValueError as error:
            raise HookDefinitionError(f"hook {called!r}: {' '.join(str(error).split())}") from None
        warn(check_hook(function, declaration))
        return Hook(function, declaration)

    return made


def _is_value(given: object) -> bool:
    return isinstance(given, type) and issubclass(given, Value)


def _event(given: str | type[Value]) -> str:
    """The type of the events that are meant."""
    if isinstance(given, str):
        kind = given
    else:
        field = given.model_fields.get("type")
        kind = str(field.default) if field is not None else given.__name__
    if kind in HOOK_EVENTS:
        return kind
    if kind in _OF_HOOKS:
        raise HookDefinitionError(f"no hook can be on {kind!r}: hooks would react to their own reactions")
    near = get_close_matches(kind, HOOK_EVENTS, n=1)
    guess = f"; did you mean {near[0]!r}? The" if near else "; the"
    raise HookDefinitionError(f"a hook cannot be on {kind!r}{guess} events are {', '.join(HOOK_EVENTS)}")


def _check(function: Callable[..., Any], name: str) -> None:
    if not inspect.isfunction(function) and not inspect.ismethod(function):
        raise HookDefinitionError(f"hook {name or function!r}: decorate a function")
    parameters = list(inspect.signature(function).parameters.values())
    plain = all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)
    if not plain or not 1 <= len(parameters) <= 2:
        msg = f"hook {name!r} takes the event, and a HookContext if it needs one: def {name}(event, context)"
        raise HookDefinitionError(msg)
