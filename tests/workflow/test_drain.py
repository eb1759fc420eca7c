"""Workers that are told to stop finish what is short, and hand over what is not."""

import json
import signal
from pathlib import Path

import pytest
from temporalio.client import WorkflowExecutionStatus

from perdure.contracts.names import AGENT_TURN
from perdure.testing import ChatRequest, Reply, Script, ScriptedProvider, call, faults, say
from tests.house import House
from tests.workflow.killing import PAY, has_lines, lines_of, read, read_by_the_model, result_of, worker

pytestmark = pytest.mark.deep


@pytest.fixture
def lines(house: House) -> Path:
    """The file in which each run of a tool's body leaves a line."""
    return lines_of(house)


async def test_a_worker_that_is_told_to_stop_lets_a_short_model_call_finish(house: House, lines: Path) -> None:
    answer = say("done").after(faults.delay(1.0))
    async with ScriptedProvider(Script(replies=(answer,))) as provider:
        house.use(provider)
        first = await worker(house)
        handle = await house.start()
        await provider.wait_for_requests(1)
        assert await first.stop() == 0
        await worker(house)
        result = await result_of(handle)
        assert (provider.request_count, provider.disconnects) == (1, 0)
    assert result["stop_reason"] == "finished"


async def test_a_model_call_longer_than_the_grace_is_handed_over_without_using_a_try(house: House, lines: Path) -> None:
    """S-17: the other worker sends it again; no retry is counted."""
    answer = say("done").after(faults.hang(), faults.status(503), faults.status(503))
    async with ScriptedProvider(Script(replies=(answer,))) as provider:
        house.use(provider)
        first = await worker(house, PERDURE_SHUTDOWN_GRACE="0.5")
        handle = await house.start()
        await provider.wait_for_requests(1)
        await worker(house)
        assert await first.stop() == 0
        assert (
            f"the drain has cut off generate of session {house.session}: another worker asks" in first.log.read_text()
        )
        await provider.wait_for_disconnect()
        result = await result_of(handle)
        assert provider.request_count == 4
    assert result["stop_reason"] == "finished"
    assert [line["attempt"] for line in await house.events("generation_retry")] == [1, 2]


async def test_a_tool_longer_than_the_grace_is_left_behind_and_not_run_again(house: House, lines: Path) -> None:
    """S-31: the worker does stop, although the body blocks on."""
    async with ScriptedProvider(PAY) as provider:
        house.use(provider)
        first = await worker(house, HOLD="1", PERDURE_SHUTDOWN_GRACE="0.5")
        handle = await house.start()
        await has_lines(lines, 1)
        assert await first.stop() == 0
        await worker(house)
        result = await result_of(handle)
    assert result["stop_reason"] == "finished"
    assert len(read(lines)) == 1
    (told,) = read_by_the_model(provider)
    assert "tool.effect_unknown" in told
    assert "the worker was stopped while the tool ran, so its effect is unknown" in told
    ((recovery,), log) = await house.events("tool_recovery"), first.log.read_text()
    assert (recovery["decision"], recovery["stopped"]) == ("given_up", True)
    (line,) = [json.loads(line) for line in log.splitlines() if "the drain has cut off" in line]
    assert (line["session"], line["activity"], line["attempt"]) == (house.session, "pay", 1)
    assert "it does not run again, and the model reads that its effect is unknown" in log
    assert "cuts off calls of plain tools after 0.5 s, and their effect is then unknown: 'pay' of 'tester'" in log


def pay_and_say(request: ChatRequest) -> Reply:
    return say("done") if request.index else call(("pay", {})).after(faults.delay(0.5))


async def test_steps_go_on_elsewhere_while_a_worker_still_drains(house: House, lines: Path) -> None:
    """S-17: only the calls in hand keep it; no turn waits for its end, nor for the end of its sticky queue."""
    async with ScriptedProvider(pay_and_say) as provider:
        house.use(provider)
        first = await worker(house, HOLD="1", PERDURE_SHUTDOWN_GRACE="100")
        held = await house.start(prompt="held")
        await has_lines(lines, 1)
        moving = await house.temporal.start_workflow(
            AGENT_TURN,
            {"agent": "tester", "prompt": "moving"},
            id=f"{house.session}-moving",
            task_queue=house.settings.task_queue,
        )
        await provider.wait_for_requests(2)  # the first worker asks the model
        first.process.send_signal(signal.SIGTERM)
        await worker(house)
        result = await result_of(moving)
        assert first.process.poll() is None
        assert (await held.describe()).status is WorkflowExecutionStatus.RUNNING
        first.kill()
        assert (await result_of(held))["stop_reason"] == "finished"
    assert result["stop_reason"] == "finished"
    assert len(read(lines)) == 2
