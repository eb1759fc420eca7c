"""With ``PERDURE_FAIL_WORKFLOWS`` errors close as Failed and cancels as Canceled; nothing else differs."""

import asyncio
import dataclasses
import json
import re
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from perdure import Agent, Delegate
from perdure.activities.commit_turn import close_as_canceled
from perdure.client.read import closures
from perdure.contracts.names import TURN_CANCELLED
from perdure.contracts.turns import TurnResult
from perdure.testing import ChatRequest, Reply, Script, ScriptedProvider, call, faults, say
from tests.house import WAIT_SECONDS, House, eventually
from tests.temporal_cli import temporal, workflow
from tests.workflow.backgrounds import awaiting, starts, steps
from tests.workflow.bodies import Body, happened
from tests.workflow.delegating import DONE, children, played, query_of, results_in
from tests.workflow.delegating import agent as named
from tests.workflow.killing import AGENTS
from tests.workflow.test_command_line import perdure
from tests.workflow.test_stock_cli import start

pytestmark = pytest.mark.deep

Handle = WorkflowHandle[Any, Any]

REFUSED_KEY = faults.status(401)
"""What no retry helps with: the turn ends with ``llm.auth_error``."""


def agent(*tools: Any, **settings: Any) -> Agent:
    return Agent(name="tester", model="openai/scripted", tools=tools, **settings)


async def stored(house: House, turn: int = 1, session: str = "") -> TurnResult:
    """What the store has of a turn that has ended."""
    result = (await house.store.turn(session or house.session, turn)).result
    assert result is not None
    return result


async def closed(house: House, run_id: str | None = None) -> Any:
    """How a run closed, by default the session's newest, and with what."""
    handle = house.temporal.get_workflow_handle(house.session, run_id=run_id)
    async with asyncio.timeout(WAIT_SECONDS):
        try:
            result = await handle.result(follow_runs=False)
        except WorkflowFailureError as error:
            result = error.cause
    return (await handle.describe()).status, result


async def busy(house: House, body: Body) -> Handle:
    """A turn that runs a tool, until its body is released or cancelled."""
    handle = await house.start()
    await happened(body.started)
    return handle


async def found(house: House, status: str) -> list[Any]:
    """The session's runs of this status, as the stock command line lists them once visibility has the end."""

    async def listed() -> list[Any]:
        query = f'ExecutionStatus = "{status}" AND WorkflowId = "{house.session}"'
        runs: list[Any] = await workflow("list", "--query", query)
        return runs

    runs: list[Any] = await eventually(listed)
    return runs


async def test_an_error_closes_as_failed_with_the_same_result_in_the_failure(house: House) -> None:
    """What another service reads of a completed workflow stands in the failure; without the setting nothing changes."""
    async with ScriptedProvider(always=REFUSED_KEY) as provider:
        house.use(provider)
        async with house.worker(agent()):
            completed = await house.run()
            assert (await closed(house))[0] is WorkflowExecutionStatus.COMPLETED
        async with house.worker(agent(), fail_workflows=True):
            await start(house)
            shown = await asyncio.wait_for(workflow("result", "--workflow-id", house.session, fails=True), WAIT_SECONDS)
            turn = await house.client.attach(house.session)
            assert await turn.result() == await stored(house, 2)
            status, error = await closed(house)
    assert shown["status"] == "FAILED"
    failure = shown["closeEvent"]["workflowExecutionFailedEventAttributes"]["failure"]
    assert failure["message"] == completed["error"]
    assert "stackTrace" not in failure, "it would say where perdure closes turns, and hide the sentence"
    info = failure["applicationFailureInfo"]
    assert (info["type"], info["nonRetryable"]) == ("llm.auth_error", True)
    assert [detail["reason_code"] for detail in info["details"]] == ["llm.auth_error"]
    assert status is WorkflowExecutionStatus.FAILED
    assert isinstance(error, ApplicationError)
    assert error.details == ({**completed, "turn": 2},)
    assert error.details == ((await stored(house, 2)).model_dump(mode="json"),)
    assert len(await found(house, "Failed")) == 1


