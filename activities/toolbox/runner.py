"""Runs the bodies of tools, and takes the progress that they report.

No body runs on the worker's event loop, so that a blocking one cannot stop heartbeats. Progress goes into the heartbeat
and the event log.
"""

import asyncio
import contextlib
import contextvars
import logging
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError
from temporalio import activity

from perdure.activities.errors import redact_and_cut
from perdure.activities.heartbeat import reporter
from perdure.activities.toolbox.output import call_event
from perdure.agents.context import InvalidInputError, ToolContext
from perdure.agents.files import File
from perdure.agents.tool import Tool
from perdure.contracts.events import NewEvent, ToolProgress
from perdure.contracts.plain import to_number, to_text
from perdure.contracts.tools import CallTool
from perdure.contracts.values import JsonValue, json_object
from perdure.store import Store
from perdure.store.errors import StoreError

logger = logging.getLogger("perdure.tools")

T = TypeVar("T")

masked: contextvars.ContextVar[frozenset[str]] = contextvars.ContextVar("perdure_masked", default=frozenset())
"""Values of the running call's arguments that only its body may see: the worker's log masks them."""


@dataclass(kw_only=True)
class CodeContext:
    """Context of an agent's code in its turn. The flag ``stop`` is set when the code should end."""

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
            self.report(to_number(progress), None if total is None else to_number(total), _describe(message))

    def stop_turn(self, reason: str) -> None:
        """Ask the turn to end after this call. The first reason counts."""
        if self.stop_reason is None:
            self.stop_reason = to_text(reason)

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


def _describe(message: object) -> str:
    """The text of a report; empty if it cannot be printed."""
    try:
        return to_text(message)
    except Exception:  # noqa: BLE001 - the edge: ``__str__`` is the author's code, and a report never fails
        return ""


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
        text = redact_and_cut(" ".join(message[:LONGEST_READ].split()), self._secrets)[:MESSAGE_CHARACTERS]
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
