"""What may be sent to a turn, asked of it, and started twice; as another service sees it, without our client."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from temporalio.client import (
    WithStartWorkflowOperation,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError

from perdure import Agent
from perdure.contracts.names import AGENT_TURN
from perdure.testing import ChatRequest, Reply, Script, ScriptedProvider, call, faults, say
from tests.house import House, eventually
from tests.workflow.bodies import Body, happened
from tests.workflow.cancelling import cancel, cancelled

pytestmark = pytest.mark.deep

SILENT = Agent(name="tester", model="openai/scripted")


def agent(body: Body, **settings: Any) -> Agent:
    return Agent(name="tester", model="openai/scripted", tools=[body.held()], **settings)


def prompts(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [message["content"] for message in messages if message["role"] == "user"]


def answer_the_last_prompt(request: ChatRequest) -> Reply:
    """Hold the tool once, at the first prompt; answer every other one by its own words."""
    last = request.messages[-1]
    return call(("held", {})) if last["content"] == "go" else say(f"answer to {prompts(request.messages)[-1]}")


async def send(house: House, prompt: str, **fields: Any) -> int:
    """The number of the turn that takes the message."""
    handle = house.temporal.get_workflow_handle(house.session)
    receipt: dict[str, Any] = await handle.execute_update("send", {"prompt": prompt, **fields})
    return int(receipt["turn"])


async def outputs(house: House) -> list[tuple[int, str, str]]:
    """Number, stop reason and output of each turn of the session."""
    ended = [record.result for record in await house.store.turns(house.session)]
    return [(result.turn or 0, str(result.stop_reason), result.output) for result in ended if result is not None]


async def test_messages_to_a_busy_session_become_turns_of_their_own_in_their_order(house: House) -> None:
    """Section A: the queue is worked off by the next turns; each has its own result, and the chain's is the last."""
    body = Body()
    async with ScriptedProvider(answer_the_last_prompt) as provider, house.worker(agent(body)):
        house.use(provider)
        handle = await house.start()
        await happened(body.started)
        assert [await send(house, "second"), await send(house, "third")] == [2, 3]
        assert (await handle.query("status"))["queued"] == 2
        body.released.set()
        result = await handle.result()
    assert await outputs(house) == [
        (1, "finished", "answer to go"),
        (2, "finished", "answer to second"),
        (3, "finished", "answer to third"),
    ]
    assert (result["turn"], result["output"]) == (3, "answer to third")
    assert prompts(provider.requests[-1].request.messages) == ["go", "second", "third"]
    assert [line["turn"] for line in await house.events("agent_end")] == [1, 2, 3]


async def test_the_same_request_id_sent_twice_is_one_message(house: House) -> None:
    body = Body()
    async with ScriptedProvider(answer_the_last_prompt) as provider, house.worker(agent(body)):
        house.use(provider)
        handle = await house.start(request_id="the-first")
        await happened(body.started)
        assert await send(house, "second", request_id="b") == 2
        assert await send(house, "third", request_id="c") == 3
        assert await send(house, "second", request_id="b") == 2
        assert await send(house, "go", request_id="the-first") == 1
        assert (await handle.query("status"))["queued"] == 2
        body.released.set()
        await handle.result()
    assert [output for _, _, output in await outputs(house)] == ["answer to go", "answer to second", "answer to third"]


async def test_a_steered_message_is_read_by_the_running_turns_next_generation(house: House) -> None:
    """Once however often it is sent, after the tool results, and the log tells when it was taken in."""
    body, committing = Body(), house.hold("commit_turn")
    script = Script(replies=(call(("held", {})), say("as you wish")))
    async with ScriptedProvider(script) as provider, house.worker(agent(body)):
        house.use(provider)
        handle = await house.start()
        await happened(body.started)
        assert await send(house, "be brief", steer=True, request_id="s") == 1
        assert await send(house, "be brief", steer=True, request_id="s") == 1
        body.released.set()
        await committing.reached.wait()
        assert await send(house, "be brief", steer=True, request_id="s") == 1
        committing.go_on.set()
        result = await handle.result()
    assert (result["turn"], result["steps"], result["output"]) == (1, 2, "as you wish")
    read = [(m["role"], m.get("content")) for m in provider.requests[-1].request.messages]
    assert read[2:] == [("tool", "released"), ("user", "be brief")]
    events = [(line["type"], line.get("content")) for line in await house.events("user_message")]
    assert events == [("user_message", "be brief")]


