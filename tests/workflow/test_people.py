"""Questions and approvals, as a person and the model see them; with plain Temporal and without our client."""

import json
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from perdure import ApprovalPolicy, ApprovalRule
from perdure.contracts.input_requests import InputRequest
from perdure.contracts.values import JsonValue
from perdure.testing import Said, Script, ScriptedProvider, answer, approve, call, deny
from tests.house import House
from tests.memory import Run
from tests.workflow.asking import (
    COLOUR,
    DONE,
    PAID,
    PAY,
    asker,
    refusal,
    results,
    several,
    update,
    waiting,
)


@pytest.fixture(autouse=True)
def _nothing_is_paid() -> None:
    PAID.clear()


async def test_an_answer_becomes_the_result_of_the_call(house: House) -> None:
    """S-60: with request id, question and options; who answered stands in the log and in the transcript."""
    async with ScriptedProvider(Script(replies=(COLOUR, DONE))) as provider, house.worker(asker()):
        house.use(provider)
        handle = await house.start()
        (request,) = await waiting(house)
        assert (request["needs"], request["tool"], request["question"]) == ("answer", "ask_user", "Which colour?")
        assert request["options"] == ["red", "blue"]
        receipt = await update(house, "answer", request=request["request_id"], value="blue", by="ann")
        result = await handle.result()
    assert (receipt["decision"], receipt["by"]) == ("answered", "ann")
    assert (result["stop_reason"], result["output"]) == ("finished", "done")
    assert results(provider.requests[-1].request.messages) == ["blue"]
    (asked,) = await house.events("user_input_required")
    (received,) = await house.events("user_input_received")
    assert (asked["request_id"], asked["question"]) == (request["request_id"], "Which colour?")
    assert (received["request_id"], received["decision"], received["by"]) == (request["request_id"], "answered", "ann")
    message = next(m for m in await house.store.transcript(house.session) if m.role == "tool")
    assert message.decided is not None
    assert (message.content, message.decided.by) == ("blue", "ann")


async def test_an_approved_call_runs_and_only_then(house: House) -> None:
    """The approval names the call by a digest of tool and arguments, and who gave it."""
    async with ScriptedProvider(Script(replies=(PAY, DONE))) as provider, house.worker(asker()):
        house.use(provider)
        handle = await house.start()
        (request,) = await waiting(house)
        assert (request["needs"], request["tool"], request["arguments"]) == ("approval", "pay", '{"amount": 7}')
        assert PAID == []
        refused = await refusal(house, "approve", request=request["request_id"], by="ann", digest="0" * 32)
        assert "the arguments" in refused
        await update(house, "approve", request=request["request_id"], by="ann", digest=request["digest"])
        await handle.result()
    assert PAID == [7]
    assert results(provider.requests[-1].request.messages) == ["paid 7"]
    kinds = [line["type"] for line in await house.events()]
    order = ["user_input_required", "user_input_received", "tool_start", "tool_end"]
    assert [kind for kind in kinds if kind in order] == order


async def test_a_denied_call_does_not_run_and_the_model_is_told_why(run: Run) -> None:
    result = await run(asker(), PAY, DONE, people=[deny("too much", by="ann")])
    assert (PAID, result["stop_reason"]) == ([], "finished")
    assert results(run.requests[-1].request.messages) == ["pay was denied by ann: too much"]
    (end,) = await run.events("tool_end")
    assert end["error"]["code"] == "tool.denied"


async def test_an_approval_that_nobody_gives_in_time_expires(run: Run) -> None:
    """By a timer of the workflow; the model goes on with an error result."""
    policy = ApprovalPolicy(expires=0.2)  # type: ignore[arg-type] # pydantic reads seconds
    result = await run(asker(approvals=policy), PAY, DONE)
    assert (PAID, result["stop_reason"]) == ([], "finished")
    (end,) = await run.events("tool_end")
    assert end["error"]["code"] == "tool.approval_expired"
    (received,) = await run.events("user_input_received")
    assert (received["decision"], received["by"]) == ("expired", "")


