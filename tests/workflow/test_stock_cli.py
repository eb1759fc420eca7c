"""Nothing of ours but the worker: another service starts, steers, cancels and finds turns with Temporal's own tool."""

import asyncio
import base64
import json
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError

from perdure import Agent
from perdure.contracts.names import AGENT_TURN
from perdure.testing import ChatRequest, Reply, Script, ScriptedProvider, call, faults, say
from tests.house import WAIT_SECONDS, House, eventually
from tests.temporal_cli import temporal, workflow
from tests.workflow.bodies import Body, happened

pytestmark = pytest.mark.deep

AGENT = Agent(name="tester", model="openai/scripted")


async def start(house: House, **request: Any) -> None:
    sent = json.dumps({"agent": "tester", "prompt": "go", **request})
    queue = house.settings.task_queue
    await workflow(
        *("start", "--type", "AgentTurn", "--task-queue", queue, "--workflow-id", house.session, "--input", sent)
    )


async def listed(house: House, query: str) -> list[Any]:
    found: list[Any] = await workflow("list", "--query", f'{query} AND WorkflowId = "{house.session}"')
    return found


async def attributes(house: House) -> dict[str, Any]:
    """The search attributes of the session's newest run, as they stand in its own record."""
    described = await workflow("describe", "--workflow-id", house.session)
    fields = described["workflowExecutionInfo"].get("searchAttributes", {}).get("indexedFields", {})
    return {
        name: json.loads(base64.b64decode(payload["data"]))
        for name, payload in fields.items()
        if name.startswith("Perdure")
    }


async def test_start_and_result_need_nothing_of_ours(house: House) -> None:
    async with ScriptedProvider(Script(replies=(say("hello"),))) as provider, house.worker(AGENT):
        house.use(provider)
        await start(house)
        shown = await workflow("result", "--workflow-id", house.session)
    assert shown["status"] == "COMPLETED"
    result = shown["result"]
    assert (result["stop_reason"], result["output"], result["session"]) == ("finished", "hello", house.session)
    assert (result["reason_code"], result["error"]) == (None, None)


async def test_a_malformed_input_is_answered_with_a_sentence(house: House) -> None:
    async with house.worker(AGENT):
        await start(house, promt="typo")
        code, output = await temporal("workflow", "result", "--workflow-id", house.session)
    assert code != 0
    assert "promt: Extra inputs are not permitted" in output


DELEGATED = dict.fromkeys(("session", "call_id", "tool", "definition", "root"), "s") | {"turn": 1, "step": 1}

NO_REQUESTS: dict[str, list[Any]] = {
    "no argument came, and one object is needed": [],
    "a list came, and an object is needed": [[{"agent": "tester", "prompt": "go"}]],
    "a string came, and an object is needed": ["go"],
    "null came, and an object is needed": [None],
    "promt: Extra inputs are not permitted": [{"promt": "typo"}],
    "prompt: Input should be a valid string": [{"prompt": {"text": "go"}}],
    "queued: only perdure itself sends it": [{"queued": [{"prompt": "more"}]}],
    "cancelled: only perdure itself sends it": [{"cancelled": ""}],
    "carried: only perdure itself sends it": [{"carried": {"turn": {}, "mail": {}}}],
    "delegated: only perdure itself sends it": [{"delegated": DELEGATED}],
}
"""What a stranger may send in place of a request, by what is said of it."""


async def test_two_arguments_end_as_an_invalid_request(house: House) -> None:
    """The first thing that a stranger tries."""
    queue, name = house.settings.task_queue, house.session
    two = ("--input", '"tester"', "--input", '"go"')
    async with house.worker(AGENT):
        await workflow("start", "--type", "AgentTurn", "--task-queue", queue, "--workflow-id", name, *two)
        shown = await asyncio.wait_for(workflow("result", "--workflow-id", name, fails=True), WAIT_SECONDS)
    failure = shown["closeEvent"]["workflowExecutionFailedEventAttributes"]["failure"]
    assert failure["applicationFailureInfo"]["type"] == "request.invalid"
    assert failure["message"] == (
        "the input is no turn request: two arguments came, and one object is needed; "
        'send {"agent": "name", "prompt": "text"}'
    )


