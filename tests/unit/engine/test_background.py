"""What delegates in the background are granted, when they are charged, and what waits for them; without a workflow."""

import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.budgets import Budgets, Spent
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.generations import Generate, Generation
from perdure.contracts.hooks import BudgetWarning
from perdure.contracts.input_requests import AskPeople
from perdure.contracts.sends import QueuedMessage
from perdure.contracts.tools import (
    RUN_IN_BACKGROUND,
    AwaitCall,
    DelegateReport,
    DelegateSettings,
    PlannedCall,
    ToolDeclaration,
    ToolOutcome,
    ToolPolicy,
)
from perdure.contracts.turns import CancelRequest, CommitTurn, StopReason, TurnResult
from perdure.engine import calls, delegates, generation, input_requests
from perdure.engine.calls import CallTools
from perdure.engine.delegates import AwaitDelegates, CallDelegates, StartDelegate
from perdure.engine.state import BackgroundDelegate, Mailbox, TurnState
from perdure.engine.world import Action
from tests.unit.engine import opening
from tests.unit.engine.asked import asked_next, next_action
from tests.unit.engine.opening import NOW, delegated, failed, ran

HELPER = ToolPolicy(delegate=DelegateSettings(agent="helper", background=True))
MAIL = Mailbox()


def opened(**policy: Any) -> TurnState:
    tools = {"helper": HELPER, "look": ToolPolicy(), "await_delegate": ToolPolicy()}
    return opening.opened(**{"tools": tools, **policy})


def answered(state: TurnState, *calls: Callable[[str], PlannedCall], cost: str = "0.01") -> TurnState:
    """The state after an answer with these calls."""
    step = state.step + 1
    made = tuple(one(f"{step}/{number}") for number, one in enumerate(calls))
    return generation.with_answer(state, Generation(tip=f"t{step}", calls=made, cost_usd=Decimal(cost)))


def beside(call_id: str) -> PlannedCall:
    return PlannedCall(call_id=call_id, tool="helper", background=True)


def awaited_at_once(call_id: str) -> PlannedCall:
    return PlannedCall(call_id=call_id, tool="helper")


def look(call_id: str) -> PlannedCall:
    return PlannedCall(call_id=call_id, tool="look")


def wait(*sessions: str) -> Callable[[str], PlannedCall]:
    return lambda call_id: PlannedCall(call_id=call_id, tool="await_delegate", builtin=AwaitCall(sessions=sessions))


def begun(state: TurnState) -> TurnState:
    """The state after its delegates have begun, of which none is waited for."""
    action = next_action(state, MAIL)
    assert isinstance(action, CallDelegates)
    return delegated(state, action, [None] * len(action.starts))


def end_of(session: str, spent: Spent, steps: int, reason: StopReason = StopReason.FINISHED) -> TurnResult:
    report = DelegateReport(spent=spent)
    return TurnResult(
        session=session, turn=1, agent="helper", stop_reason=reason, output="helped", steps=steps, report=report
    )


def following(state: TurnState, mail: Mailbox = MAIL) -> tuple[TurnState, Action]:
    state, _, action = asked_next(state, mail, stopped=mail.cancel is not None)
    return state, action


@st.composite
def scripts(draw: st.DrawFn) -> list[tuple[str, ...]]:
    """What the answers of a turn call, one after the other."""
    calls = st.sampled_from(["beside", "at once", "look", "wait"])
    return draw(st.lists(st.lists(calls, max_size=4).map(tuple), min_size=1, max_size=8))


limits = st.builds(
    Budgets,
    cost_usd=st.none() | st.decimals("0.05", 2, places=2),
    llm_calls=st.none() | st.integers(1, 30),
    tool_calls=st.none() | st.integers(0, 20),
    behavior_calls=st.none() | st.integers(0, 10),
    events=st.none() | st.integers(1, 60),
)

CALLS: dict[str, Callable[[str], PlannedCall]] = {
    "beside": beside,
    "at once": awaited_at_once,
    "look": look,
    "wait": wait(),
}


