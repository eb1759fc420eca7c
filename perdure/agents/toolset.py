"""Toolsets: tools that share state. An instance stands among an agent's tools in place of its methods."""

import asyncio
import contextvars
import inspect
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from types import MethodType, TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, cast, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perdure.agents.context import ToolDefinitionError, ToolUnavailableError
from perdure.agents.tool import Tool, ToolSettings, make_tool
from perdure.contracts.exceptions import print_error
from perdure.contracts.tools import wire_name
from perdure.contracts.values import describe_mistake

P = ParamSpec("P")
R = TypeVar("R")

EVERY_VARIANT = "all"
"""A toolset of this variant offers every method; a method of this variant is in every toolset."""

RESERVED = frozenset({"name", "variant", "lifespan", "tools", "get_tools"})
"""Documented names of toolsets. Every other name is the author's, but for pydantic's own ``model_…``."""

_READ_BY_AGENTS = frozenset({"tools", "get_tools"})

_OF_PYTHON = frozenset({"_abc_impl", "_setattr_handler"})
"""Names that Python and pydantic overwrite or call on every class of this kind."""

_ENTERING = frozenset({"__enter__", "__exit__", "__aenter__", "__aexit__"})

OPENING_SECONDS = 300.0
"""Longest time that a call waits for its toolset to be entered, before its own time-out begins."""

LEAVING_SECONDS = 10.0
"""Longest time that a process waits for its toolsets to be left."""


class ToolsetError(ToolUnavailableError):
    """A toolset could not be entered, or not be left; the message names it and the reason."""


class ToolMethod(Generic[P, R]):
    """A method of a toolset that models can call; on an instance it is a :class:`perdure.Tool`."""

    def __init__(
        self, function: Callable[Concatenate[Any, P], R], variants: Iterable[str], settings: ToolSettings
    ) -> None:
        self.function = function
        self.variants = (variants,) if isinstance(variants, str) else tuple(variants)
        self.settings = settings

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Tool[P, R]: ...
    def __get__(self, instance: object, owner: type) -> Self | Tool[P, R]:
        """The method itself on the class; on an instance the tool, always the same one."""
        if instance is None:
            return self
        if not isinstance(instance, Toolset):
            msg = f"{self.function.__qualname__}: tool_method is for classes that inherit from Toolset"
            raise ToolDefinitionError(msg)
        return _tool_of(instance, self)

    def bind(self, toolset: "Toolset") -> Tool[P, R]:
        """The tool of an instance."""
        name = self.settings.get("name") or self.function.__name__
        changes: dict[str, Any] = {"name": wire_name(toolset.name, name) if toolset.name else name}
        reconcile = self.settings.get("reconcile")
        if reconcile is not None:
            changes["reconcile"] = _bind(reconcile, toolset)
        return make_tool(_bind(self.function, toolset), cast("ToolSettings", {**self.settings, **changes}), toolset)


def _bind(function: Callable[..., Any], toolset: "Toolset") -> Callable[..., Any]:
    return MethodType(function, toolset)


@overload
def tool_method(function: Callable[Concatenate[Any, P], R], /) -> ToolMethod[P, R]: ...
@overload
def tool_method(
    *, variants: Iterable[str] = ..., **settings: Unpack[ToolSettings]
) -> Callable[[Callable[Concatenate[Any, P], R]], ToolMethod[P, R]]: ...
def tool_method(
    function: Callable[Concatenate[Any, P], R] | None = None,
    /,
    *,
    variants: Iterable[str] = (EVERY_VARIANT,),
    **settings: Unpack[ToolSettings],
) -> ToolMethod[P, R] | Callable[[Callable[Concatenate[Any, P], R]], ToolMethod[P, R]]:
    """Make a tool of a method of a :class:`Toolset`.

    Args:
        function: The method, sync or async.
        variants: The variants of the toolset that offer it; ``all``, the default, is in each.
        settings: Those of :func:`perdure.tool`. ``name`` is the part of the wire name after the toolset's own, and a
            ``reconcile`` is a method too.
    """
    if function is None:
        return lambda body: ToolMethod(body, variants, settings)
    return ToolMethod(function, variants, settings)


@dataclass
class _State:
    """State that perdure keeps of an instance: its tools, and who is inside."""

    made: "dict[ToolMethod[..., Any], Tool[..., Any]]" = field(default_factory=dict["ToolMethod[..., Any]", Any])
    door: asyncio.Lock = field(default_factory=asyncio.Lock)
    inside: int = 0
    running: AbstractAsyncContextManager[None] | None = None


