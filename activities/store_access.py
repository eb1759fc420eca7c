"""Failures of the store as activities raise them, and writes that wait for the store inside an attempt."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import TypeVar

from temporalio import activity

from perdure.activities.errors import permanent, runtime_error, transient
from perdure.activities.heartbeat import note
from perdure.contracts.errors import REASONS, ReasonCode
from perdure.store.errors import (
    NotFoundError,
    OtherStoreError,
    ReservedIdError,
    ResumeRefusedError,
    SessionErasedError,
    StoreError,
    StoreUnavailableError,
    StoreVersionError,
    TurnBlockedError,
    TurnEndedError,
    TurnMismatchError,
)

STORE_RETRY = timedelta(seconds=2)
"""Wait before an activity is retried while the store is away, multiplied by the attempts made so far."""

LONGEST_STORE_RETRY = timedelta(minutes=10)
"""Upper bound of that wait: ``workflows.options.LOST_WORKER_MARGIN`` attempts last while a store is away for days."""

PATIENCE = timedelta(minutes=7)
"""Longest wait of one write for the store. Those of a claim and a result must fit into ``workflows.options.GRACE``."""

PAUSE = timedelta(seconds=1)
"""Time between two tries of a write."""

pause: ContextVar[timedelta] = ContextVar("perdure_pause")
"""Another time between two tries: virtual time has none."""

Stored = TypeVar("Stored")

_NAMED = (NotFoundError, OtherStoreError, StoreVersionError, TurnEndedError, TurnMismatchError)


@asynccontextmanager
async def store_failures(*, longest: timedelta = LONGEST_STORE_RETRY) -> AsyncIterator[None]:
    """Translate what the store raises: an absent store is a wait, a turn that has ended or is gone is final.

    The wait grows with the time that the store has been away, up to the ``longest``. The chain ends here: it may run on
    into the failure that was being recorded, with its unredacted text.
    """
    try:
        yield
    except (StoreUnavailableError, StoreVersionError, OtherStoreError) as error:
        is_other = isinstance(error, OtherStoreError)
        code = ReasonCode.RUNTIME_STORE_MISMATCH if is_other else ReasonCode.RUNTIME_STORE_UNAVAILABLE
        delay = min(STORE_RETRY * activity.info().attempt, longest)
        raise transient(runtime_error(code, str(error)), delay) from None
    except SessionErasedError as error:
        raise permanent(runtime_error(ReasonCode.SESSION_ERASED, str(error))) from None
    except NotFoundError as error:  # a row that the turn has written is gone
        message = f"{REASONS[ReasonCode.RUNTIME_STORE_BEHIND].text} ({error})"
        raise permanent(runtime_error(ReasonCode.RUNTIME_STORE_BEHIND, message)) from None
    except TurnEndedError as error:
        raise permanent(runtime_error(ReasonCode.RUNTIME_TURN_ENDED, str(error))) from None
    except TurnMismatchError as error:
        raise permanent(runtime_error(ReasonCode.REQUEST_TURN_MISMATCH, str(error))) from None
    except TurnBlockedError as error:
        raise permanent(runtime_error(ReasonCode.REQUEST_BLOCKED, str(error))) from None
    except ReservedIdError as error:
        raise permanent(runtime_error(ReasonCode.REQUEST_RESERVED_ID, str(error))) from None
    except ResumeRefusedError as error:
        raise permanent(runtime_error(ReasonCode.REQUEST_INVALID, str(error))) from None
    except StoreError as error:  # the store cannot hold a value: another attempt would bring the same
        raise permanent(runtime_error(ReasonCode.RUNTIME_STORE_REFUSED, str(error))) from None


async def write_until_stored(write: Callable[[], Awaitable[Stored]]) -> Stored:
    """Write, and repeat the write while the store is away, locked or full. The activity goes on beating.

    Everywhere else the attempt fails and Temporal waits. Here a new attempt would pay for the answer again, or would
    have to tell the model that a tool's effect is unknown although the tool has ended. The write must be idempotent
    within the attempt, as all of the store's are.
    """
    began, is_away = time.monotonic(), False
    code = ReasonCode.RUNTIME_STORE_UNAVAILABLE
    async with store_failures():
        while True:
            try:
                stored = await write()
            except StoreUnavailableError as error:
                if time.monotonic() > began + PATIENCE.total_seconds():
                    raise
                is_away, text = True, f"{code}: {error}"
                activity.logger.warning("waiting to store what is done: %s", text, extra={"reason_code": code})
                note(text)
                await asyncio.sleep(pause.get(PAUSE).total_seconds())
            except _NAMED:
                raise
            except (StoreError, ValueError, TypeError) as error:
                # The value can never be written, and another attempt would pay again.
                raise permanent(runtime_error(ReasonCode.RUNTIME_STORE_REFUSED, str(error))) from None
            else:
                note("")
                if is_away:
                    waited = time.monotonic() - began
                    told = "the store answers again; what is done is stored after %.0f s"
                    activity.logger.info(told, waited, extra={"reason_code": code})
                return stored


async def write_answer(write: Callable[[], Awaitable[Stored]]) -> tuple[Stored, bool]:
    """Write like :func:`write_until_stored`; the second value is True if one try was enough.

    Then what the write found in its place is another attempt's. A repeated write may find its own: the first try's
    commit may have arrived although its answer was lost.
    """
    tries: list[int] = []

    async def counted() -> Stored:
        tries.append(1)
        return await write()

    return await write_until_stored(counted), len(tries) == 1
