"""The loop of a turn, played without a clock, a model or a tool: whatever comes, it ends once and loses no call."""

from collections import Counter
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.budgets import Budgets, Paid
from perdure.contracts.conditions import ToolFailed
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.generations import Compacted, Generate, Generation
from perdure.contracts.sends import SendRequest
from perdure.contracts.tools import AttemptCompletion, PlannedCall, ToolOutcome
from perdure.contracts.turns import CancelRequest, CommitTurn, StopReason
from perdure.engine import generation
from perdure.engine.calls import CallTools, ToolResults
from perdure.engine.generation import Failed
from perdure.engine.input_requests import WaitForPeople
from perdure.engine.state import Mailbox, TurnState
from perdure.engine.turn import Story
from perdure.engine.world import Stopped
from tests.unit.engine.asked import Silent, asked_next, next_action, run_now
from tests.unit.engine.opening import NOW, compacted, failed, opened, ran

FAILURE = ErrorDetail(code="llm.request_error", title="generation", message="refused")
BROKEN = ErrorDetail(code="tool.execution_error", title="work", message="broken", type="ValueError")
UNKNOWN = ErrorDetail(code="tool.unknown_tool", title="nothing", message="there is no such tool")

MOST_MOVES = 40
"""No script is longer; a turn that goes on has a bug."""


@dataclass(frozen=True)
class Asked:
    """A call of a scripted answer: ``fate`` is ok, stop, caught, lost (no result recorded) or abort."""

    tool: str = "work"
    fate: str = "ok"


@dataclass(frozen=True)
class Move:
    """What comes of one action: ``kind`` is answer, fail or cancel; ``steered`` messages come in meanwhile."""

    kind: str = "answer"
    calls: tuple[Asked, ...] = ()
    steered: int = 0
    cost: str | None = "0.25"


TEXT = Move()
WORK = Move(calls=(Asked(),))
WRONG = Move(calls=(Asked(fate="caught"),))
FINISH = Move(calls=(Asked("finish"),))


class Played(Silent):
    """A turn and what happened in it. ``results`` counts, for each call id, the places a result comes from.

    When the script is used up, the model answers with text.
    """

    def __init__(self, script: list[Move], state: TurnState) -> None:
        super().__init__(Mailbox(), NOW, stopped=False)
        self.story = Story(state, self)
        self.generations = 0
        self.ran: list[str] = []
        self.results: Counter[str] = Counter()
        self.read: list[str] = []
        self._moves = iter(script)
        self.commit = run_now(self.story)
        self._read(self.commit.call_ids, self.commit.failed)

    @property
    def stopped(self) -> bool:
        return self.mail.cancel is not None

    async def rotate_if_due(self, _: Generate | WaitForPeople) -> bool:
        assert self.generations <= MOST_MOVES, "the turn does not end"
        return False

    async def generate(self, action: Generate) -> Generation | Failed:
        move = next(self._moves, TEXT)
        assert action.step == self.generations + 1
        for number in range(move.steered):
            message = SendRequest(prompt="more", request_id=f"{action.step}/{number}", when_busy="steer")
            self.mail = self.mail.with_steered(message)
        if move.kind == "cancel":
            self.mail = replace(self.mail, cancel=CancelRequest(reason="why"), cancel_at=NOW)
            raise Stopped(action.step)
        if move.kind == "fail":
            return Failed(FAILURE)
        self._read(action.call_ids, action.failed)
        self.generations += 1
        answer = _generation(action, move)
        self.results.update(call.call_id for call in answer.calls if call.rejected)
        return answer

    async def call_tools(self, action: CallTools) -> ToolResults:
        outcomes, aborted = list[ToolOutcome](), None
        for call in action.calls:
            fate = call.call_id.rpartition("/")[2]
            self.ran.append(call.call_id)
            error = None if fate in {"ok", "stop"} else BROKEN
            recorded, stop = fate != "lost", "enough" if fate == "stop" else None
            self.results[call.call_id] += recorded
            outcomes.append(ToolOutcome(call_id=call.call_id, error=error, recorded=recorded, stop=stop))
            aborted = aborted or (BROKEN if fate == "abort" else None)
        return ToolResults(tuple(outcomes), aborted)

    def _read(self, call_ids: tuple[str, ...], failed: tuple[ToolOutcome, ...]) -> None:
        """The next action hands the last answer's results over: each call once, in order."""
        self.results.update(outcome.call_id for outcome in failed)
        self.read.extend(call_ids)