def _state_of(toolset: "Toolset") -> _State:
    """The state of an instance; a copy has one of its own."""
    state: _State | None = getattr(toolset, "__perdure_state__", None)
    if state is None:
        state = _State()
        object.__setattr__(toolset, "__perdure_state__", state)
    return state


class Toolset(BaseModel):
    """Tools that share state: a class whose ``@tool_method`` methods a model can call.

    Fields are declared as in any pydantic model, and given by keyword. Other state goes into attributes whose names
    begin with an underscore; override :meth:`lifespan` to open and close it. Methods, fields and state may have any
    name but the five that are defined here.

    Attributes:
        name: Prefix of the names of its tools, as in ``name__method``; empty gives the bare names.
        variant: Variant whose methods are offered.
    """

    __slots__ = ("__perdure_state__",)  # of no instance's ``__dict__``, where authors' attributes are

    model_config = ConfigDict(
        extra="forbid", arbitrary_types_allowed=True, ignored_types=(ToolMethod,), protected_namespaces=()
    )

    name: str = Field(default="", pattern=r"^([A-Za-z0-9][A-Za-z0-9_-]{0,31})?$")
    variant: str = EVERY_VARIANT

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - pydantic checks each field
        """Check the settings.

        Raises:
            ToolDefinitionError: A setting cannot be used.
        """
        kind = type(self).__name__
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise ToolDefinitionError(f"toolset {kind}: {describe_mistake(error)}") from error
        _check_variant(self, self.variant)

    def __init_subclass__(cls, **settings: Unpack[ConfigDict]) -> None:
        """Refuse names that would not do what the author means."""
        super().__init_subclass__(**settings)
        _check_names(cls)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Open a resource for as long as the toolset is in use, on the event loop of its async methods.

        A worker enters it once, before the first call, and leaves it once, when it stops.
        """
        yield

    async def __aenter__(self) -> Self:
        """Enter; whoever enters when it is entered already only counts."""
        state = _state_of(self)
        async with state.door:
            if state.inside == 0:
                state.running = self.lifespan()
                await state.running.__aenter__()
            state.inside += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave; the last one out closes."""
        state = _state_of(self)
        async with state.door:
            state.inside -= 1
            if state.inside == 0 and state.running is not None:
                running, state.running = state.running, None
                await running.__aexit__(kind, error, trace)

    @property
    def tools(self) -> tuple[Tool[..., Any], ...]:
        """The tools of its variant, in the order of their definition."""
        return _tools_of(self, self.variant)

    def get_tools(self, variant: str | None = None) -> tuple[Tool[..., Any], ...]:
        """The tools of a variant; by default of its own.

        Raises:
            ToolDefinitionError: There is no such variant.
        """
        variant = self.variant if variant is None else variant
        _check_variant(self, variant)
        return _tools_of(self, variant)


def _check_names(kind: type[Toolset]) -> None:
    """Refuse what a class calls like something that perdure or pydantic reads of it."""
    own = cast("dict[str, object]", vars(kind))
    called = {*own, *cast("dict[str, object]", own.get("__annotations__", {}))}
    if _ENTERING & called:
        msg = f"toolset {kind.__name__}: override lifespan(), with @asynccontextmanager, to be entered and left once"
        raise ToolDefinitionError(msg)
    if inspect.isasyncgenfunction(own.get("lifespan")):
        raise ToolDefinitionError(f"toolset {kind.__name__}: put @asynccontextmanager over lifespan")
    state = {name for name in cast("dict[str, object]", own["__private_attributes__"]) if hasattr(BaseModel, name)}
    for name in sorted(called | state):
        if isinstance(own.get(name), ToolMethod) and (name in RESERVED or name.startswith("model_")):
            msg = f"toolset {kind.__name__}: {name} is a name that every toolset has; call the method otherwise, with "
            raise ToolDefinitionError(f"{msg}@tool_method(name={name!r}) if the model is to read it")
        if name in _READ_BY_AGENTS | _OF_PYTHON | state:
            who = "agents read" if name in _READ_BY_AGENTS else "Python and pydantic use"
            raise ToolDefinitionError(f"toolset {kind.__name__}: {name} is what {who}; choose another name")


def _tool_of(toolset: Toolset, method: ToolMethod[P, R]) -> Tool[P, R]:
    """The tool that a method is on an instance."""
    made = _state_of(toolset).made
    return cast("Tool[P, R]", made.get(method) or made.setdefault(method, method.bind(toolset)))


