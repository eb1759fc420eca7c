"""The default retry schedule to the second, on Temporal's time-skipping server: minutes of waiting in no time."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise

from temporalio.testing import WorkflowEnvironment

from perdure import Agent
from perdure.contracts.events import GenerationRetry
from perdure.contracts.names import AGENT_TURN
from perdure.contracts.retries import RetryPolicy
from perdure.contracts.turns import TurnResult
from perdure.testing import Script, ScriptedProvider, faults, say
from tests.house import WAIT_SECONDS, House

WITHOUT_JITTER = RetryPolicy.dreadnode().model_copy(update={"jitter": timedelta(0)})

ALWAYS_LIMITED = Script(replies=(say("never").after(*[faults.status(429)] * 20),))


@dataclass(frozen=True)
class Ended:
    """A turn that has ended: its result, how long it took by the server's clock, and the requests at the provider."""

    result: TurnResult
    took: timedelta
    requests: int


async def run(house: House, skipping: WorkflowEnvironment, retry: RetryPolicy) -> Ended:
    """Run a turn on that server; its clock may jump by years once nothing is left to do."""
    agent = Agent(name="tester", model="openai/scripted", retry=retry)
    async with ScriptedProvider(ALWAYS_LIMITED) as provider, house.worker(agent, client=skipping.client):
        house.use(provider)
        async with asyncio.timeout(WAIT_SECONDS):
            handle = await skipping.client.start_workflow(
                AGENT_TURN,
                {"agent": "tester", "prompt": "go"},
                id=house.session,
                task_queue=house.settings.task_queue,
                result_type=TurnResult,
            )
            result = await handle.result()
        events = (await handle.fetch_history()).events
        took = events[-1].event_time.ToDatetime() - events[0].event_time.ToDatetime()
        return Ended(result, took, provider.request_count)


async def retries(house: House) -> list[GenerationRetry]:
    envelopes = await house.store.events(house.session, after=0, limit=500)
    return [envelope.event for envelope in envelopes if isinstance(envelope.event, GenerationRetry)]


async def test_the_default_waits_double_from_one_second_and_temporal_really_waits_them(
    house: House, skipping: WorkflowEnvironment
) -> None:
    """S-03: 1, 2, 4, …, 128 s and nine calls, by the events and by the server's clock."""
    turn = await run(house, skipping, WITHOUT_JITTER)
    assert (turn.result.stop_reason, turn.result.reason_code, turn.requests) == ("error", "llm.rate_limited", 9)
    retried = await retries(house)
    assert [retry.wait_seconds for retry in retried] == [1, 2, 4, 8, 16, 32, 64, 128]
    for earlier, later in pairwise(retried):
        assert later.failed_at - earlier.failed_at >= timedelta(seconds=earlier.wait_seconds)
    assert timedelta(seconds=255) <= turn.took < timedelta(seconds=300)


async def test_a_wait_that_would_leave_the_time_budget_ends_the_turn_without_it(
    house: House, skipping: WorkflowEnvironment
) -> None:
    """S-05: 60 s hold the waits up to 16 s, together 31 s, and not the next one of 32 s."""
    policy = WITHOUT_JITTER.model_copy(update={"max_time": timedelta(seconds=60)})
    turn = await run(house, skipping, policy)
    assert (turn.result.stop_reason, turn.requests) == ("error", 6)
    assert [retry.wait_seconds for retry in await retries(house)] == [1, 2, 4, 8, 16]
    assert timedelta(seconds=31) <= turn.took < timedelta(seconds=60)