class Tree:
    """A caller whose delegates use what chance lets them, up to all they were granted."""

    def __init__(self, state: TurnState, share: Callable[[], int]) -> None:
        self.state = state
        self.share = share
        self.used: list[tuple[Spent, int]] = []

    def use(self, session: str, granted: Budgets | Spent, most: int, left: BackgroundDelegate | None) -> TurnResult:
        calls = min(self._of(granted.llm_calls, most), most, self._of(granted.events, most))
        spent = Spent(
            llm_calls=calls,
            events=calls,
            tool_calls=self._of(granted.tool_calls, 3),
            behavior_calls=self._of(granted.behavior_calls, 2),
            cost_usd=(granted.cost_usd or Decimal(0)) * self.share() / 4,
        )
        if left is not None:  # what is unlimited is granted as nothing
            limits = self.state.policy.budgets
            spent = Spent(
                **{name: value for name, value in spent if name in _COUNTED and getattr(limits, name) is not None}
            )
        self.used.append((spent, calls))
        return end_of(session, spent, calls)

    def _of(self, granted: int | None, otherwise: int) -> int:
        return (otherwise if granted is None else granted) * self.share() // 4

    def end_some(self, sessions: tuple[str, ...]) -> None:
        for one in self.state.running:
            if one.session in sessions:
                result = self.use(one.session, one.granted, one.steps, one)
                self.state = delegates.mark_ended(self.state, one.session, result)

    def start(self, action: CallDelegates) -> None:
        ended = [
            None
            if start.call.background
            else self.use(start.session, start.request.budgets or Budgets(), start.request.max_steps or 1, None)
            for start in action.starts
        ]
        self.state = delegated(self.state, action, ended)

    def check(self) -> None:
        state, limits = self.state, self.state.policy.budgets
        assert state.step + state.taken.delegated_steps <= state.policy.max_steps
        for name in ("llm_calls", "tool_calls", "behavior_calls"):
            limit = getattr(limits, name)
            assert limit is None or getattr(state.taken, name) <= limit
        own = Decimal("0.01") * state.step
        assert limits.cost_usd is None or state.taken.cost_usd <= limits.cost_usd + own + Decimal("1e-20")

    def carry_out(self, action: Action) -> None:
        if isinstance(action, CallDelegates):
            self.start(action)
        elif isinstance(action, CallTools):
            outcomes = tuple(ToolOutcome(call_id=call.call_id) for call in action.calls)
            self.state = ran(self.state, *outcomes)
        elif isinstance(action, AwaitDelegates):
            self.wait(action)

    def wait(self, action: AwaitDelegates) -> None:
        if action.ends:
            self.state = delegates.mark_cancelled(self.state)
        self.end_some(action.sessions if action.ends or action.call is not None else action.sessions[:1])
        if action.call is not None:
            outcome = action.refused or ToolOutcome(call_id=action.call.call_id, preview="helped")
            self.state = calls.with_awaited(self.state, action, outcome)


_COUNTED = ("llm_calls", "tool_calls", "behavior_calls", "events", "cost_usd")


@given(limits, st.integers(2, 40), scripts(), st.data())
def test_a_tree_stays_within_its_limits_and_each_delegate_is_charged_once(
    budgets: Budgets, max_steps: int, script: list[tuple[str, ...]], data: st.DataObject
) -> None:
    """S-64 S-70: whenever each of them ends, and whether anybody waits for it."""
    tree = Tree(opened(budgets=budgets, max_steps=max_steps), lambda: data.draw(st.integers(0, 4)))
    answers, own = iter(script), 0
    while True:
        if bool(tree.state.running) and data.draw(st.booleans()):
            tree.end_some((tree.state.running[0].session,))
        tree.state, action = following(tree.state)
        if isinstance(action, CommitTurn):
            break
        if isinstance(action, Generate):
            own += 1
            tree.state = answered(tree.state, *(CALLS[name] for name in next(answers, ())))
        else:
            tree.carry_out(action)
        tree.check()
    assert tree.state.running == ()
    assert tree.state.spent.llm_calls == own + sum(spent.llm_calls for spent, _ in tree.used)
    assert tree.state.spent.delegated_steps == sum(steps for _, steps in tree.used)
    cost = sum((spent.cost_usd for spent, _ in tree.used), Decimal("0.01") * own)
    assert abs(tree.state.spent.cost_usd - cost) < Decimal("1e-20")  # a sum of thirds depends on its order