async def test_a_cancel_closes_as_canceled_with_the_result_in_the_memo(house: House) -> None:
    """A Canceled close holds no details; the client gives the same result all the same."""
    body = Body()
    script = Script(replies=(call(("held", {}), text="half"),))
    async with ScriptedProvider(script) as provider, house.worker(agent(body.held()), fail_workflows=True):
        house.use(provider)
        turn = await house.client.start("tester", "go", session=house.session)
        await happened(body.started)
        reason = json.dumps({"reason": "no longer needed"})
        await temporal("workflow", "signal", "--workflow-id", house.session, "--name", "cancel", "--input", reason)
        status, error = await closed(house)
        result = await turn.result()
    assert status is WorkflowExecutionStatus.CANCELED
    assert isinstance(error, CancelledError)
    assert result == await stored(house)
    assert (result.stop_reason, result.output) == ("cancelled", "half")
    assert result.error == "Operation aborted: no longer needed"
    described = await workflow("describe", "--workflow-id", house.session)
    memo = described["workflowExecutionInfo"]["memo"]["fields"]["perdure_result"]
    assert (memo["stop_reason"], memo["error"], memo["output"]) == ("cancelled", result.error, "half")
    assert len(await found(house, "Canceled")) == 1


async def test_temporal_s_own_cancel_closes_as_ever_and_leaves_its_result_too(house: House) -> None:
    """Its queue is dropped, and the memo has the result of the turn that ran."""
    body = Body()
    script = Script(replies=(call(("held", {})),))
    async with ScriptedProvider(script) as provider, house.worker(agent(body.held()), fail_workflows=True):
        house.use(provider)
        handle = await busy(house, body)
        await handle.execute_update("send", {"prompt": "second", "request_id": "second"})
        await handle.cancel()
        status, _ = await closed(house)
        memo = await (await handle.describe()).memo_value("perdure_result", type_hint=TurnResult)
        activities = [
            event.activity_task_scheduled_event_attributes.activity_type.name
            for event in (await handle.fetch_history()).events
        ]
    assert status is WorkflowExecutionStatus.CANCELED
    assert memo == await stored(house)
    assert (memo.turn, memo.error) == (1, "Operation aborted: cancelled through Temporal")
    assert (await stored(house, 2)).stop_reason == "cancelled"
    assert "close_as_canceled" not in activities


async def test_a_refused_request_closes_as_failed(house: House) -> None:
    """It never became a turn, and its result says so as ever; one that is no request fails whatever the setting."""
    async with ScriptedProvider() as provider, house.worker(agent(), fail_workflows=True):
        house.use(provider)
        await house.store.register_agents([Agent(name="gone", model="openai/scripted").definition])
        turn = await house.client.start("gone", "go", session=house.session)
        result = await turn.result()
        status, error = await closed(house)
    assert status is WorkflowExecutionStatus.FAILED
    assert isinstance(error, ApplicationError)
    assert TurnResult.model_validate(error.details[0]) == result
    assert (result.turn, result.stop_reason) == (None, "error")
    assert result.reason_code == error.type == "request.unknown_agent"


@pytest.mark.parametrize("how", ["error", "cancel"])
async def test_a_turn_that_waits_behind_runs_and_the_last_one_says_how_the_chain_closes(house: House, how: str) -> None:
    """A close as Failed would take the queue along, so such a run continues as new as ever."""
    body = Body()
    refused, hanging = say("no").after(REFUSED_KEY, REFUSED_KEY), say("late").after(faults.hang())

    def answer(request: ChatRequest) -> Reply:
        last = request.messages[-1]
        if last["role"] == "tool" or last["content"] == "third":
            return refused
        return call(("held", {})) if last["content"] == "go" else say("done") if how == "error" else hanging

    async with ScriptedProvider(answer) as provider, house.worker(agent(body.held()), fail_workflows=True):
        house.use(provider)
        handle = await busy(house, body)
        first = await house.client.attach(house.session)
        later = [await house.client.send(house.session, prompt) for prompt in ("second", "third")]
        if how == "error":
            body.released.set()
        else:
            await handle.signal("cancel")
            await provider.wait_for_requests(2)
            await later[0].cancel()
        ends = [(await turn.result()).stop_reason for turn in (first, *later)]
        status, error = await closed(house)
    assert ends == (["error", "finished", "error"] if how == "error" else ["cancelled", "cancelled", "error"])
    assert status is WorkflowExecutionStatus.FAILED
    assert error.details[0]["turn"] == 3
    assert len(await found(house, "ContinuedAsNew")) == 2


