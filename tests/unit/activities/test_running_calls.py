"""A call whose attempt is lost runs on in its process: until it ends, is waited for, or nobody wants it any more."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from temporalio.activity import ActivityCancellationDetails
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from perdure.activities.toolbox import claims
from perdure.activities.toolbox.claims import RunningCalls

LOST = ActivityCancellationDetails(not_found=True)
LATE = ActivityCancellationDetails(timed_out=True)
CANCELLED = ActivityCancellationDetails(cancel_requested=True)


class Call:
    """A call that ends when the test says so, and what became of it."""

    def __init__(self) -> None:
        self.running = RunningCalls()
        self.began = asyncio.Event()
        self.end = asyncio.Event()
        self.held = True
        self.became = ""

    async def body(self) -> str:
        self.began.set()
        try:
            await self.end.wait()
        except asyncio.CancelledError:
            self.became = "stopped"
            raise
        self.became = "ended"
        return "result"

    async def holds(self) -> bool:
        return self.held

    async def has_attempts(self, count: int) -> None:
        """Wait until so many attempts wait for the call."""
        async with asyncio.timeout(120):
            while self.running._running["first"].attempts != count:
                await asyncio.sleep(0.001)

    async def first(self) -> str:
        return await self.running.carry_out("first", self.body(), self.holds)

    async def second(self) -> bool:
        return await self.running.wait("first")


class Attempt:
    """One attempt in Temporal's environment."""

    def __init__(self, work: Callable[[], Awaitable[object]]) -> None:
        self.environment = ActivityEnvironment()
        self.task = asyncio.create_task(self._run(work))

    async def _run(self, work: Callable[[], Awaitable[object]]) -> object:
        return await self.environment.run(work)

    async def cancelled(self, why: ActivityCancellationDetails) -> None:
        self.environment.cancel(why)
        with pytest.raises(asyncio.CancelledError):
            await self.task


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "LOOK_SECONDS", 0.01)


@pytest.fixture
async def call() -> AsyncIterator[Call]:
    made = Call()
    yield made
    made.end.set()


@pytest.mark.parametrize("why", [LOST, LATE])
async def test_a_later_attempt_waits_for_the_call_of_one_that_was_lost(
    call: Call, why: ActivityCancellationDetails
) -> None:
    first = Attempt(call.first)
    await call.began.wait()
    await first.cancelled(why)
    second = Attempt(call.second)
    await call.has_attempts(1)
    assert not second.task.done()
    call.end.set()
    assert await second.task is True
    assert call.became == "ended"


async def test_no_call_is_waited_for_that_ended_or_was_begun_elsewhere(call: Call) -> None:
    call.end.set()
    assert await Attempt(call.first).task == "result"
    assert await Attempt(call.second).task is False
    assert await call.running.wait(None) is False


async def test_a_call_that_fails_fails_the_attempt_that_waits_for_it(call: Call) -> None:
    async def fail() -> str:
        call.began.set()
        await call.end.wait()
        raise ApplicationError("it ended the turn", type="tool.execution_error", non_retryable=True)

    async def failing() -> str:
        return await call.running.carry_out("first", fail(), call.holds)

    first = Attempt(failing)
    await call.began.wait()
    second = Attempt(call.second)
    await call.has_attempts(2)
    await first.cancelled(LOST)
    call.end.set()
    with pytest.raises(ApplicationError, match="it ended the turn"):
        await second.task


@pytest.mark.parametrize(
    "why",
    [
        CANCELLED,
        ActivityCancellationDetails(worker_shutdown=True),
        ActivityCancellationDetails(reset=True),
        ActivityCancellationDetails(paused=True),
        ActivityCancellationDetails(not_found=True, cancel_requested=True),
    ],
)
async def test_whoever_wants_the_call_to_end_ends_it_at_once(call: Call, why: ActivityCancellationDetails) -> None:
    first = Attempt(call.first)
    await call.began.wait()
    await first.cancelled(why)
    assert call.became == "stopped"


async def test_a_cancel_of_the_attempt_that_waits_ends_the_call(call: Call) -> None:
    """S-57: though the attempt that began it is still there, and has not heard that it is lost."""
    first = Attempt(call.first)
    await call.began.wait()
    second = Attempt(call.second)
    await call.has_attempts(2)
    await second.cancelled(CANCELLED)
    assert call.became == "stopped"
    with pytest.raises(asyncio.CancelledError):
        await first.task


async def test_an_attempt_that_is_lost_too_leaves_the_call_to_the_next_one(call: Call) -> None:
    first = Attempt(call.first)
    await call.began.wait()
    await first.cancelled(LOST)
    second = Attempt(call.second)
    await call.has_attempts(1)
    await second.cancelled(LOST)
    third = Attempt(call.second)
    await call.has_attempts(1)
    call.end.set()
    assert await third.task is True


async def test_a_call_that_another_process_has_taken_over_is_ended(call: Call) -> None:
    """S-31: a worker that was cut off does not go on beside the one that took its place."""
    first = Attempt(call.first)
    await call.began.wait()
    await first.cancelled(LOST)
    call.held = False
    await _became(call, "stopped")


async def test_a_call_that_nobody_comes_to_wait_for_is_ended(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "HEIR_SECONDS", 0.05)
    first = Attempt(call.first)
    await call.began.wait()
    await first.cancelled(LOST)
    await _became(call, "stopped")


async def _became(call: Call, what: str) -> None:
    async with asyncio.timeout(120):
        while call.became != what:
            await asyncio.sleep(0.01)
