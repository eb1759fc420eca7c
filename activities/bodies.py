"""Where tool bodies run: never on the worker's event loop, so that a blocking one cannot stop heartbeats."""

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from perdure.agents.context import ToolContext
from perdure.agents.tool import Tool

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

    @property
    def cancelled(self) -> bool:
        """Whether the body should end."""
        return self.stop.is_set()

    def wait(self, seconds: float) -> bool:
        """Block until the flag is set, at most so long."""
        return self.stop.wait(seconds)


class Bodies:
    """Runs tool bodies: sync ones on a thread pool of their own, async ones on an event loop of their own."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="perdure-tool")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="perdure-async-tools", daemon=True)
        self._thread.start()

    def start(self, tool: Tool[..., Any], arguments: dict[str, Any], context: CallContext) -> Future[Any]:
        """Start the body; cancelling the future cancels an async body, and a sync one that has not begun."""
        if tool.context_parameter is not None:
            arguments = {**arguments, tool.context_parameter: context}
        if tool.is_async:
            return asyncio.run_coroutine_threadsafe(_contained(tool.function, arguments), self._loop)
        outer = contextvars.copy_context()
        return self._pool.submit(lambda: outer.run(_contained_sync, tool.function, arguments))

    def close(self) -> None:
        """Stop both; a blocking body that will not end is left behind."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=1)
        if not self._thread.is_alive():
            self._loop.close()


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
