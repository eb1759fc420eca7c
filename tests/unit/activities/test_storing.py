"""Writes that wait for the store inside an attempt, in Temporal's own environment for activities."""

import logging
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


@pytest.mark.parametrize(("elsewhere", "at"), [(True, 155), (False, 20)])
def test_a_turn_sits_out_a_version_that_no_worker_has_for_days(elsewhere: bool, at: int) -> None:
    missing = MissingVersion(agent="tester", what="tool", name="two", definition="d", elsewhere=elsewhere)
    waits, waited = list[timedelta](), timedelta(0)
    for attempt in range(1, LOST_WORKER_MARGIN):
        waits.append(error_of_missing_version(missing, attempt, waited).next_retry_delay or timedelta(0))
        waited += waits[-1]
    assert waits == sorted(waits)
    assert (waits[0], waits[at], waits[-1]) == (timedelta(seconds=0.5), timedelta(seconds=10), timedelta(minutes=6))
    assert waited > timedelta(days=3)


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


async def test_an_absent_store_is_asked_again_in_the_same_attempt(caplog: pytest.LogCaptureFixture) -> None:
    """The log has the beginning of the wait and its end, and nothing of a write that had none."""
    with caplog.at_level(logging.INFO):
        assert await stored_after() == "stored"
        assert caplog.messages == []
        assert await stored_after(StoreUnavailableError("locked")) == "stored"
    began, ended = caplog.messages
    assert began.startswith("waiting to store what is done: runtime.store_unavailable: locked")
    assert ended.startswith("the store answers again; what is done is stored after ")


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
