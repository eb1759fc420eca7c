"""Questions and approvals without a clock or a server: whatever people say and when, each call has one result."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from perdure.contracts.agents import TurnPolicy
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.generations import Generate, Generation
from perdure.contracts.input_requests import AnswerRequest, AskPeople, InputReceipt, Reply
from perdure.contracts.openings import OpenedTurn
from perdure.contracts.recordings import RecordedDecisions
from perdure.contracts.tools import PlannedCall, ToolOutcome, ToolPolicy
from perdure.contracts.turns import CancelRequest, CommitTurn, Continuation, OpenTurn, StopReason
from perdure.engine import generation, input_requests
from perdure.engine.calls import CallTools
from perdure.engine.generation import Failed
from perdure.engine.state import Carried, Ending, Mailbox, Origin, TurnState
from perdure.engine.turn import Story, state_of
from perdure.engine.world import Action
from tests.unit.engine.asked import Silent, asked_next, run_now
from tests.unit.engine.opening import ran

NOW = datetime(2026, 11, 21, tzinfo=UTC)
EXPIRES = timedelta(hours=1)


def state(**policy: Any) -> TurnState:
    fields = {"agent": "a", "model": "p/m", "approvals_expire": EXPIRES, **policy}
    origin = Origin(session="s", turn=1, definition="d", started_at=NOW)
    return TurnState(origin=origin, tip="t0", policy=TurnPolicy.model_validate(fields))


def planned(kind: str, number: int) -> PlannedCall:
    """A plain call, a question with two options, or a call that needs an approval or its caller's result."""
    call = PlannedCall(call_id=f"c{number}", tool=kind)
    if kind == "question":
        return call.model_copy(update={"needs": "answer", "options": ("red", "blue"), "question": "Which?"})
    if kind == "approval":
        return call.model_copy(update={"needs": "approval", "digest": f"digest of c{number}"})
    if kind == "caller":
        return call.model_copy(update={"needs": "result", "digest": f"digest of c{number}"})
    return call


def reply(kind: str, number: int, *, yes: bool = True) -> Reply:
    fields: dict[str, Any] = {"request": f"c{number}", "by": "ann"}
    if not yes:
        return Reply(decision="denied", **fields)
    if kind == "caller":
        return Reply(decision="returned", value={"a": 1}, **fields)
    return (
        Reply(decision="answered", value="red", **fields)
        if kind == "question"
        else Reply(decision="approved", **fields)
    )


def test_replies_that_began_a_turn_are_taken_however_long_it_waited_for_a_slot() -> None:
    """S-88: they came in time, and their senders have a receipt."""
    turn = Turn(["caller", "approval"])
    calls = [call.model_copy(update={"expires_at": NOW + EXPIRES}) for call in turn.state.calls.asking]
    turn.state = replace(turn.state, calls=replace(turn.state.calls, asking=tuple(calls), expires_at=NOW + EXPIRES))
    late, given = NOW + 2 * EXPIRES, (reply("caller", 0), reply("approval", 1))
    mail = input_requests.accept_first_replies(turn.state, Mailbox(), given, NOW)
    after, mail = input_requests.apply_replies(turn.state, mail, late)
    assert ([outcome.decided.decision for outcome in after.calls.outcomes if outcome.decided], mail.replies) == (
        ["returned"],
        (),
    )
    assert [call.call_id for call in after.calls.pending] == ["c1"]
    later = input_requests.accept_first_replies(turn.state, Mailbox(), given, late)
    assert later.replies == given


