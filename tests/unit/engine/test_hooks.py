"""Turns whose hooks do what they want, played without a server: they end, lose no call, and keep to every limit."""

from collections import Counter
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from perdure.contracts.budgets import Budgets
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.generations import Generate, Generation
from perdure.contracts.hooks import (
    AnyReaction,
    BudgetChanged,
    Continue,
    Fail,
    Finish,
    HookDeclaration,
    HookResult,
    HookResults,
    HookRule,
    Retry,
    RetryWithFeedback,
    RuleEvent,
    RunHooks,
)
from perdure.contracts.sends import SendRequest
from perdure.contracts.tools import PlannedCall, ToolOutcome
from perdure.contracts.turns import CancelRequest, StopReason, TurnResult
from perdure.engine import generation, hooks
from perdure.engine.calls import CallTools, ToolResults
from perdure.engine.generation import Failed
from perdure.engine.input_requests import WaitForPeople
from perdure.engine.state import Calls, Ending, HookState, Mailbox, TurnState
from perdure.engine.turn import Story, commit
from perdure.engine.world import Stopped
from tests.unit.engine.asked import Silent, asked_next, run_now
from tests.unit.engine.opening import NOW, opened

FAILURE = ErrorDetail(code="llm.request_error", title="generation", message="refused")
BROKEN = ErrorDetail(code="tool.execution_error", title="work", message="broken", type="ValueError")
HOOK_FAILED = ErrorDetail(code="runtime.hook_failed", title="python", message="raised")

MOST_MOVES = 30
CARRIED = TypeAdapter(TurnState)
REACTIONS: tuple[AnyReaction | None, ...] = (
    *(None, None, None),
    *(Finish("f"), Fail("f"), Retry(), Retry("m"), RetryWithFeedback("b"), Continue(), Continue("m")),
)


@dataclass(frozen=True)
class Move:
    """One answer, or a failure: the fates of its calls (ok, caught, lost, abort), and what the hooks then want."""

    kind: str = "answer"
    calls: tuple[str, ...] = ()
    wanted: tuple[AnyReaction | None, ...] = ()
    steered: int = 0


class Played(Silent):
    """What happened. ``chain`` has each step's parent, the calls whose results it read, and its own calls."""

    def __init__(self, script: list[Move], state: TurnState) -> None:
        super().__init__(Mailbox(), NOW, stopped=False)
        self.story = Story(state, self)
        self.chain: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {}
        self.told: dict[str, tuple[str, ...]] = {}
        self.ran: list[str] = []
        self.results: Counter[str] = Counter()
        self.hook_calls = 0
        self._moves = iter(script)
        self._move = Move()
        self.commit = run_now(self.story)
        self.results.update(outcome.call_id for outcome in self.commit.failed)

    @property
    def stopped(self) -> bool:
        return self.mail.cancel is not None

    def _cancel(self) -> None:
        self.mail = replace(self.mail, cancel=CancelRequest(), cancel_at=NOW)

    async def rotate_if_due(self, _: Generate | WaitForPeople) -> bool:
        assert len(self.chain) <= MOST_MOVES, "the turn does not end"
        return False

    async def run_hooks(self, action: RunHooks) -> HookResults | Failed:
        move = self._move
        if move.kind == "cancel in hook":
            self._cancel()
            raise Stopped
        if move.kind == "hook fails":
            return Failed(HOOK_FAILED)
        if action.left == 0:
            return HookResults(refused="python")
        place = ("start", "generation", "step", "stalled", "error").index(action.boundary)
        wanted = move.wanted[place] if place < len(move.wanted) else None
        self.hook_calls += 1
        reactions = () if wanted is None else (HookResult(hook="python", reaction=wanted),)
        return HookResults(reactions=reactions, calls=1)

    async def generate(self, action: Generate) -> Generation | Failed:
        self._move = move = next(self._moves, Move())
        steered = tuple(
            SendRequest(prompt="more", request_id=f"{action.step}/{number}", when_busy="steer")
            for number in range(move.steered)
        )
        self.mail = replace(self.mail, steered=(*self.mail.steered, *steered))
        if move.kind == "cancel":
            self._cancel()
            raise Stopped(action.step)
        if move.kind == "fail":
            return Failed(FAILURE)
        self.results.update(outcome.call_id for outcome in action.failed)
        calls = tuple(
            PlannedCall(call_id=f"{action.step}/{number}/{fate}", tool="work", needs=None)
            for number, fate in enumerate(move.calls)
        )
        tip = f"t{action.step}"
        self.chain[tip] = (action.parent, action.call_ids, tuple(call.call_id for call in calls))
        self.told[tip] = (*action.said, *(message.prompt for message in action.steered))
        return Generation(tip=tip, preview="text", calls=calls, cost_usd=Decimal("0.25"))

    async def call_tools(self, action: CallTools) -> ToolResults:
        outcomes: list[ToolOutcome] = []
        aborted: ErrorDetail | None = None
        for call in action.calls:
            fate = call.call_id.rpartition("/")[2]
            self.ran.append(call.call_id)
            self.results[call.call_id] += fate != "lost"
            error = None if fate == "ok" else BROKEN
            outcomes.append(ToolOutcome(call_id=call.call_id, error=error, recorded=fate != "lost"))
            aborted = aborted or (BROKEN if fate == "abort" else None)
        return ToolResults(tuple(outcomes), aborted)