def play(script: list[Move], **policy: Any) -> Played:
    return Played(script, opened(**policy))


def _generation(action: Generate, move: Move) -> Generation:
    calls = tuple(
        PlannedCall(
            call_id=f"{action.step}/{number}/{asked.fate}",
            tool=asked.tool,
            rejected=UNKNOWN if asked.tool == "nothing" else None,
        )
        for number, asked in enumerate(move.calls)
    )
    cost = None if move.cost is None else Decimal(move.cost)
    return Generation(tip=f"t{action.step}", calls=calls, cost_usd=cost)


CALLS = st.builds(
    Asked,
    st.sampled_from(["work", "work", "finish", "nothing"]),
    st.sampled_from(["ok", "ok", "ok", "stop", "caught", "lost", "abort"]),
)
MOVES = st.builds(
    Move,
    kind=st.sampled_from([*["answer"] * 8, "fail", "cancel"]),
    calls=st.lists(CALLS, max_size=3).map(tuple),
    steered=st.integers(0, 2),
    cost=st.sampled_from([None, "0.25"]),
)
SCRIPTS = st.lists(MOVES, min_size=2, max_size=MOST_MOVES // 2)
RARELY = [None] * 4
POLICIES = st.fixed_dictionaries(
    {
        "max_steps": st.integers(1, 12),
        "finish_tool": st.sampled_from([None, "finish"]),
        "budgets": st.builds(
            Budgets,
            cost_usd=st.sampled_from([*RARELY, Decimal("0.25"), Decimal(1)]),
            llm_calls=st.sampled_from([*RARELY, 1, 4]),
            tool_calls=st.sampled_from([*RARELY, 0, 1, 5]),
        ),
    }
)


@given(SCRIPTS, POLICIES)
def test_a_turn_ends_once_and_no_limit_is_passed(script: list[Move], policy: dict[str, Any]) -> None:
    """S-32 S-38 S-70: N allows at most N, whatever the model and the tools do."""
    played = play(script, **policy)
    budgets: Budgets = policy["budgets"]
    assert played.generations <= min(policy["max_steps"], budgets.llm_calls or MOST_MOVES)
    assert len(played.ran) <= (MOST_MOVES * 3 if budgets.tool_calls is None else budgets.tool_calls)
    assert played.commit.steps == played.generations == played.commit.spent.llm_calls
    assert played.commit.spent.tool_calls == len(played.ran)
    _, _, again = asked_next(played.story.state, played.mail, stopped=played.stopped)
    assert again == played.commit.model_copy(update={"aborted_step": None})


@given(SCRIPTS, POLICIES)
def test_every_call_has_exactly_one_result_and_is_handed_over_once(script: list[Move], policy: dict[str, Any]) -> None:
    """S-54: providers refuse a conversation with a call that has no result, or two."""
    played = play(script, **policy)
    assert len(played.ran) == len(set(played.ran))
    assert len(played.read) == len(set(played.read))
    assert dict(played.results) == dict.fromkeys(played.read, 1)


@given(SCRIPTS, POLICIES)
def test_the_stop_reason_says_what_happened(script: list[Move], policy: dict[str, Any]) -> None:
    """S-32 S-33: an error has its cause, and a turn stalls only where it could have done otherwise."""
    played = play(script, **policy)
    reason, error = played.commit.stop_reason, played.commit.error
    assert (error is not None) == (reason in {StopReason.ERROR, StopReason.CANCELLED, StopReason.BUDGET_EXHAUSTED})
    assert reason is not StopReason.STALLED or policy["finish_tool"] is not None
    assert reason is not StopReason.MAX_STEPS_REACHED or played.generations == policy["max_steps"]
    assert (reason is StopReason.CANCELLED) == (played.mail.cancel is not None)


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_max_steps_allows_exactly_so_many_generations(limit: int) -> None:
    """S-38: and the tools of the last one still run."""
    played = play([WORK] * 10, max_steps=limit)
    assert (played.generations, len(played.ran)) == (limit, limit)
    assert played.commit.stop_reason is StopReason.MAX_STEPS_REACHED


def test_a_text_in_the_last_step_finishes_the_turn() -> None:
    assert play([WORK, TEXT], max_steps=2).commit.stop_reason is StopReason.FINISHED


@pytest.mark.parametrize("limit", [0, 1, 3, 4, 5])
def test_the_budget_of_tool_calls_allows_exactly_so_many(limit: int) -> None:
    """S-70: calls beyond it are answered with an error, then the turn ends."""
    played = play([Move(calls=(Asked(), Asked()))] * 5, budgets=Budgets(tool_calls=limit))
    assert len(played.ran) == limit
    assert played.commit.stop_reason is StopReason.BUDGET_EXHAUSTED
    assert played.commit.error is not None
    assert (played.commit.error.code, played.commit.error.title) == ("budget.tool_calls_exhausted", "agent")
    errors = [outcome.error for outcome in played.commit.failed]
    assert [(error.code, error.title) for error in errors if error] == [("budget.tool_calls_exhausted", "work")] * (
        1 + (limit % 2 == 0)
    )


def test_a_call_that_never_ran_uses_no_budget() -> None:
    played = play([Move(calls=(Asked("nothing"),)), WORK], budgets=Budgets(tool_calls=1))
    assert (len(played.ran), played.commit.stop_reason) == (1, StopReason.FINISHED)


@pytest.mark.parametrize(
    ("budgets", "generations", "code"),
    [
        (Budgets(llm_calls=3), 3, "budget.llm_calls_exhausted"),
        (Budgets(cost_usd=Decimal("0.75")), 3, "budget.cost_exhausted"),
        (Budgets(cost_usd=Decimal("0.76")), 4, "budget.cost_exhausted"),
    ],
)
def test_a_budget_of_the_model_ends_the_turn_before_the_next_call(
    budgets: Budgets, generations: int, code: str
) -> None:
    """S-70: the budgets that are checked before a generation."""
    played = play([WORK] * 10, budgets=budgets)
    assert played.generations == generations
    assert played.commit.error is not None
    assert (played.commit.stop_reason, played.commit.error.code) == (StopReason.BUDGET_EXHAUSTED, code)


def test_text_stalls_the_turn_only_if_a_finish_tool_is_configured() -> None:
    """S-33."""
    assert play([TEXT]).commit.stop_reason is StopReason.FINISHED
    assert play([TEXT], finish_tool="finish").commit.stop_reason is StopReason.STALLED


def test_the_finish_tool_ends_the_turn_as_finished_and_its_siblings_have_run() -> None:
    """S-30 S-32."""
    played = play([Move(calls=(Asked(), Asked("finish"), Asked())), WORK], finish_tool="finish")
    assert (played.commit.stop_reason, len(played.ran)) == (StopReason.FINISHED, 3)


def test_a_finish_tool_that_fails_does_not_end_the_turn() -> None:
    played = play([Move(calls=(Asked("finish", "caught"),)), FINISH], finish_tool="finish")
    assert (played.commit.stop_reason, played.generations) == (StopReason.FINISHED, 2)


def test_an_uncaught_tool_error_ends_the_turn_and_keeps_the_siblings() -> None:
    """S-20 S-24: also when the finish tool ran beside it."""
    played = play([Move(calls=(Asked(), Asked(fate="abort"), Asked("finish")))], finish_tool="finish")
    assert (played.commit.stop_reason, played.commit.error) == (StopReason.ERROR, BROKEN)
    assert played.commit.call_ids == ("1/0/ok", "1/1/abort", "1/2/ok")
    assert played.commit.failed == ()


def test_ten_tool_errors_in_a_row_end_the_turn() -> None:
    """S-19: the bound of feed_back; the last error is named."""
    played = play([WRONG] * 20)
    assert (played.generations, played.commit.stop_reason) == (10, StopReason.ERROR)
    assert played.commit.error is not None
    assert played.commit.error.message == "10 tool errors in a row; the last one, of work: broken"


def test_many_failing_calls_of_one_answer_count_as_one() -> None:
    """The model has read of none of them: it may do better with its next answer, ten of which end the turn."""
    many = Move(calls=WRONG.calls * 64)
    assert play([*[many] * 9, WORK]).commit.stop_reason is StopReason.FINISHED
    assert (played := play([many] * 20)).generations == 10
    assert played.commit.stop_reason is StopReason.ERROR


def test_a_success_begins_the_count_of_tool_errors_anew() -> None:
    """S-19: nine errors, a success, nine errors."""
    assert play([*[WRONG] * 9, WORK, *[WRONG] * 9]).commit.stop_reason is StopReason.FINISHED


def test_as_many_answers_of_refused_calls_as_the_policy_allows_end_the_turn() -> None:
    """S-19: and one fewer does not; the last error is named."""
    refused = Move(calls=(Asked("nothing"),))
    assert play([*[refused] * 2, WORK], most_refused=3).commit.stop_reason is StopReason.FINISHED
    played = play([refused] * 20, most_refused=3)
    assert (played.generations, played.commit.stop_reason) == (3, StopReason.ERROR)
    assert played.commit.error is not None
    assert played.commit.error.message == "3 tool errors in a row; the last one, of nothing: there is no such tool"


def test_each_failed_call_that_the_model_is_told_of_is_one_until_it_answers() -> None:
    """The next wait, and the end of the retries, go by their number."""
    state, told = opened(), Generation(tip="t", retry_seconds=1.0)
    counts: list[int] = []
    for outcome in (
        told,
        told,
        Generation(tip="t", calls=(PlannedCall(call_id="c", tool="nothing", rejected=UNKNOWN),)),
    ):
        state = generation.with_answer(state, outcome)
        action = next_action(state, Mailbox())
        assert isinstance(action, Generate)
        counts.append(action.failures)
    assert counts == [1, 2, 0]


def test_a_message_that_was_steered_in_takes_an_ending_by_text_back() -> None:
    played = play([Move(steered=1), TEXT])
    assert (played.generations, played.commit.stop_reason, played.mail.steered) == (2, StopReason.FINISHED, ())


@pytest.mark.parametrize("limit", [{"max_steps": 1}, {"budgets": {"llm_calls": 1}}])
def test_a_message_that_comes_too_late_for_the_last_step_is_kept_for_the_transcript(limit: dict[str, Any]) -> None:
    """The answer stands, whichever limit keeps the model from reading more."""
    played = play([Move(steered=2)], **limit)
    assert (played.generations, len(played.commit.steered)) == (1, 2)
    assert played.commit.stop_reason is StopReason.FINISHED


def test_a_steered_message_does_not_take_back_an_error() -> None:
    assert play([Move("fail", steered=1)]).commit.stop_reason is StopReason.ERROR


def test_a_cancelled_generation_is_named_in_the_commit() -> None:
    """S-57: the engine's part: the reason is told, and the step that was aborted."""
    played = play([WORK, Move("cancel")])
    assert (played.commit.stop_reason, played.commit.aborted_step, played.commit.steps) == ("cancelled", 2, 1)
    assert played.commit.error is not None
    assert played.commit.error.message == "Operation aborted: why"


@pytest.mark.parametrize("summarised", [0, 4])
def test_what_failed_calls_and_summaries_have_cost_is_warned_of_too(summarised: int) -> None:
    """S-70: whoever has paid the share of the budget."""
    state, paid = opened(budgets=Budgets(cost_usd=Decimal(1))), Paid(cost_usd=Decimal("0.9"))
    summary = Compacted(tip="c", summarised=summarised, failed=paid)
    for later in (failed(state, FAILURE, paid), compacted(state, summary)):
        assert [getattr(decided.event, "dimension", None) for decided in later.decided] == ["cost_usd"]


def test_a_condition_holds_also_where_a_question_stands_open_beside_what_ends_the_turn() -> None:
    """S-34: nobody is asked any more, so nothing is waited for."""
    state = opened(stop_conditions=(ToolFailed(),))
    question = PlannedCall(call_id="q", tool="ask", needs="answer")
    state = generation.with_answer(state, Generation(tip="t1", calls=(question, PlannedCall(call_id="c", tool="work"))))
    state = ran(state, ToolOutcome(call_id="c", error=BROKEN), aborted=BROKEN)
    commit = next_action(state, Mailbox())
    assert isinstance(commit, CommitTurn)
    assert (commit.stop_reason, commit.stopped_by) == (StopReason.FINISHED, "tool_error()")
    assert [one.call_id for one in commit.failed] == ["q"]


def test_a_message_that_comes_before_the_last_text_allows_no_further_call() -> None:
    """S-71: the text that completes the turn is one answer more, and nothing else is."""
    done = PlannedCall(call_id="d", tool="attempt_completion", builtin=AttemptCompletion())
    state = generation.with_answer(opened(max_tool_turns=1), Generation(tip="t1", calls=(done,)))
    mail = Mailbox(steered=(SendRequest(prompt="more", request_id="m", when_busy="steer"),))
    action = next_action(state, mail)
    assert isinstance(action, Generate)
    assert (action.text_only, len(action.steered)) == (True, 1)