async def test_a_message_that_comes_while_the_cancel_is_requested_is_carried_out(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancel is the turn's own: it drops no queue, and the next run knows nothing of it."""
    requesting, go_on, request = asyncio.Event(), asyncio.Event(), Handle.cancel

    async def slow(handle: Handle, **options: Any) -> None:
        requesting.set()
        await go_on.wait()
        await request(handle, **options)

    monkeypatch.setattr(WorkflowHandle, "cancel", slow)
    script = Script(replies=(call(("held", {})), say("second")))
    body = Body()
    async with ScriptedProvider(script) as provider, house.worker(agent(body.held()), fail_workflows=True):
        house.use(provider)
        handle = await busy(house, body)
        await handle.signal("cancel")
        await requesting.wait()
        assert (await handle.query("status"))["state"] == "ended"
        second = await house.client.send(house.session, "second")
        go_on.set()
        result = await second.result()
        status, _ = await closed(house)
    assert (result.turn, result.stop_reason, result.output) == (2, "finished", "second")
    assert status is WorkflowExecutionStatus.COMPLETED
    assert len(await found(house, "ContinuedAsNew")) == 1


async def test_where_workers_may_not_cancel_the_turn_closes_as_failed(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not stay open for it, and its failure has the result."""

    async def refused(*_: Any, **__: Any) -> None:
        raise RPCError("workers may not", RPCStatusCode.PERMISSION_DENIED, b"")

    monkeypatch.setattr(WorkflowHandle, "cancel", refused)
    script = Script(replies=(call(("held", {})),))
    body = Body()
    async with ScriptedProvider(script) as provider, house.worker(agent(body.held()), fail_workflows=True):
        house.use(provider)
        handle = await busy(house, body)
        await handle.signal("cancel")
        status, error = await closed(house)
    assert status is WorkflowExecutionStatus.FAILED
    assert error.type == "runtime.aborted"
    assert TurnResult.model_validate(error.details[0]) == await stored(house)


async def test_a_late_request_of_a_lost_worker_does_not_cancel_the_next_turn(house: House) -> None:
    """It names its run, which has closed."""
    body = Body()
    script = Script(replies=(call(("held", {})), say("late").after(faults.hang())))
    async with ScriptedProvider(script) as provider, house.worker(agent(body.held()), fail_workflows=True):
        house.use(provider)
        first = await busy(house, body)
        await first.signal("cancel")
        await closed(house)
        second = await house.start(prompt="second")
        await provider.wait_for_requests(2)
        environment = ActivityEnvironment(client=house.temporal)
        environment.info = dataclasses.replace(
            environment.info, workflow_id=house.session, workflow_run_id=first.first_execution_run_id
        )
        await environment.run(close_as_canceled)
        assert not (await second.query("status"))["cancelling"]
        assert (await second.describe()).status is WorkflowExecutionStatus.RUNNING


async def told_of_delegates(house: House, *, fail_workflows: bool) -> tuple[Any, ...]:
    """What a caller, its readers and its log are told of delegates that fail, are refused or are cancelled."""
    house.session = f"{house.session.removesuffix('-0')}-{fail_workflows:d}"  # as long: its tokens are counted
    refused = say("").after(REFUSED_KEY)
    hanging = say("late").after(faults.hang())
    parallel = call(("helper", {"query": "bad"}), ("nobody", {"query": "one"}), ("helper", {"query": "slow"}))
    lead = named("tester", delegates=[Delegate("helper", background=True), "nobody"])
    answers = played(
        tester=steps(parallel, starts("worse"), awaiting(0), DONE),
        helper=lambda request: hanging if query_of(request) == "slow" else refused,
    )
    async with ScriptedProvider(answers) as provider:
        house.use(provider)
        async with house.worker(lead, named("helper"), fail_workflows=fail_workflows):
            handle = await house.start()
            await provider.wait_for_requests(3)
            await house.wait_for_event("delegate_end")
            (slow,) = [child.session for child, _ in await children(house) if child.open_turn is not None]
            await house.client.cancel(slow, "enough")
            result = await handle.result()
        read = results_in(provider.requests[-1].request)
    wanted = ("type", "tool", "stop_reason", "reason_code", "error", "steps", "usage", "cost_usd")
    events = sorted(json.dumps({name: line.get(name) for name in wanted}) for line in await house.events())
    told = json.dumps([result, read, events])
    closes = [
        (await house.temporal.get_workflow_handle(child.session).describe()).status
        for child, _ in await children(house)
        if child.session.startswith(house.session)
    ]
    return json.loads(re.sub(rf"{house.session}[^\\s\"',)]*", "SESSION", told)), sorted(
        status.name for status in closes if status is not None
    )


async def test_a_caller_reads_of_its_delegates_what_it_always_reads(house: House) -> None:
    """S-63: of one that fails, that no worker has, that is cancelled, and that fails in the background."""
    (result, read, events), closes = await told_of_delegates(house, fail_workflows=False)
    again, closes_then = await told_of_delegates(house, fail_workflows=True)
    assert again == [result, read, events]
    assert (result["stop_reason"], result["delegated_steps"], len(read)) == ("finished", 0, 5)
    assert closes == ["COMPLETED"] * 3
    assert closes_then == ["CANCELED", "FAILED", "FAILED"]


async def test_workers_that_die_before_the_close_change_nothing_of_it(house: House) -> None:
    """S-80: one dies once the store has the end, the next once Temporal has the cancel; the third closes the turn."""
    async with ScriptedProvider(always=faults.hang()) as provider:
        house.use(provider)
        dying = {"main": "tests.workflow.worker_that_dies", "DIE_AFTER": "commit_turn"}
        first = house.spawn_worker(AGENTS, PERDURE_FAIL_WORKFLOWS="1", **dying)
        handle = await house.start()
        await provider.wait_for_requests(1)
        await handle.signal("cancel", {"reason": "no longer needed"})
        assert await asyncio.to_thread(first.process.wait, WAIT_SECONDS) == -9
        # The turn keeps what it was opened with: these have another setting.
        second = house.spawn_worker(AGENTS, main="tests.workflow.worker_that_cancels")
        assert await asyncio.to_thread(second.process.wait, WAIT_SECONDS) == -9
        third = house.spawn_worker(AGENTS)
        status, _ = await closed(house)
        await third.stop()
    assert status is WorkflowExecutionStatus.CANCELED
    result = await stored(house)
    assert (result.stop_reason, result.error) == ("cancelled", "Operation aborted: no longer needed")
    assert len(await house.events("agent_end")) == 1
    requests = [
        event.workflow_execution_cancel_requested_event_attributes.cause
        for event in (await handle.fetch_history()).events
        if event.HasField("workflow_execution_cancel_requested_event_attributes")
    ]
    assert requests == [TURN_CANCELLED]


async def test_the_command_line_shows_such_turns_as_ever(house: House) -> None:
    """S-60: their exit codes are those of the stop reasons, and no closed workflow is taken for a lost turn."""
    script = Script(replies=(call(("held", {})), say("no").after(REFUSED_KEY)))
    body = Body()
    async with ScriptedProvider(script) as provider, house.worker(agent(body.held()), fail_workflows=True):
        house.use(provider)
        await busy(house, body)
        assert await perdure("cancel", house.session) == (0, [{"session": house.session, "sent": True}])
        assert (await closed(house))[0] is WorkflowExecutionStatus.CANCELED
        code, followed = await perdure("follow", house.session)
        assert (code, followed[-1]["type"], followed[-1]["stop_reason"]) == (6, "agent_end", "cancelled")
        code, failed = await perdure("send", house.session, "and now?")
        assert (code, failed[-1]["stop_reason"], failed[-1]["reason_code"]) == (1, "error", "llm.auth_error")
        assert (await closed(house))[0] is WorkflowExecutionStatus.FAILED
        await found(house, "Failed")
        await found(house, "Canceled")
        code, (listed,) = await perdure("list")
        code, shown = await perdure("show", house.session)
    assert (listed["turn"], listed["state"], listed["reason_code"]) == (2, "ended", "llm.auth_error")
    assert [turn["result"]["stop_reason"] for turn in shown[0]["turns"]] == ["cancelled", "error"]
    assert await closures(house.temporal, await house.store.open_runs()) == {}


async def test_a_lost_turn_is_found_among_failures_of_others(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-60: a few open turns are asked for by name, however many have failed since; many are looked for in all."""
    monkeypatch.setattr("perdure.client.read.AT_ONCE", 1)
    lost = house.session
    async with ScriptedProvider(always=faults.hang()) as provider, house.worker(agent()):
        house.use(provider)
        handle = await house.start()
        await provider.wait_for_requests(1)
        await handle.terminate()
        await found(house, "Terminated")
    house.session = f"{lost}-failed"
    async with ScriptedProvider(always=REFUSED_KEY) as provider, house.worker(agent(), fail_workflows=True):
        house.use(provider)
        await house.start()
        assert (await closed(house))[0] is WorkflowExecutionStatus.FAILED
        await found(house, "Failed")
    begun = await house.store.open_runs()
    several = {**begun, f"{lost}-other": begun[lost]}
    assert list(await closures(house.temporal, several)) == [lost]
    monkeypatch.setattr("perdure.client.read.MOST", 1)
    assert list(await closures(house.temporal, begun)) == [lost]