async def test_whatever_a_stranger_sends_ends_as_an_invalid_request(house: House) -> None:
    """No workflow task fails for it, which Temporal would try again for ever; and no session begins."""

    async def started(name: str, given: list[Any]) -> WorkflowHandle[Any, Any]:
        whole = [{"agent": "tester", "prompt": "go"} | part if isinstance(part, dict) else part for part in given]
        queue = house.settings.task_queue
        handle = await house.temporal.start_workflow(AGENT_TURN, args=whole, id=name, task_queue=queue)
        await handle.signal("cancel", args=["one", "two"])  # which waits for a turn that never opens
        return handle

    async def refused(said: str, handle: WorkflowHandle[Any, Any]) -> None:
        with pytest.raises(WorkflowFailureError) as failed:
            await asyncio.wait_for(handle.result(), WAIT_SECONDS)
        cause = failed.value.cause
        assert isinstance(cause, ApplicationError)
        assert (cause.type, cause.non_retryable) == ("request.invalid", True)
        assert cause.message == f"the input is no turn request: {said}; " + 'send {"agent": "name", "prompt": "text"}'
        history = await handle.fetch_history()
        assert not [event for event in history.events if event.HasField("workflow_task_failed_event_attributes")]

    handles = [await started(f"{house.session}-{number}", sent) for number, sent in enumerate(NO_REQUESTS.values())]
    async with house.worker(AGENT):
        await asyncio.gather(*map(refused, NO_REQUESTS, handles))
    assert await house.store.sessions() == ()


async def test_signals_and_updates_with_other_arguments_leave_the_turn_running(house: House) -> None:
    body = Body()
    agent = Agent(name="tester", model="openai/scripted", tools=[body.held()])
    script = Script(replies=(call(("held", {})), say("done")))
    async with ScriptedProvider(script) as provider, house.worker(agent):
        house.use(provider)
        await start(house)
        await happened(body.started)
        two = ("--workflow-id", house.session, "--input", "1", "--input", "2")
        for update in ("send", "cancel", "answer", "approve", "deny", "extend"):
            code, output = await temporal("workflow", "update", "execute", "--name", update, *two)
            assert code != 0, update
            assert "two arguments came, and one object is needed" in output, update
        code, output = await temporal("workflow", "signal", "--name", "cancel", *two)
        assert code == 0, output
        shown = await asyncio.wait_for(workflow("result", "--workflow-id", house.session), WAIT_SECONDS)
    assert (shown["result"]["stop_reason"], shown["result"]["session"]) == ("cancelled", house.session)


async def test_a_turn_is_cancelled_by_signal_and_then_found_by_its_stop_reason(house: House) -> None:
    async with ScriptedProvider(always=faults.hang()) as provider, house.worker(AGENT):
        house.use(provider)
        await start(house, tenant="acme")
        await provider.wait_for_requests(1)
        assert await attributes(house) == {
            "PerdureAgent": "tester",
            "PerdureModel": "openai/scripted",
            "PerdureState": "running",
            "PerdureTenant": "acme",
        }
        reason = json.dumps({"reason": "no longer needed"})
        code, output = await temporal(
            *("workflow", "signal", "--workflow-id", house.session, "--name", "cancel", "--input", reason)
        )
        assert code == 0, output
        shown = await workflow("result", "--workflow-id", house.session)
        assert shown["result"]["error"] == "Operation aborted: no longer needed"
        (found,) = await eventually(lambda: listed(house, 'PerdureStopReason = "cancelled"'))
    assert found["execution"]["workflowId"] == house.session
    assert await attributes(house) == {
        "PerdureAgent": "tester",
        "PerdureModel": "openai/scripted",
        "PerdureState": "ended",
        "PerdureTenant": "acme",
        "PerdureStopReason": "cancelled",
        "PerdureReasonCode": "runtime.aborted",
        "PerdureSteps": 0,
        "PerdureTokens": 0,
        "PerdureCostUsd": 0,
    }


async def test_temporals_own_cancel_ends_as_canceled_and_is_found_by_both(house: House) -> None:
    async with ScriptedProvider(always=faults.hang()) as provider, house.worker(AGENT):
        house.use(provider)
        await start(house)
        await provider.wait_for_requests(1)
        code, output = await temporal("workflow", "cancel", "--workflow-id", house.session)
        assert code == 0, output
        query = 'PerdureStopReason = "cancelled" AND ExecutionStatus = "Canceled"'
        assert len(await eventually(lambda: listed(house, query))) == 1


