"""A task that looks for news on behalf of followers, on their event loop; any other loop may end the task."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

END_TIMEOUT = timedelta(seconds=5)
"""Longest wait for the end on another loop, which may be held up, even by who waits for this end."""

GLANCE_EVERY = timedelta(milliseconds=20)
"""Interval at which such a wait looks whether the other loop still runs."""


class Attendant:
    """Work that runs as one task while somebody follows."""

    def __init__(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._name = name
        self._work = work
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin the work on the running loop, if it does not run yet."""
        if self._task is None or self._task.done() or self._task.get_loop().is_closed():
            self._task = asyncio.create_task(self._work(), name=self._name)

    async def end(self) -> bool:
        """Cancel the work, and wait for its end; False if the loop of its task has not come to that in time.

        Only the loop of a task can end the task: another one hands the cancel over. A loop that has stopped carries it
        out if it ever runs again, and nobody waits for that.
        """
        task, self._task = self._task, None
        if task is None or task.done():
            return True
        loop = task.get_loop()
        if loop is asyncio.get_running_loop():
            task.cancel()
            await asyncio.wait([task])
            return True
        ended: Future[None] = Future()
        ended.set_running_or_notify_cancel()  # so that nobody can cancel it who no longer waits
        try:
            loop.call_soon_threadsafe(_cancel, task, ended)
        except RuntimeError:  # closed: it runs nothing any more
            return True
        waiting, deadline = asyncio.wrap_future(ended), time.monotonic() + END_TIMEOUT.total_seconds()
        while not waiting.done() and loop.is_running() and time.monotonic() < deadline:
            await asyncio.wait([waiting], timeout=GLANCE_EVERY.total_seconds())
        return waiting.done() or not loop.is_running()


def _cancel(task: "asyncio.Task[None]", ended: "Future[None]") -> None:
    """Cancel a task, and tell of its end; to be called on its loop."""
    task.add_done_callback(lambda _: ended.set_result(None))
    task.cancel()
