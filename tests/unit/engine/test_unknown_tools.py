"""``on_unknown_tool: abort``: the turn ends when the tools beside the unknown one have run, and nothing else begins."""

from typing import Any

import pytest

from perdure.contracts.agents import TurnPolicy
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.generations import Generate, Generation
from perdure.contracts.hooks import Continue, HookRule, Retry, RuleEvent
from perdure.contracts.tools import ChangeTodos, DelegateSettings, FinishCall, PlannedCall, ToolOutcome, ToolPolicy
from perdure.contracts.turns import CancelRequest, CommitTurn, StopReason
from perdure.engine.calls import CallTools, ToolResults
from perdure.engine.generation import Failed
from perdure.engine.input_requests import WaitForPeople
from perdure.engine.state import Mailbox
from perdure.engine.turn import Story
from perdure.engine.world import Action, Stopped
from tests.unit.engine.asked import Asked, Silent, run_now
from tests.unit.engine.opening import NOW, opened

NONE = ErrorDetail(code="tool.unknown_tool", title="nothing", message="there is no tool named 'nothing'")
BROKEN = ErrorDetail(code="tool.execution_error", title="work", message="broken", type="ValueError")

UNKNOWN = PlannedCall(call_id="unknown", tool="nothing", rejected=NONE)
WORK = PlannedCall(call_id="work", tool="work")
HELPER = PlannedCall(call_id="helper", tool="helper")
QUESTION = PlannedCall(call_id="question", tool="ask_user", needs="answer")
TODO = PlannedCall(call_id="todo", tool="update_todo", builtin=ChangeTodos(new_titles=("one",)))
FINISH = PlannedCall(call_id="finish", tool="finish", builtin=FinishCall(summary="done"))


class Turn(Silent):
    """A turn whose model gives one answer; ``results`` come of the tools that it calls."""

    def __init__(self, *calls: PlannedCall, **policy: Any) -> None:
        super().__init__(Mailbox(), NOW, stopped=False)
        settings = {"on_unknown_tool": "abort", "tools": {"helper": ToolPolicy(delegate=DelegateSettings())}, **policy}
        self.calls, self.policy = calls, settings
        self.results: ToolResults | None = None
        self.is_cancelled = False
        self.state = opened(**settings)

    @property
    def stopped(self) -> bool:
        return self.mail.cancel is not None

    def next(self) -> Action:
        """What the turn does next, played from its beginning."""
        story, self.answered = Story(opened(**self.policy), self), False
        try:
            return run_now(story)
        except Asked as asked:
            return asked.action
        finally:
            self.state = story.state

    def has_called(self, *outcomes: ToolOutcome, aborted: ErrorDetail | None = None) -> Action:
        """What it does when the tools have these results."""
        self.results = ToolResults(outcomes, aborted)
        return self.next()

    def is_cancelled_meanwhile(self) -> Action:
        """What it does when somebody cancels it while its tools run."""
        self.is_cancelled = True
        return self.next()

    async def rotate_if_due(self, _: Generate | WaitForPeople) -> bool:
        return False

    async def generate(self, action: Generate) -> Generation | Failed:
        if self.answered:
            raise Asked(action)
        self.answered = True
        return Generation(tip="t1", calls=self.calls)

    async def call_tools(self, action: CallTools) -> ToolResults:
        if self.is_cancelled:
            self.mail = Mailbox(cancel=CancelRequest(reason="enough"), cancel_at=NOW)
            raise Stopped
        if self.results is None:
            raise Asked(action)
        return self.results


def committed(action: Action) -> CommitTurn:
    """The end, which has to be the unknown tool's."""
    assert isinstance(action, CommitTurn)
    assert (action.stop_reason, action.error) == (StopReason.ERROR, ended_by())
    return action


def ended_by() -> ErrorDetail:
    message = "step 1, tool nothing: there is no tool named 'nothing'; "
    return NONE.model_copy(
        update={"message": f"{message}it ended the turn, because the agent's on_unknown_tool is 'abort'"}
    )


def errors(commit: CommitTurn) -> dict[str, str]:
    """The error results that only the workflow knows of."""
    return {one.call_id: one.error.code for one in commit.failed if one.error is not None}


