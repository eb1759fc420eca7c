"""Approvals that stand, without a store: what a reply may say, and which waiting calls it decides too."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.input_requests import InputReceipt, Reply
from perdure.contracts.standing_approvals import StandingTerms
from perdure.contracts.tools import PlannedCall
from perdure.contracts.turns import CancelRequest, CommitTurn
from perdure.contracts.values import replace
from perdure.engine import input_requests
from perdure.engine.input_requests import ReplyError
from tests.unit.engine.test_people import EXPIRES, NOW, Turn

TOOL, SAME = StandingTerms(scope="tool"), StandingTerms(scope="arguments")


def asking(*digests: str) -> Turn:
    """A turn that waits for approvals of calls of one tool with these digests."""
    turn = Turn(["approval"] * len(digests))
    calls = tuple(replace(call, digest=digest) for call, digest in zip(turn.state.calls.asking, digests, strict=True))
    turn.state = replace(turn.state, calls=replace(turn.state.calls, asking=calls))
    turn.until_it_waits()
    return turn


def say(turn: Turn, number: int, always: StandingTerms | None, decision: str = "approved") -> InputReceipt:
    reply = Reply(request=f"c{number}", decision=decision, by="ann", always=always)  # type: ignore[arg-type]
    turn.mail, receipt = input_requests.accept_reply(turn.state, turn.mail, reply, turn.now)
    return receipt


@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=5), st.sampled_from([TOOL, SAME]), st.data())
def test_the_calls_that_wait_beside_it_and_are_covered_run_with_it(
    digests: list[str], terms: StandingTerms, data: st.DataObject
) -> None:
    """S-84: each runs once; those with a reply of their own have that one; the others wait on."""
    turn = asking(*digests)
    numbers = st.integers(0, len(digests) - 1)
    approved = data.draw(numbers)
    denied = data.draw(st.sets(numbers)) - {approved}
    for number in denied:
        say(turn, number, None, "denied")
    say(turn, approved, terms)
    turn.until_it_waits()
    covered = {number for number, digest in enumerate(digests) if terms.scope == "tool" or digest == digests[approved]}
    assert sorted(turn.ran) == [f"c{number}" for number in sorted(covered - denied)]
    left = {f"c{number}" for number in range(len(digests))} - {f"c{number}" for number in covered | denied}
    assert {call.call_id for call in turn.state.calls.asking} == left


def test_the_receipt_of_a_covered_call_names_the_approval_that_covers_it() -> None:
    turn = asking("a", "b")
    first = say(turn, 0, TOOL)
    state, _ = input_requests.apply_replies(turn.state, turn.mail, NOW + timedelta(minutes=1))
    given, covered = state.calls.pending
    assert given.approval == first
    assert covered.approval == replace(first, request_id="c1", digest="b", always=None, standing="c0")
    told = input_requests.tell_decided(turn.state, state)
    assert told is not None
    assert [(each.request_id, each.standing) for each in told.decided] == [("c0", ""), ("c1", "c0")]


def test_a_call_whose_time_is_over_is_not_covered_any_more() -> None:
    turn = asking("a", "b")
    turn.state, turn.mail = input_requests.apply_replies(turn.state, turn.mail, NOW)
    say(turn, 0, TOOL)
    turn.now = NOW + EXPIRES
    turn.until_it_waits()
    assert turn.ran == ["c0"]


def test_an_approval_whose_turn_ends_first_is_told_with_all_it_said() -> None:
    """S-84: whoever gave it was told that it was taken."""
    turn = asking("a")
    receipt = say(turn, 0, SAME)
    turn.mail = replace(turn.mail, cancel=CancelRequest(), cancel_at=NOW)
    ended = turn.until_it_waits()
    assert isinstance(ended, CommitTurn)
    assert ([outcome.decided for outcome in ended.failed], turn.ran) == ([receipt], [])


def test_only_an_approval_in_time_can_stand() -> None:
    turn = asking("a")
    for terms, decision, said in (
        (replace(TOOL, until=NOW), "approved", "until: .* is over"),
        (TOOL, "denied", "only an approval can stand"),
    ):
        with pytest.raises(ReplyError, match=said):
            say(turn, 0, terms, decision)
    question = Turn(["question"])
    question.until_it_waits()
    with pytest.raises(ReplyError, match="is a question and needs an answer"):
        say(question, 0, TOOL)
    assert (turn.mail.settled, question.mail.settled) == ((), ())


def test_what_it_shows_of_the_arguments_are_those_of_the_call() -> None:
    """Whoever sends a reply with plain Temporal cannot put others there."""
    call = PlannedCall(call_id="c0", tool="approval", arguments='{"amount": 7}')
    for terms, shown in ((SAME, call.arguments), (TOOL, "")):
        turn = asking("a")
        turn.state = replace(turn.state, calls=replace(turn.state.calls, asking=(replace(call, needs="approval"),)))
        receipt = say(turn, 0, replace(terms, arguments="nothing much"))
        assert receipt.always is not None
        assert receipt.always.arguments == shown
