"""Time in which no worker had a model call uses up neither its tries nor its time budget."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.testing import Fault, Script, ScriptedProvider, faults, say
from tests.house import House, WorkerProcess, eventually
from tests.workflow.agents_for_kill import brief
from tests.workflow.killing import lines_of, result_of, worker

pytestmark = pytest.mark.deep

BUDGET = brief.definition.retry.max_time or timedelta(0)


async def outage(first: Mapping[str, Any]) -> None:
    """Wait until the time budget has passed since the first failure, while no worker runs."""
    failed_at = datetime.fromisoformat(first["failed_at"])

    async def over() -> bool:
        return datetime.now(UTC) - failed_at > 2 * BUDGET

    await eventually(over)


async def killed_in_the_wait(house: House, provider: ScriptedProvider, first: WorkerProcess) -> None:
    await house.wait_for_event("generation_retry")
    first.kill()


async def killed_in_the_call(house: House, provider: ScriptedProvider, first: WorkerProcess) -> None:
    await provider.wait_for_requests(2)
    first.kill()


async def drained_in_the_call(house: House, provider: ScriptedProvider, first: WorkerProcess) -> None:
    await provider.wait_for_requests(2)
    assert await first.stop() == 0


REFUSED = faults.status(429)

LOSSES = {
    "killed in the wait": (killed_in_the_wait, [faults.status(429, headers={"retry-after": "0.5"}), REFUSED, REFUSED]),
    "killed in the call": (killed_in_the_call, [REFUSED, faults.hang(), REFUSED, REFUSED]),
    "drained in the call": (drained_in_the_call, [REFUSED, faults.hang(), REFUSED, REFUSED]),
}


@pytest.mark.parametrize("name", LOSSES)
async def test_an_outage_longer_than_the_time_budget_uses_nothing_of_it(house: House, name: str) -> None:
    """S-17: the next worker goes on with the same number of the try and the same counted time."""
    lose, met = LOSSES[name]
    planned: list[Fault] = met
    lines_of(house)
    async with ScriptedProvider(Script(replies=(say("done").after(*planned),))) as provider:
        house.use(provider)
        first = await worker(house, PERDURE_SHUTDOWN_GRACE="0.1")
        handle = await house.start("brief")
        await lose(house, provider, first)
        (retry,) = await house.wait_for_event("generation_retry")
        await outage(retry)
        await worker(house)
        result = await result_of(handle)
    assert (result["stop_reason"], result["output"]) == ("finished", "done"), result["error"]
    retries = await house.events("generation_retry")
    assert [line["attempt"] for line in retries] == [1, 2, 3]
    counted = [line["counted_seconds"] for line in retries]
    assert counted[0] == 0
    assert counted[1] >= retries[0]["wait_seconds"]
    assert counted[2] >= counted[1] + retries[1]["wait_seconds"]
    assert counted[2] < BUDGET.total_seconds()