def play(script: list[Move], **policy: Any) -> Played:
    """Play the turn; when the script is used up, the model answers with text."""
    return Played(script, opened(**policy))


def rule(name: str, on: RuleEvent, reaction: AnyReaction, **settings: Any) -> HookRule:
    return HookRule(name=name, on=on, reaction=reaction, **settings)


PYTHON = HookDeclaration(
    name="python",
    on=("agent_start", "generation_end", "generation_error", "step_end", "agent_stalled"),
    reference="m:python",
)

RULES = st.builds(
    rule,
    st.just("rule"),
    st.sampled_from(["agent_start", "generation_end", "tool_end", "tool_error", "step_end", "generation_error"]),
    st.sampled_from([one for one in REACTIONS if one is not None]),
    times=st.sampled_from([None, 1, 2]),
)
MOVES = st.builds(
    Move,
    kind=st.sampled_from([*["answer"] * 10, "fail", "cancel", "cancel in hook", "hook fails"]),
    calls=st.lists(st.sampled_from(["ok", "ok", "caught", "lost", "abort"]), max_size=3).map(tuple),
    wanted=st.lists(st.sampled_from(REACTIONS), max_size=5).map(tuple),
    steered=st.integers(0, 1),
)
SCRIPTS = st.lists(MOVES, min_size=1, max_size=MOST_MOVES)
RARELY = [None] * 4
POLICIES = st.fixed_dictionaries(
    {
        "max_steps": st.integers(1, 12),
        "finish_tool": st.sampled_from([None, "finish"]),
        "hooks": st.sampled_from([(PYTHON,)]) | RULES.map(lambda one: (one, PYTHON)) | RULES.map(lambda one: (one,)),
        "budgets": st.builds(
            Budgets,
            tool_calls=st.sampled_from([*RARELY, 0, 1, 5]),
            behavior_calls=st.sampled_from([*RARELY, 0, 2, 7]),
        ),
    }
)


@given(SCRIPTS, POLICIES)
def test_a_turn_with_hooks_ends_once_and_passes_no_limit(script: list[Move], policy: dict[str, Any]) -> None:
    """S-36 S-38 S-70: whatever hooks want, N allows at most N."""
    played = play(script, **policy)
    budgets: Budgets = policy["budgets"]
    assert len(played.chain) <= played.commit.steps <= policy["max_steps"]
    stopped = played.mail.cancel is not None  # with calls that were counted and do not run any more
    assert played.commit.spent.tool_calls == len(played.ran) or (stopped and played.commit.spent.tool_calls)
    assert budgets.tool_calls is None or len(played.ran) <= budgets.tool_calls
    assert played.commit.spent.behavior_calls == played.hook_calls
    assert budgets.behavior_calls is None or played.hook_calls <= budgets.behavior_calls
    _, _, again = asked_next(played.story.state, played.mail, stopped=stopped, place="model")
    assert again == played.commit.model_copy(update={"aborted_step": None})
    assert (played.commit.stop_reason is StopReason.CANCELLED) <= (played.mail.cancel is not None)


