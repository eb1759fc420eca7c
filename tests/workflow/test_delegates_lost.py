"""Delegates that end without telling their caller: Temporal ended them, or their caller was reset."""

import json
from typing import Any

import pytest
from temporalio.client import WorkflowHandle

from perdure import Budgets, tool
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, faults, say
from tests.house import House, eventually
from tests.workflow.bodies import Body, happened
from tests.workflow.delegating import DONE, agent, asks, children, in_order, played, results_in
from tests.workflow.killing import result_of
from tests.workflow.resetting import completed_tasks, reset


@tool
def look() -> str:
    """Look."""
    return "looked"


def working(request: ChatRequest) -> Reply:
    """One step that is paid for, and then an answer that does not come."""
    return call(("look", {})) if request.index == 0 else say("late").after(faults.hang())


async def at_work(house: House, provider: ScriptedProvider) -> WorkflowHandle[Any, Any]:
    """The workflow of the only delegate, which has made one step and waits for its model."""
    await provider.wait_for_requests(3)
    ((child, _),) = await children(house)
    return house.temporal.get_workflow_handle(child.session)


@pytest.mark.parametrize("how", ["cancel", "terminate"])
async def test_a_delegate_that_temporal_ends_is_charged_to_its_caller(house: House, how: str) -> None:
    """S-62 S-66: what it had spent by then, which the caller's limits count."""
    lead, helper = agent("tester", delegates=["helper"], budgets=Budgets(llm_calls=3)), agent("helper", tools=[look])
    answers = played(tester=in_order(asks("one"), DONE), helper=working)
    async with ScriptedProvider(answers) as provider, house.worker(lead, helper):
        house.use(provider)
        handle = await house.start()
        inside = await at_work(house, provider)
        await (inside.cancel() if how == "cancel" else inside.terminate())
        result = await result_of(handle)
        (read,) = results_in(provider.requests[-1].request)
        paid = [made.request for made in provider.requests if made.request is not provider.requests[2].request]
    assert (result["stop_reason"], result["steps"], result["delegated_steps"]) == ("finished", 2, 1)
    assert result["usage"]["input_tokens"] == sum(request.tokens for request in paid)
    assert result["spent"]["llm_calls"] == 3
    ((child, turn),) = await children(house)
    error = json.loads(read)["error"]
    why, code = ("cancelled", "tool.cancelled") if how == "cancel" else ("error", "tool.delegate_failed")
    assert (error["code"], error["session"]) == (code, child.session)
    assert turn.result is not None
    assert turn.result.stop_reason == why
    (end,) = await house.events("delegate_end")
    assert (end["stop_reason"], end["steps"]) == (why, 1)


@pytest.mark.parametrize("stopped", [False, True], ids=["waits", "stops"])
async def test_a_caller_that_is_reset_takes_up_the_delegate_that_still_runs(house: House, stopped: bool) -> None:
    """S-62: its result is the same call's, and a stop of the caller reaches it."""
    body = Body()
    lead, helper = agent("tester", delegates=["helper"]), agent("helper", tools=[body.held()])
    answers = played(tester=in_order(asks("one"), DONE), helper=in_order(call(("held", {})), say("helped")))
    async with ScriptedProvider(answers) as provider, house.worker(lead, helper):
        house.use(provider)
        handle = await house.start()
        await happened(body.started)
        again = await reset(house, (await completed_tasks(handle))[2])
        await eventually(lambda: refused_to_start(again))
        if stopped:
            await again.signal("cancel", "no longer needed")
        else:
            body.released.set()
        result = await result_of(again)
        assert provider.request_count == (2 if stopped else 4)
    ((_, turn),) = await children(house)
    assert turn.result is not None
    assert result["stop_reason"] == turn.result.stop_reason == ("cancelled" if stopped else "finished")
    assert result["delegated_steps"] == (1 if stopped else 2)
    assert len(await house.events("delegate_end")) == 1


async def refused_to_start(handle: WorkflowHandle[Any, Any]) -> bool:
    """Whether the server has refused to start a delegate, because it runs."""
    history = await handle.fetch_history()
    return any(event.HasField("start_child_workflow_execution_failed_event_attributes") for event in history.events)