async def test_a_failed_turn_is_found_by_its_reason_code(house: House) -> None:
    async with ScriptedProvider(always=faults.status(401)) as provider, house.worker(AGENT):
        house.use(provider)
        await start(house)
        shown = await workflow("result", "--workflow-id", house.session)
        assert shown["status"] == "COMPLETED"
        query = 'PerdureStopReason = "error" AND PerdureReasonCode = "llm.auth_error"'
        assert len(await eventually(lambda: listed(house, query))) == 1


async def test_status_is_asked_and_a_message_is_sent_by_the_stock_commands(house: House) -> None:
    """And the next turn begins without the stop reason and the reason code of the one before."""
    body, second = Body(), Body()

    def answer(request: ChatRequest) -> Reply:
        last = request.messages[-1]["content"]
        return call(("held" if last == "go" else "wait", {})) if last in {"go", "and then?"} else say("done")

    agent = Agent(name="tester", model="openai/scripted", tools=[body.held(), second.held().with_(name="wait")])
    async with ScriptedProvider(answer) as provider, house.worker(agent):
        house.use(provider)
        await start(house, budgets={"llm_calls": 1})
        await happened(body.started)
        queried = await workflow("query", "--workflow-id", house.session, "--type", "status")
        (status,) = queried["queryResult"]
        assert (status["turn"], status["activity"], status["state"]) == (1, "tools: held", "running")
        message = json.dumps({"prompt": "and then?"})
        sent = await workflow(
            *("update", "execute", "--workflow-id", house.session, "--name", "send", "--input", message)
        )
        assert sent["result"] == {"turn": 2}
        body.released.set()
        await happened(second.started)
        running = await attributes(house)
        second.released.set()
        shown = await workflow("result", "--workflow-id", house.session)
    assert (running["PerdureState"], running["PerdureAgent"]) == ("running", "tester")
    assert "PerdureStopReason" not in running
    assert "PerdureReasonCode" not in running
    assert (shown["result"]["turn"], shown["result"]["stop_reason"]) == (2, "finished")
    first = (await house.store.turn(house.session, 1)).result
    assert first is not None
    assert (first.stop_reason, first.reason_code) == ("budget_exhausted", "budget.llm_calls_exhausted")
    ended = await attributes(house)
    assert (ended["PerdureStopReason"], ended["PerdureSteps"]) == ("finished", 2)
    assert "PerdureReasonCode" not in ended


async def test_a_refused_message_is_answered_with_a_sentence(house: House) -> None:
    body = Body()
    agent = Agent(name="tester", model="openai/scripted", tools=[body.held()])
    script = Script(replies=(call(("held", {})), say("done")))
    async with ScriptedProvider(script) as provider, house.worker(agent):
        house.use(provider)
        await start(house)
        await happened(body.started)
        code, output = await temporal(
            *("workflow", "update", "execute", "--workflow-id", house.session, "--name", "send", "--input", '"hi"')
        )
        body.released.set()
    assert code != 0
    assert 'send {"prompt": "text"}' in output.replace("\\", "")


async def test_a_turn_that_is_reset_pays_for_nothing_twice(house: House) -> None:
    """S-80: the answers and the tool results after the reset point are found in the store."""
    body = Body()
    body.released.set()
    agent = Agent(name="tester", model="openai/scripted", tools=[body.held()])
    script = Script(replies=(call(("held", {})), call(("held", {})), say("done").after(faults.hang())))
    async with ScriptedProvider(script) as provider, house.worker(agent):
        house.use(provider)
        await start(house)
        await provider.wait_for_requests(3)
        history = await house.temporal.get_workflow_handle(house.session).fetch_history()
        tasks = [
            event.event_id for event in history.events if event.HasField("workflow_task_completed_event_attributes")
        ]
        # The second workflow task is the one that has seen the turn open and asks for the first generation.
        code, output = await temporal(
            *("workflow", "reset", "--workflow-id", house.session, "--event-id", str(tasks[1]), "--reason", "try again")
        )
        assert code == 0, output
        shown = await workflow("result", "--workflow-id", house.session)
        assert provider.request_count == 4
    assert (shown["result"]["turn"], shown["result"]["steps"], shown["result"]["output"]) == (1, 3, "done")
    assert len(await house.events("tool_start")) == 2
    assert len(await house.events("generation_end")) == 3
