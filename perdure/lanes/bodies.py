"""The code of authors on threads and loops: tools in one lane, hooks and all else in another."""

import inspect
import logging
import os
import re
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, ClassVar, Protocol, TypeVar, cast

from perdure.agents.context import InvalidOutputError
from perdure.agents.environment import from_environment
from perdure.agents.schemas import GivenUpError, Watch, watch
from perdure.agents.tool import Tool
from perdure.agents.toolset import LEAVING_SECONDS, OpenToolsets
from perdure.contracts.plain import is_of, to_plain
from perdure.lanes.lanes import Lane, Loops, Run

logger = logging.getLogger("perdure.tools")

T = TypeVar("T")

Arguments = Mapping[str, Any] | Callable[[], Mapping[str, Any]]
"""A body's arguments, or what makes them of the model's."""

PLACE_SECONDS = 30.0
"""Longest time that a call waits for a thread of this worker before another worker may take it."""

MOST_LEFT = 64
"""Loops of a process that may be left to what blocks them."""


class BodyContext(Protocol):
    """The context of a call, whose flag is set when its body should end."""

    @property
    def call_id(self) -> str:
        """The id of the call."""
        ...

    @property
    def stop(self) -> threading.Event:
        """The flag."""
        ...


@dataclass(frozen=True)
class ProcessLoops:
    """The loops that all bodies of a process have in common, as those of a worker do."""

    tools: Loops = field(default_factory=lambda: Loops("tool", MOST_LEFT))
    hooks: Loops = field(default_factory=lambda: Loops("hook", MOST_LEFT))


@cache
def loops_of_process() -> ProcessLoops:
    """The loops of this process. They end with it, so that a lock or a client of a module lasts from run to run."""
    return ProcessLoops()


Read = Callable[[object], Any]
"""Reads the value that a body returned; what it draws from generators is the author's code too."""


