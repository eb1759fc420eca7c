"""A server that takes few updates, signals and events of a run: no turn is locked, and none is terminated."""

import contextlib
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from perdure import Agent, ApprovalPolicy, ApprovalRule, ask_user
from perdure.contracts.turns import StopReason
from perdure.testing import Script, ScriptedProvider, call, say
from perdure.workflows.visibility import STATE
from tests.house import House, eventually
from tests.workflow.asking import COLOUR, PAID, PAY, pay, several, update, waiting
from tests.workflow.backgrounds import awaiting, lead, look, starts, statuses, steps
from tests.workflow.bodies import Body, happened
from tests.workflow.delegating import DONE, agent, in_order, played, results_in
from tests.workflow.rotation.rotations import rotated

pytestmark = pytest.mark.deep

UPDATES, SIGNALS, EVENTS = 20, 50, 750
"""Each fewer than by default; the events in the proportion of a default server to those at which it suggests an end."""

LIMITS = {
    "history.maxTotalUpdates": str(UPDATES),
    "history.maximumSignalsPerExecution": str(SIGNALS),
    "limit.historyCount.error": str(EVENTS),
}


def asker() -> Agent:
    return Agent(name="tester", model="openai/scripted", tools=[ask_user, pay])


async def accepted(house: House) -> int:
    """How many updates the session's newest run has taken."""
    history = await house.temporal.get_workflow_handle(house.session).fetch_history()
    return sum(event.HasField("workflow_execution_update_accepted_event_attributes") for event in history.events)


async def test_the_same_reply_again_and_again_counts_as_one_update(house: House) -> None:
    """S-54: whoever clicks once more does not lock the others out."""
    PAID.clear()
    script = Script(replies=(several(COLOUR, PAY), say("done")))
    async with ScriptedProvider(script) as provider, house.worker(asker()):
        house.use(provider)
        handle = await house.start()
        question, approval = await waiting(house, 2)
        receipts = [
            await house.client.approve(house.session, approval["request_id"], by=f"person {number}")
            for number in range(2 * UPDATES)
        ]
        assert {receipt.by for receipt in receipts} == {"person 0"}
        assert await accepted(house) == 1
        await house.client.answer(house.session, question["request_id"], "red")
        assert (await handle.result())["stop_reason"] == "finished"
    assert PAID == [7]


async def test_a_turn_that_waits_for_people_goes_on_in_a_fresh_history_and_asks_nobody_again(house: House) -> None:
    """S-46 S-54: more updates than a run may take come in while it waits; what was asked and decided is kept."""
    PAID.clear()
    script = Script(replies=(several(COLOUR, PAY), say("done")))
    async with ScriptedProvider(script) as provider, house.worker(asker()):
        house.use(provider)
        handle = await house.start()
        question, approval = await waiting(house, 2)
        first = await update(house, "approve", request=approval["request_id"], by="ann")
        for _ in range(3 * UPDATES):
            assert await update(house, "approve", request=approval["request_id"], by="ann") == first
        assert (await waiting(house))[0] == question
        described = await house.temporal.get_workflow_handle(house.session).describe()
        assert described.run_id != handle.first_execution_run_id
        assert described.typed_search_attributes.get(STATE) == "waiting_for_input"
        await update(house, "answer", request=question["request_id"], value="red")
        result = await house.temporal.get_workflow_handle(house.session).result()
        await rotated(house, house.session)
    assert (result["turn"], result["stop_reason"]) == (1, "finished")
    assert PAID == [7]
    assert len(await house.events("user_input_required")) == 2


async def test_a_turn_that_rotates_as_it_begins_to_wait_again_is_found_as_waiting(house: House) -> None:
    """S-46 S-54: the new run goes by what is shown of the turn, and not by what should be."""
    body = Body()
    approved = ApprovalPolicy(rules=(ApprovalRule(tool="held", decision="ask"),))
    asker = Agent(name="tester", model="openai/scripted", tools=[ask_user, body.held()], approvals=approved)
    script = Script(replies=(several(COLOUR, call(("held", {}))), say("done")))
    async with ScriptedProvider(script) as provider, house.worker(asker):
        house.use(provider)
        handle = await house.start()
        question, approval = await waiting(house, 2)
        for _ in range(UPDATES - 1):
            await update(house, "approve", request=approval["request_id"], by="ann")
        await happened(body.started)
        body.released.set()
        current = house.temporal.get_workflow_handle(house.session)

        async def is_shown_as_waiting() -> bool:
            described = await current.describe()
            is_next_run = described.run_id != handle.first_execution_run_id
            return is_next_run and described.typed_search_attributes.get(STATE) == "waiting_for_input"

        await eventually(is_shown_as_waiting)
        await update(house, "answer", request=question["request_id"], value="red")
        assert (await current.result())["stop_reason"] == "finished"


