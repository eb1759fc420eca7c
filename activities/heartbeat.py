"""The beat of a running activity: how a cancel reaches it, how a lost worker is noticed, and how it is handed over.

One thread of the process beats for all of its activities. Whatever holds up the event loop, the server goes on hearing
of them: a call that it takes for lost is made again, and paid again. Beats also carry how many attempts were lost with
their workers, so that a call that ends every worker it comes to is not made for ever.
"""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, cast

from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.bridge import proto
from temporalio.converter import PayloadCodec
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from perdure.activities.errors import error_of_shutdown, permanent, runtime_error
from perdure.contracts.errors import ErrorDetail, ReasonCode, code_of_kind
from perdure.contracts.exceptions import can_be_looked_at, can_be_printed, kind_of, module_of, print_error
from perdure.contracts.names import Activity
from perdure.contracts.values import replace
from perdure.libraries import mismatch_of
from perdure.security.redaction import redact_text

BEAT_SECONDS = 1.0
"""Seconds between two beats of a call. Temporal hands a cancel over with the answer to a beat."""

BEATS_PER_SECOND = 250
"""Beats of a whole worker: each is a write of the server's, and thousands a second would leave it no time for turns."""

LONGEST_BEAT_SECONDS = 5.0
"""The interval stays so far below ``perdure.workflows.options.HEARTBEAT_TIMEOUT`` that a slow server does no harm."""

STUCK_SECONDS = 60.0
"""An event loop that has not moved for so long is taken for dead: its calls are left to other workers."""

MOST_WORDS = 1_500
"""Longest text of a failure that nobody foresaw."""

MOST_LOST = 5
"""Attempts in a row that begin and are lost with their workers before the call is taken for what ends them. One that
never began says nothing about the call: a frozen worker had taken it from the queue, or it still waited."""

MOST_SPENT = 3
"""Attempts that paid for an answer, or ran an author's code, and could not keep what came of it."""

BEGUN_AGAIN: dict[str, str] = {
    Activity.GENERATE: "another worker asks the model again, and what it has answered is paid again",
    Activity.COMPACT: "another worker asks the model again, and what it has answered is paid again",
}
"""Fates of attempts that a drain cuts off, for the log; the fate of a tool's call is known once it is claimed."""

logger = logging.getLogger("perdure.worker")


def interval(running: int) -> float:
    """Seconds between two beats of each call, by the number of calls in this worker."""
    return min(max(BEAT_SECONDS, running / BEATS_PER_SECOND), LONGEST_BEAT_SECONDS)


class _Beat:
    """The beat of one attempt."""

    def __init__(self, least: float) -> None:
        info, self.least = activity.info(), least
        self.note = ""
        self.loop = asyncio.get_running_loop()
        self.due = 0.0
        self.last_delta_at: datetime | None = None
        self.lost = _count_lost(info.heartbeat_details)
        self.was_held = _says(info.heartbeat_details, "held")
        self.held = self.was_held
        self.was_stopped = _says(info.heartbeat_details, "stopped")
        self.stopped = self.was_stopped
        self.fate = BEGUN_AGAIN.get(info.activity_type, "another worker carries it out again")
        self._owns = False
        self.waits = False
        self.spent = False
        self.spent_attempts = _count_spent(info.heartbeat_details)
        self._attempt = info.attempt
        self._token = info.task_token
        self._converter = activity.payload_converter()
        self._worker, self._codec = _worker()

    def begin(self) -> None:
        """Leave word that a further attempt has begun, in case that it is lost before its first beat is due."""
        if self._attempt > 1:
            self.send()

    def send(self, *, running: bool = True) -> None:
        """Beat; from any thread, as the SDK's own function needs the event loop."""
        if self._worker is None:
            return
        runs = running and not self.waits
        state: dict[str, object] = {"lost_attempts": self.lost, "running_attempt": self._attempt if runs else 0}
        if self.held:
            state["held"] = True
        if self.stopped:
            state["stopped"] = True
        if self.spent_attempts:
            state["spent_attempts"] = self.spent_attempts
        if self.last_delta_at is not None:
            state["last_delta_at"] = self.last_delta_at.isoformat(timespec="seconds")
        payloads = _encode(self._codec, self._converter.to_payloads([*filter(None, [self.note]), state]))
        self._worker().record_activity_heartbeat(proto.ActivityHeartbeat(task_token=self._token, details=payloads))

    def hold(self, fate: str) -> None:
        """Note that this attempt holds its call, which has this fate if it is cut off."""
        self.held, self.fate, self._owns, self.stopped = True, fate, True, False

    def stop(self) -> None:
        """Leave word that the drain of this worker has cut the attempt off, and log it."""
        info = activity.info()
        self.stopped = self.stopped or self._owns
        self.end()
        logger.warning(
            "the drain has cut off %s of session %s: %s",
            *(info.activity_type, info.workflow_id, self.fate),
            extra={"session": info.workflow_id, "activity": info.activity_type, "attempt": info.attempt},
        )

    def end(self) -> None:
        """Leave word that this attempt was not lost, for the next one: the server keeps what the last beat said."""
        self.note = ""
        self.spent_attempts += self.spent
        self.send(running=False)


