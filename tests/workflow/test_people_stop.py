"""``interactive: stop``: the turn ends with ``waiting_for_input``, and the reply starts the next one."""

import pytest

from perdure import Continue, ask_user, hook, tool
from perdure.client import RequestRefusedError
from perdure.contracts.events import GenerationEnd
from perdure.contracts.values import JsonValue
from perdure.testing import Script, ScriptedProvider, call
from tests.house import House
from tests.workflow.asking import COLOUR, DONE, PAID, PAY, asker, results, several

STOPS = {"interactive": "stop"}


@pytest.fixture(autouse=True)
def _nothing_is_paid() -> None:
    PAID.clear()


async def test_the_turn_stops_and_the_answer_starts_the_next_as_that_calls_result(house: House) -> None:
    """S-66: its result says what it waits for; the answer is no message of the conversation."""
    asked = several(COLOUR, call(("look", {"at": "it"})))
    async with ScriptedProvider(Script(replies=(asked, DONE))) as provider, house.worker(asker(**STOPS)):
        house.use(provider)
        stopped = await house.run()
        assert (stopped["stop_reason"], stopped["steps"], stopped["error"]) == ("waiting_for_input", 1, None)
        (request,) = stopped["requests"]
        assert (request["question"], request["options"]) == ("Which colour?", ["red", "blue"])
        receipt = await house.client.answer(house.session, request["request_id"], "blue", by="ann")
        result = await (await house.client.attach(house.session)).result()
    assert (receipt.decision, receipt.by) == ("answered", "ann")
    assert (result.turn, result.stop_reason, result.output) == (2, "finished", "done")
    read = provider.requests[-1].request.messages
    assert [message["role"] for message in read] == ["user", "assistant", "tool", "tool"]
    assert results(read) == ["blue", "it looks good"]
    assert [line["turn"] for line in await house.events("user_input_received")] == [2]


async def test_what_a_hook_says_before_the_stop_is_read_behind_the_answers(house: House) -> None:
    """S-36 S-66: by the turn that goes on with the model, also where another one stops first."""
    reactions = [Continue("be brief", feedback="and kind")]

    @hook("generation_end")
    def nudge(_: GenerationEnd) -> Continue | None:
        return reactions.pop() if reactions else None

    script = Script(replies=(several(COLOUR, PAY), DONE, DONE))
    async with ScriptedProvider(script) as provider, house.worker(asker(hooks=[nudge], **STOPS)):
        house.use(provider)
        first, second = (await house.run())["requests"]
        await house.client.approve(house.session, second["request_id"], by="ann", digest=second["digest"])
        assert (await (await house.client.attach(house.session)).result()).stop_reason == "waiting_for_input"
        await house.client.answer(house.session, first["request_id"], "red")
        result = await (await house.client.attach(house.session)).result()
        later = await (await house.client.start("tester", "and now?", session=house.session)).result()
    assert (result.stop_reason, later.stop_reason) == ("finished", "finished")
    read = provider.requests[1].request.messages
    assert [message["role"] for message in read] == ["user", "assistant", "tool", "tool", "user", "user"]
    assert [message["content"] for message in read[-2:]] == ["be brief", "and kind"]
    messages = [message.content for message in await house.store.transcript(house.session)]
    assert messages.count("be brief") == 1


async def test_several_questions_are_answered_one_by_one(house: House) -> None:
    """Each answer starts a turn, which stops again until the last one is there; an approved call runs in its turn."""
    asked = several(COLOUR, PAY)
    async with ScriptedProvider(Script(replies=(asked, DONE))) as provider, house.worker(asker(**STOPS)):
        house.use(provider)
        first, second = (await house.run())["requests"]
        await house.client.approve(house.session, second["request_id"], by="ann", digest=second["digest"])
        stopped = await (await house.client.attach(house.session)).result()
        assert (stopped.turn, stopped.stop_reason, stopped.steps, PAID) == (2, "waiting_for_input", 0, [7])
        assert [request.request_id for request in stopped.requests] == [first["request_id"]]
        assert [line["turn"] for line in await house.events("user_input_required")] == [1, 1, 2]
        await house.client.answer(house.session, first["request_id"], "red")
        result = await (await house.client.attach(house.session)).result()
    assert (result.turn, result.stop_reason, len(provider.requests)) == (3, "finished", 2)
    assert results(provider.requests[-1].request.messages) == ["red", "paid 7"]


async def test_a_message_in_place_of_the_answer_gives_the_model_an_error(house: House) -> None:
    """S-60: nobody is asked any more; the message is read behind the error result."""
    async with ScriptedProvider(Script(replies=(COLOUR, DONE))) as provider, house.worker(asker(**STOPS)):
        house.use(provider)
        (request,) = (await house.run())["requests"]
        result = await house.run(prompt="never mind")
        assert result["stop_reason"] == "finished"
        with pytest.raises(RequestRefusedError, match="does not wait for"):
            await house.client.answer(house.session, request["request_id"], "red")
    read = provider.requests[-1].request.messages
    assert [message["role"] for message in read] == ["user", "assistant", "tool", "user"]
    assert "nobody decided about ask_user, another message came" in results(read)[0]
    kinds = [line["type"] for line in await house.events() if line["turn"] == 2]
    assert kinds[:2] == ["agent_start", "tool_end"]