async def crowd(house: House) -> None:
    """More cancels of another turn than a run may take signals; some are refused."""
    handle = house.temporal.get_workflow_handle(house.session)
    for _ in range(4 * SIGNALS):
        with contextlib.suppress(RPCError):
            await handle.signal("cancel", {"turn": 7, "reason": "another turn"})


async def test_cancels_of_another_turn_do_not_crowd_out_the_one_that_counts_while_people_are_waited_for(
    house: House,
) -> None:
    """S-57 S-59: the turn goes on in a fresh history, which takes signals again, also from the stock command line."""
    async with ScriptedProvider(Script(replies=(COLOUR,))) as provider, house.worker(asker()):
        house.use(provider)
        await house.start()
        await waiting(house)
        await crowd(house)

        async def taken() -> bool:
            handle = house.temporal.get_workflow_handle(house.session)
            with contextlib.suppress(RPCError):
                await handle.signal("cancel", {"reason": "enough"})
                return True
            return False

        await eventually(taken)
        result = await house.temporal.get_workflow_handle(house.session).result()
    assert (result["stop_reason"], result["error"]) == ("cancelled", "Operation aborted: enough")


async def test_a_cancel_by_the_client_finds_its_way_when_a_long_call_has_used_up_the_signals(house: House) -> None:
    """S-57: a turn cannot go on in a fresh history while a tool runs; it still takes updates."""
    body = Body()
    script = Script(replies=(call(("held", {})), say("done")))
    async with ScriptedProvider(script) as provider:
        house.use(provider)
        async with house.worker(Agent(name="tester", model="openai/scripted", tools=[body.held()])):
            turn = await house.client.start("tester", "go", session=house.session)
            await happened(body.started)
            await crowd(house)
            assert await house.client.cancel(house.session, "enough")
            result = await turn.result()
    assert (result.stop_reason, result.error) == (StopReason.CANCELLED, "Operation aborted: enough")


async def test_a_caller_that_waits_for_people_rotates_once_its_delegate_has_ended(house: House) -> None:
    """S-46 S-64: a new run would not hear that end."""
    body = Body()
    looking = [call(("look", {}))] * 8
    answers = played(
        tester=steps(starts("one"), *looking, COLOUR, awaiting(0), DONE),
        helper=in_order(call(("held", {})), say("helped")),
    )
    caller = lead(tools=[look, ask_user])
    async with ScriptedProvider(answers) as provider, house.worker(caller, agent("helper", tools=[body.held()])):
        house.use(provider)
        handle = await house.start()
        await happened(body.started)
        (question,) = await waiting(house)
        described = await handle.describe()
        assert described.status is WorkflowExecutionStatus.RUNNING
        assert described.history_length > 60
        body.released.set()
        await rotated(house, house.session)
        assert await waiting(house) == [question]
        await update(house, "answer", request=question["request_id"], value="red")
        result = await house.temporal.get_workflow_handle(house.session).result()
        *_, read = results_in(provider.requests[-1].request)
    assert (result["stop_reason"], result["delegated_steps"], read) == ("finished", 2, "helped")


async def test_a_caller_near_the_history_limit_waits_for_its_delegates_and_goes_on_in_a_fresh_history(
    house: House,
) -> None:
    """S-46 S-64: it worked on beside them until then, and is not terminated."""
    body = Body()
    helper = agent("helper", tools=[body.held()])
    looking = [call(("look", {}))] * 60
    answers = played(
        tester=steps(starts("one"), *looking, awaiting(0), DONE),
        helper=in_order(call(("held", {})), say("helped")),
    )
    async with ScriptedProvider(answers) as provider, house.worker(lead(max_steps=100), helper):
        house.use(provider)
        handle = await house.start()
        await happened(body.started)

        async def waits() -> bool:
            described = await handle.describe()
            assert described.status is WorkflowExecutionStatus.RUNNING, described.status
            status: dict[str, Any] = await handle.query("status")
            return str(status["activity"]).startswith("waiting for delegates")

        await eventually(waits)
        assert EVENTS / 2 < (await handle.describe()).history_length < EVENTS
        body.released.set()
        result = await house.temporal.get_workflow_handle(house.session).result()
        await rotated(house, house.session)
        assert await statuses(house) == [WorkflowExecutionStatus.COMPLETED]
    assert (result["stop_reason"], result["steps"], result["delegated_steps"]) == ("finished", 63, 2)