def _tools_of(toolset: Toolset, variant: str) -> tuple[Tool[..., Any], ...]:
    return tuple(
        _tool_of(toolset, method)
        for method in _methods_of(type(toolset))
        if variant == EVERY_VARIANT or not {variant, EVERY_VARIANT}.isdisjoint(method.variants)
    )


def _check_variant(toolset: Toolset, variant: str) -> None:
    kind = type(toolset)
    known = {name for method in _methods_of(kind) for name in method.variants} | {EVERY_VARIANT}
    if variant not in known:
        msg = f"toolset {kind.__name__} has no variant {variant!r}; it has {', '.join(sorted(known))}"
        raise ToolDefinitionError(msg)


def _methods_of(kind: type[Toolset]) -> list[ToolMethod[..., Any]]:
    authored = [base for base in reversed(kind.__mro__) if base not in {object, BaseModel, Toolset}]
    names = dict.fromkeys(name for base in authored for name in vars(base))
    found = (inspect.getattr_static(kind, name, None) for name in names)
    return [method for method in found if isinstance(method, ToolMethod)]


class OpenToolsets:
    """The toolsets that a process has entered: each once, before its first call, in a task that leaves it too."""

    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}

    @property
    def are_open(self) -> bool:
        """Whether there is one to leave."""
        return bool(self._kept)

    async def enter(self, toolset: AbstractAsyncContextManager[object]) -> None:
        """Wait until the toolset is entered; what fails is tried again by the next call.

        Raises:
            ToolsetError: It could not be entered.
        """
        kept = self._kept.get(id(toolset))
        if kept is None or kept.task.done():
            kept = self._kept[id(toolset)] = _Kept(toolset)
        try:
            async with asyncio.timeout(OPENING_SECONDS):
                await asyncio.shield(kept.entered)
        except TimeoutError:  # of nobody else, as what fails is a ToolsetError
            msg = f"it has not opened within {OPENING_SECONDS:g} s; the call did not run"
            raise kept.error("entered", msg) from None

    def abandon(self) -> None:
        """Leave none of them, since their loop is blocked for good: the next call of each enters it anew."""
        for kept in self._kept.values():
            kept.abandon()
        self._kept.clear()

    async def leave(self) -> list[ToolsetError]:
        """Leave all of them, and say which could not be."""
        kept = list(self._kept.values())
        self._kept.clear()
        return [error for error in await asyncio.gather(*(toolset.leave() for toolset in kept)) if error is not None]


class _Kept:
    """One toolset that is entered, and the task that is inside."""

    def __init__(self, toolset: AbstractAsyncContextManager[object]) -> None:
        self.entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.entered.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._leaving = asyncio.Event()
        # Not in the context of the call that came first.
        self.task = asyncio.create_task(self._keep(toolset), context=contextvars.Context())
        self._toolset = toolset

    def abandon(self) -> None:
        """Let the task be, whatever becomes of it."""
        if isinstance(self._toolset, Toolset):
            object.__setattr__(self._toolset, "__perdure_state__", _State(made=_state_of(self._toolset).made))

    async def leave(self) -> ToolsetError | None:
        """Have the task leave; one that is still entering gives up."""
        self._leaving.set()
        if not self.entered.done():
            self.task.cancel()
        (result,) = await asyncio.gather(self.task, return_exceptions=True)
        return result if isinstance(result, ToolsetError) else None

    async def _keep(self, toolset: AbstractAsyncContextManager[object]) -> ToolsetError | None:
        failure: BaseException = asyncio.CancelledError("it was cancelled")
        try:
            async with toolset:
                self.entered.set_result(None)
                await self._leaving.wait()
        except BaseException as error:
            if issubclass(type(error), asyncio.CancelledError) and self.task.cancelling():
                raise  # it was stopped
            failure = error
        else:
            return None
        finally:
            if not self.entered.done():
                self.entered.set_exception(self._failure("entered", failure))
        return self._failure("left", failure)

    def _failure(self, verb: str, error: BaseException) -> ToolsetError:
        made = self.error(verb, print_error(error))
        made.__cause__ = error
        return made

    def error(self, verb: str, why: str) -> ToolsetError:
        """The error of a toolset that could not be entered, or left."""
        return ToolsetError(f"the toolset {type(self._toolset).__name__} could not be {verb}: {why}")