async def test_a_message_that_was_steered_in_becomes_the_next_turn(house: House) -> None:
    """The turn stops before it could read it."""
    asked = several(COLOUR, call(("look", {"at": "it"})))
    async with ScriptedProvider(Script(replies=(asked, DONE))) as provider, house.worker(asker(**STOPS)):
        house.use(provider)
        handle = await house.start()
        await handle.execute_update("send", {"prompt": "be brief", "steer": True})
        result = await handle.result()
    assert (result["turn"], result["stop_reason"]) == (2, "finished")
    assert provider.requests[-1].request.messages[-1]["content"] == "be brief"


@pytest.mark.parametrize(("value", "why"), [("green", "one of: red, blue"), ("", "one of: red, blue")])
async def test_an_answer_that_does_not_fit_starts_no_turn(house: House, value: str, why: str) -> None:
    async with ScriptedProvider(Script(replies=(COLOUR, DONE))) as provider, house.worker(asker(**STOPS)):
        house.use(provider)
        (request,) = (await house.run())["requests"]
        with pytest.raises(RequestRefusedError, match=why):
            await house.client.answer(house.session, request["request_id"], value)
        assert [record.turn for record in await house.store.turns(house.session)] == [1]
        await house.client.answer(house.session, request["request_id"], "red")
        assert (await (await house.client.attach(house.session)).result()).stop_reason == "finished"


async def test_the_same_answer_after_the_turn_has_the_same_receipt_and_another_is_refused(house: House) -> None:
    async with ScriptedProvider(Script(replies=(COLOUR, DONE))) as provider, house.worker(asker(**STOPS)):
        house.use(provider)
        (request,) = (await house.run())["requests"]
        first = await house.client.answer(house.session, request["request_id"], "red", by="ann")
        await (await house.client.attach(house.session)).result()
        again = await house.client.answer(house.session, request["request_id"], "red", by="bob")
        with pytest.raises(RequestRefusedError, match=r"was answered by ann at .*; that stands"):
            await house.client.answer(house.session, request["request_id"], "blue", by="bob")
    assert (again.request_id, again.by, again.decision) == (first.request_id, "ann", "answered")
    assert len(await house.store.turns(house.session)) == 2


LONG = "word " * 1_600
"""Longer than what an event shows of a result."""


@tool(interactive=True)
def fill_in(form: str) -> dict[str, str]:
    """Fill in the form."""
    raise NotImplementedError


@pytest.mark.parametrize("interactive", ["wait", "stop"])
async def test_long_answers_given_again_after_the_turn_are_compared_whole(house: House, interactive: str) -> None:
    """S-66: the same have the same receipts, also with an object's keys in another order; others are refused."""
    answers: dict[str, tuple[JsonValue, JsonValue, JsonValue]] = {
        "ask_user": (f"{LONG}left", f"{LONG}left", f"{LONG}right"),
        "fill_in": ({"at": LONG, "to": "left"}, {"to": "left", "at": LONG}, {"at": LONG, "to": "right"}),
    }
    asked = call(("ask_user", {"question": "Tell me all"}), ("fill_in", {"form": "a"}))
    using = asker(tools=[ask_user, fill_in], interactive=interactive)
    async with ScriptedProvider(Script(replies=(asked, DONE))) as provider, house.worker(using):
        house.use(provider)
        await house.start()
        requests = {line["tool"]: line["request_id"] for line in await house.wait_for_event("user_input_required", 2)}
        for name, (value, _, _) in answers.items():
            await house.client.answer(house.session, requests[name], value, by="ann")
        assert (await (await house.client.attach(house.session)).result()).stop_reason == "finished"
        for name, (_, same, other) in answers.items():
            again = await house.client.answer(house.session, requests[name], same, by="bob")
            assert (again.request_id, again.decision, again.by) == (requests[name], "answered", "ann")
            with pytest.raises(RequestRefusedError, match=r"was answered by ann at .*; that stands"):
                await house.client.answer(house.session, requests[name], other, by="bob")
    assert results(provider.requests[-1].request.messages)[0] == f"{LONG}left"


async def test_a_compaction_in_place_of_the_answer_leaves_a_conversation_that_goes_on(house: House) -> None:
    """The question is withdrawn by the message after it, as by any other."""
    async with ScriptedProvider(Script(replies=(COLOUR, DONE))) as provider, house.worker(asker(**STOPS)):
        house.use(provider)
        (request,) = (await house.run())["requests"]
        await (await house.client.compact(house.session)).result()
        with pytest.raises(RequestRefusedError, match="does not wait"):
            await house.client.answer(house.session, request["request_id"], "red")
        result = await (await house.client.start("tester", "go on", session=house.session)).result()
    assert result.stop_reason == "finished"
    assert "another message came" in results(provider.requests[-1].request.messages)[0]
