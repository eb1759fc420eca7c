"""People who reply at the wrong moment, after a reset, or twice; and turns that are gone with what was said."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowFailureError

from perdure import ApprovalPolicy, tool
from perdure.client import NoWorkerError, RequestRefusedError, replies, updates
from perdure.contracts.events import UserInputRequired
from perdure.contracts.values import JsonValue
from perdure.store import StoreUnavailableError
from perdure.testing import Script, ScriptedProvider, call
from tests.house import WAIT_SECONDS, House, eventually
from tests.workflow.asking import COLOUR, DONE, PAID, PAY, asker, results, several, update, waiting

STOPS = {"interactive": "stop"}


@pytest.fixture(autouse=True)
def _nothing_is_paid() -> None:
    PAID.clear()


@tool(interactive=True)
def facts(question: str) -> dict[str, int]:
    """What is known?"""
    raise NotImplementedError


@pytest.mark.parametrize("interactive", ["wait", "stop"])
async def test_a_reply_in_the_moment_of_the_event_is_taken(house: House, interactive: str) -> None:
    """S-60 S-66: the event is there before the turn waits, and before a turn that stops has stopped."""
    agent = asker(interactive=interactive)
    async with ScriptedProvider(Script(replies=(COLOUR, DONE))) as provider, house.worker(agent):
        house.use(provider)
        turn = await house.client.start("tester", "go", session=house.session)
        async for envelope in turn.events():
            if isinstance(envelope.event, UserInputRequired):
                await house.client.answer(house.session, envelope.event.request_id, "red", by="ann")
                break
        result = await (await house.client.attach(house.session)).result()
    assert (result.stop_reason, results(provider.requests[-1].request.messages)) == ("finished", ["red"])


async def test_a_reply_while_the_turn_is_stopping_waits_for_the_stop(house: House) -> None:
    """S-66: the commit takes its time, as it does when the store is away."""
    committing = house.hold("commit_turn")
    async with ScriptedProvider(Script(replies=(COLOUR, DONE))) as provider, house.worker(asker(**STOPS)):
        house.use(provider)
        await house.start()
        await asyncio.wait_for(committing.reached.wait(), WAIT_SECONDS)
        (asked,) = await house.wait_for_event("user_input_required")
        reply = asyncio.create_task(house.client.answer(house.session, asked["request_id"], "red", by="ann"))
        refused = asyncio.Event()
        heard = replies.Replies._find_receipt  # pyright: ignore[reportPrivateUsage]

        async def seen(*arguments: Any) -> Any:
            refused.set()
            return await heard(*arguments)

        house.environment.setattr(replies.Replies, "_find_receipt", seen)
        await asyncio.wait_for(refused.wait(), WAIT_SECONDS)
        committing.go_on.set()
        assert (await reply).decision == "answered"
        result = await (await house.client.attach(house.session)).result()
    assert (result.turn, result.stop_reason) == (2, "finished")


async def test_an_approval_that_has_expired_is_not_given_new_time_by_the_answer_beside_it(house: House) -> None:
    """S-66: the time runs from when it was first asked for."""
    agent = asker(**STOPS, approvals=ApprovalPolicy(expires=timedelta(seconds=2)))
    asked = several(COLOUR, PAY)
    async with ScriptedProvider(Script(replies=(asked, DONE))) as provider, house.worker(agent):
        house.use(provider)
        question, approval = (await house.run())["requests"]
        until = datetime.fromisoformat(approval["expires_at"])

        async def expired() -> bool:
            return datetime.now(UTC) > until

        await eventually(expired)
        await house.client.answer(house.session, question["request_id"], "red", by="ann")
        result = await (await house.client.attach(house.session)).result()
    assert (result.turn, result.stop_reason, PAID) == (2, "finished", [])
    read = results(provider.requests[-1].request.messages)
    assert (read[0], "in time" in read[1]) == ("red", True)


async def test_an_object_answers_once_however_it_is_written(house: House) -> None:
    """S-60: also when the turn is over; another object is refused."""
    asked = call(("facts", {"question": "?"}))
    async with ScriptedProvider(Script(replies=(asked, DONE))) as provider, house.worker(asker(tools=[facts])):
        house.use(provider)
        handle = await house.start()
        (request,) = await waiting(house)
        first = await house.client.answer(house.session, request["request_id"], '{"b":1,"a":2}', by="ann")
        await handle.result()
        ways: list[JsonValue] = ['{"b":1,"a":2}', '{"a": 2, "b": 1}', {"a": 2, "b": 1}]
        for same in ways:
            assert await house.client.answer(house.session, request["request_id"], same, by="bob") == first
        with pytest.raises(RequestRefusedError, match="that stands"):
            await house.client.answer(house.session, request["request_id"], '{"b":1}', by="bob")


async def test_an_approval_for_other_arguments_is_refused_however_late(house: House) -> None:
    async with ScriptedProvider(Script(replies=(several(COLOUR, PAY), DONE))) as provider, house.worker(asker()):
        house.use(provider)
        handle = await house.start()
        question, approval = await waiting(house, 2)
        request_id, digest = approval["request_id"], approval["digest"]
        first = await house.client.approve(house.session, request_id, by="ann", digest=digest)
        for over in (False, True):
            if over:
                await house.client.answer(house.session, question["request_id"], "red")
                await handle.result()
            with pytest.raises(RequestRefusedError, match="not those of this approval"):
                await house.client.approve(house.session, request_id, by="bob", digest="0" * 32)
            assert await house.client.approve(house.session, request_id, by="bob", digest=digest) == first
    assert PAID == [7]


async def test_a_turn_that_a_reply_has_started_goes_on_when_it_is_reset(house: House) -> None:
    """S-66 S-80: the call that the reply was for has run; nothing is taken twice, and the other question stays."""
    asked = several(COLOUR, PAY)
    real = type(house.store).commit_turn
    async with ScriptedProvider(Script(replies=(asked, DONE))) as provider, house.worker(asker(**STOPS)):
        house.use(provider)
        _, approval = (await house.run())["requests"]

        async def away(*_: Any) -> Any:
            msg = "away"
            raise StoreUnavailableError(msg)

        house.environment.setattr(type(house.store), "commit_turn", away)
        await house.client.approve(house.session, approval["request_id"], by="ann")
        await house.wait_for_event("user_input_required", 3)
        handle = house.temporal.get_workflow_handle(house.session)
        events = (await handle.fetch_history()).events
        first = next(event.event_id for event in events if event.HasField("workflow_task_completed_event_attributes"))
        house.environment.setattr(type(house.store), "commit_turn", real)
        await house.temporal.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace=house.temporal.namespace,
                workflow_execution=WorkflowExecution(
                    workflow_id=house.session, run_id=(await handle.describe()).run_id
                ),
                reason="a test",
                workflow_task_finish_event_id=first,
                request_id="reset",
            ),
            retry=True,
        )
        async with asyncio.timeout(WAIT_SECONDS):
            result = await house.temporal.get_workflow_handle(house.session).result()
    assert (result["stop_reason"], len(result["requests"]), PAID) == ("waiting_for_input", 1, [7])


async def test_a_reply_that_was_lost_with_its_turn_is_not_passed_over(house: House) -> None:
    """The answer stood in Temporal alone, whose workflow was terminated: the model reads what may have happened."""
    async with ScriptedProvider(Script(replies=(several(COLOUR, PAY), DONE))) as provider, house.worker(asker()):
        house.use(provider)
        handle = await house.start()
        question, _ = await waiting(house, 2)
        await update(house, "answer", request=question["request_id"], value="red", by="ann")
        await handle.terminate()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        await house.run(prompt="go on")
    lost = "waited for a person when its turn was lost, and what anybody replied with it; it did not run"
    assert results(provider.requests[-1].request.messages) == [
        f"Operation aborted: {name} {lost}" for name in ("ask_user", "pay")
    ]


async def test_a_reply_that_no_worker_takes_says_whether_it_is_kept(house: House) -> None:
    """S-66: it has started the next turn, which waits for a worker."""
    async with ScriptedProvider(Script(replies=(COLOUR, DONE))) as provider:
        house.use(provider)
        async with house.worker(asker(**STOPS)):
            (request,) = (await house.run())["requests"]
        house.environment.setattr(updates, "TIMEOUT", timedelta(seconds=1))
        with pytest.raises(NoWorkerError, match="no need to reply again"):
            await house.client.answer(house.session, request["request_id"], "red")
        async with house.worker(asker(**STOPS)):
            result = await (await house.client.attach(house.session)).result()
    assert (result.turn, result.stop_reason) == (2, "finished")


async def test_a_request_that_both_replies_and_compacts_is_refused(house: House) -> None:
    async with ScriptedProvider(Script(replies=(COLOUR, DONE))) as provider, house.worker(asker(**STOPS)):
        house.use(provider)
        (request,) = (await house.run())["requests"]
        reply = {"request": request["request_id"], "decision": "answered", "value": "red"}
        result = await house.run(prompt="both", reply=reply, compact=True)
    assert result["turn"] is None
    assert "send the one or the other" in result["error"]


async def test_questions_beyond_one_payload_are_refused_and_the_turn_goes_on(house: House) -> None:
    """S-06: the first ones are asked, the model is told to ask the rest later."""
    large: JsonValue = {"question": "€" * 2_000, "options": [f"{number}" + "€" * 195 for number in range(20)]}
    asked = call(*[("ask_user", large) for _ in range(140)])
    async with ScriptedProvider(Script(replies=(asked, DONE))) as provider, house.worker(asker(**STOPS)):
        house.use(provider)
        result = await house.run()
    assert (result["stop_reason"], result["error"]) == ("waiting_for_input", None)
    assert 10 < len(result["requests"]) < 30