class Bodies:
    """Runs authors' code: tools in one lane, hooks and all else in another, so that neither holds the other up.

    Toolsets are entered and left on the loop of tools. The environment is read once, so that tools get exactly the
    values that the worker masks as secrets.

    Args:
        threads: The number of threads of each lane.
        environment: The environment.
        loops: The loops, if others have them too.
    """

    lane: ClassVar[type[Lane]] = Lane
    """The kind of its lanes."""

    def __init__(
        self, threads: int, environment: Mapping[str, str] = os.environ, loops: ProcessLoops | None = None
    ) -> None:
        self._environment = dict(environment)
        self._toolsets = OpenToolsets()
        self._tools = self.lane("tool", threads, None if loops is None else loops.tools)
        self._hooks = self.lane("hook", threads, None if loops is None else loops.hooks)
        self._tools.loops.residents.add(self._toolsets)
        # Of async tools, which shall wait for no sync one.
        self._results = self.lane("result", threads, self._tools.loops)

    def place(self, tool: Tool[..., Any]) -> AbstractAsyncContextManager[None]:
        """Have a thread for what a call of the tool runs in the block.

        Raises:
            TimeoutError: None was free in time.
        """
        return nullcontext() if tool.is_async else self._tools.place(PLACE_SECONDS)

    def is_full(self, tool: Tool[..., Any]) -> bool:
        """Whether a call of the tool has to wait for a thread."""
        return not tool.is_async and self._tools.is_full

    def describe_threads(self) -> str:
        """Who holds the threads of tools."""
        return self._tools.describe_threads()

    def start(self, tool: Tool[..., Any], arguments: Arguments, context: BodyContext, read: Read = to_plain) -> Run:
        """Start the body. Its arguments are checked, and what it returns is read, as a part of the run."""

        def prepare() -> dict[str, Any]:
            given = dict(arguments() if callable(arguments) else arguments)
            given |= from_environment(tool.needs, self._environment)
            return given if tool.context_parameter is None else {**given, tool.context_parameter: context}

        def carry_out() -> Any:  # noqa: ANN401 - what the author returns
            return _read_within(context, read, tool.function(**prepare()))

        async def carry_out_async() -> Any:  # noqa: ANN401 - likewise
            if not tool.is_async:
                return await self._tools.call_on_thread(tool.name, carry_out)
            returned = await tool.function(**prepare())
            if is_of(returned, str) and (tool.returns is None or tool.returns.is_text):
                return read(returned)
            return await self._results.call_on_thread(tool.name, lambda: _read_within(context, read, returned))

        if (toolset := tool.toolset) is not None:
            return self._tools.run_on_loop(tool.name, carry_out_async, lambda: self._toolsets.enter(toolset))
        if tool.is_async:
            return self._tools.run_on_loop(tool.name, carry_out_async)
        return self._tools.run_on_thread(tool.name, carry_out)

    def start_function(
        self, name: str, function: Callable[..., Any], arguments: Sequence[object], read: Read = to_plain
    ) -> Run:
        """Start a function other than a tool's body. What it returns is read as a part of the run."""
        names = dict(zip(inspect.signature(function).parameters, arguments, strict=True))

        async def carry_out_async() -> Any:  # noqa: ANN401 - the reader's
            return read(_refuse_unrun(await function(**names)))

        if inspect.iscoroutinefunction(function):
            return self._hooks.run_on_loop(name, carry_out_async)
        return self._hooks.run_on_thread(name, lambda: read(_refuse_unrun(function(**names))))

    def call_within(self, seconds: float, name: str, code: Callable[[], T]) -> T:
        """The result of an author's sync code other than a tool's body, for a caller that may block.

        Raises:
            TimeoutError: It took longer.
            Exception: The code raised it.
        """
        return self._hooks.call_within(seconds, name, code)

    def leave_toolsets(self) -> list[str]:
        """Leave the toolsets, and say which could not be; the next call of each enters it anew."""
        if not self._toolsets.are_open:
            return []
        try:
            return list(map(str, self._tools.loops.run_ours(self._toolsets.leave).result(LEAVING_SECONDS)))
        except TimeoutError:
            return [f"the toolsets could not be left within {LEAVING_SECONDS:g} s"]

    def close(self) -> None:
        """Leave the toolsets, cancel what still runs, and stop both lanes. A body that does not end is abandoned."""
        for problem in self.leave_toolsets():
            logger.warning("%s", problem)
        for lane in (self._tools, self._hooks, self._results):
            lane.close()


def _refuse_unrun(returned: object) -> object:
    """Return the value of a function, unless that is its own body, of which nothing has run yet.

    Raises:
        InvalidOutputError: It is; the message says what to write.
    """
    kind = type(returned)  # ``isinstance`` would ask the value for its class, which may be the author's code
    if issubclass(kind, Awaitable):
        if issubclass(kind, CoroutineType):
            CoroutineType.close(cast("CoroutineType[object, object, object]", returned))  # or Python would warn of it
        how = " that nobody awaited, so its code has not run; write 'async def' and 'return await …'"
    elif issubclass(kind, GeneratorType | AsyncGeneratorType):
        how = ", so its code has not run; write it without 'yield'"
    else:
        return returned
    msg = f"the function returned a {kind.__name__}{how}"
    raise InvalidOutputError(msg)


class _Stop(Watch):
    """Ends what reads a value once its call is given up."""

    def __init__(self, context: BodyContext | None) -> None:
        self._context = context

    def look(self) -> None:
        """Stop if the call is given up.

        Raises:
            GivenUpError: It is.
        """
        if self._context is not None and self._context.stop.is_set():
            msg = "the call was given up"
            raise GivenUpError(msg)

    def is_found(self, pattern: str, text: str) -> bool:
        """Whether a regular expression is found."""
        return re.search(pattern, text) is not None


def _read_within(context: BodyContext | None, read: Read, returned: object) -> Any:  # noqa: ANN401 - the reader's
    """Read a value, as long as its call is not given up."""
    token = watch.set(_Stop(context))
    try:
        return read(returned)
    finally:
        watch.reset(token)