async def test_plain_calls_run_first_and_their_results_are_kept_for_the_answer(run: Run) -> None:
    """S-65: one answer with a tool, an approval and a question; all results are read together, in order."""
    mixed = several(COLOUR, PAY, call(("look", {"at": "it"})))
    await run(asker(), mixed, DONE, people=[answer("red", seconds=60), approve(by="ann", seconds=1)])
    order = [
        (line["type"], line["tool"])
        for line in await run.events("user_input_required", "user_input_received", "tool_end")
    ]
    assert order == [
        ("tool_end", "look"),
        ("user_input_required", "ask_user"),
        ("user_input_required", "pay"),
        ("user_input_received", "pay"),
        ("tool_end", "pay"),
        ("user_input_received", "ask_user"),
        ("tool_end", "ask_user"),
    ]
    assert results(run.requests[-1].request.messages) == ["red", "paid 7", "it looks good"]


async def test_the_same_reply_twice_is_one_and_another_is_refused_with_who_and_when(house: House) -> None:
    """Also after the turn has gone on."""
    mixed = several(COLOUR, PAY)
    async with ScriptedProvider(Script(replies=(mixed, DONE))) as provider, house.worker(asker()):
        house.use(provider)
        handle = await house.start()
        question, approval = await waiting(house, 2)
        first = await update(house, "answer", request=question["request_id"], value="red", by="ann")
        assert await update(house, "answer", request=question["request_id"], value="red", by="bob") == first
        refused = await refusal(house, "answer", request=question["request_id"], value="blue", by="bob")
        assert refused == f"{question['request_id']!r} was answered by ann at {_iso(first['at'])}; that stands"
        assert "was answered by ann" in await refusal(house, "deny", request=question["request_id"], by="bob")
        await update(house, "deny", request=approval["request_id"], by="ann")
        await handle.result()
    assert results(provider.requests[-1].request.messages) == ["red", "pay was denied by ann"]


def _iso(at: str) -> str:
    return at.replace("Z", "+00:00")


@pytest.mark.parametrize(
    ("asked", "name", "fields", "why"),
    [
        (COLOUR, "answer", {"value": "green"}, "one of: red, blue"),
        (COLOUR, "approve", {"by": "ann"}, "is a question and needs an answer: Which colour?"),
        (PAY, "answer", {"value": "yes"}, "waits to be approved or denied"),
        (PAY, "approve", {}, "by: Field required"),
        (PAY, "approve", {"by": "ann", "request": "call_0_0"}, "nothing waits for 'call_0_0'; what waits is call_"),
        (call(("count", {"question": "How many?"})), "answer", {"value": "many"}, "does not fit"),
        (call(("choose", {"what": "the wall"})), "answer", {"value": "green"}, "one of: red, blue"),
        (COLOUR, "answer", {"value": "x" * 40_000}, "the limit is 32,768"),
        (COLOUR, "answer", {"value": "red", "bye": "ann"}, "bye: Extra inputs are not permitted"),
    ],
)
async def test_a_reply_that_does_not_fit_is_refused_and_the_turn_waits_on(
    house: House, asked: Any, name: str, fields: dict[str, Any], why: str
) -> None:
    """Before anything of it is written: the history does not grow by it."""
    async with ScriptedProvider(Script(replies=(asked, DONE))) as provider, house.worker(asker()):
        house.use(provider)
        handle = await house.start()
        (request,) = await waiting(house)
        before = (await handle.describe()).history_length
        assert why in await refusal(house, name, **{"request": request["request_id"], **fields})
        assert await waiting(house) == [request]
        assert (await handle.describe()).history_length == before
        await handle.signal("cancel", {})
        await handle.result()