def _count_spent(details: Sequence[Any]) -> int:
    """Number of attempts that had paid for an answer or run an author's code, and could not keep the result."""
    told = [cast("dict[str, int]", part) for part in details if isinstance(part, dict)]
    return told[0].get("spent_attempts", 0) if told else 0


def _count_lost(details: Sequence[Any]) -> int:
    """Number of consecutive attempts that began and were lost: the last beat of such an attempt says that it runs."""
    told = [cast("dict[str, int]", part) for part in details if isinstance(part, dict)]
    return told[0]["lost_attempts"] + bool(told[0]["running_attempt"]) if told else 0


def _says(details: Sequence[Any], name: str) -> bool:
    """Whether an earlier attempt has left this word."""
    return any(cast("dict[str, object]", part).get(name) is True for part in details if isinstance(part, dict))


def _encode(codec: PayloadCodec | None, payloads: Sequence[Payload]) -> Sequence[Payload]:
    """Encrypt what a beat says, on any thread: our codec waits for nothing, so its first step is its last."""
    if codec is None:
        return payloads
    encoding = codec.encode(payloads)
    try:
        encoding.send(None)
    except StopIteration as done:
        encoded: Sequence[Payload] = done.value
        return encoded
    encoding.close()
    msg = "a codec that waits cannot encode a heartbeat"
    raise RuntimeError(msg)


def _worker() -> tuple[Callable[[], Any] | None, PayloadCodec | None]:
    """The SDK's worker of this activity, behind its interceptors, and its codec; none in the SDK's test environment."""
    context: Any = vars(activity)["_Context"]  # private: what the SDK offers beats on the event loop only
    link: Any = getattr(context.current().heartbeat, "__self__", None)
    while link is not None and not hasattr(link, "_worker"):
        link = getattr(link, "next", None)
    if link is None:
        return None, None
    worker = cast("dict[str, Any]", vars(link._worker))  # noqa: SLF001
    return cast("Callable[[], Any]", worker["_bridge_worker"]), worker["_data_converter"].payload_codec


