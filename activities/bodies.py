"""Where tool bodies run: never on the worker's event loop, so that a blocking one cannot stop heartbeats."""

import asyncio
import contextvars
import inspect
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from perdure.agents.context import ToolContext
from perdure.agents.errors import InvalidInputError
from perdure.agents.files import File
from perdure.agents.needs import from_environment
from perdure.agents.tool import Tool
from perdure.agents.toolset import LEAVING_SECONDS, OpenToolsets, Toolset
from perdure.contracts.values import JsonValue

logger = logging.getLogger("perdure.tools")

masked: contextvars.ContextVar[frozenset[str]] = contextvars.ContextVar("perdure_masked", default=frozenset())
"""What nobody but the running body may see, of its arguments: the worker's log is written without it."""


class BodyExitedError(Exception):
    """A tool tried to end the process, with ``sys.exit`` for example."""


@dataclass
class CallContext(ToolContext):
    """The context of one call; its flag is set when the turn is cancelled or the call ran out of time."""

    session: str
    turn: int
    call_id: str
    idempotency_key: str
    stop: threading.Event = field(default_factory=threading.Event)
    report: Callable[[float, float | None, str], None] | None = None
    find: Callable[[str], File | None] | None = None
    stop_reason: str | None = None
    data: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    tenant: str = ""
    by: str = ""

    @property
    def cancelled(self) -> bool:
        """Whether the body should end."""
        return self.stop.is_set()

    def wait(self, seconds: float) -> bool:
        """Block until the flag is set, at most so long."""
        return self.stop.wait(seconds)

    def report_progress(self, progress: float, total: float | None = None, message: str = "") -> None:
        """Hand it to who writes it."""
        if self.report is not None:
            self.report(progress, total, message)

    def stop_turn(self, reason: str) -> None:
        """Note the reason; the first one counts."""
        if self.stop_reason is None:
            self.stop_reason = str(reason)

    def read_artifact(self, handle: str) -> File:
        """Find it."""
        found = self.find(handle) if self.find is not None else None
        if found is None:
            msg = f"this session has no artifact {handle!r}; a handle stands in the output that it belongs to"
            raise InvalidInputError(msg)
        return found


class Bodies:
    """Runs tool bodies: sync ones on a thread pool of their own, async ones on an event loop of their own.

    Toolsets are entered and left on that loop. What tools need of the environment is read once, so that it is what the
    worker knows as a secret.
    """

    def __init__(self, threads: int, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = dict(environment)
        self._toolsets = OpenToolsets()
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="perdure-tool")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="perdure-async-tools", daemon=True)
        self._thread.start()

    def start(self, tool: Tool[..., Any], arguments: dict[str, Any], context: CallContext) -> Future[Any]:
        """Start the body; cancelling the future cancels an async body, and a sync one that has not begun.

        Raises:
            UnmetNeedError: The environment lacks what the tool needs.
        """
        arguments = {**arguments, **from_environment(tool.needs, self._environment)}
        if tool.context_parameter is not None:
            arguments = {**arguments, tool.context_parameter: context}
        if tool.toolset is not None:
            return asyncio.run_coroutine_threadsafe(self._inside(tool.toolset, tool, arguments), self._loop)
        if tool.is_async:
            return asyncio.run_coroutine_threadsafe(_contained(tool.function, arguments), self._loop)
        return self._on_a_thread(tool.function, arguments)

    def start_function(self, function: Callable[..., Any], arguments: Sequence[object]) -> Future[Any]:
        """Start a function that is no tool's body; cancelling the future is the same as there."""
        names = dict(zip(inspect.signature(function).parameters, arguments, strict=True))
        if inspect.iscoroutinefunction(function):
            return asyncio.run_coroutine_threadsafe(_contained(function, names), self._loop)
        return self._on_a_thread(function, names)

    def close(self) -> None:
        """Leave the toolsets, and stop both; a blocking body that will not end is left behind."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        leaving = asyncio.run_coroutine_threadsafe(self._toolsets.leave(), self._loop)
        try:
            for error in leaving.result(LEAVING_SECONDS):
                logger.warning("%s", error)
        except TimeoutError:
            logger.warning("the toolsets could not be left within %g s", LEAVING_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=1)
        if not self._thread.is_alive():
            self._loop.close()

    async def _inside(self, toolset: Toolset, tool: Tool[..., Any], arguments: dict[str, Any]) -> Any:  # noqa: ANN401
        """Run a method, once its toolset is entered."""
        await self._toolsets.enter(toolset)
        if tool.is_async:
            return await _contained(tool.function, arguments)
        return await asyncio.wrap_future(self._on_a_thread(tool.function, arguments))

    def _on_a_thread(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Future[Any]:
        outer = contextvars.copy_context()
        return self._pool.submit(lambda: outer.run(_contained_sync, function, arguments))


async def within(
    body: Future[Any], seconds: float, *, who: str, late: TimeoutError, give_up: Callable[[], None]
) -> Any:  # noqa: ANN401
    """What a body comes to, or ``late`` if it takes too long; one that nobody waits for any more is given up.

    Raises:
        Exception: Whatever the body raises.
    """
    waiting, done = asyncio.wrap_future(body), False
    try:
        done = bool((await asyncio.wait([waiting], timeout=seconds))[0])
    finally:
        if not done:
            give_up()
            waiting.cancel()
    if not done:
        raise late
    if waiting.cancelled():
        msg = f"{who} cancelled itself"
        raise RuntimeError(msg)
    return waiting.result()


async def _contained(body: Callable[..., Awaitable[Any]], arguments: dict[str, Any]) -> Any:  # noqa: ANN401
    try:
        return await body(**arguments)
    except (SystemExit, KeyboardInterrupt) as error:
        msg = f"the tool tried to end the process: {error!r}"
        raise BodyExitedError(msg) from error


def _contained_sync(body: Callable[..., Any], arguments: dict[str, Any]) -> Any:  # noqa: ANN401
    try:
        return body(**arguments)
    except (SystemExit, KeyboardInterrupt) as error:
        msg = f"the tool tried to end the process: {error!r}"
        raise BodyExitedError(msg) from error
