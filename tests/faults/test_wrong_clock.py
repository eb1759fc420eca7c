"""A worker whose clock is hours wrong: waits and budgets go by Temporal's time, and nothing else depends on it."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from perdure.testing import ChatRequest, Reply, ScriptedProvider, faults, say
from tests.house import House, WorkerProcess

pytestmark = pytest.mark.deep

HOURS = {"three hours slow": -10_800, "three hours fast": 10_800}
clocks = pytest.mark.parametrize("off_by", HOURS.values(), ids=HOURS.keys())


async def worker(house: House, off_by: int) -> WorkerProcess:
    spawned = house.spawn_worker(
        "tests.faults.agents_for_clocks", main="tests.faults.worker_with_a_wrong_clock", CLOCK_OFF_BY=str(off_by)
    )
    await spawned.polling()
    return spawned


@clocks
async def test_a_date_to_retry_after_is_compared_with_temporals_time(house: House, off_by: int) -> None:
    """By the worker's clock the date would be three hours away, which no retry waits for, or long past."""

    def in_a_moment(_: ChatRequest) -> Reply:
        date = format_datetime(datetime.now(UTC) + timedelta(seconds=5), usegmt=True)
        return say("done").after(faults.status(429, headers={"retry-after": date}))

    async with ScriptedProvider(in_a_moment) as provider:
        house.use(provider)
        await worker(house, off_by)
        result = await house.run()
    assert (result["stop_reason"], result["output"]) == ("finished", "done")
    (retry,) = await house.events("generation_retry")
    assert 0 < retry["wait_seconds"] <= 10


@clocks
async def test_a_time_budget_is_measured_by_temporal(house: House, off_by: int) -> None:
    async with ScriptedProvider(lambda _: say("done").after(faults.hang())) as provider:
        house.use(provider)
        await worker(house, off_by)
        result = await house.run("hurried")
        await provider.wait_for_requests(1)
    assert (result["stop_reason"], result["reason_code"]) == ("budget_exhausted", "budget.seconds_exhausted")
    assert "2 s" in result["error"]


@clocks
async def test_a_turn_taken_over_from_a_worker_with_another_time_goes_on(house: House, off_by: int) -> None:
    async with ScriptedProvider(lambda _: say("done").after(faults.hang())) as provider:
        house.use(provider)
        wrong = await worker(house, off_by)
        handle = await house.start()
        await provider.wait_for_requests(1)
        wrong.kill()
        await worker(house, 0)
        result = await handle.result()
    assert result["stop_reason"] == "finished"
    assert [line["seq"] for line in await house.events()] == list(range(1, len(await house.events()) + 1))