async def test_steering_while_the_last_text_is_made_brings_another_step(house: House) -> None:
    """A message that was taken into the turn is read before the turn may end."""
    storing = house.hold("finish_generation")
    script = Script(replies=(say("that is all"), say("one thing more")))
    async with ScriptedProvider(script) as provider, house.worker(SILENT):
        house.use(provider)
        handle = await house.start()
        await storing.reached.wait()
        assert await send(house, "anything else?", steer=True) == 1
        storing.go_on.set()
        result = await handle.result()
    assert (result["stop_reason"], result["steps"], result["output"]) == ("finished", 2, "one thing more")
    read = [(m["role"], m["content"]) for m in provider.requests[-1].request.messages]
    assert read == [("user", "go"), ("assistant", "that is all"), ("user", "anything else?")]


async def test_update_with_start_on_an_idle_session_starts_its_next_turn(house: House) -> None:
    """The message that starts a turn is the turn's own prompt, not one for the turn after it."""
    async with ScriptedProvider(answer_the_last_prompt) as provider, house.worker(SILENT):
        house.use(provider)
        await house.run(prompt="first")
        start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            AGENT_TURN,
            {"prompt": "second", "request_id": "b"},
            id=house.session,
            task_queue=house.settings.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )
        receipt = await house.temporal.execute_update_with_start_workflow(
            "send", {"prompt": "second", "request_id": "b"}, start_workflow_operation=start
        )
        result = await (await start.workflow_handle()).result()
    assert receipt == {"turn": 2}
    assert (result["turn"], result["output"]) == (2, "answer to second")
    assert [turn for turn, _, _ in await outputs(house)] == [1, 2]


async def test_status_and_budget_tell_where_the_turn_stands_and_what_it_may_spend(house: House) -> None:
    body = Body()
    script = Script(replies=(call(("held", {})), say("done")))
    async with ScriptedProvider(script) as provider, house.worker(agent(body, max_steps=7)):
        house.use(provider)
        handle = await house.start(budgets={"llm_calls": 5})
        await happened(body.started)
        status, budget = await handle.query("status"), await handle.query("budget")
        body.released.set()
        await handle.result()
        after = await handle.query("status")
    spent = status.pop("spent")
    assert status == {
        "session": house.session,
        "turn": 1,
        "agent": "tester",
        "model": "openai/scripted",
        "state": "running",
        "step": 1,
        "max_steps": 7,
        "activity": "tools: held",
        "queued": 0,
        "cancelling": False,
        "requests": [],
        "todos": [],
    }
    assert (spent["llm_calls"], spent["tool_calls"]) == (1, 1)
    assert (budget["max_steps"], budget["steps"], budget["limits"]["llm_calls"]) == (7, 1, 5)
    assert budget["spent"] == spent
    assert (after["state"], after["step"]) == ("ended", 2)


async def test_a_turn_that_was_refused_has_no_status(house: House) -> None:
    async with house.worker(SILENT):
        handle = await house.start(agent="nobody")
        await handle.result()
        with pytest.raises(WorkflowQueryFailedError, match="has not been opened"):
            await handle.query("status")