def test_what_goes_on_beside_its_caller_leaves_it_an_equal_share() -> None:
    """S-70: one that works beside it has half, and the next one a half of what is left beside that."""
    state = answered(opened(budgets=Budgets(llm_calls=21, cost_usd=Decimal("8.01")), max_steps=41), beside)
    state = begun(state)
    assert [(one.granted.llm_calls, one.granted.cost_usd, one.steps) for one in state.background] == [
        (10, Decimal(4), 20)
    ]
    state, action = following(state)
    assert isinstance(action, Generate)
    assert action.cost_left == Decimal(4)
    state = begun(answered(state, beside, cost="0"))
    assert [(one.granted.llm_calls, one.granted.cost_usd, one.steps) for one in state.background[1:]] == [
        (4, Decimal(2), 9)
    ]


def test_the_first_result_names_the_session_and_how_to_wait() -> None:
    """S-64: at once, and it is the session in which the delegate works."""
    state = answered(opened(), beside)
    action = next_action(state, MAIL)
    assert isinstance(action, CallDelegates)
    (start,) = action.starts
    assert start.request.delegated is not None
    assert start.request.delegated.background
    (outcome,) = delegated(state, action, [None]).calls.outcomes
    told = json.loads(outcome.preview)
    assert (told["session"], outcome.delegate, outcome.error) == (start.session, start.session, None)
    assert "await_delegate" in told["next"]


def test_what_was_not_used_comes_back_and_warnings_go_by_what_was_spent() -> None:
    """S-70: a grant warns of nothing."""
    state = begun(answered(opened(budgets=Budgets(llm_calls=10)), *[beside] * 3))
    (first, *_) = state.background
    assert (state.taken.llm_calls, state.decided) == (7, ())
    state = delegates.mark_ended(state, first.session, end_of(first.session, Spent(llm_calls=1), 1))
    assert (state.spent.llm_calls, state.taken.llm_calls) == (2, 6)
    state = delegates.mark_ended(
        state, state.running[0].session, end_of(state.running[0].session, Spent(llm_calls=6), 6)
    )
    (warning,) = state.decided
    assert isinstance(warning.event, BudgetWarning)
    assert (warning.event.dimension, warning.event.used) == ("llm_calls", "8 of 10 model calls")


def test_a_call_beyond_what_is_left_beside_grants_is_refused_and_ends_nothing() -> None:
    """S-70: the model may wait for what comes back, then call again."""
    state = begun(answered(opened(budgets=Budgets(tool_calls=3)), beside))
    state = answered(state, look, look)
    (refused,) = state.calls.outcomes
    assert refused.error is not None
    assert refused.error.code == "budget.tool_calls_exhausted"
    assert "in the background" in refused.error.message
    assert state.exhausted is None


@pytest.mark.parametrize("short", [True, False])
def test_a_caller_that_has_nothing_left_beside_grants_waits_for_one_to_end(*, short: bool) -> None:
    """S-70: for steps and calls, and for a model call that was not affordable."""
    limits = Budgets(llm_calls=3) if not short else Budgets(cost_usd=Decimal(1))
    state = begun(answered(opened(budgets=limits), beside))
    if short:
        poor = ErrorDetail(code="budget.cost_exhausted", title="generation", message="too little is left")
        state = failed(state, poor)
    else:
        state = answered(state, look)
        state = ran(state, ToolOutcome(call_id="2/0"))
    session = state.background[0].session
    state, action = following(state)
    assert action == AwaitDelegates(sessions=(session,))
    state = delegates.mark_ended(state, session, end_of(session, Spent(), 0))
    assert isinstance(following(state)[1], Generate)


