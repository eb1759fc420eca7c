"""Runs tool bodies, and hears how far they are.

No body runs on the worker's event loop, so that a blocking one cannot stop heartbeats. Progress that a body or a server
reports goes to the heartbeat and to the event log.
"""

import asyncio
import contextlib
import contextvars
import inspect
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from temporalio import activity

from perdure.activities.failures import redact
from perdure.activities.heartbeat import reporter
from perdure.activities.tool_output import call_event
from perdure.agents.context import InvalidInputError, ToolContext
from perdure.agents.environment import from_environment
from perdure.agents.files import File
from perdure.agents.tool import Tool
from perdure.agents.toolset import LEAVING_SECONDS, OpenToolsets, Toolset
from perdure.contracts.events import NewEvent, ToolProgress
from perdure.contracts.tools import CallTool
from perdure.contracts.values import JsonValue, json_object
from perdure.store import Store
from perdure.store.errors import StoreError

logger = logging.getLogger("perdure.tools")

masked: contextvars.ContextVar[frozenset[str]] = contextvars.ContextVar("perdure_masked", default=frozenset())
"""What nobody but the running body may see, of its arguments: the worker's log is written without it."""


class BodyExitedError(Exception):
    """A tool tried to end the process, with ``sys.exit`` for example."""


@dataclass(kw_only=True)
class CodeContext:
    """What code of an agent may know of its turn; its flag is set when it should end."""

    session: str
    turn: int
    stop: threading.Event = field(default_factory=threading.Event)
    data: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    tenant: str = ""
    by: str = ""

    @property
    def cancelled(self) -> bool:
        """Whether the flag is set."""
        return self.stop.is_set()

    def wait(self, seconds: float) -> bool:
        """Block until the flag is set, at most so long."""
        return self.stop.wait(seconds)