async def test_the_answer_of_an_interactive_tool_has_the_type_that_it_returns(house: House) -> None:
    """A text that is no number is refused; one that reads as JSON of the type is taken for it."""
    asked = several(call(("count", {"question": "How many?"})), call(("choose", {"what": "the wall"})))
    async with ScriptedProvider(Script(replies=(asked, DONE))) as provider, house.worker(asker()):
        house.use(provider)
        handle = await house.start()
        number, colour = await waiting(house, 2)
        assert (colour["question"], colour["options"]) == ("Which colour shall it be?", ["red", "blue"])
        first = await update(house, "answer", request=number["request_id"], value="12")
        assert await update(house, "answer", request=number["request_id"], value=12) == first
        assert await update(house, "answer", request=number["request_id"], value="12") == first
        await update(house, "answer", request=colour["request_id"], value="red")
        await handle.result()
    assert results(provider.requests[-1].request.messages) == ["12", "red"]


async def test_the_first_rule_that_fits_tool_and_arguments_decides(run: Run) -> None:
    """Rules are data: allowed calls run at once, denied ones never, and what no rule is about follows its tool."""
    small: dict[str, JsonValue] = {"properties": {"amount": {"maximum": 10}}}
    large: dict[str, JsonValue] = {"properties": {"amount": {"minimum": 1000}}}
    rules = (
        ApprovalRule(tool="pay", arguments=small, decision="allow"),
        ApprovalRule(tool="p*", arguments=large, decision="deny"),
        ApprovalRule(tool="look", decision="ask"),
    )
    asked = call(
        ("pay", {"amount": 7}),
        ("pay", {"amount": 5000}),
        ("pay", {"amount": "5000"}),
        ("pay", {"amount": 50}),
        ("look", {"at": "it"}),
    )
    requests: list[InputRequest] = []

    def approve_later(request: InputRequest) -> Said:
        requests.append(request)
        assert PAID == [7]
        return approve(by="ann", seconds=1)

    await run(asker(approvals=ApprovalPolicy(rules=rules)), asked, DONE, people=approve_later)
    middle, seen = requests
    assert (middle.arguments, seen.tool) == ('{"amount": 50}', "look")
    assert PAID == [7, 50]
    read = results(run.requests[-1].request.messages)
    assert (read[0], read[3], read[4]) == ("paid 7", "paid 50", "it looks good")
    assert "a rule denies this call of pay" in read[1]
    assert "do not fit the schema: at $.amount" in read[2]


async def test_masked_arguments_are_masked_in_the_request_and_raw_in_the_body(house: House) -> None:
    """S-52: nothing of the secret is in the request, the log or the history."""
    secret = "hunter2-hunter2"
    asked = call(("pay", {"amount": 7, "password": secret}))
    async with ScriptedProvider(Script(replies=(asked, DONE))) as provider, house.worker(asker()):
        house.use(provider)
        handle = await house.start()
        (request,) = await waiting(house)
        assert request["arguments"] == '{"amount": 7, "password": "***"}'
        await update(house, "approve", request=request["request_id"], by="ann", digest=request["digest"])
        await handle.result()
        history = (await handle.fetch_history()).to_json()
    assert results(provider.requests[-1].request.messages) == ["paid 7 with a password"]
    assert secret not in history + str(await house.events())


async def test_an_approval_is_void_when_the_arguments_have_changed_since(house: House) -> None:
    """The tool's activity compares the digest with the arguments that it is about to use."""
    async with ScriptedProvider(Script(replies=(PAY, DONE))) as provider, house.worker(asker()):
        house.use(provider)
        handle = await house.start()
        (request,) = await waiting(house)
        engine = create_engine(house.settings.store_url)
        with engine.begin() as connection:
            changed = text("UPDATE tool_calls SET arguments = :arguments WHERE call_id = :call_id")
            values = {"arguments": json.dumps('{"amount": 7000}'), "call_id": request["request_id"]}
            assert connection.execute(changed, values).rowcount == 1
        engine.dispose()
        await update(house, "approve", request=request["request_id"], by="ann", digest=request["digest"])
        result = await handle.result()
    assert (PAID, result["stop_reason"]) == ([], "finished")
    (end,) = await house.events("tool_end")
    assert (end["error"]["code"], end["error"]["type"]) == ("tool.denied", "NotApprovedError")