def test_without_the_setting_the_model_is_told_and_goes_on() -> None:
    """S-23."""
    assert isinstance(Turn(UNKNOWN, on_unknown_tool="feed_back").next(), Generate)
    old = TurnPolicy.model_validate({"agent": "a", "model": "p/m"})
    assert old.on_unknown_tool == "feed_back"
    assert "on_unknown_tool" not in old.model_dump(exclude_defaults=True)


def test_an_unknown_tool_alone_ends_the_turn_at_once() -> None:
    """S-23: and so does the first of several."""
    later = UNKNOWN.model_copy(update={"call_id": "later", "rejected": NONE.model_copy(update={"title": "other"})})
    assert errors(committed(Turn(UNKNOWN, later).next())) == {}


def test_a_call_that_was_rejected_for_another_reason_ends_nothing() -> None:
    denied = NONE.model_copy(update={"code": "tool.denied"})
    assert isinstance(Turn(UNKNOWN.model_copy(update={"rejected": denied})).next(), Generate)


def test_tools_beside_it_run_first_and_delegates_and_questions_are_withdrawn() -> None:
    """S-23."""
    turn = Turn(WORK, UNKNOWN, HELPER, QUESTION)
    action = turn.next()
    assert isinstance(action, CallTools)
    assert [one.call_id for one in action.calls] == ["work"]
    commit = committed(turn.has_called(ToolOutcome(call_id="work")))
    assert errors(commit) == {"helper": "tool.cancelled", "question": "tool.cancelled"}


def test_without_tools_beside_it_no_delegate_begins_and_nobody_is_asked() -> None:
    commit = committed(Turn(UNKNOWN, HELPER, QUESTION).next())
    assert errors(commit) == {"helper": "tool.cancelled", "question": "tool.cancelled"}


@pytest.mark.parametrize("calls", [(FINISH,), (WORK, FINISH)], ids=["alone", "beside a tool"])
def test_the_turn_is_not_finished_by_a_finish_beside_it(calls: tuple[PlannedCall, ...]) -> None:
    turn = Turn(UNKNOWN, TODO, *calls)
    action = turn.next()
    commit = committed(turn.has_called(ToolOutcome(call_id="work")) if isinstance(action, CallTools) else action)
    assert [one.title for one in commit.todos] == ["one"]
    assert set(errors(commit)) == {"finish"}


def test_a_finish_tool_with_a_body_does_not_finish_it_either() -> None:
    turn = Turn(UNKNOWN, WORK, finish_tool="work")
    assert isinstance(turn.next(), CallTools)
    committed(turn.has_called(ToolOutcome(call_id="work")))


def test_a_tool_that_aborts_the_turn_too_is_its_reason() -> None:
    """As of two tools that do, one is."""
    turn = Turn(UNKNOWN, WORK)
    assert isinstance(turn.next(), CallTools)
    action = turn.has_called(ToolOutcome(call_id="work", error=BROKEN), aborted=BROKEN)
    assert isinstance(action, CommitTurn)
    assert action.error == BROKEN


def test_a_cancel_while_the_tools_beside_it_run_is_the_end_and_runs_none_again() -> None:
    turn = Turn(UNKNOWN, WORK)
    assert isinstance(turn.next(), CallTools)
    action = turn.is_cancelled_meanwhile()
    assert isinstance(action, CommitTurn)
    assert action.stop_reason is StopReason.CANCELLED


@pytest.mark.parametrize(
    ("event", "reaction"),
    [("generation_end", Retry()), ("tool_error", Retry()), ("tool_error", Continue(feedback="there is no such tool"))],
)
def test_a_hook_may_have_the_turn_go_on(event: RuleEvent, reaction: Any) -> None:
    """S-36: the author's hook knows better than the setting."""
    rule = HookRule(name="again", on=event, reaction=reaction, times=1)
    for calls in ((UNKNOWN,), (UNKNOWN, WORK)):
        turn = Turn(*calls, hooks=(rule,))
        action = turn.next()
        if isinstance(action, CallTools):
            action = turn.has_called(ToolOutcome(call_id="work"))
        assert isinstance(action, Generate)


def test_what_a_hook_takes_back_with_the_answer_uses_up_no_budget() -> None:
    """As without the setting: hooks come first."""
    rule = HookRule(name="again", on="generation_end", reaction=Retry(), times=1)
    turn = Turn(UNKNOWN, HELPER, hooks=(rule,))
    assert isinstance(turn.next(), Generate)
    assert turn.state.spent.tool_calls == 0
