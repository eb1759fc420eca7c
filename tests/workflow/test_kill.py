"""Workers are processes of their own here, and they are killed: what was done stays done, and is not done twice."""

import asyncio
from pathlib import Path

import pytest

from perdure import Agent
from perdure.testing import Script, ScriptedProvider, faults, say
from tests.house import WAIT_SECONDS, House
from tests.workflow.agents_for_kill import put
from tests.workflow.killing import (
    AGENTS,
    PAY,
    PUT,
    has_lines,
    lines_of,
    read,
    read_by_the_model,
    result_of,
    worker,
)

pytestmark = pytest.mark.deep


@pytest.fixture
def lines(house: House) -> Path:
    """The file in which each run of a tool's body leaves a line."""
    return lines_of(house)


async def test_killing_the_only_worker_during_a_model_call_uses_up_no_try(house: House, lines: Path) -> None:
    """S-17: two retries are allowed, two failures are retried, and the lost call is sent again between them."""
    answer = say("done").after(faults.status(503), faults.hang(), faults.status(503))
    async with ScriptedProvider(Script(replies=(answer,))) as provider:
        house.use(provider)
        first = await worker(house)
        handle = await house.start()
        await provider.wait_for_requests(2)
        first.kill()
        await worker(house)
        result = await result_of(handle)
        assert provider.request_count == 4
    assert (result["stop_reason"], result["steps"], result["output"]) == ("finished", 1, "done")
    assert [line["attempt"] for line in await house.events("generation_retry")] == [1, 2]


async def test_killing_the_worker_during_a_retry_wait_uses_up_no_try(house: House, lines: Path) -> None:
    """S-17: the wait is Temporal's, so it goes on without any worker."""
    answer = say("done").after(faults.status(429, headers={"retry-after": "3"}))
    async with ScriptedProvider(Script(replies=(answer,))) as provider:
        house.use(provider)
        first = await worker(house)
        handle = await house.start()
        await house.wait_for_event("generation_retry")
        first.kill()
        await worker(house)
        result = await result_of(handle)
        assert provider.request_count == 2
    assert result["stop_reason"] == "finished"
    assert [line["attempt"] for line in await house.events("generation_retry")] == [1]


async def test_a_tool_whose_worker_was_killed_is_not_run_again_and_the_model_is_told(house: House, lines: Path) -> None:
    """S-31: whether the payment went through nobody knows, so the model must."""
    async with ScriptedProvider(PAY) as provider:
        house.use(provider)
        first = await worker(house, HOLD="1")
        handle = await house.start()
        await has_lines(lines, 1)
        first.kill()
        await worker(house)
        result = await result_of(handle)
    assert (result["stop_reason"], result["steps"]) == ("finished", 2)
    assert read(lines) == [f"pay {house.session}/1/{await _call_id(house)}"]
    (told,) = read_by_the_model(provider)
    assert "tool.effect_unknown" in told
    (end,) = await house.events("tool_end")
    assert end["error"]["code"] == "tool.effect_unknown"


async def test_an_idempotent_tool_runs_again_with_the_same_key(house: House, lines: Path) -> None:
    """S-31."""
    async with ScriptedProvider(PUT) as provider:
        house.use(provider)
        first = await worker(house, HOLD="1")
        handle = await house.start()
        await has_lines(lines, 1)
        first.kill()
        await worker(house)
        result = await result_of(handle)
    assert result["stop_reason"] == "finished"
    key = f"put {house.session}/1/{await _call_id(house)}"
    assert read(lines) == [key, key]
    assert read_by_the_model(provider) == ["put"]
    assert len(await house.events("tool_end")) == 1


@pytest.mark.parametrize("write", ["open_turn", "finish_generation", "finish_call", "commit_turn"])
async def test_what_was_stored_before_the_worker_died_is_found_and_not_done_again(
    house: House, lines: Path, write: str
) -> None:
    """S-80: the answer is paid once, the body runs once, the log has each event once."""
    async with ScriptedProvider(PAY) as provider:
        house.use(provider)
        first = house.spawn_worker(AGENTS, main="tests.workflow.worker_that_dies", DIE_AFTER=write)
        handle = await house.start()
        assert await asyncio.to_thread(first.process.wait, WAIT_SECONDS) == -9
        await worker(house)
        result = await result_of(handle)
        assert provider.request_count == 2
    assert (result["stop_reason"], result["turn"], result["steps"]) == ("finished", 1, 2)
    assert len(read(lines)) == 1
    assert read_by_the_model(provider) == ["paid"]
    events = await house.events()
    assert [line["seq"] for line in events] == list(range(1, len(events) + 1))
    assert [line["type"] for line in events] == [
        "agent_start",
        *("generation_start", "generation_content", "generation_end", "generation_step"),
        *("tool_start", "tool_end", "tool_step"),
        *("generation_start", "generation_content", "generation_end", "generation_step"),
        "agent_end",
    ]


async def test_a_failure_of_which_the_model_is_told_is_found_by_the_next_worker(house: House, lines: Path) -> None:
    """S-14 S-17: the step that holds it is stored once, and its call is not made again."""
    answer = say("done").after(faults.status(503))
    async with ScriptedProvider(Script(replies=(answer,))) as provider:
        house.use(provider)
        first = house.spawn_worker(AGENTS, main="tests.workflow.worker_that_dies", DIE_AFTER="finish_generation")
        handle = await house.start("told")
        assert await asyncio.to_thread(first.process.wait, WAIT_SECONDS) == -9
        await worker(house)
        result = await result_of(handle)
        assert provider.request_count == 2
    assert (result["stop_reason"], result["steps"], result["output"]) == ("finished", 2, "done")
    assert [line["attempt"] for line in await house.events("generation_retry")] == [1]
    timers = [
        event for event in (await handle.fetch_history()).events if event.HasField("timer_started_event_attributes")
    ]
    assert len(timers) == 1


async def test_every_activity_beats_so_that_a_lost_worker_is_noticed_within_ten_seconds(house: House) -> None:
    agent = Agent(name="tester", model="openai/scripted", tools=[put])
    lines_of(house)
    async with ScriptedProvider(PUT) as provider, house.worker(agent):
        house.use(provider)
        handle = await house.start()
        await result_of(handle)
        history = await handle.fetch_history()
    scheduled = [
        event.activity_task_scheduled_event_attributes
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
    assert {activity.activity_type.name for activity in scheduled} == {"open_turn", "generate", "put", "commit_turn"}
    assert all(1 < activity.heartbeat_timeout.seconds <= 10 for activity in scheduled)


async def _call_id(house: House) -> str:
    (start, *_) = await house.events("tool_start")
    return str(start["call_id"])