class Turn:
    """A turn with one answer full of calls, played as the workflow plays it."""

    def __init__(self, kinds: list[str], **policy: Any) -> None:
        self.kinds = kinds
        self.now = NOW
        self.mail = Mailbox()
        calls = tuple(planned(kind, number) for number, kind in enumerate(kinds))
        self.state = generation.with_answer(state(**policy), Generation(tip="t1", calls=calls))
        self.ran: list[str] = []
        self.asked: list[str] = []

    def say(self, number: int, *, yes: bool = True) -> InputReceipt:
        self.mail, receipt = input_requests.accept_reply(
            self.state, self.mail, reply(self.kinds[number], number, yes=yes), self.now
        )
        return receipt

    def next(self) -> Action:
        """The next action, with what was said heard before."""
        stopped = self.mail.cancel is not None
        self.state, self.mail, action = asked_next(self.state, self.mail, self.now, stopped=stopped)
        return action

    def until_it_waits(self) -> Action:
        """Carry out everything but waiting, generating and committing."""
        while True:
            # What a rotation would carry is enough to go on.
            carried = Carried(turn=self.state, mail=self.mail, place="calls")
            carried = Carried.model_validate_json(carried.model_dump_json())
            self.state, self.mail = carried.turn, carried.mail
            action = self.next()
            if isinstance(action, CallTools):
                self.ran.extend(call.call_id for call in action.calls)
                outcomes = tuple(ToolOutcome(call_id=call.call_id) for call in action.calls)
                self.state = ran(self.state, *outcomes)
            elif isinstance(action, AskPeople):
                self.asked.extend(request.request_id for request in action.requests)
                self.state = input_requests.with_people_told(self.state, None)
            else:
                return action


MOMENTS = st.sampled_from(["yes", "no", "late", "cancel"])
KINDS = st.lists(st.sampled_from(["plain", "question", "approval", "caller"]), min_size=1, max_size=6)


@given(KINDS, st.data())
def test_each_call_runs_once_or_has_one_result_whatever_people_do(kinds: list[str], data: st.DataObject) -> None:
    """S-60 S-65: plain calls first, each request told of once, nothing runs that nobody approved."""
    turn = Turn(kinds)
    approved: set[str] = set()
    action = turn.until_it_waits()
    assert turn.ran == [f"c{number}" for number, kind in enumerate(kinds) if kind == "plain"]
    assert turn.asked == [f"c{number}" for number, kind in enumerate(kinds) if kind != "plain"]
    while isinstance(action, input_requests.WaitForPeople):
        what = data.draw(MOMENTS)
        open_ones = [int(call.call_id[1:]) for call in turn.state.calls.asking]
        if what in {"yes", "no"}:
            for number in data.draw(st.lists(st.sampled_from(open_ones), min_size=1, unique=True)):
                turn.say(number, yes=what == "yes")
                approved |= {f"c{number}"} if what == "yes" and kinds[number] == "approval" else set()
        elif what == "cancel":
            turn.mail = replace(turn.mail, cancel=CancelRequest(), cancel_at=NOW)
        elif action.until is not None:
            turn.now = action.until
        else:
            turn.say(open_ones[0])
        action = turn.until_it_waits()
    assert isinstance(action, Generate | CommitTurn)
    known = [outcome.call_id for outcome in action.failed]
    assert sorted([*turn.ran, *known]) == sorted(f"c{number}" for number in range(len(kinds)))
    assert action.call_ids == tuple(f"c{number}" for number in range(len(kinds)))
    assert {call for call in turn.ran if kinds[int(call[1:])] == "approval"} <= approved
    assert {"question", "caller"}.isdisjoint(kinds[int(call[1:])] for call in turn.ran)


@given(KINDS)
def test_a_turn_that_stops_for_people_leaves_exactly_their_calls_open(kinds: list[str]) -> None:
    """S-66: plain calls have run; nothing else is decided, and the commit says what is asked."""
    turn = Turn(kinds, interactive="stop")
    action = turn.until_it_waits()
    wanted = [f"c{number}" for number, kind in enumerate(kinds) if kind != "plain"]
    if not wanted:
        assert isinstance(action, Generate)
        return
    assert isinstance(action, CommitTurn)
    assert action.stop_reason is StopReason.WAITING_FOR_INPUT
    assert ([request.request_id for request in action.requests], action.failed) == (wanted, ())


@given(st.permutations([0, 1, 2]), st.booleans())
def test_a_reply_counts_once_and_the_first_one_stands(order: list[int], yes: bool) -> None:
    turn = Turn(["question", "approval", "question"])
    turn.until_it_waits()
    for number in order:
        first = turn.say(number, yes=yes)
        turn.now += timedelta(seconds=1)
        assert turn.say(number, yes=yes) == first
        with pytest.raises(input_requests.ReplyError, match=r"by ann at .*; that stands"):
            turn.say(number, yes=not yes)
        turn.until_it_waits()
        assert turn.say(number, yes=yes) == first


