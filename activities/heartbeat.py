"""The beat of a running activity: how a cancel reaches it, how a lost worker is noticed, and how it is handed over."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar

from temporalio import activity

from activities.errors import handed_over

BEAT_SECONDS = 1.0
"""Seconds between two beats of a call. Temporal hands a cancel over with the answer to a beat."""

BEATS_PER_SECOND = 250
"""Beats of a whole worker: each is a write of the server's, and thousands a second would leave it no time for turns."""

LONGEST_BEAT_SECONDS = 5.0
"""The interval stays so far below ``workflows.options.HEARTBEAT_TIMEOUT`` that a slow server does no harm."""


def interval(running: int) -> float:
    """Seconds between two beats of each call when so many run in this worker."""
    return min(max(BEAT_SECONDS, running / BEATS_PER_SECOND), LONGEST_BEAT_SECONDS)


class _Beat:
    """A timer that sets itself again: most activities end before it is due, and a task for each would cost more."""

    running = 0
    """Of this process."""

    def __init__(self) -> None:
        self.note = ""
        self._timer: asyncio.TimerHandle

    def start(self) -> None:
        _Beat.running += 1
        self._wait()

    def stop(self) -> None:
        _Beat.running -= 1
        self._timer.cancel()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(interval(_Beat.running), self._beat)

    def _beat(self) -> None:
        self._wait()
        activity.heartbeat(*filter(None, [self.note]))


_running: ContextVar[_Beat] = ContextVar("perdure_beat")


@asynccontextmanager
async def beating() -> AsyncIterator[None]:
    """Beat every second, or less often in a worker with many calls, until the block ends.

    A block that this worker's shutdown cuts off fails at once, so that another worker goes on: the server refuses a
    cancel that nobody asked it for, and would only notice the silence. A worker that shuts down begins none.
    """
    if activity.is_worker_shutdown():
        raise handed_over()
    beat = _Beat()
    token = _running.set(beat)
    beat.start()
    try:
        yield
    except asyncio.CancelledError:
        why = activity.cancellation_details()
        if why is not None and why.worker_shutdown and not why.cancel_requested:
            raise handed_over() from None
        raise
    finally:
        _running.reset(token)
        beat.stop()


def reporter() -> Callable[[str], None]:
    """The same as :func:`note`, to be called from other tasks than this one."""
    beat = _running.get()

    def report(text: str) -> None:
        beat.note = text

    return report


def note(text: str) -> None:
    """Let the beats say this: it stands at the pending activity in the Temporal UI, until the text is empty again."""
    _running.get().note = text
