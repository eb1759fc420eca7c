"""Writes that a second attempt cannot make up for: they wait for an absent store inside the attempt."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from temporalio import activity

from perdure.activities.errors import permanent, runtime_error, store_failures
from perdure.activities.heartbeat import note
from perdure.contracts.errors import ReasonCode
from perdure.store.errors import (
    NotFoundError,
    OtherStoreError,
    StoreError,
    StoreUnavailableError,
    StoreVersionError,
    TurnEndedError,
    TurnMismatchError,
)

PATIENCE = timedelta(minutes=7)
"""How long one write waits for the store. A claim and a result have to fit into ``perdure.workflows.options.GRACE``."""

PAUSE = timedelta(seconds=1)
"""Between two tries."""

Stored = TypeVar("Stored")

_NAMED = (NotFoundError, OtherStoreError, StoreVersionError, TurnEndedError, TurnMismatchError)


async def write_until_stored(write: Callable[[], Awaitable[Stored]]) -> Stored:
    """Make a write, and make it again while the store is away, locked or full; the activity beats on meanwhile.

    Everywhere else the attempt fails and Temporal waits. But a new attempt would pay for the answer again, and would
    have to tell the model that the effect of a tool that has ended, or was never started, is unknown. The write must be
    harmless when it is repeated by the same attempt, as the store's are.
    """
    deadline = time.monotonic() + PATIENCE.total_seconds()
    async with store_failures():
        while True:
            try:
                stored = await write()
            except StoreUnavailableError as error:
                if time.monotonic() > deadline:
                    raise
                text = f"{ReasonCode.RUNTIME_STORE_UNAVAILABLE}: {error}"
                activity.logger.warning("waiting to store what is done: %s", text)
                note(text)
                await asyncio.sleep(PAUSE.total_seconds())
            except _NAMED:
                raise
            except (StoreError, ValueError, TypeError) as error:
                # A value that cannot be written, now or ever: another attempt would pay for the next one.
                raise permanent(runtime_error(ReasonCode.RUNTIME_STORE_REFUSED, str(error))) from None
            else:
                note("")
                return stored