def test_an_approval_is_too_late_from_the_moment_it_expires() -> None:
    """Also when the turn has not woken up yet; a question never expires."""
    turn = Turn(["question", "approval"])
    action = turn.until_it_waits()
    assert action == input_requests.WaitForPeople(until=NOW + EXPIRES)
    turn.now = NOW + EXPIRES
    with pytest.raises(input_requests.ReplyError, match="expired at 2026-11-21T01:00:00"):
        turn.say(1)
    turn.say(0)
    action = turn.until_it_waits()
    assert isinstance(action, Generate)
    codes = [outcome.error.code if outcome.error else None for outcome in action.failed]
    assert codes == [None, "tool.approval_expired"]


def test_a_question_without_an_approval_beside_it_waits_for_ever() -> None:
    assert Turn(["question"]).until_it_waits() == input_requests.WaitForPeople(until=None)


def test_nothing_is_taken_before_people_were_asked() -> None:
    """The plain calls run first; what nobody has seen nobody can have decided."""
    turn = Turn(["plain", "approval"])
    with pytest.raises(input_requests.TooEarlyError, match="try again in a moment"):
        turn.say(1)
    with pytest.raises(input_requests.ReplyError, match="nothing waits for 'c0'"):
        input_requests.accept_reply(turn.state, turn.mail, reply("approval", 0), NOW)


def test_a_reply_to_a_turn_that_is_just_stopping_for_it_is_given_again() -> None:
    """Its commit runs: only then can the reply start the next turn. A turn that ends for another reason takes none."""
    turn = Turn(["question"], interactive="stop")
    assert isinstance(turn.until_it_waits(), CommitTurn)
    for reason, refusal in (
        (StopReason.WAITING_FOR_INPUT, input_requests.TooEarlyError),
        (StopReason.CANCELLED, input_requests.ReplyError),
    ):
        turn.state = replace(turn.state, ending=Ending(stop_reason=reason))
        with pytest.raises(input_requests.ReplyError) as caught:
            turn.say(0)
        assert type(caught.value) is refusal


def test_an_approval_for_other_arguments_is_refused_before_and_after_the_first() -> None:
    turn = Turn(["approval"])
    turn.until_it_waits()
    other = reply("approval", 0).model_copy(update={"digest": "another"})
    with pytest.raises(input_requests.ReplyError, match="not those of this approval"):
        input_requests.accept_reply(turn.state, turn.mail, other, NOW)
    first = turn.say(0)
    same = reply("approval", 0).model_copy(update={"digest": first.digest})
    assert input_requests.accept_reply(turn.state, turn.mail, same, NOW)[1] == first
    with pytest.raises(input_requests.ReplyError, match="not those of this approval"):
        input_requests.accept_reply(turn.state, turn.mail, other, NOW)


def test_a_call_that_was_approved_before_a_cancel_says_so() -> None:
    """The log has who approved it; the model reads why it did not run."""
    turn = Turn(["approval"])
    turn.until_it_waits()
    receipt = turn.say(0)
    turn.mail = replace(turn.mail, cancel=CancelRequest(), cancel_at=NOW)
    action = turn.until_it_waits()
    assert isinstance(action, CommitTurn)
    (outcome,) = action.failed
    assert outcome.preview == "Operation aborted: approval was approved by ann and the turn ended before it ran"
    assert outcome.decided == receipt


def test_an_approval_gets_no_more_time_from_the_turn_that_goes_on() -> None:
    """S-66: another reply has started it."""
    until = NOW + EXPIRES
    opening = OpenTurn(
        session="s", request=Continuation(prompt="red"), request_id="r", run_started_at=until + timedelta(hours=1)
    )
    calls = (planned("question", 0), planned("approval", 1))
    policy = TurnPolicy(agent="a", model="p/m", interactive="stop", approvals_expire=EXPIRES)
    opened = OpenedTurn(turn=2, tip="t", definition="d", policy=policy, asking=calls, expires_at=until)
    begun = state_of(opening, opened, until + timedelta(hours=1))
    heard, _ = input_requests.apply_replies(begun, Mailbox(), until + timedelta(hours=1))
    assert [call.call_id for call in heard.calls.asking] == ["c0"]
    assert [outcome.error and outcome.error.code for outcome in heard.calls.outcomes] == ["tool.approval_expired"]


