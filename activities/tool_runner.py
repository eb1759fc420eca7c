"""Runs the bodies of tools, and takes the progress that they report.

No body runs on the worker's event loop, so that a blocking one cannot stop heartbeats. Progress goes into the heartbeat
and the event log.
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

from perdure.activities.failures import redact_and_cut
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
"""Values of the running call's arguments that only its body may see: the worker's log masks them."""


class BodyExitedError(Exception):
    """A tool tried to end the process, for example with ``sys.exit``."""


@dataclass(kw_only=True)
class CodeContext:
    """What an agent's code may know of its turn. The flag ``stop`` is set when the code should end."""

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
        """Block until the flag is set, at most ``seconds``; True if it is set."""
        return self.stop.wait(seconds)


@dataclass(kw_only=True)
class CallContext(CodeContext, ToolContext):
    """The context of one call. Its flag is set when the turn is cancelled, or the call reaches its timeout."""

    call_id: str
    idempotency_key: str
    report: Callable[[float, float | None, str], None] | None = None
    find: Callable[[str], File | None] | None = None
    stop_reason: str | None = None

    def report_progress(self, progress: float, total: float | None = None, message: str = "") -> None:
        """Report progress, if anybody takes it."""
        if self.report is not None:
            self.report(progress, total, message)

    def stop_turn(self, reason: str) -> None:
        """Ask the turn to end after this call. The first reason counts."""
        if self.stop_reason is None:
            self.stop_reason = str(reason)

    def read_artifact(self, handle: str) -> File:
        """Find an artifact of this session.

        Raises:
            InvalidInputError: The session has no such artifact.
        """
        found = self.find(handle) if self.find is not None else None
        if found is None:
            msg = f"this session has no artifact {handle!r}; a handle stands in the output that it belongs to"
            raise InvalidInputError(msg)
        return found


class Bodies:
    """Runs tool bodies: sync ones on a thread pool of their own, async ones on an event loop of their own.

    Toolsets are entered and left on that loop. The environment is read once, so that tools get exactly the values that
    the worker masks as secrets.
    """

    def __init__(self, threads: int, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = dict(environment)
        self._toolsets = OpenToolsets()
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="perdure-tool")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="perdure-async-tools", daemon=True)
        self._thread.start()

    def start(self, tool: Tool[..., Any], arguments: dict[str, Any], context: CallContext) -> Future[Any]:
        """Start the body. Cancelling the future cancels an async body, and a sync body that has not begun.

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
        """Start a function that is no tool's body. Cancelling the future has the same effect as for :meth:`start`."""
        names = dict(zip(inspect.signature(function).parameters, arguments, strict=True))
        if inspect.iscoroutinefunction(function):
            return asyncio.run_coroutine_threadsafe(_run_contained(function, names), self._loop)
        return self._run_on_a_thread(function, names)

    def close(self) -> None:
        """Leave the toolsets, cancel what still runs, and stop loop and pool. A body that does not end is abandoned."""
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
    """Wait for a body, and return its value. If it takes too long, or the wait is cancelled, give it up.

    Args:
        body: The running body.
        seconds: The body's timeout.
        who: The body's name, for messages.
        late: The exception to raise after the timeout.
        give_up: Called when the body is given up.

    Raises:
        Exception: Whatever the body raises, or ``late``.
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
    """Cancel every other task of the loop: asyncio logs a task that is destroyed while pending."""
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
"""Seconds between two progress events of one call. Of the reports in between the last counts."""

MESSAGE_CHARACTERS = 200
"""Longest message of a report in the event log."""

LONGEST_READ = 4_000
"""Characters of a message that are read, to bound the time that masking takes."""

Report = tuple[float, float | None, str]


class Progress:
    """The progress of one attempt at a call: reported from any thread, written by the worker's event loop.

    No report waits for its write. The last one is written with the call's result, so that none comes after it.
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
        """Take reports until the block ends, and mask ``secrets`` in them."""
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
            with contextlib.suppress(RuntimeError):  # the worker's loop is closed, and an abandoned body runs on
                self._loop.call_soon_threadsafe(self._wake, context=self._context)

    def take_last(self) -> list[NewEvent]:
        """The last report, if it may not have been written; to be written with the result."""
        self._has_next()
        return [] if self._unwritten is None else [self._unwritten]

    def _wake(self) -> None:
        self._woken = False
        if self._open and self._writer is None:
            self._writer = asyncio.create_task(self._write())

    async def _write(self) -> None:
        """Write at most one event a second, until a second passes without a report."""
        while self._has_next():
            await self._store_it()
            await asyncio.sleep(PROGRESS_SECONDS)
        self._writer = None

    def _has_next(self) -> bool:
        """Turn the last report into an event; False if there is nothing to write."""
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
        text = redact_and_cut(" ".join(str(message)[:LONGEST_READ].split()), self._secrets)[:MESSAGE_CHARACTERS]
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
        InvalidInputError: The arguments are no JSON object.
    """
    try:
        return json_object(raw or "{}")
    except ValueError as error:
        msg = f"the arguments are no JSON object: {error}"
        raise InvalidInputError(msg) from error


def check_arguments(tool: Tool[..., Any], raw: str) -> dict[str, Any]:
    """The model's arguments as the body's parameters.

    Raises:
        InvalidInputError: The arguments are no JSON object, or do not fit the schema.
    """
    return tool.check_arguments(parse_arguments(raw))
