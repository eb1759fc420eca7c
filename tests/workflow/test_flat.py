"""The cost of a step does not grow with the turn."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from statistics import mean

import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.worker import UnsandboxedWorkflowRunner

from perdure import Agent, tool
from perdure.contracts.messages import ToolMessage
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, say
from tests.house import House

pytestmark = pytest.mark.deep

STEPS = 500

LONGEST_SECONDS = 480.0
"""Longest time of the turn on a busy machine; a quiet one needs a minute."""


@tool
def two_kilobytes(page: int) -> str:
    """Read a page."""
    return f"page {page}: ".ljust(2_000, "x")


AGENT = Agent(name="tester", model="openai/scripted", tools=[two_kilobytes])


def reader(request: ChatRequest) -> Reply:
    """Read one page a step, and stop before the last generation."""
    return call(("two_kilobytes", {"page": request.index})) if request.index < STEPS - 1 else say("read")


async def all_runs(house: House) -> list[list[HistoryEvent]]:
    """The history of every run of the session, in order."""
    runs = [run async for run in house.temporal.list_workflows(f'WorkflowId = "{house.session}"')]
    runs.sort(key=lambda run: run.start_time)
    handles = [house.temporal.get_workflow_handle(run.id, run_id=run.run_id) for run in runs]
    return [list((await handle.fetch_history()).events) for handle in handles]


def bytes_per_step(events: Sequence[HistoryEvent]) -> list[int]:
    """The size of each step: from its generation's first event to the next one's."""
    starts = [
        index
        for index, event in enumerate(events)
        if event.activity_task_scheduled_event_attributes.activity_type.name == "generate"
    ]
    return [sum(event.ByteSize() for event in events[start:next_one]) for start, next_one in pairwise(starts)]


@pytest.mark.timeout(LONGEST_SECONDS + 60)
async def test_a_500_step_turn_rotates_and_step_450_costs_what_step_50_does(house: House) -> None:
    async with ScriptedProvider(reader) as provider, house.worker(AGENT, runner=UnsandboxedWorkflowRunner()):
        house.use(provider)
        turn = await house.start()
        async with asyncio.timeout(LONGEST_SECONDS):
            result = await turn.result()
        runs = await all_runs(house)
    assert (result["stop_reason"], result["steps"], result["turn"]) == ("finished", STEPS, 1)
    assert len(runs) >= 2

    sizes = bytes_per_step([event for run in runs for event in run])
    early, late = mean(sizes[45:55]), mean(sizes[445:455])
    assert abs(late - early) <= 0.05 * early
    assert sum(len(run) for run in runs) / STEPS <= 13

    transcript = await house.store.transcript(house.session)
    pages = [message.content[:12] for message in transcript if isinstance(message, ToolMessage)]
    assert pages == [f"page {page}: ".ljust(12, "x")[:12] for page in range(STEPS - 1)]
