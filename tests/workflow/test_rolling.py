"""A rolling restart under load: every worker is replaced while the jobs run, and no result shows it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHandle

from perdure.contracts.names import AGENT_TURN
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, faults, say
from tests.house import House
from tests.workflow.killing import has_lines, lines_of, read, result_of, worker

pytestmark = pytest.mark.deep

JOBS, CALLS = 8, 4
GRACE = "0.5"
"""Seconds; a model call takes twice as long, so that a worker that stops has something to hand over."""


@pytest.fixture
def lines(house: House) -> Path:
    """The file in which each run of a tool's body leaves a line."""
    return lines_of(house)


def pay_a_few_times(request: ChatRequest) -> Reply:
    reply = call(("pay", {})) if request.index < CALLS else say("done")
    return reply.after(faults.delay(1.0))


async def test_a_rolling_restart_is_invisible_in_the_results(house: House, lines: Path) -> None:
    async with ScriptedProvider(pay_a_few_times) as provider:
        house.use(provider)
        running = [await worker(house, PERDURE_SHUTDOWN_GRACE=GRACE) for _ in range(2)]
        jobs = [
            await house.temporal.start_workflow(
                AGENT_TURN,
                {"agent": "tester", "prompt": f"job {number}"},
                id=f"{house.session}-{number}",
                task_queue=house.settings.task_queue,
            )
            for number in range(JOBS)
        ]
        for done, old in zip((JOBS // 2, JOBS * 2), running, strict=True):
            await has_lines(lines, done)
            assert await old.stop() == 0
            await worker(house, PERDURE_SHUTDOWN_GRACE=GRACE)
        results: list[dict[str, Any]] = await asyncio.gather(*map(result_of, jobs))
    assert [(result["stop_reason"], result["steps"]) for result in results] == [("finished", CALLS + 1)] * JOBS
    assert len(read(lines)) == len(set(read(lines))) == JOBS * CALLS
    for job in jobs:
        events = await house.store.events(job.id)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert not [event for event in events if event.event.type in {"tool_error", "generation_error", "agent_error"}]
        assert not [event for event in events if getattr(event.event, "error", None)]
        assert not [told async for told in lost_attempts(job)]


async def lost_attempts(job: WorkflowHandle[Any, Any]) -> AsyncIterator[tuple[str, int, str]]:
    """Activity, number of attempts and last worker of each call that a worker took and did not hand over."""
    activities: dict[int, str] = {}
    async for event in job.fetch_history_events():
        if event.HasField("activity_task_scheduled_event_attributes"):
            activities[event.event_id] = event.activity_task_scheduled_event_attributes.activity_type.name
        started = event.activity_task_started_event_attributes
        if "imeout" in started.last_failure.message:
            yield activities[started.scheduled_event_id], started.attempt, started.identity
