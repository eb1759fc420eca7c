"""Tool calls that this process carries out, also when the attempt that began one was given up by Temporal.

A machine that slept, or a worker that was frozen, comes back to a server that no longer expects its attempt. The body
still runs, or has just ended; the next attempt, if it comes to this process, waits for it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from temporalio import activity

HEIR_SECONDS = 30.0
"""Longest time that a call runs on with no attempt waiting for it; Temporal starts the next one within seconds."""

LOOK_SECONDS = 1.0
"""Seconds between two looks at whether such a call still holds its claim."""

Result = TypeVar("Result")

Holds = Callable[[], Awaitable[bool]]
"""Whether the claim of a call still stands: no other attempt has taken it over, and its turn is open."""


@dataclass
class _Running:
    """A call, and how many attempts wait for it."""

    task: asyncio.Task[Any]
    holds: Holds
    attempts: int = 0


class RunningCalls:
    """The calls of one worker that have not ended, by the claimant of the attempt that began them."""

    def __init__(self) -> None:
        self._running: dict[str, _Running] = {}
        self._watches: set[asyncio.Task[None]] = set()

    async def carry_out(self, claimant: str, call: Coroutine[Any, Any, Result], holds: Holds) -> Result:
        """Carry out a call to its end, and end it when this attempt or a later one is cancelled on purpose."""
        task = asyncio.create_task(call)
        running = self._running[claimant] = _Running(task, holds)
        task.add_done_callback(lambda done: self._end(claimant, done))
        await self._wait(running)
        return task.result()

    async def wait(self, claimant: str | None) -> bool:
        """Wait for the end of a call that an earlier attempt began here; False if this process does not run it.

        Raises:
            Exception: What the call raised: this attempt ends in the same way.
        """
        running = self._running.get(claimant or "")
        if running is None:
            return False
        await self._wait(running)
        if not running.task.cancelled():
            running.task.result()
        return True

    async def _wait(self, running: _Running) -> None:
        running.attempts += 1
        try:
            await asyncio.wait([running.task])
        except asyncio.CancelledError:
            if not _is_lost():
                running.task.cancel()
                await asyncio.wait([running.task])
            raise
        finally:
            running.attempts -= 1
            if not running.attempts and not running.task.done():
                self._watch(running)

    def _watch(self, running: _Running) -> None:
        watch = asyncio.create_task(_end_unless_joined(running))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)

    def _end(self, claimant: str, task: asyncio.Task[Any]) -> None:
        self._running.pop(claimant, None)
        if not task.cancelled():
            task.exception()  # nobody may be left to hear of it


async def _end_unless_joined(running: _Running) -> None:
    """Cancel a call when its claim is gone, or when no attempt has come to wait for it in time."""
    for _ in range(round(HEIR_SECONDS / LOOK_SECONDS)):
        await asyncio.wait([running.task], timeout=LOOK_SECONDS)
        if running.attempts or running.task.done():
            return
        if not await running.holds():
            break
    running.task.cancel()


def _is_lost() -> bool:
    """Whether the server has given this attempt up, so that nobody wants the call to end."""
    why = activity.cancellation_details()
    if why is None or why.cancel_requested or why.paused or why.reset or why.worker_shutdown:
        return False
    return why.not_found or why.timed_out
