"""What waiting for people costs, and what it survives: workers that are gone, a week, a cancel, a deadline, a reset."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.testing import WorkflowEnvironment

from perdure import ApprovalPolicy
from perdure.contracts.names import AGENT_TURN
from perdure.testing import Script, ScriptedProvider, say
from tests.house import WAIT_SECONDS, House, eventually
from tests.workflow.asking import COLOUR, DONE, PAID, PAY, asker, results, several, update, waiting

pytestmark = pytest.mark.deep


@pytest.fixture(autouse=True)
def _nothing_is_paid() -> None:
    PAID.clear()


async def test_a_question_waits_for_a_week_without_any_worker_and_then_the_turn_goes_on(
    house: House, skipping: WorkflowEnvironment
) -> None:
    """S-60: every worker is stopped; the week passes by the server's clock; another worker goes on."""
    agent = asker(approvals=ApprovalPolicy(expires=timedelta(days=30)))
    house.temporal = skipping.client
    # Without a cache no worker has a queue of its own, which this server would go on giving updates to.
    house.settings = house.settings.model_copy(update={"max_cached_workflows": 0})
    async with ScriptedProvider(Script(replies=(several(COLOUR, PAY), DONE))) as provider:
        house.use(provider)
        async with house.worker(agent, client=skipping.client):
            handle = await skipping.client.start_workflow(
                AGENT_TURN,
                {"agent": "tester", "prompt": "go", "budgets": {"seconds": 3600}},
                id=house.session,
                task_queue=house.settings.task_queue,
            )
            question, approval = await waiting(house, 2)
        began = await skipping.get_current_time()
        waited = (await handle.describe()).history_length
        await skipping.sleep(timedelta(days=7))
        assert await skipping.get_current_time() - began >= timedelta(days=7)
        assert (await handle.describe()).history_length == waited
        async with house.worker(agent, client=skipping.client), asyncio.timeout(WAIT_SECONDS):
            await update(house, "answer", request=question["request_id"], value="blue", by="ann")
            await update(house, "approve", request=approval["request_id"], by="ann")
            result: dict[str, Any] = await handle.result()
    assert (result["stop_reason"], result["output"], PAID) == ("finished", "done", [7])
    assert results(provider.requests[-1].request.messages) == ["blue", "paid 7"]
    received = {line["request_id"]: line["by"] for line in await house.events("user_input_received")}
    assert received == {question["request_id"]: "ann", approval["request_id"]: "ann"}


async def test_an_approval_expires_after_its_days_by_the_servers_clock(
    house: House, skipping: WorkflowEnvironment
) -> None:
    """Nobody decides; the time that was waited is not taken from the time budget of an hour."""
    agent = asker(approvals=ApprovalPolicy(expires=timedelta(days=3)))
    async with ScriptedProvider(Script(replies=(PAY, DONE))) as provider, house.worker(agent, client=skipping.client):
        house.use(provider)
        async with asyncio.timeout(WAIT_SECONDS):
            handle = await skipping.client.start_workflow(
                AGENT_TURN,
                {"agent": "tester", "prompt": "go", "budgets": {"seconds": 3600}},
                id=house.session,
                task_queue=house.settings.task_queue,
            )
            result: dict[str, Any] = await handle.result()
    events = (await handle.fetch_history()).events
    took = events[-1].event_time.ToDatetime() - events[0].event_time.ToDatetime()
    assert timedelta(days=3) <= took < timedelta(days=3, hours=1)
    assert (result["stop_reason"], PAID) == ("finished", [])


async def test_waiting_costs_one_activity_and_no_event_as_long_as_it_lasts(house: House) -> None:
    """The upsert of the state, the activity that tells people, and nothing until somebody replies."""
    async with ScriptedProvider(Script(replies=(COLOUR, DONE))) as provider, house.worker(asker()):
        house.use(provider)
        handle = await house.start()
        (request,) = await waiting(house)
        before = await handle.fetch_history()
        names = [
            event.activity_task_scheduled_event_attributes.activity_type.name
            for event in before.events
            if event.HasField("activity_task_scheduled_event_attributes")
        ]
        assert names == ["open_turn", "generate", "ask"]
        assert (await handle.describe()).raw_description.pending_activities == []
        found = house.temporal.list_workflows(f'PerdureState = "waiting_for_input" AND WorkflowId = "{house.session}"')
        assert await eventually(lambda: _any(found))
        await update(house, "answer", request=request["request_id"], value="red")
        await handle.result()
        states = [
            event.upsert_workflow_search_attributes_event_attributes.search_attributes.indexed_fields["PerdureState"]
            for event in (await handle.fetch_history()).events
            if event.HasField("upsert_workflow_search_attributes_event_attributes")
        ]
    assert [payload.data.decode().strip('"') for payload in states] == [
        *("running", "waiting_for_input", "running", "ended")
    ]