def ends_by_itself(state: TurnState) -> tuple[TurnState, Mailbox]:
    return answered(state), MAIL


def is_cancelled(state: TurnState) -> tuple[TurnState, Mailbox]:
    return state, Mailbox(cancel=CancelRequest(reason="enough"), cancel_at=NOW)


def fails(state: TurnState) -> tuple[TurnState, Mailbox]:
    return failed(state, ErrorDetail(code="llm.auth_error", title="generation", message="no key")), MAIL


def runs_out(state: TurnState) -> tuple[TurnState, Mailbox]:
    used_up = ErrorDetail(code="budget.tool_calls_exhausted", title="agent", message="used up")
    return replace(state, exhausted=used_up), MAIL


@pytest.mark.parametrize(
    ("how", "reason"),
    [(ends_by_itself, "finished"), (is_cancelled, "cancelled"), (fails, "error"), (runs_out, "budget_exhausted")],
)
@pytest.mark.parametrize("on_child_error", ["return", "propagate"])
def test_a_turn_ends_only_when_what_works_beside_it_has(
    how: Callable[[TurnState], tuple[TurnState, Mailbox]], reason: str, on_child_error: str
) -> None:
    """S-57 S-64: whatever ends it; and that it cancels them is no failure of theirs."""
    state, mail = how(begun(answered(opened(on_child_error=on_child_error), beside)))
    state, action = following(state, mail)
    session = state.background[0].session
    assert action == AwaitDelegates(sessions=(session,), ends=True)
    state = delegates.mark_cancelled(state)
    state = delegates.mark_ended(state, session, end_of(session, Spent(llm_calls=4), 4, StopReason.CANCELLED))
    _, action = following(state, mail)
    assert isinstance(action, CommitTurn)
    assert (action.stop_reason, action.spent.delegated_steps) == (reason, 4)


def test_a_failure_that_is_to_propagate_ends_the_turn_before_its_next_model_call() -> None:
    """S-63 S-64: whether or not it is waited for."""
    state = begun(answered(opened(on_child_error="propagate"), beside))
    session = state.background[0].session
    state = delegates.mark_ended(state, session, end_of(session, Spent(), 3, StopReason.MAX_STEPS_REACHED))
    _, action = following(state)
    assert isinstance(action, CommitTurn)
    assert action.error is not None
    assert (action.stop_reason, action.error.code) == ("error", "tool.delegate_failed")


def test_calls_that_wait_come_behind_tools_and_delegates_one_after_the_other() -> None:
    """S-65."""
    state = answered(opened(), wait(), look, awaited_at_once, beside, wait())
    called, later = delegates.next_batch(state)
    assert [call.call_id for call in called] == ["1/1"]
    state = ran(state, ToolOutcome(call_id="1/1"))
    called, later = delegates.next_batch(state)
    assert [call.call_id for call in called] == ["1/2", "1/3"]
    assert [call.call_id for call in later] == ["1/0", "1/4"]
    action = next_action(state, MAIL)
    assert isinstance(action, CallDelegates)
    first, second = action.starts
    state = delegated(state, action, [end_of(first.session, Spent(), 1), None])
    called, later = delegates.next_batch(state)
    assert [call.call_id for call in (*called, *later)] == ["1/0", "1/4"]
    action = next_action(state, MAIL)
    assert isinstance(action, AwaitDelegates)
    assert action.sessions == (second.session,)
    state = delegates.mark_ended(state, second.session, end_of(second.session, Spent(), 1))
    state = calls.with_awaited(state, action, ToolOutcome(call_id="1/0", preview="helped"))
    again = calls.next_calls(state)
    assert isinstance(again, AwaitDelegates)
    assert again.refused is not None
    assert "nothing to wait for" in again.refused.preview
    told = next_action(state, MAIL)
    assert isinstance(told, Generate)
    assert again.refused in told.failed