@given(SCRIPTS, POLICIES)
def test_every_call_has_one_result_also_of_a_step_that_was_taken_back(
    script: list[Move], policy: dict[str, Any]
) -> None:
    """S-36 S-54: nothing stays open in the ledger, and what the model reads has a result for each call."""
    played = play(script, **policy)
    planned = [call for _, _, calls in played.chain.values() for call in calls]
    assert len(played.ran) == len(set(played.ran))
    given_by_commit = Counter(call for call in played.commit.call_ids if not played.results[call])
    assert dict(played.results + given_by_commit) == dict.fromkeys(planned, 1)
    assert played.commit.stop_reason is StopReason.CANCELLED or not given_by_commit
    tip, read = played.commit.tip, played.commit.call_ids
    while tip != "t0":
        parent, results, calls = played.chain[tip]
        assert read == calls
        tip, read = parent, results
    assert read == ()


def test_a_step_that_is_taken_back_is_read_by_nobody() -> None:
    """S-36: Retry replaces: the next generation has the parent, the results and the messages of the one before."""
    work = Move(calls=("ok",))
    played = play(
        [work, Move(calls=("ok",), wanted=(None, Retry()), steered=0), work],
        hooks=[PYTHON],
    )
    assert played.chain["t3"] == ("t1", ("1/0/ok",), ("3/0/ok",))
    assert played.ran == ["1/0/ok", "3/0/ok"]
    assert played.results == Counter({"1/0/ok": 1, "2/0/ok": 1, "3/0/ok": 1})


def test_what_people_have_said_is_said_again_when_its_answer_is_taken_back() -> None:
    """S-36: a message of a person is not lost with the step that read it; a Retry's own messages replace it."""
    first = Move(calls=("ok",), steered=1)
    again = play([first, Move(wanted=(None, Retry()))], hooks=[PYTHON])
    other = play([first, Move(wanted=(None, Retry("other")))], hooks=[PYTHON])
    assert again.told["t3"] == again.told["t2"] == ("more",)
    assert other.told["t3"] == ("other",)


def test_a_generation_that_is_asked_for_again_is_another_step() -> None:
    """S-36 S-38: so that max_steps bounds what a hook makes of a provider that is away."""
    again = Move(kind="fail", wanted=(None, None, None, None, Retry()))
    played = play([again, again], hooks=[PYTHON])
    assert (played.commit.steps, len(played.chain)) == (3, 1)


def test_a_rule_is_carried_out_so_many_times_at_most() -> None:
    """S-36."""
    played = play([], hooks=[rule("more", "step_end", Continue("more"), times=3)])
    assert (played.commit.steps, played.commit.stop_reason) == (4, StopReason.FINISHED)


def test_a_hook_that_never_agrees_ends_the_turn() -> None:
    """S-36: ten retries in a row are made."""
    played = play([], hooks=[rule("picky", "generation_end", Retry())])
    assert (played.commit.steps, played.commit.error is not None) == (11, True)


def test_a_hook_that_goes_on_after_every_failed_model_call_ends_the_turn() -> None:
    """S-36: to go on there is to ask again, and ten times in a row are enough."""
    down = [Move(kind="fail")] * MOST_MOVES
    played = play(down, hooks=[rule("stubborn", "generation_error", Continue("again"))])
    assert (played.commit.steps, played.commit.error and played.commit.error.title) == (10, "stubborn")


@pytest.mark.parametrize(
    ("reaction", "heard"), [(Continue(), "Go on."), (Continue("And in French?"), "And in French?")]
)
def test_a_model_that_had_ended_with_text_is_told_what_to_do_next(reaction: AnyReaction, heard: str) -> None:
    """S-36: by the hook, or by the engine if the hook says nothing: its own text at the end asks for nothing."""
    played = play([Move(wanted=(None, None, reaction))], hooks=[PYTHON])
    assert played.told["t2"] == (heard,)


def test_steps_without_a_retry_begin_the_count_anew() -> None:
    """S-36."""
    picky = [Move(calls=("ok",), wanted=(None, RetryWithFeedback("b")))] * 10
    fine = [Move(calls=("ok",))]
    played = play([*picky, *fine, *picky], hooks=[PYTHON])
    assert played.commit.stop_reason is StopReason.FINISHED


