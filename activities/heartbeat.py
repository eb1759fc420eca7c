"""The beat of a running activity: how a cancel reaches it, and how a lost worker is noticed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from temporalio import activity

BEAT_SECONDS = 1.0
"""Seconds between two beats. Temporal hands a cancel over with the answer to a beat."""


@asynccontextmanager
async def beating() -> AsyncIterator[None]:
    """Beat every second until the block ends; what runs in the block must leave the event loop free."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            activity.heartbeat()

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