async def test_more_than_a_hundred_waiting_messages_are_refused(house: House) -> None:
    body = Body()
    async with ScriptedProvider(Script(replies=(call(("held", {})), say("done")))) as provider:
        house.use(provider)
        async with house.worker(agent(body)):
            handle = await house.start()
            await happened(body.started)
            for number in range(100):
                await send(house, str(number))
            with pytest.raises(WorkflowUpdateFailedError) as refused:
                await send(house, "one too many")
            assert (await handle.query("status"))["queued"] == 100
            await handle.terminate()
    assert _failure(refused.value.cause) == (
        "request.too_large",
        "100 messages wait already; send this one when a turn has ended",
    )


@pytest.mark.parametrize("letter", ["x", "\u0007"])
async def test_waiting_messages_that_one_payload_cannot_hold_are_refused(house: House, letter: str) -> None:
    """Control characters are written as six bytes each: what counts is the size in the payload."""
    body = Body()
    async with ScriptedProvider(answer_the_last_prompt) as provider, house.worker(agent(body)):
        house.use(provider)
        handle = await house.start()
        await happened(body.started)
        sent = await asyncio.gather(*(send(house, f"a{letter * 60_000}") for _ in range(9)), return_exceptions=True)
        body.released.set()
        result = await handle.result()
    taken = [receipt for receipt in sent if isinstance(receipt, int)]
    refused = [_failure(error.cause)[0] for error in sent if isinstance(error, WorkflowUpdateFailedError)]
    assert len(taken) >= 1
    assert refused == ["request.too_large"] * (9 - len(taken))
    assert len(refused) >= 1
    assert result["turn"] == 1 + len(taken)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"prompt": ""}, "prompt: String should have at least 1 character"),
        ({"prompt": "x" * 131_073}, "prompt: is 131,073 bytes, the limit is 131,072"),
        ({"prompt": "hello", "stear": True}, "stear: Extra inputs are not permitted"),
        ({}, "prompt: Field required"),
        ("hello", "a string came, and an object is needed"),
        (None, "null came, and an object is needed"),
    ],
)
async def test_a_malformed_message_is_refused_and_changes_nothing(house: House, sent: Any, said: str) -> None:
    body = Body()
    async with ScriptedProvider(answer_the_last_prompt) as provider, house.worker(agent(body)):
        house.use(provider)
        handle = await house.start()
        await happened(body.started)
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await handle.execute_update("send", sent)
        body.released.set()
        result = await handle.result()
    code, message = _failure(refused.value.cause)
    assert code == "request.invalid"
    assert message.startswith(f"the input is no message: {said}")
    assert (result["turn"], result["stop_reason"]) == (1, "finished")


async def test_temporals_cancel_gives_every_waiting_message_a_cancelled_turn_of_its_own(house: House) -> None:
    """S-59: nobody waits for ever for a message that was taken."""
    body = Body()
    async with ScriptedProvider(answer_the_last_prompt) as provider, house.worker(agent(body)):
        house.use(provider)
        handle = await house.start()
        await happened(body.started)
        assert await send(house, "stop that", steer=True) == 1
        assert [await send(house, "second"), await send(house, "third")] == [2, 3]
        await cancel(handle, "temporal")
        for turn in (1, 2, 3):
            await cancelled(house, handle, "temporal", turn)
        assert provider.request_count == 1
        await house.run(prompt="and now?")
    assert prompts(provider.requests[-1].request.messages) == ["go", "stop that", "second", "third", "and now?"]


async def test_a_message_that_comes_while_the_queue_is_dropped_gets_its_cancelled_turn_too(house: House) -> None:
    """S-59: and the number in its receipt is the number of that turn."""
    body, second = Body(), house.hold("open_turn", lambda opening, *_, **__: opening.request.prompt == "second")
    async with ScriptedProvider(answer_the_last_prompt) as provider, house.worker(agent(body)):
        house.use(provider)
        handle = await house.start()
        await happened(body.started)
        await send(house, "second")
        await cancel(handle, "temporal")
        await second.reached.wait()
        late = asyncio.create_task(send(house, "third"))
        await _accepted(handle, 2)
        second.go_on.set()
        assert await late == 3
        for turn in (1, 2, 3):
            await cancelled(house, handle, "temporal", turn)
    texts = [message.content for message in await house.store.transcript(house.session) if message.role == "user"]
    assert texts == ["go", "second", "third"]


