"""Jobs on one limited key take turns: nothing of a wait counts, and it ends at once with a cancel or the worker."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowHandle

from perdure import Agent, RetryPolicy
from perdure.activities.models import attempt, pace
from perdure.contracts.names import AGENT_TURN
from perdure.contracts.waits import Cause
from perdure.testing import ChatRequest, Reply, ScriptedProvider, faults, say
from tests.house import House, eventually
from tests.workflow.killing import AGENTS, lines_of, result_of, worker

pytestmark = pytest.mark.deep

BRIEF = RetryPolicy(
    max_retries=1, base=timedelta(milliseconds=10), jitter=timedelta(0), max_time=timedelta(milliseconds=200)
)
"""Gives up after a fifth of a second, so that any wait at the gate that counted would end the turn."""

PATIENT = RetryPolicy(jitter=timedelta(0))


class Limited:
    """A provider that refuses its first request, and asks for so many seconds."""

    def __init__(self, seconds: float, status: int = 429) -> None:
        self.refused = False
        self.status = status
        self.seconds = seconds

    def __call__(self, request: ChatRequest) -> Reply:
        if self.refused:
            return say("done")
        self.refused = True
        return Reply(faults=(faults.status(self.status, headers={"retry-after": str(self.seconds)}),) * 1_000)


def agent(**settings: Any) -> Agent:
    return Agent(**{"name": "tester", "model": "openai/scripted", "retry": PATIENT, **settings})


async def another(house: House, agent: str = "tester") -> WorkflowHandle[Any, Any]:
    """A turn of another session, on the same key."""
    return await house.temporal.start_workflow(
        AGENT_TURN,
        {"agent": agent, "prompt": "me too"},
        id=f"{house.session}-2",
        task_queue=house.settings.task_queue,
    )


async def note_of(handle: WorkflowHandle[Any, Any]) -> str:
    """What the pending activity says in the Temporal UI."""
    described = await handle.describe()
    for activity in described.raw_description.pending_activities:
        for payload in activity.heartbeat_details.payloads:
            return str(json.loads(payload.data))
    return ""


async def at_the_gate(handle: WorkflowHandle[Any, Any]) -> str:
    """Wait until the call says at its pending activity that it waits for its turn."""

    async def there() -> str:
        said = await note_of(handle)
        return said if "waits for its turn" in said else ""

    return str(await eventually(there))


async def metric(house: House, name: str) -> float | None:
    return house.registry.get_sample_value(name, {"provider": "openai"})


async def retries_of(house: House, session: str) -> list[dict[str, Any]]:
    """The retries of a session."""
    log = await house.store.events(session, after=0, limit=500)
    return [line.line() for line in log if line.event.type == "generation_retry"]


async def nobody_waits(house: House) -> bool:
    return await metric(house, "perdure_model_calls_waiting") == 0


@pytest.mark.parametrize("status", [429, 503, 529])
async def test_what_one_job_is_told_to_wait_another_waits_too(
    house: House, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """The second job's call is not sent before the time has come: no try is lost on it, and it says that it waits."""
    for module in (pace, attempt):
        monkeypatch.setattr(module, "TELL_SECONDS", 0.2)
    async with (
        ScriptedProvider(Limited(4.0, status)) as provider,
        house.worker(agent(), agent(name="brief", retry=BRIEF)),
    ):
        house.use(provider)
        first = await house.start()
        await house.wait_for_event("generation_retry")
        second = await another(house, "brief")
        said = await at_the_gate(second)
        assert await metric(house, "perdure_model_calls_waiting") == 1
        assert provider.request_count == 1
        for handle in (first, second):
            assert (await result_of(handle))["stop_reason"] == "finished"
        assert provider.request_count == 3
        assert await nobody_waits(house)
    assert said.startswith("waits for its turn: openai limits this key")
    log = [line.line() for line in await house.store.events(f"{house.session}-2", after=0, limit=500)]
    assert "generation_retry" not in [line["type"] for line in log]
    (wait,) = (line for line in log if line["type"] == "generation_wait")
    assert wait["model"] == "openai/scripted"


