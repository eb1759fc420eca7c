"""Writes that wait for the store inside an attempt, in Temporal's own environment for activities."""

from datetime import timedelta

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from perdure.activities.errors import error_of_missing_version
from perdure.activities.heartbeat import keep_beating
from perdure.activities.store_access import (
    LONGEST_STORE_RETRY,
    PATIENCE,
    STORE_RETRY,
    store_failures,
    write_until_stored,
)
from perdure.contracts.waits import MissingVersion
from perdure.store import StoreError, StoreUnavailableError, TurnEndedError
from perdure.workflows.options import GRACE, LOST_WORKER_MARGIN


def test_a_claim_and_a_result_may_both_wait_within_one_attempt() -> None:
    assert 2 * PATIENCE < GRACE


def test_a_turn_sits_out_a_store_that_is_away_for_days() -> None:
    waits = [min(STORE_RETRY * attempt, LONGEST_STORE_RETRY) for attempt in range(1, LOST_WORKER_MARGIN)]
    assert sum(waits, timedelta(0)) > timedelta(days=3)


def test_a_turn_sits_out_a_version_that_no_worker_has_for_days() -> None:
    missing = MissingVersion(agent="tester", what="tool", name="two", definition="d")
    waits = [error_of_missing_version(missing, attempt).next_retry_delay for attempt in range(1, LOST_WORKER_MARGIN)]
    told = [wait for wait in waits if wait is not None]
    assert len(told) == len(waits)
    assert told == sorted(told)
    assert (told[0], told[59], told[-1]) == (timedelta(milliseconds=500), timedelta(seconds=10), timedelta(minutes=5))
    assert sum(told, timedelta(0)) > timedelta(days=3)


async def stored_after(*failures: Exception) -> str:
    """What a write gives that fails so at first."""
    left = list(failures)

    async def write() -> str:
        if left:
            raise left.pop(0)
        return "stored"

    async def work() -> str:
        async with keep_beating():
            return await write_until_stored(write)

    result: str = await ActivityEnvironment().run(work)
    return result


async def test_a_refusal_of_the_store_is_final_wherever_it_comes() -> None:
    """Another attempt would bring the same value, and a turn that opens has no bound on its attempts."""

    async def work() -> None:
        async with store_failures():
            msg = "refused a statement: text cannot contain NUL (0x00) bytes"
            raise StoreError(msg)

    with pytest.raises(ApplicationError, match="cannot contain NUL") as refused:
        await ActivityEnvironment().run(work)
    assert (refused.value.type, refused.value.non_retryable) == ("runtime.store_refused", True)


async def test_an_absent_store_is_asked_again_in_the_same_attempt() -> None:
    assert await stored_after(StoreUnavailableError("locked")) == "stored"


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (StoreError("refused a statement: string or blob too big"), "runtime.store_refused"),
        (ValueError("cannot be written as JSON"), "runtime.store_refused"),
        (TurnEndedError("turn 1 has ended"), "runtime.turn_ended"),
    ],
)
async def test_what_the_store_will_never_take_is_final(failure: Exception, code: str) -> None:
    with pytest.raises(ApplicationError) as raised:
        await stored_after(failure)
    assert (raised.value.type, raised.value.non_retryable) == (code, True)
