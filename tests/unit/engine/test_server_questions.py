"""Questions of MCP servers in a turn: a call waits for the answer, and is sent again with it."""

from dataclasses import replace
from typing import Any

import pytest

from perdure.contracts.input_requests import AskPeople, Reply
from perdure.contracts.server_questions import ServerQuestion
from perdure.contracts.tools import CallTool, ToolOutcome
from perdure.contracts.turns import CancelRequest, CommitTurn
from perdure.engine import input_requests
from perdure.engine.calls import CallTools
from perdure.engine.input_requests import ReplyError, WaitForPeople
from perdure.engine.state import Carried
from tests.unit.engine.opening import ran
from tests.unit.engine.test_people import Turn

FORM: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def question(number: int = 1) -> ServerQuestion:
    return ServerQuestion(number=number, text=f"Question {number}?", form=FORM)


class Asked(Turn):
    """A turn whose calls are answered with questions as long as there are some."""

    def __init__(self, kinds: list[str], *questions: ServerQuestion, **policy: Any) -> None:
        super().__init__(kinds, **policy)
        self.questions = list(questions)
        self.sent: list[CallTool] = []
        self.told: list[AskPeople] = []

    def until_it_waits(self) -> Any:
        """Carry out everything but waiting, generating and committing."""
        while True:
            carried = Carried(turn=self.state, mail=self.mail, place="calls")
            carried = Carried.model_validate_json(carried.model_dump_json())  # what a rotation carries is enough
            self.state, self.mail = carried.turn, carried.mail
            action = self.next()
            if isinstance(action, CallTools):
                self.sent.extend(action.calls)
                outcomes = [self.outcome(call) for call in action.calls]
                self.state = ran(self.state, *outcomes)
            elif isinstance(action, AskPeople):
                self.told.append(action)
                self.state = input_requests.with_people_told(self.state, None) if action.requests else self.state
            else:
                return action

    def outcome(self, call: CallTool) -> ToolOutcome:
        if call.call_id == "c0" and self.questions:
            return ToolOutcome(call_id=call.call_id, recorded=False, asks=self.questions.pop(0))
        return ToolOutcome(call_id=call.call_id, preview="done")

    def reply(self, request: str = "c0~1", **said: Any) -> None:
        fields = {"decision": "answered", "value": {"n": 1}, "by": "ann", **said}
        reply = Reply(request=request, **fields)
        self.mail, _ = input_requests.accept_reply(self.state, self.mail, reply, self.now)


def test_a_call_waits_for_the_answer_and_is_sent_again_with_it() -> None:
    """S-60: the calls beside it keep their results, and it counts once."""
    turn = Asked(["plain", "plain"], question())
    spent = turn.state.spent
    assert isinstance(turn.until_it_waits(), WaitForPeople)
    (request,) = turn.told[0].requests
    assert (request.request_id, request.needs, request.question, request.form) == (
        "c0~1",
        "answer",
        "Question 1?",
        FORM,
    )
    assert [call.call_id for call in turn.sent] == ["c0", "c1"]
    assert turn.state.tally.results == 1
    turn.reply()
    assert not isinstance(turn.until_it_waits(), WaitForPeople)
    again = turn.sent[-1]
    assert again.answer is not None
    assert (again.call_id, again.answer.action, again.answer.value) == ("c0", "accept", {"n": 1})
    (decided,) = turn.told[-1].decided
    assert (decided.request_id, decided.decision, decided.by) == ("c0~1", "answered", "ann")
    assert (turn.state.tally.results, turn.state.spent.tool_calls) == (2, spent.tool_calls)
    assert turn.state.calls.outcomes == ()


def test_a_denial_is_sent_too() -> None:
    """S-60: the server decides what that means."""
    turn = Asked(["plain"], question())
    turn.until_it_waits()
    turn.reply(decision="denied", value=None, reason="no")
    turn.until_it_waits()
    assert turn.sent[-1].answer is not None
    assert turn.sent[-1].answer.action == "decline"


def test_each_question_of_a_call_is_a_request_of_its_own() -> None:
    """S-60: the same answer to the first, sent again, is none to the second."""
    turn = Asked(["plain"], question(1), question(2))
    turn.until_it_waits()
    turn.reply()
    turn.until_it_waits()
    turn.reply()
    assert turn.mail.replies == ()
    assert [request.request_id for told in turn.told for request in told.requests] == ["c0~1", "c0~2"]
    turn.reply("c0~2", value={"n": 2})
    turn.until_it_waits()
    assert [None if call.answer is None else call.answer.value for call in turn.sent] == [None, {"n": 1}, {"n": 2}]


def test_an_answer_has_to_fit_the_servers_schema() -> None:
    """S-60: a text is read as JSON, as for other questions."""
    turn = Asked(["plain"], question())
    turn.until_it_waits()
    with pytest.raises(ReplyError, match="does not fit"):
        turn.reply(value={"n": "many"})
    turn.reply(value='{"n": 3}')
    assert turn.mail.replies[0].value == {"n": 3}


def test_a_question_beside_one_that_waits_is_told_once() -> None:
    """S-60: an approved call asks while the other question waits on."""
    turn = Asked(["approval", "question"], question())
    turn.until_it_waits()
    turn.say(0)
    turn.until_it_waits()
    turn.say(1)
    turn.reply()
    turn.until_it_waits()
    first, again = turn.sent
    assert first.approval == again.approval
    assert again.approval is not None
    assert again.answer is not None


@pytest.mark.parametrize("has_answer", [False, True])
def test_a_turn_that_is_cancelled_withdraws_the_question(has_answer: bool) -> None:
    """S-60: the server holds nothing open, so it is told nothing."""
    turn = Asked(["plain"], question())
    turn.until_it_waits()
    if has_answer:
        turn.reply()
    turn.mail = replace(turn.mail, cancel=CancelRequest(), cancel_at=turn.now)
    commit = turn.until_it_waits()
    assert isinstance(commit, CommitTurn)
    (outcome,) = commit.failed
    assert outcome.error is not None
    assert "asked something, and the turn ended before" in outcome.error.message


def test_a_turn_that_stops_for_people_keeps_the_question() -> None:
    """S-60."""
    turn = Asked(["plain"], question(), interactive="stop")
    commit = turn.until_it_waits()
    assert isinstance(commit, CommitTurn)
    assert commit.stop_reason == "waiting_for_input"