class _Pulse:
    """The thread that beats for every running attempt of this process; it starts with the first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._beats: set[_Beat] = set()
        self._asked: dict[asyncio.AbstractEventLoop, float] = {}
        self._thread: threading.Thread | None = None

    def add(self, beat: _Beat) -> None:
        """Beat for this attempt from now on."""
        with self._changed:
            self._beats.add(beat)
            beat.due = time.monotonic() + max(beat.least, interval(len(self._beats)))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="perdure-heartbeat", daemon=True)
                self._thread.start()
            elif len(self._beats) == 1:
                self._changed.notify()

    def remove(self, beat: _Beat) -> None:
        """Beat for it no more: none is under way when this returns."""
        with self._changed:
            self._beats.discard(beat)

    def beat_now(self, beat: _Beat) -> None:
        """Beat for it at once, as there is news."""
        with self._changed:
            self._send(beat)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._beats:
                    self._changed.wait()
                now = time.monotonic()
                for loop in {beat.loop for beat in self._beats}:
                    self._ask(loop, now)
                for beat in [beat for beat in self._beats if beat.due <= now]:
                    beat.due = now + max(beat.least, interval(len(self._beats)))
                    if now - self._asked.get(beat.loop, now) < STUCK_SECONDS:
                        self._send(beat)
                due = min((beat.due for beat in self._beats), default=now + BEAT_SECONDS)
            time.sleep(min(max(due - now, 0.01), BEAT_SECONDS))

    def _ask(self, loop: asyncio.AbstractEventLoop, now: float) -> None:
        """Ask an event loop for a sign of life, unless it owes one."""
        if loop in self._asked:
            return
        self._asked[loop] = now
        try:
            loop.call_soon_threadsafe(self._asked.pop, loop, None)
        except RuntimeError:  # closed
            self._beats = {beat for beat in self._beats if beat.loop is not loop}
            self._asked.pop(loop, None)

    def _send(self, beat: _Beat) -> None:
        try:
            beat.send()
        except Exception:  # the others' beats must go on
            logger.exception("a beat of a running call failed")


_pulse = _Pulse()

_running: ContextVar[_Beat] = ContextVar("perdure_beat")

Failed = Callable[[ErrorDetail], Awaitable[ApplicationError]]


@asynccontextmanager
async def keep_beating(
    *, is_bounded: bool = True, on_lost: Failed | None = None, least: float = 0
) -> AsyncIterator[None]:
    """Beat every second, or less often in a worker with many calls, until the block ends.

    A block that this worker's shutdown cuts off fails at once, so that another worker goes on: the server refuses a
    cancel that nobody asked it for, and would only notice the silence. A worker that shuts down begins none.

    Args:
        is_bounded: Whether the block does not begin once its last five attempts were lost, none of them handed over.
        on_lost: What such an activity fails with, if it is not the plain failure.
        least: Seconds between two beats at least: each is a write of the server's.
    """
    beat = _Beat(least)
    if activity.is_worker_shutdown():
        beat.end()
        raise error_of_shutdown()
    if is_bounded and beat.lost >= MOST_LOST:
        detail = _error_of_lost(beat.lost)
        raise permanent(detail) if on_lost is None else await on_lost(detail)
    if is_bounded and beat.spent_attempts >= MOST_SPENT:
        detail = _error_of_spent(beat.spent_attempts)
        raise permanent(detail) if on_lost is None else await on_lost(detail)
    token = _running.set(beat)
    beat.begin()
    _pulse.add(beat)
    try:
        yield
    except asyncio.CancelledError as error:
        why = activity.cancellation_details()
        if why is not None and why.worker_shutdown and not why.cancel_requested:
            beat.stop()
            raise error_of_shutdown() from None
        if is_stopped():
            raise
        beat.end()
        raise _end_of(error, spent=beat.spent) from None
    except ApplicationError:
        beat.end()
        raise
    except BaseException as error:
        beat.end()
        if (end := _end_of(error, spent=beat.spent)) is error:
            raise
        raise end from None
    finally:
        _running.reset(token)
        _pulse.remove(beat)


_KINDS: dict[str, str] = {Activity.GENERATE: "generation", Activity.COMPACT: "compaction", Activity.RUN_HOOKS: "hooks"}


class LostAttempts(Interceptor):
    """Tells of each attempt that goes on after one that was lost with its worker, by that one's last beat.

    A lost call of a tool is told of by the ledger, which knows more of it.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        """``tell`` takes what was lost: ``generation``, ``compaction``, ``hooks`` or the name of another activity."""
        self._tell = tell

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - its name in the SDK
        """Look at each attempt before it begins."""
        return _LooksForLost(next, self._tell)


class _LooksForLost(ActivityInboundInterceptor):
    def __init__(self, inner: ActivityInboundInterceptor, tell: Callable[[str], None]) -> None:
        super().__init__(inner)
        self._tell = tell

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002, ANN401 - as the SDK has it
        info = activity.info()
        if info.attempt > 1 and info.activity_type in _OURS and _was_running(info.heartbeat_details):
            self._tell(_KINDS.get(info.activity_type, info.activity_type))
        if _worker()[0] is None:  # without a beat, the server would take each call for lost
            raise mismatch_of("temporalio", "has no worker behind the heartbeat of an activity")
        return await super().execute_activity(input)