async def test_a_cancel_by_signal_leaves_the_waiting_messages_their_turns(house: House) -> None:
    body = Body()
    async with ScriptedProvider(answer_the_last_prompt) as provider, house.worker(agent(body)):
        house.use(provider)
        handle = await house.start()
        await happened(body.started)
        await send(house, "second")
        await handle.signal("cancel")
        await handle.result()
    assert await outputs(house) == [(1, "cancelled", ""), (2, "finished", "answer to second")]


@pytest.mark.parametrize("limits", [{"max_steps": 1}, {"budgets": {"llm_calls": 1}}])
async def test_a_message_steered_in_while_a_limit_ends_the_turn_goes_to_the_next_one(
    house: House, limits: dict[str, Any]
) -> None:
    """What was taken is never lost, whatever ends the turn."""
    body, committing = Body(), house.hold("commit_turn")
    async with ScriptedProvider(answer_the_last_prompt) as provider, house.worker(agent(body)):
        house.use(provider)
        handle = await house.start(**limits)
        body.released.set()
        await committing.reached.wait()
        assert (await handle.query("status"))["state"] == "ended"
        assert await send(house, "second", steer=True) == 2
        committing.go_on.set()
        await handle.result()
    assert [output for _, _, output in await outputs(house)] == ["", "answer to second"]


async def test_the_same_request_started_again_gives_the_recorded_result_and_asks_no_model(house: House) -> None:
    async with ScriptedProvider(answer_the_last_prompt) as provider, house.worker(SILENT):
        house.use(provider)
        first = await house.run(prompt="first", request_id="a")
        second = await house.run(prompt="second", request_id="b")
        again = await house.run(prompt="first", request_id="a")
        assert provider.request_count == 2
    assert again == first
    assert second["turn"] == 2
    assert len(await house.store.turns(house.session)) == 2


async def test_a_message_to_a_request_that_was_carried_out_before_learns_its_right_turn(house: House) -> None:
    """The session may be many turns further than the request that is repeated."""
    async with ScriptedProvider(answer_the_last_prompt) as provider, house.worker(SILENT):
        house.use(provider)
        await house.run(prompt="first", request_id="a")
        await house.run(prompt="second", request_id="b")
        opening = house.hold("open_turn")
        handle = await house.start(prompt="first", request_id="a")
        await opening.reached.wait()
        sending = asyncio.create_task(send(house, "third"))
        await _accepted(handle, 1)
        opening.go_on.set()
        assert await sending == 3
        await handle.result()
    assert [output for _, _, output in await outputs(house)] == [f"answer to {n}" for n in ("first", "second", "third")]


async def test_a_request_that_was_terminated_goes_on_when_it_is_started_again_and_pays_nothing_twice(
    house: House,
) -> None:
    """The turn is open in the store: its answers and tool results are there."""
    body = Body()
    body.released.set()
    script = Script(replies=(call(("held", {})), say("done").after(faults.hang())))
    async with ScriptedProvider(script) as provider, house.worker(agent(body)):
        house.use(provider)
        handle = await house.start(request_id="a")
        await provider.wait_for_requests(2)
        await handle.terminate("by mistake")
        result = await house.run(request_id="a")
        assert provider.request_count == 3
    assert (result["turn"], result["steps"], result["output"]) == (1, 2, "done")
    assert len(await house.events("tool_start")) == 1