def test_a_delegate_that_fails_and_the_wait_beside_it_are_one_error_in_a_row() -> None:
    """S-19 S-63: the model has read neither before the next answer, ten of which end the turn."""
    state, action = following(opened())
    for _ in range(10):
        assert isinstance(action, Generate)
        state, action = following(answered(state, awaited_at_once, wait()))
        assert isinstance(action, CallDelegates)
        lost = ErrorDetail(code="tool.delegate_failed", title="delegate", message="was terminated")
        state, action = following(delegated(state, action, [lost]))
    assert isinstance(action, CommitTurn)
    assert action.error is not None
    assert action.error.message.startswith("10 tool errors in a row; the last one, of await_delegate: there is nothing")


def test_one_that_was_lost_is_told_of_by_its_caller() -> None:
    """S-63: it has no result in the store."""
    state = begun(answered(opened(), beside))
    session = state.background[0].session
    lost = ErrorDetail(code="tool.delegate_failed", title="delegate", message="was terminated")
    state = answered(delegates.mark_ended(state, session, lost), wait(session))
    action = next_action(state, MAIL)
    assert isinstance(action, AwaitDelegates)
    (one,) = delegates.collect(state, action).delegates
    assert one.lost is not None
    assert one.lost.message == f"helper was terminated (session {session})"


@pytest.mark.parametrize(
    ("raw", "background"),
    [
        ('{"query": "q", "run_in_background": true}', True),
        ('{"query": "q", "run_in_background": "true"}', True),
        ('{"query": "q", "run_in_background": false}', False),
        ('{"query": "q"}', False),
        ("broken", False),
    ],
)
def test_a_call_works_in_the_background_if_it_asks_for_that_and_may(raw: str, *, background: bool) -> None:
    tool = ToolDeclaration(
        name="helper",
        description="",
        parameters={"type": "object", "properties": RUN_IN_BACKGROUND},
        reference="agent:helper",
        delegate=DelegateSettings(agent="helper", background=True),
    )
    call = PlannedCall(call_id="1", tool="helper")
    assert delegates.plan(tool, call, raw).background is background
    refused = tool.model_copy(update={"delegate": DelegateSettings(agent="helper")})
    assert not delegates.plan(refused, call, raw).background


def test_a_start_that_is_stopped_meanwhile_is_known_and_so_ended() -> None:
    """S-57: it had begun, and is charged for."""
    state = answered(opened(), beside)
    action = next_action(state, MAIL)
    assert isinstance(action, CallDelegates)
    starts: tuple[StartDelegate, ...] = action.starts
    state = delegates.charge(state, action, [None])
    _, then = following(state, Mailbox(cancel=CancelRequest(), cancel_at=NOW))
    assert then == AwaitDelegates(sessions=(starts[0].session,), ends=True)


MESSAGE = QueuedMessage(prompt="And?", request_id="m1")


@pytest.mark.parametrize(
    ("works_beside", "mail"),
    [
        (True, Mailbox()),
        (False, Mailbox()),
        (False, Mailbox(queued=(MESSAGE,))),
        (False, Mailbox(steered=(MESSAGE,))),
    ],
)
def test_a_turn_that_would_stop_for_results_waits_while_delegates_work_or_a_message_waits(
    *, works_beside: bool, mail: Mailbox
) -> None:
    """Its end would cancel the delegates, and the message's turn would withdraw the calls."""
    state = opened(stop_for_results=True)
    if works_beside:
        state = begun(answered(state, beside))
    asking = PlannedCall(call_id="asks", tool="look", needs="result")
    state = replace(state, calls=replace(state.calls, pending=(), asking=(asking,)))
    assert input_requests.stops(state, mail) is not (works_beside or mail != Mailbox())
    asks = input_requests.ask_or_wait(state, mail)
    assert isinstance(asks, AskPeople)
    assert asks.stops is input_requests.stops(state, mail)
