"""Results of tools that the caller runs: which are taken, which are refused and why, and until when."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from perdure.contracts.input_requests import Reply, ResultRequest
from perdure.contracts.tools import DEFAULT_CALLER_TIMEOUT, ToolPolicy
from perdure.engine import input_requests
from perdure.engine.input_requests import ReplyError
from tests.unit.engine.test_people import EXPIRES, NOW, Turn


def submit(turn: Turn, request: str = "c0", **fields: Any) -> Any:
    said = ResultRequest(request=request, **fields).reply()
    turn.mail, receipt = input_requests.accept_reply(turn.state, turn.mail, said, turn.now)
    return receipt


def waiting(*kinds: str, **policy: Any) -> Turn:
    turn = Turn(list(kinds or ["caller"]), **policy)
    turn.until_it_waits()
    return turn


def test_the_same_result_twice_gets_the_first_receipt_and_another_one_is_refused() -> None:
    turn = waiting()
    first = submit(turn, value={"a": 1, "b": 2}, by="app")
    turn.now += timedelta(minutes=1)
    assert submit(turn, value={"b": 2, "a": 1}, by="other") == first
    for other in ({"value": {"a": 1}}, {"error": "it failed"}):
        with pytest.raises(ReplyError, match=r"was returned by app at .*; that stands"):
            submit(turn, **other)


def test_the_same_error_twice_gets_the_first_receipt_and_a_result_after_it_is_refused() -> None:
    turn = waiting()
    first = submit(turn, error="it failed")
    assert (first.decision, submit(turn, error="it failed")) == ("failed", first)
    with pytest.raises(ReplyError, match="was failed by somebody"):
        submit(turn, value="it failed")


def test_a_reply_of_another_kind_is_refused_and_says_what_is_needed() -> None:
    turn = waiting("caller", "approval", "question")
    wrong = [
        (Reply(request="c0", decision="answered", value="x"), "needs the result of caller, which its caller runs"),
        (Reply(request="c0", decision="approved", by="ann"), "needs the result of caller"),
        (Reply(request="c1", decision="returned", value="x"), "is no question"),
        (Reply(request="c1", decision="failed", value="x"), "is no question"),
        (Reply(request="c2", decision="returned", value="red"), "is a question and needs an answer"),
        (Reply(request="c9", decision="returned", value="x"), "nothing waits for 'c9'; what waits is c0, c1, c2"),
        (Reply(request="c0", decision="returned", value="x", digest="0"), "are not those of this result"),
    ]
    for reply, why in wrong:
        with pytest.raises(ReplyError, match=why):
            input_requests.accept_reply(turn.state, turn.mail, reply, turn.now)
    assert submit(turn, value="x", digest="digest of c0").decision == "returned"


def test_a_result_has_to_fit_the_type_that_the_tool_returns() -> None:
    turn = waiting(tools={"caller": ToolPolicy(answer={"type": "integer"})})
    with pytest.raises(ReplyError, match="does not fit"):
        submit(turn, value="many")
    assert submit(turn, value="12").decision == "returned"
    assert turn.mail.replies[0].value == 12


def test_each_call_has_the_time_of_its_own_tool() -> None:
    turn = waiting("caller", "approval", tools={"caller": ToolPolicy(timeout=timedelta(minutes=5))})
    requests = {request.request_id: request.expires_at for request in input_requests.input_requests(turn.state)}
    assert requests == {"c0": NOW + timedelta(minutes=5), "c1": NOW + EXPIRES}
    turn.now = NOW + timedelta(minutes=5)
    with pytest.raises(ReplyError, match="expired at"):
        submit(turn, value="x")
    action = turn.until_it_waits()
    assert action == input_requests.WaitForPeople(until=NOW + EXPIRES)
    (late,) = turn.state.calls.outcomes
    assert late.error is not None
    assert (late.call_id, late.error.code) == ("c0", "tool.timeout")
    assert waiting().state.calls.asking[0].expires_at == NOW + DEFAULT_CALLER_TIMEOUT


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "give a value or an error"),
        ({"value": 1, "error": "x"}, "not both"),
        ({"error": ""}, "at least 1 character"),
        ({"value": "x" * 1_000_000}, "is 1,000,002 bytes, the limit is 32,768"),
        ({"error": "x" * 1_000_000}, "is 1,000,002 bytes"),
        ({"value": "\ud800"}, "half a character"),
        ({"value": 1, "reason": "x"}, "Extra inputs"),
    ],
)
def test_a_result_that_cannot_be_carried_is_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        ResultRequest(request="c0", **fields)