def test_a_turn_without_hooks_has_nothing_to_remember_of_them() -> None:
    """Its carried state is the one that it was."""
    played = play([Move(calls=("ok",))])
    assert played.story.state.hooks == HookState()


@pytest.mark.parametrize("boundary", ["generation", "step"])
def test_a_stop_in_a_hook_ends_the_turn_as_cancelled(boundary: str) -> None:
    """S-40 S-36: also where the model had given its last answer: a hook might have gone on."""
    only = PYTHON.model_copy(update={"on": ("generation_end",) if boundary == "generation" else ("step_end",)})
    played = play([Move(kind="cancel in hook")], hooks=[only])
    assert played.commit.stop_reason is StopReason.CANCELLED


@given(SCRIPTS, POLICIES)
def test_the_state_is_the_same_after_a_rotation(script: list[Move], policy: dict[str, Any]) -> None:
    """S-46: all that hooks have decided is carried."""
    state = play(script, **policy).story.state
    assert CARRIED.validate_python(CARRIED.dump_python(state, mode="json")) == state


def test_a_call_that_the_turn_before_has_paid_for_gives_no_budget_back() -> None:
    """S-70: of a turn that begins with somebody's reply."""
    rule = HookRule(name="again", on=("agent_start",), reaction=RetryWithFeedback("not that"))
    waiting = PlannedCall(call_id="c", tool="work", needs="approval")
    state = replace(opened(hooks=[rule]), calls=Calls(asking=(waiting,), ids=("c",)))
    settled, _, _ = asked_next(state, Mailbox(), place="start")
    assert settled.calls.asking == ()
    assert (settled.spent.tool_calls, settled.spent.events) == (0, 0)


def test_hooks_for_the_end_look_where_its_events_were_written() -> None:
    """A stop may come with an answer that the workflow never hears of, and that the store counts as a step."""
    state = opened(hooks=[HookDeclaration(name="log", reference="m:f", on=("agent_end",))])
    action = commit(state, Mailbox(), Ending(stop_reason=StopReason.FINISHED))
    result = TurnResult(session="s", turn=1, agent="a", stop_reason=StopReason.CANCELLED, steps=1)
    last = hooks.at_the_end(state, action, result, NOW)
    assert last is not None
    assert (action.steps, last.step) == (0, 1)


def test_what_is_decided_while_hooks_run_is_heard_behind_the_next_step() -> None:
    """S-36: and not dropped with what they were told of."""
    log = HookDeclaration(name="log", reference="m:f", on=("budget_changed",))
    first, second = (BudgetChanged(dimension="llm_calls", before=None, after=str(limit)) for limit in (5, 9))
    state = replace(opened(hooks=[log]), calls=Calls(ids=("c",))).with_decided(first)
    state, _, asked = asked_next(state, Mailbox())
    assert isinstance(asked, RunHooks)
    assert [one.event for one in asked.decided] == [first]
    state = state.with_decided(second)
    state = hooks.leave(state, hooks.Arrival("step", decided=asked.decided), goes_on=True)
    assert [one.event for one in state.hooks.unheard] == [second]


def test_no_rule_is_called_with_the_end_of_a_turn() -> None:
    """S-36: no worker has a function of that name, and it could change nothing."""
    told = BudgetChanged(dimension="llm_calls", before=None, after="5")
    mend = rule("mend", "budget_changed", Continue(feedback="go on"))
    state = opened(hooks=[mend]).with_decided(told)
    assert [one.event for one in state.hooks.unheard] == [told]
    action = commit(state, Mailbox(), Ending(stop_reason=StopReason.FINISHED))
    result = TurnResult(session="s", turn=1, agent="a", stop_reason=StopReason.FINISHED, steps=1)
    assert hooks.at_the_end(state, action, result, NOW) is None


def test_a_step_whose_model_call_failed_has_no_errors_of_tools() -> None:
    """S-36: those of the step before were heard behind that one."""
    state = opened(hooks=[rule("mend", "tool_error", Continue(feedback="mend it"))])
    state = replace(state, tally=state.tally.with_ended([("work", False)]))
    told = generation.with_answer(state, Generation(tip="t1", preview="", calls=(), retry_seconds=0.0))
    assert (told.tally.ended, told.tally.matched, told.tally.failed) == ((), (), ("work",))