@pytest.mark.parametrize("schema", [{"type": "string", "pattern": r"^\p{L}+$"}, {"type": "string", "minLength": "1"}])
def test_an_answer_that_no_schema_can_be_held_to_is_refused_with_what_would_do(schema: Any) -> None:
    """An agent that was frozen with such a schema: its question can be denied, and the workflow goes on."""
    call = PlannedCall(call_id="c", tool="t", needs="answer")
    with pytest.raises(input_requests.ReplyError, match=r"cannot be checked .*; deny the question"):
        input_requests.validate_reply(call, Reply(request="c", decision="answered", value="Ann"), schema)


@pytest.mark.parametrize(
    ("value", "schema", "taken"),
    [
        ("yes", None, "yes"),
        ("5", {"type": "string"}, "5"),
        ("5", {"type": "integer"}, 5),
        ("true", {"type": "boolean"}, True),
        ('["a"]', {"type": "array"}, ["a"]),
        (5, {"type": "integer"}, 5),
        ("null", {"type": "null"}, None),
    ],
)
def test_text_is_taken_for_json_only_where_text_does_not_fit(value: Any, schema: Any, taken: Any) -> None:
    call = PlannedCall(call_id="c", tool="t", needs="answer")
    said = Reply(request="c", decision="answered", value=value)
    assert input_requests.validate_reply(call, said, schema).value == taken


def test_answers_that_would_not_fit_into_one_payload_together_are_refused() -> None:
    """Each alone is small enough; a turn that could not be carried on would never go on."""
    calls = tuple(PlannedCall(call_id=f"c{number}", tool="t", needs="answer") for number in range(40))
    waiting = input_requests.with_people_told(generation.with_answer(state(), Generation(tip="t1", calls=calls)), None)
    said = [Reply(request=call.call_id, decision="answered", value="x" * 30_000) for call in calls]
    mail = Mailbox()
    for fits in said[:17]:
        mail, _ = input_requests.accept_reply(waiting, mail, fits, NOW)
    with pytest.raises(input_requests.ReplyError, match="over 524,288 bytes together"):
        input_requests.accept_reply(waiting, mail, said[17], NOW)


def test_the_answer_of_a_tool_is_held_to_the_schema_in_the_turns_policy() -> None:
    waiting = state(tools={"t": ToolPolicy(answer={"type": "integer"}).model_dump()})
    call = PlannedCall(call_id="c0", tool="t", needs="answer")
    waiting = input_requests.with_people_told(
        generation.with_answer(waiting, Generation(tip="t1", calls=(call,))), None
    )
    said = Reply(request="c0", decision="answered", value="many")
    with pytest.raises(input_requests.ReplyError, match=r"does not fit: at \$"):
        input_requests.accept_reply(waiting, Mailbox(), said, NOW)


@pytest.mark.parametrize(
    ("value", "why"),
    [("\ud800", "half a character"), ({"a": ["\ud800"]}, "half a character"), ("x" * 33_000, "the limit is 32,768")],
)
def test_an_answer_that_no_payload_can_carry_is_refused(value: Any, why: str) -> None:
    """It would keep the turn from ever going on."""
    with pytest.raises(ValidationError, match=why):
        AnswerRequest(request="c", value=value)


@pytest.mark.parametrize("wrapped", [lambda inner: [inner], lambda inner: {"a": inner}])
def test_an_answer_that_is_nested_too_deeply_is_refused(wrapped: Any) -> None:
    value: Any = "x"
    for _ in range(63):
        value = wrapped(value)
    assert AnswerRequest(request="c", value=value).reply().model_dump_json()
    with pytest.raises(ValidationError, match="nested more than 64 deep"):
        AnswerRequest(request="c", value=wrapped(value))


class Refusing(Silent):
    """A world whose store refuses what people have decided."""

    async def ask(self, action: AskPeople) -> RecordedDecisions | Failed | None:
        assert action.decided
        return Failed(ErrorDetail(code="runtime.store_refused", title="people", message="no"))


def test_a_decision_that_the_log_cannot_take_ends_the_turn_with_its_cause() -> None:
    """S-60: the other request is not waited for as if nothing had happened."""
    turn = Turn(["approval", "approval"])
    turn.until_it_waits()
    turn.say(0, yes=False)
    world = Refusing(turn.mail, NOW, stopped=False)
    commit = run_now(Story(turn.state, world))
    assert commit.stop_reason is StopReason.ERROR
    assert commit.error is not None
    assert commit.error.code == "runtime.store_refused"
