"""The beat of a running activity: how a cancel reaches it, how a lost worker is noticed, and how it is handed over."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

from temporalio import activity

from activities.errors import handed_over

BEAT_SECONDS = 1.0
"""Seconds between two beats. Temporal hands a cancel over with the answer to a beat."""


class _Beat:
    """A timer that sets itself again: most activities end before it is due, and a task for each would cost more."""

    def __init__(self) -> None:
        self.note = ""
        self._timer: asyncio.TimerHandle

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(BEAT_SECONDS, self._beat)

    def stop(self) -> None:
        self._timer.cancel()

    def _beat(self) -> None:
        self.start()
        activity.heartbeat(*filter(None, [self.note]))


_running: ContextVar[_Beat] = ContextVar("perdure_beat")


@asynccontextmanager
async def beating() -> AsyncIterator[None]:
    """Beat every second until the block ends; what runs in the block must leave the event loop free.

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


def note(text: str) -> None:
    """Let the beats say this: it stands at the pending activity in the Temporal UI, until the text is empty again."""
    _running.get().note = text