async def _any(found: Any) -> bool:
    return any([True async for _ in found])


async def test_a_worker_that_is_killed_while_the_turn_waits_is_replaced_unseen(house: House) -> None:
    """S-60 S-80: kill -9 twice, with an answer between; the second reply goes on from where the first one was."""
    async with ScriptedProvider(Script(replies=(several(COLOUR, COLOUR), DONE))) as provider:
        house.use(provider)
        worker = house.spawn_worker("tests.workflow.agents_that_ask")
        handle = await house.start()
        first, second = await waiting(house, 2)
        worker.kill()
        worker = house.spawn_worker("tests.workflow.agents_that_ask")
        receipt = await update(house, "answer", request=first["request_id"], value="red", by="ann")
        worker.kill()
        house.spawn_worker("tests.workflow.agents_that_ask")
        assert await waiting(house) == [second]
        assert await update(house, "answer", request=first["request_id"], value="red", by="ann") == receipt
        await update(house, "answer", request=second["request_id"], value="blue")
        async with asyncio.timeout(WAIT_SECONDS):
            result = await handle.result()
    assert result["stop_reason"] == "finished"
    assert results(provider.requests[-1].request.messages) == ["red", "blue"]
    assert len(await house.events("user_input_required")) == 2


async def test_a_cancel_ends_the_wait_and_the_model_reads_an_error_in_the_next_turn(house: House) -> None:
    """S-57 S-60: an answer that was taken before the cancel is kept, an approved call does not start."""
    asked = several(COLOUR, PAY)
    async with ScriptedProvider(Script(replies=(asked, DONE))) as provider, house.worker(asker()):
        house.use(provider)
        handle = await house.start()
        question, approval = await waiting(house, 2)
        await update(house, "answer", request=question["request_id"], value="red")
        await handle.signal("cancel", {"reason": "no longer needed"})
        result = await handle.result()
        assert (result["stop_reason"], result["error"]) == ("cancelled", "Operation aborted: no longer needed")
        await house.run(prompt="go on")
    assert PAID == []
    first, second = results(provider.requests[-1].request.messages)
    assert first == "red"
    assert second == "Operation aborted: nobody decided about pay, the turn ended; it did not run"
    ends = {line["tool"]: line["error"] and line["error"]["code"] for line in await house.events("tool_end")}
    assert ends == {"ask_user": None, "pay": "tool.cancelled"}
    assert approval["needs"] == "approval"


async def test_temporals_own_cancel_ends_the_wait_too(house: House) -> None:
    async with ScriptedProvider(Script(replies=(COLOUR, DONE))) as provider, house.worker(asker()):
        house.use(provider)
        handle = await house.start()
        await waiting(house)
        await handle.cancel()
        (end,) = await house.wait_for_event("agent_end")
    assert end["stop_reason"] == "cancelled"


async def test_a_message_to_a_session_that_waits_is_queued_for_the_next_turn(house: House) -> None:
    async with ScriptedProvider(Script(replies=(COLOUR, DONE, say("next")))) as provider, house.worker(asker()):
        house.use(provider)
        handle = await house.start()
        (request,) = await waiting(house)
        assert (await update(house, "send", prompt="and then"))["turn"] == 2
        assert await waiting(house) == [request]
        await update(house, "answer", request=request["request_id"], value="red")
        result = await handle.result()
    assert (result["turn"], result["output"]) == (2, "next")


async def test_a_turn_that_is_reset_while_it_waits_asks_no_second_time_and_takes_the_answer(house: House) -> None:
    async with ScriptedProvider(Script(replies=(COLOUR, DONE))) as provider, house.worker(asker()):
        house.use(provider)
        handle = await house.start()
        (request,) = await waiting(house)
        events = (await handle.fetch_history()).events
        tasks = [event.event_id for event in events if event.HasField("workflow_task_completed_event_attributes")]
        await house.temporal.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace=house.temporal.namespace,
                workflow_execution=WorkflowExecution(workflow_id=house.session, run_id=handle.result_run_id or ""),
                reason="a test",
                workflow_task_finish_event_id=tasks[1],
                request_id="reset",
            ),
            retry=True,
        )
        assert await waiting(house) == [request]
        await update(house, "answer", request=request["request_id"], value="red")
        result = await house.temporal.get_workflow_handle(house.session).result()
    assert result["stop_reason"] == "finished"
    assert len(await house.events("user_input_required")) == 1