async def test_a_wait_at_the_gate_uses_up_nothing_of_the_time_budget(house: House) -> None:
    """S-17: a job fails, waits three seconds, then five at the gate, and fails again: 3 of its 7 s are gone."""
    first_job = Limited(8.0)

    def answers(request: ChatRequest) -> Reply:
        if "me too" not in str(request.messages):
            return first_job(request)
        return say("done").after(faults.status(500), faults.status(500))

    three = timedelta(seconds=3)
    retry = RetryPolicy(max_retries=2, base=three, cap=three, jitter=timedelta(0), max_time=timedelta(seconds=7))
    async with ScriptedProvider(answers) as provider, house.worker(agent(), agent(name="brief", retry=retry)):
        house.use(provider)
        second = await another(house, "brief")
        await eventually(lambda: retries_of(house, f"{house.session}-2"))
        first = await house.start()
        await at_the_gate(second)
        for handle in (first, second):
            assert (await result_of(handle))["stop_reason"] == "finished"
    before, after = await retries_of(house, f"{house.session}-2")
    assert (before["attempt"], after["attempt"], before["counted_seconds"]) == (1, 2, 0)
    assert 3 <= after["counted_seconds"] < 4


async def test_a_cancel_at_the_gate_ends_the_turn_at_once(house: House) -> None:
    """S-16."""
    async with ScriptedProvider(Limited(100.0)) as provider, house.worker(agent()):
        house.use(provider)
        await house.start()
        await house.wait_for_event("generation_retry")
        second = await another(house)
        await at_the_gate(second)
        await second.signal("cancel", {"reason": "enough"})
        async with asyncio.timeout(120):
            result = await second.result()
        assert provider.request_count == 1
        await eventually(lambda: nobody_waits(house))
    assert (result["stop_reason"], result["error"]) == ("cancelled", "Operation aborted: enough")


async def open_soon(house: House) -> None:
    """Have the store say of each closed key that it opens in three seconds, as if the provider had asked for less."""
    soon = datetime.now(UTC) + timedelta(seconds=3)
    for refusal in await house.store.read_refusals("nobody"):
        await house.store.note_refusal(replace(refusal, closed_until=soon))


async def test_a_worker_that_stops_hands_its_waiting_calls_over_at_once(house: House) -> None:
    """S-17: it does not wait for its grace; the next worker reads when the key opens, and makes a first try then."""
    lines_of(house)
    async with ScriptedProvider(Limited(100.0)) as provider:
        house.use(provider)
        stopping = await worker(house, PERDURE_SHUTDOWN_GRACE="600")
        await house.start("patient")
        await house.wait_for_event("generation_retry")
        second = await another(house)
        await at_the_gate(second)
        assert await stopping.stop() == 0
        (left,) = (await second.describe()).raw_description.pending_activities
        assert left.last_failure.application_failure_info.type == "runtime.worker_shutdown"
        assert provider.request_count == 1
        await open_soon(house)
        await worker(house)
        assert (await result_of(second))["stop_reason"] == "finished"
    log = await house.store.events(f"{house.session}-2", after=0, limit=500)
    assert "generation_retry" not in [line.event.type for line in log]


async def test_other_keys_are_not_held(house: House) -> None:
    other = agent(name="other", generate_params={"api_key": "${OTHER_KEY}"})
    house.environment.setenv("OTHER_KEY", "sk-other-0123456789")
    async with ScriptedProvider(Limited(100.0)) as provider, house.worker(agent(), other):
        house.use(provider)
        await house.start()
        await house.wait_for_event("generation_retry")
        assert (await result_of(await another(house, "other")))["stop_reason"] == "finished"


async def test_what_one_worker_is_told_holds_the_calls_of_another_back_and_uses_up_nothing(house: House) -> None:
    """Two processes with task queues of their own, so that each job has its worker; the key is the same."""
    async with ScriptedProvider(Limited(60)) as provider:
        house.use(provider)
        told = house.spawn_worker(AGENTS, PERDURE_TASK_QUEUE=f"{house.settings.task_queue}-other")
        await told.polling()
        refused = await house.temporal.start_workflow(
            AGENT_TURN,
            {"agent": "tester", "prompt": "go"},
            id=f"{house.session}-other",
            task_queue=f"{house.settings.task_queue}-other",
        )

        async def noted() -> Any:
            return await house.store.read_refusals("nobody")

        (refusal,) = await eventually(noted)
        assert refusal.closed_until > refusal.at
        async with house.worker(agent(retry=BRIEF)):
            handle = await house.start()
            assert "the next in" in await at_the_gate(handle)
            wait = await house.client.waits_for(house.session)
            assert wait is not None
            assert wait.cause is Cause.PACE
            assert len(provider.requests) == 1
            await handle.signal("cancel", {"reason": "enough"})
            assert (await result_of(handle))["stop_reason"] == "cancelled"
            assert await house.events("generation_retry") == []
        assert len(provider.requests) == 1
        await refused.signal("cancel", {"reason": "enough"})
        await result_of(refused)
