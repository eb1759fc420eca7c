"""How far a running call is: what its body or its server reports, at the heartbeat and in the event log."""

import asyncio
import contextlib
import contextvars
from collections.abc import Collection, Iterator

from pydantic import ValidationError
from temporalio import activity

from perdure.activities.call_events import call_event
from perdure.activities.failures import redact
from perdure.activities.heartbeat import reporter
from perdure.contracts.events import NewEvent, ToolProgress
from perdure.contracts.tools import CallTool
from perdure.store import Store
from perdure.store.errors import StoreError

PROGRESS_SECONDS = 1.0
"""Seconds between two events of one call; of what is reported meanwhile the last counts."""

MESSAGE_CHARACTERS = 200
"""Longest message of a report."""

LONGEST_READ = 4_000
"""Of a message, no more is looked at."""

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
    def taken(self, secrets: Collection[str]) -> Iterator[None]:
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

    def last(self) -> list[NewEvent]:
        """What was reported and may not have been written; to be written with the result."""
        self._next()
        return [] if self._unwritten is None else [self._unwritten]

    def _wake(self) -> None:
        self._woken = False
        if self._open and self._writer is None:
            self._writer = asyncio.create_task(self._write())

    async def _write(self) -> None:
        """Write at most one event a second, until there was nothing new for as long."""
        while self._next():
            await self._store_it()
            await asyncio.sleep(PROGRESS_SECONDS)
        self._writer = None

    def _next(self) -> bool:
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
