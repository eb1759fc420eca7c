"""Toolsets: tools that share state. An instance stands among an agent's tools in place of its methods."""

import asyncio
import contextvars
import inspect
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import MethodType, TracebackType
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, cast, overload

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from perdure.agents.errors import ToolDefinitionError, ToolUnavailableError
from perdure.agents.tool import Tool, ToolSettings, make_tool
from perdure.contracts.tools import wire_name

P = ParamSpec("P")
R = TypeVar("R")

EVERY_VARIANT = "all"
"""A toolset of this variant offers every method; a method of this variant is in every toolset."""

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
        return instance.tool_of(self)

    def bound(self, toolset: "Toolset") -> Tool[P, R]:
        """The tool of an instance."""
        name = self.settings.get("name") or self.function.__name__
        changes: dict[str, Any] = {"name": wire_name(toolset.name, name) if toolset.name else name}
        reconcile = self.settings.get("reconcile")
        if reconcile is not None:
            changes["reconcile"] = _bound(reconcile, toolset)
        return make_tool(_bound(self.function, toolset), cast("ToolSettings", {**self.settings, **changes}), toolset)


def _bound(function: Callable[..., Any], toolset: "Toolset") -> Callable[..., Any]:
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
        settings: Those of :func:`perdure.tool`. ``name`` is the part of the wire name behind the toolset's own, and a
            ``reconcile`` is a method too.
    """
    if function is None:
        return lambda body: ToolMethod(body, variants, settings)
    return ToolMethod(function, variants, settings)


class Toolset(BaseModel):
    """Tools that share state: a class whose ``@tool_method`` methods a model can call.

    Fields are declared as in any pydantic model, and given by keyword. State that is no setting goes into attributes
    whose names begin with an underscore; override :meth:`lifespan` to open and close it.

    Attributes:
        name: Stands before the names of its tools, ``name__method``; without one they have the bare names.
        variant: Which of its methods are offered.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, ignored_types=(ToolMethod,))

    name: str = Field(default="", pattern=r"^([A-Za-z0-9][A-Za-z0-9_-]{0,31})?$")
    variant: str = EVERY_VARIANT

    _made: dict[str, Tool[..., Any]] = PrivateAttr(default_factory=dict[str, Tool[..., Any]])
    _door: asyncio.Lock = PrivateAttr(default_factory=asyncio.Lock)
    _inside: int = PrivateAttr(default=0)
    _running: AbstractAsyncContextManager[None] | None = PrivateAttr(default=None)

    _ours: ClassVar = frozenset({"__enter__", "__exit__", "__aenter__", "__aexit__"})

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - pydantic checks each field
        """Check the settings.

        Raises:
            ToolDefinitionError: A setting cannot be used.
        """
        kind = type(self).__name__
        try:
            super().__init__(**settings)
        except ValidationError as error:
            first = error.errors()[0]
            msg = f"toolset {kind}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise ToolDefinitionError(msg) from error
        self._check_variant(self.variant)

    def __init_subclass__(cls, **settings: Unpack[ConfigDict]) -> None:
        """Refuse what would not be entered as we promise."""
        super().__init_subclass__(**settings)
        if cls._ours & vars(cls).keys():
            msg = f"toolset {cls.__name__}: override lifespan(), with @asynccontextmanager, to be entered and left once"
            raise ToolDefinitionError(msg)
        if inspect.isasyncgenfunction(vars(cls).get("lifespan")):
            msg = f"toolset {cls.__name__}: put @asynccontextmanager over lifespan"
            raise ToolDefinitionError(msg)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """What is open while the toolset is in use, on the event loop of its async methods.

        A worker enters it once, before the first call, and leaves it once, when it stops.
        """
        yield

    async def __aenter__(self) -> Self:
        """Enter; whoever enters when it is entered already only counts."""
        async with self._door:
            if self._inside == 0:
                self._running = self.lifespan()
                await self._running.__aenter__()
            self._inside += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave; the last one out closes."""
        async with self._door:
            self._inside -= 1
            if self._inside == 0 and self._running is not None:
                running, self._running = self._running, None
                await running.__aexit__(kind, error, trace)

    @property
    def tools(self) -> tuple[Tool[..., Any], ...]:
        """The tools of its variant, in the order of their definition."""
        return self._tools_of(self.variant)

    def get_tools(self, variant: str | None = None) -> tuple[Tool[..., Any], ...]:
        """The tools of a variant; by default of its own.

        Raises:
            ToolDefinitionError: There is no such variant.
        """
        variant = self.variant if variant is None else variant
        self._check_variant(variant)
        return self._tools_of(variant)

    def _tools_of(self, variant: str) -> tuple[Tool[..., Any], ...]:
        return tuple(
            self.tool_of(method)
            for method in self._methods()
            if variant == EVERY_VARIANT or not {variant, EVERY_VARIANT}.isdisjoint(method.variants)
        )

    def _check_variant(self, variant: str) -> None:
        known = {name for method in self._methods() for name in method.variants} | {EVERY_VARIANT}
        if variant not in known:
            msg = f"toolset {type(self).__name__} has no variant {variant!r}; it has {', '.join(sorted(known))}"
            raise ToolDefinitionError(msg)

    def tool_of(self, method: ToolMethod[P, R]) -> Tool[P, R]:
        """The tool that a method is on this instance."""
        key = method.function.__qualname__
        if key not in self._made or self._made[key].toolset is not self:  # a copy has the tools of the first
            self._made[key] = method.bound(self)
        return cast("Tool[P, R]", self._made[key])

    def _methods(self) -> list[ToolMethod[..., Any]]:
        names = dict.fromkeys(name for base in reversed(type(self).__mro__) for name in vars(base))
        found = (inspect.getattr_static(type(self), name, None) for name in names)
        return [method for method in found if isinstance(method, ToolMethod)]


class OpenToolsets:
    """The toolsets that a process has entered: each once, before its first call, in a task that leaves it too."""

    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}

    async def enter(self, toolset: Toolset) -> None:
        """Wait until the toolset is entered; what fails is tried again by the next call.

        Raises:
            ToolsetError: It could not be entered.
        """
        kept = self._kept.get(id(toolset))
        if kept is None or kept.task.done():
            kept = self._kept[id(toolset)] = _Kept(toolset)
        await asyncio.shield(kept.entered)

    async def leave(self) -> list[ToolsetError]:
        """Leave all of them, and say which could not be."""
        kept = list(self._kept.values())
        self._kept.clear()
        return [error for error in await asyncio.gather(*(one.left() for one in kept)) if error is not None]


class _Kept:
    """One toolset that is entered, and the task that is inside."""

    def __init__(self, toolset: Toolset) -> None:
        self.entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.entered.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._leaving = asyncio.Event()
        # Not in the context of the call that came first.
        self.task = asyncio.create_task(self._keep(toolset), context=contextvars.Context())
        self._toolset = toolset

    async def left(self) -> ToolsetError | None:
        """Have the task leave; one that is still entering gives up."""
        self._leaving.set()
        if not self.entered.done():
            self.task.cancel()
        (result,) = await asyncio.gather(self.task, return_exceptions=True)
        return result if isinstance(result, ToolsetError) else None

    async def _keep(self, toolset: Toolset) -> ToolsetError | None:
        failure: BaseException = asyncio.CancelledError("it was cancelled")
        try:
            async with toolset:
                self.entered.set_result(None)
                await self._leaving.wait()
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - the edge: it is the author's code
            failure = error
        else:
            return None
        finally:
            if not self.entered.done():
                self.entered.set_exception(self._error("entered", failure))
        return self._error("left", failure)

    def _error(self, verb: str, error: BaseException) -> ToolsetError:
        reason = f"{type(error).__name__}: {error}"
        made = ToolsetError(f"the toolset {type(self._toolset).__name__} could not be {verb}: {reason}")
        made.__cause__ = error
        return made
