"""What activities make of a store that is absent or refuses; and writes that wait for it inside the attempt."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TypeVar

from temporalio import activity

from perdure.activities.errors import permanent, runtime_error, transient
from perdure.activities.heartbeat import note
from perdure.contracts.errors import REASONS, ReasonCode
from perdure.store.errors import (
    NotFoundError,
    OtherStoreError,
    ResumeRefusedError,
    StoreError,
    StoreUnavailableError,
    StoreVersionError,
    TurnEndedError,
    TurnMismatchError,
)

STORE_RETRY = timedelta(seconds=2)
"""Wait before an activity tries an absent store again, times the attempts it has made."""

LONGEST_STORE_RETRY = timedelta(minutes=10)
"""Upper bound of that wait; ``workflows.options.LOST_WORKER_MARGIN`` attempts sit out a store that is away for days."""

PATIENCE = timedelta(minutes=7)
"""How long one write waits for the store. A claim and a result have to fit into ``perdure.workflows.options.GRACE``."""

PAUSE = timedelta(seconds=1)
"""Between two tries."""

Stored = TypeVar("Stored")

_NAMED = (NotFoundError, OtherStoreError, StoreVersionError, TurnEndedError, TurnMismatchError)


@asynccontextmanager
async def store_failures() -> AsyncIterator[None]:
    """Translate what the store raises: an absent store is a wait, a turn that has ended or is gone is final.

    The wait grows with the time that the store has been away. The chain ends here: it may run on into the failure that
    was being recorded, with its unredacted text.
    """
    try:
        yield
    except (StoreUnavailableError, StoreVersionError, OtherStoreError) as error:
        is_other = isinstance(error, OtherStoreError)
        code = ReasonCode.RUNTIME_STORE_MISMATCH if is_other else ReasonCode.RUNTIME_STORE_UNAVAILABLE
        delay = min(STORE_RETRY * activity.info().attempt, LONGEST_STORE_RETRY)
        raise transient(runtime_error(code, str(error)), delay) from None
    except NotFoundError as error:  # of a row that the turn has written
        message = f"{REASONS[ReasonCode.RUNTIME_STORE_BEHIND].text} ({error})"
        raise permanent(runtime_error(ReasonCode.RUNTIME_STORE_BEHIND, message)) from None
    except TurnEndedError as error:
        raise permanent(runtime_error(ReasonCode.RUNTIME_TURN_ENDED, str(error))) from None
    except TurnMismatchError as error:
        raise permanent(runtime_error(ReasonCode.REQUEST_TURN_MISMATCH, str(error))) from None
    except ResumeRefusedError as error:
        raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, str(error))) from None
    except StoreError as error:  # a value that it cannot hold: another attempt brings the same
        raise permanent(runtime_error(ReasonCode.RUNTIME_STORE_REFUSED, str(error))) from None


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