async def test_a_turn_that_was_terminated_is_closed_by_the_next_one_and_loses_nothing(house: House) -> None:
    """Section A: every turn has a result, also one whose workflow could not record it."""
    body = Body()
    body.released.set()
    script = Script(replies=(call(("held", {})), say("done").after(faults.hang())))
    async with ScriptedProvider(script) as provider, house.worker(agent(body)):
        house.use(provider)
        handle = await house.start()
        await provider.wait_for_requests(2)
        await handle.terminate("by hand")
        assert (await house.run(prompt="and now?"))["turn"] == 2
    closed = (await house.store.turn(house.session, 1)).result
    assert closed is not None
    assert (closed.stop_reason, closed.reason_code, closed.steps) == ("error", "runtime.turn_closed", 1)
    roles = [(m["role"], m.get("content")) for m in provider.requests[-1].request.messages]
    assert [roles[0], *roles[2:]] == [("user", "go"), ("tool", "released"), ("user", "and now?")]


async def test_a_wrong_expected_turn_number_is_refused(house: House) -> None:
    async with ScriptedProvider(answer_the_last_prompt) as provider, house.worker(SILENT):
        house.use(provider)
        await house.run(prompt="first", turn=1)
        refused = await house.run(prompt="second", turn=5)
        assert provider.request_count == 1
        assert (await house.run(prompt="second", turn=2))["turn"] == 2
    assert (refused["stop_reason"], refused["reason_code"], refused["turn"]) == ("error", "request.turn_mismatch", None)
    assert "is at turn 2, the caller expected 5" in refused["error"]


async def test_a_new_session_without_an_agent_is_refused(house: House) -> None:
    async with house.worker(SILENT):
        handle = await house.temporal.start_workflow(
            AGENT_TURN, {"prompt": "hello"}, id=house.session, task_queue=house.settings.task_queue
        )
        result = await handle.result()
    assert (result["stop_reason"], result["reason_code"]) == ("error", "request.unknown_session")
    assert result["error"] == f"there is no session {house.session!r}; name an agent to start one"


async def test_a_message_to_a_turn_that_was_refused_is_refused_with_the_same_sentence(house: House) -> None:
    async with house.worker(SILENT):
        start: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
            AGENT_TURN,
            {"prompt": "hello", "request_id": "a"},
            id=house.session,
            task_queue=house.settings.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await house.temporal.execute_update_with_start_workflow(
                "send", {"prompt": "hello", "request_id": "a"}, start_workflow_operation=start
            )
    assert "there is no session" in _failure(refused.value.cause)[1]


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (None, "null came, and an object is needed"),
        ("hello", "a string came, and an object is needed"),
        ({"agent": "tester"}, "prompt: is needed, unless the turn resumes from a checkpoint"),
        ({"agent": "tester", "prompt": "go", "promt": 1}, "promt: Extra inputs are not permitted"),
        ({"agent": "tester", "prompt": "go", "max_steps": 0}, "max_steps: Input should be greater than"),
        ({"agent": "tester", "prompt": "go", "budgets": {"seconds": -1}}, "budgets.seconds: "),
        ({"agent": "tester", "prompt": "go", "carried": "something"}, "carried: only perdure itself sends it"),
    ],
)
async def test_input_that_is_no_request_fails_the_workflow_with_one_sentence(
    house: House, sent: Any, said: str
) -> None:
    async with house.worker(SILENT):
        handle = await house.temporal.start_workflow(
            AGENT_TURN, sent, id=house.session, task_queue=house.settings.task_queue
        )
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
        assert (await handle.describe()).status is WorkflowExecutionStatus.FAILED
    code, message = _failure(failed.value.cause)
    assert code == "request.invalid"
    assert said in message
    assert message.startswith("the input is no turn request: ")
    assert "\n" not in message


def _failure(cause: BaseException | None) -> tuple[str, str]:
    assert isinstance(cause, ApplicationError)
    return cause.type or "", cause.message


async def _accepted(handle: Any, count: int) -> None:
    """Wait until the workflow has taken so many updates in."""

    async def taken() -> bool:
        history = await handle.fetch_history()
        accepted = [e for e in history.events if e.HasField("workflow_execution_update_accepted_event_attributes")]
        return len(accepted) >= count

    await eventually(taken)