_OURS = frozenset(Activity)


def _was_running(details: Sequence[Any]) -> bool:
    return any(cast("dict[str, int]", part).get("running_attempt") for part in details if isinstance(part, dict))


def is_stop(error: BaseException) -> bool:
    """Whether an error is the stop of this activity that somebody asked for."""
    return isinstance(error, asyncio.CancelledError) and is_stopped()


def is_stopped() -> bool:
    """Whether somebody has this activity end: a cancel that a library raises by itself is an error like any other."""
    task = asyncio.current_task()
    return activity.cancellation_details() is not None or (task is not None and task.cancelling() > 0)


def _end_of(error: BaseException, *, spent: bool) -> BaseException:
    """Error that an unforeseen failure of an activity ends with; final once the activity has spent something.

    Another attempt would spend it again. A value that is not an ``Exception``, or cannot be printed, would not reach
    the server.
    """
    kind, text = kind_of(error), print_error(error)
    if not spent and isinstance(error, Exception) and can_be_printed(error):
        return error
    reason = redact_text(text[:MOST_WORDS])
    if not spent:
        return ApplicationError(reason, type=kind)
    reason = f"{activity.info().activity_type} failed after its work was done, which is not done again: {reason}"
    reason = f"{reason} (in {module_of(error)})"
    logger.error("%s", reason, exc_info=error if can_be_looked_at(error) else None)
    detail = runtime_error(ReasonCode.RUNTIME_WORKER_LOST, reason)
    return permanent(replace(detail, code=code_of_kind(kind), type=kind))


def _error_of_spent(spent: int) -> ErrorDetail:
    return runtime_error(
        ReasonCode.RUNTIME_STORE_UNAVAILABLE,
        f"{activity.info().activity_type} was carried out {spent} times, and what came of it could not be stored; look "
        "at the store, then send the session another message",
    )


def _error_of_lost(lost: int) -> ErrorDetail:
    return runtime_error(
        ReasonCode.RUNTIME_WORKER_LOST,
        f"the worker was lost {lost} times in a row while it carried out {activity.info().activity_type}, which may be "
        "what ends it; look at the workers' logs and memory, then send the session another message",
    )


def reporter() -> Callable[[str], None]:
    """The same as :func:`note`, to be called from other tasks than this one."""
    beat = _running.get()

    def report(text: str) -> None:
        beat.note = text

    return report


def note_delta() -> None:
    """Let the beats say that a piece of an answer has come: a stream that stalls is then told from a slow one."""
    beat = _running.get(None)
    if beat is not None:
        beat.last_delta_at = datetime.now(UTC)


def note_held(fate: str) -> bool:
    """Let the beats say that this attempt holds its call; whether an earlier attempt's beats have said so.

    A store that lost its last moments may have lost a claim: the server still knows of it.

    Args:
        fate: What becomes of the call if a drain of this worker cuts it off, for the log.
    """
    beat = _running.get()
    beat.hold(fate)
    return beat.was_held


def was_stopped() -> bool:
    """Whether the attempt that held the call before was cut off by a drain of its worker, which was not lost."""
    return _running.get().was_stopped


def note_spent() -> None:
    """Note that this attempt has paid for an answer, or begins to run an author's code."""
    beat = _running.get(None)
    if beat is not None:
        beat.spent = True


def note_kept() -> None:
    """Note that what came of it is stored: another attempt finds it there."""
    beat = _running.get(None)
    if beat is not None:
        beat.spent = False


def note(text: str) -> None:
    """Let the beats say this: it stands at the pending activity in the Temporal UI, until the text is empty again."""
    _running.get().note = text


def note_wait(text: str) -> None:
    """Let the beats say what the call waits for before it begins; empty again, that it has begun.

    A worker that is lost meanwhile was not lost to the call.
    """
    beat = _running.get()
    beat.note = text
    if beat.waits != bool(text):
        beat.waits = bool(text)
        _pulse.beat_now(beat)
