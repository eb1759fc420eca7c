"""Agents as functions from a goal to a trajectory, as evaluations call them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta

import pytest

from perdure import Agent, RetryPolicy, StopReason
from perdure.client import NoWorkerError, RequestRefusedError, TurnClosedError, UnknownAgentError, tasks
from perdure.testing import ChatRequest, Reply, ScriptedProvider, faults, say
from tests.house import WAIT_SECONDS, House, eventually

AGENT = Agent(name="tester", model="openai/scripted", instructions="Add.", retry=RetryPolicy(max_retries=0))

ANSWERS: Mapping[str, Reply] = {
    "1 + 1": say("2"),
    "2 + 2": say("4"),
    "refused": say("").after(faults.error(401, "Incorrect API key provided", name="invalid_api_key")),
    "hang": say("never").after(faults.hang()),
}


def answer(request: ChatRequest) -> Reply:
    """Each goal has its own."""
    return ANSWERS[str(request.messages[-1]["content"])]


def asked(provider: ScriptedProvider) -> Callable[[], Awaitable[bool]]:
    """Whether the model was called."""

    async def look() -> bool:
        return bool(provider.requests)

    return look


async def test_each_goal_of_a_task_is_a_job_in_a_session_of_its_own(house: House) -> None:
    """S-32: side by side; a job that fails says so in its result; an agent that nobody has is an error at once."""
    async with ScriptedProvider(answer) as provider, house.worker(AGENT):
        house.use(provider)
        task = house.client.task("tester", max_steps=3, tenant="evaluation")
        two, failed, four = await asyncio.gather(task("1 + 1"), task("refused"), task("2 + 2"))
        with pytest.raises(UnknownAgentError, match="no worker has an agent 'nobody'; there are: tester;"):
            await house.client.task("nobody", name="baseline")("1 + 1")
    assert task.name == "tester"
    assert [[message.content for message in turn.messages] for turn in (two, four)] == [["1 + 1", "2"], ["2 + 2", "4"]]
    assert len({turn.session for turn in (two, four, failed)}) == len(await house.client.sessions()) == 3
    assert two.result is not None
    assert (two.result.stop_reason, two.result.output, two.turn) == (StopReason.FINISHED, "2", 1)
    assert two.usage == two.result.usage
    assert failed.result is not None
    assert (failed.result.stop_reason, failed.result.reason_code) == (StopReason.ERROR, "llm.auth_error")
    assert [message.content for message in failed.messages] == ["refused"]


async def test_a_call_of_a_task_that_is_cancelled_cancels_its_job(house: House) -> None:
    """S-57: an evaluation that is given up leaves nothing running."""
    async with ScriptedProvider(answer) as provider, house.worker(AGENT):
        house.use(provider)
        call = asyncio.create_task(house.client.task("tester", name="sums")("hang"))
        await eventually(asked(provider))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        [(session, _)] = await house.client.sessions()
        async with asyncio.timeout(WAIT_SECONDS):
            result = await (await house.client.attach(session.session, 1)).result()
    assert result.stop_reason is StopReason.CANCELLED
    assert "the call of the task 'sums' was cancelled" in str(result.error)


async def test_a_task_without_a_worker_is_no_endless_wait(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "WORKER_WAIT", timedelta(0))
    with pytest.raises(NoWorkerError, match="no worker polls the task queue"):
        await house.client.task("tester")("1 + 1")


async def test_a_workflow_that_was_terminated_is_raised(house: House) -> None:
    """It has no result; so is a goal that nothing can be started with."""
    task = house.client.task("tester")
    async with ScriptedProvider(answer) as provider, house.worker(AGENT):
        house.use(provider)
        with pytest.raises(RequestRefusedError, match="prompt"):
            await task("")
        call = asyncio.create_task(task("hang"))
        await eventually(asked(provider))
        [(session, _)] = await house.client.sessions()
        await house.temporal.get_workflow_handle(session.session).terminate("by hand")
        async with asyncio.timeout(WAIT_SECONDS):
            with pytest.raises(TurnClosedError, match="was terminated"):
                await call