@dataclass(kw_only=True)
class CallContext(CodeContext, ToolContext):
    """The context of one call; its flag is set when the turn is cancelled or the call ran out of time."""

    call_id: str
    idempotency_key: str
    report: Callable[[float, float | None, str], None] | None = None
    find: Callable[[str], File | None] | None = None
    stop_reason: str | None = None

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
            return asyncio.run_coroutine_threadsafe(self._run_method(tool.toolset, tool, arguments), self._loop)
        if tool.is_async:
            return asyncio.run_coroutine_threadsafe(_run_contained(tool.function, arguments), self._loop)
        return self._run_on_a_thread(tool.function, arguments)

    def start_function(self, function: Callable[..., Any], arguments: Sequence[object]) -> Future[Any]:
        """Start a function that is no tool's body; cancelling the future is the same as there."""
        names = dict(zip(inspect.signature(function).parameters, arguments, strict=True))
        if inspect.iscoroutinefunction(function):
            return asyncio.run_coroutine_threadsafe(_run_contained(function, names), self._loop)
        return self._run_on_a_thread(function, names)

    def close(self) -> None:
        """Leave the toolsets, cancel what still runs, and stop both; a body that will not end is left behind."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        leaving = asyncio.run_coroutine_threadsafe(self._toolsets.leave(), self._loop)
        try:
            for error in leaving.result(LEAVING_SECONDS):
                logger.warning("%s", error)
        except TimeoutError:
            logger.warning("the toolsets could not be left within %g s", LEAVING_SECONDS)
        ending = asyncio.run_coroutine_threadsafe(_cancel_bodies(), self._loop)
        with contextlib.suppress(TimeoutError):  # a body blocks the loop
            ending.result(2 * CANCELLING_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=1)
        if not self._thread.is_alive():
            self._loop.close()

    async def _run_method(self, toolset: Toolset, tool: Tool[..., Any], arguments: dict[str, Any]) -> Any:  # noqa: ANN401
        """Run a method, once its toolset is entered."""
        await self._toolsets.enter(toolset)
        if tool.is_async:
            return await _run_contained(tool.function, arguments)
        return await asyncio.wrap_future(self._run_on_a_thread(tool.function, arguments))

    def _run_on_a_thread(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Future[Any]:
        outer = contextvars.copy_context()
        return self._pool.submit(lambda: outer.run(_run_contained_sync, function, arguments))


async def wait_within(
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


CANCELLING_SECONDS = 1.0
"""Longest time that async bodies have to end when the worker closes."""


async def _cancel_bodies() -> None:
    """Cancel every other task of the loop; asyncio tells of a task that is destroyed while it waits at any time."""
    running = asyncio.all_tasks() - {asyncio.current_task()}
    for task in running:
        task.cancel()
    if running and (stubborn := (await asyncio.wait(running, timeout=CANCELLING_SECONDS))[1]):
        logger.warning("%d async tools ignore that they are cancelled, and are left behind", len(stubborn))


async def _run_contained(body: Callable[..., Awaitable[Any]], arguments: dict[str, Any]) -> Any:  # noqa: ANN401
    try:
        return await body(**arguments)
    except (SystemExit, KeyboardInterrupt) as error:
        msg = f"the tool tried to end the process: {error!r}"
        raise BodyExitedError(msg) from error


def _run_contained_sync(body: Callable[..., Any], arguments: dict[str, Any]) -> Any:  # noqa: ANN401
    try:
        return body(**arguments)
    except (SystemExit, KeyboardInterrupt) as error:
        msg = f"the tool tried to end the process: {error!r}"
        raise BodyExitedError(msg) from error


PROGRESS_SECONDS = 1.0
"""Seconds between two events of one call; of what is reported meanwhile the last counts."""

MESSAGE_CHARACTERS = 200
"""Longest message of a report."""

LONGEST_READ = 4_000
"""Characters of a message that are read."""

Report = tuple[float, float | None, str]


class Progress:
    """The reports of one attempt at a call: taken from any thread, written by the worker's loop.

    Nobody ever waits for them. The last one is written with the call's result, so that none follows it.
    """

    def __init__(self, *, store: Store, call: CallTool, claimant: str) -> None:
        self._store = store
        self._call = call
        self._claimant = claimant
        self._tool = activity.info().activity_type
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._note = reporter()
        self._secrets: Collection[str] = ()
        self._open = False
        self._woken = False
        self._report: Report | None = None
        self._unwritten: NewEvent | None = None
        self._writer: asyncio.Task[None] | None = None
        self._count = 0

    @contextlib.contextmanager
    def take_reports(self, secrets: Collection[str]) -> Iterator[None]:
        """Take reports until the block ends; none of them shows a secret."""
        self._secrets, self._open = secrets, True
        try:
            yield
        finally:
            self._open = False
            if self._writer is not None:
                self._writer.cancel()

    def report(self, progress: float, total: float | None = None, message: str = "") -> None:
        """Take a report, from any thread."""
        if not self._open:
            return
        self._report = (progress, total, message)
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the worker has ended, and a body runs on
                self._loop.call_soon_threadsafe(self._wake, context=self._context)

    def take_last(self) -> list[NewEvent]:
        """What was reported and may not have been written; to be written with the result."""
        self._has_next()
        return [] if self._unwritten is None else [self._unwritten]

    def _wake(self) -> None:
        self._woken = False
        if self._open and self._writer is None:
            self._writer = asyncio.create_task(self._write())

    async def _write(self) -> None:
        """Write at most one event a second, until there was nothing new for as long."""
        while self._has_next():
            await self._store_it()
            await asyncio.sleep(PROGRESS_SECONDS)
        self._writer = None

    def _has_next(self) -> bool:
        """Make an event of the last report; False if there is nothing to write."""
        report, self._report = self._report, None
        progress = None if report is None else self._read(report)
        if progress is not None:
            self._note(str(progress))
            self._count += 1
            key = f"tool_progress/{self._claimant}/{self._count}"
            self._unwritten = call_event(self._call, progress, key=key)
        return self._unwritten is not None

    def _read(self, report: Report) -> ToolProgress | None:
        progress, total, message = report
        text = redact(" ".join(str(message)[:LONGEST_READ].split()), self._secrets)[:MESSAGE_CHARACTERS]
        try:
            return ToolProgress(
                call_id=self._call.call_id, tool=self._tool, progress=progress, total=total, message=text
            )
        except ValidationError:
            activity.logger.warning("%s reported a progress that is no finite number", self._tool)
            return None

    async def _store_it(self) -> None:
        event = self._unwritten
        if event is None:
            return
        try:
            held = await self._store.report_progress(self._call.session, self._call.call_id, self._claimant, event)
        except StoreError as error:  # written with the next one, or with the result
            activity.logger.debug("the progress of %s is not stored yet: %s", self._tool, error)
            return
        self._open = self._open and held
        if self._unwritten is event:
            self._unwritten = None


def parse_arguments(raw: str) -> dict[str, JsonValue]:
    """The model's arguments as JSON.

    Raises:
        InvalidInputError: They are no JSON object.
    """
    try:
        return json_object(raw or "{}")
    except ValueError as error:
        msg = f"the arguments are no JSON object: {error}"
        raise InvalidInputError(msg) from error


def check_arguments(tool: Tool[..., Any], raw: str) -> dict[str, Any]:
    """The model's arguments as the body takes them.

    Raises:
        InvalidInputError: They are no JSON object, or do not fit the schema.
    """
    return tool.check_arguments(parse_arguments(raw))
