"""Signs of life in a stream of events for those who read it when nothing else comes."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime, timedelta

from perdure.client.errors import RequestRefusedError
from perdure.contracts.events import Envelope, Heartbeat

SHORTEST = timedelta(milliseconds=10)
"""More often nobody needs to know."""


def checked(every: timedelta) -> timedelta:
    """The time between two heartbeats.

    Raises:
        RequestRefusedError: It is too short.
    """
    if every < SHORTEST:
        msg = f"heartbeat: {every.total_seconds():g} s is too short; name {SHORTEST.total_seconds():g} s or more"
        raise RequestRefusedError(msg)
    return every


async def with_heartbeats(
    events: AsyncIterator[Envelope], first: Envelope, every: timedelta
) -> AsyncGenerator[Envelope, None]:
    """The events, and a heartbeat whenever none has come for that long; also while the store is away.

    Args:
        events: The events.
        first: A heartbeat for the time before the first event; later ones have the place of the last event.
        every: The time.
    """
    beat, coming = first, asyncio.ensure_future(anext(events, None))
    try:
        while True:
            done, _ = await asyncio.wait([coming], timeout=every.total_seconds())
            if not done:
                yield beat.model_copy(update={"at": datetime.now(UTC)})
                continue
            envelope = coming.result()
            if envelope is None:
                return
            beat = envelope.model_copy(update={"event": Heartbeat()})
            yield envelope
            coming = asyncio.ensure_future(anext(events, None))
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
