"""What a turn grants its delegates and makes of their ends, without a clock, a model or a workflow."""

from collections import Counter
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.agents.delegates import CLONE_TYPES, clone_agent
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.budgets import Budgets, Spent, Usage
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.generations import Generate, Generation
from perdure.contracts.hooks import Fail, HookRule
from perdure.contracts.ids import SESSION_ID_PATTERN, delegate_session
from perdure.contracts.tools import (
    WIRE_NAME_PATTERN,
    DelegateReport,
    DelegateSettings,
    PlannedCall,
    ToolDeclaration,
    ToolOutcome,
    ToolPolicy,
    tool_name_of,
)
from perdure.contracts.turns import CancelRequest, CommitTurn, Continuation, StopReason, TurnResult
from perdure.engine import delegates, generation
from perdure.engine.calls import CallTools
from perdure.engine.delegates import (
    CallDelegates,
    StartDelegate,
    call_delegates,
    outcome_of,
    tightest,
)
from perdure.engine.state import Mailbox, TurnState
from tests.unit.engine import opening
from tests.unit.engine.asked import asked_next, next_action
from tests.unit.engine.opening import NOW, delegated, ran

LOST = ErrorDetail(code="tool.delegate_failed", title="delegate", message="was terminated")
HELPER = ToolPolicy(delegate=DelegateSettings(agent="helper"))

budgets = st.builds(
    Budgets,
    cost_usd=st.none() | st.decimals("0.01", 2, places=2),
    llm_calls=st.none() | st.integers(1, 20),
    tool_calls=st.none() | st.integers(0, 20),
    behavior_calls=st.none() | st.integers(0, 10),
    events=st.none() | st.integers(1, 40),
    depth=st.none() | st.integers(0, 3),
)


def opened(**policy: Any) -> TurnState:
    return opening.opened(**{"tools": {"helper": HELPER}, **policy})


def answered(state: TurnState, *tools: str, cost: str = "0.01") -> TurnState:
    """The state after an answer that calls these."""
    step = state.step + 1
    calls = tuple(PlannedCall(call_id=f"{step}/{number}", tool=tool) for number, tool in enumerate(tools))
    return generation.with_answer(state, Generation(tip=f"t{step}", calls=calls, cost_usd=Decimal(cost)))


def ended(start: StartDelegate, spent: Spent, steps: int, reason: StopReason = StopReason.FINISHED) -> TurnResult:
    return TurnResult(
        session=start.session,
        turn=1,
        agent="helper",
        stop_reason=reason,
        output="helped",
        steps=steps,
        report=DelegateReport(spent=spent),
    )


def obedient(start: StartDelegate) -> TurnResult:
    """A delegate that uses all it was granted, and no more."""
    granted, most = start.request.budgets or Budgets(), start.request.max_steps or 1
    calls = min(most, granted.llm_calls or most, 5)
    tools, behaviours = (min(one or 0, 3) for one in (granted.tool_calls, granted.behavior_calls))
    events = calls if granted.events is None else min(calls, granted.events)
    spent = Spent(
        llm_calls=calls,
        cost_usd=granted.cost_usd or Decimal(0),
        events=events,
        tool_calls=tools,
        behavior_calls=behaviours,
    )
    return ended(start, spent, calls)


@given(budgets, st.integers(2, 30), st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_obedient_delegates_never_take_the_caller_over_a_limit(
    limits: Budgets, max_steps: int, widths: list[int]
) -> None:
    """S-62 S-70: whole numbers hold exactly, the cost up to the calls that the caller made itself."""
    state, mail = opened(budgets=limits, max_steps=max_steps), Mailbox()
    for width in widths:
        if not isinstance(next_action(state, mail), Generate):
            break
        state = answered(state, *["helper"] * width)
        action = next_action(state, mail)
        if isinstance(action, CallDelegates):
            assert len(action.starts) + len(action.refused) == len(state.calls.pending)
            state = delegated(state, action, [obedient(start) for start in action.starts])
    assert state.step + state.spent.delegated_steps <= max_steps
    for name in ("llm_calls", "tool_calls", "behavior_calls"):
        limit = getattr(limits, name)
        assert limit is None or getattr(state.spent, name) <= limit
    own = Decimal("0.01") * state.step
    assert limits.cost_usd is None or state.spent.cost_usd <= limits.cost_usd + own + Decimal("1e-20")


@given(budgets, st.integers(1, 30), st.integers(1, 20))
def test_whatever_is_granted_is_enough_to_ask_a_model_and_no_more_than_is_left(
    limits: Budgets, max_steps: int, width: int
) -> None:
    state = answered(opened(budgets=limits, max_steps=max_steps), *["helper"] * width)
    action = call_delegates(state, state.calls.pending)
    granted = [start.request.budgets or Budgets() for start in action.starts]
    for one in granted:
        Continuation.model_validate_json(action.starts[0].request.model_dump_json(exclude_defaults=True))
        assert one.llm_calls != 0
        assert one.events != 0
        assert one.cost_usd is None or one.cost_usd > 0
        assert one.depth is None or limits.depth is not None
        assert one.depth is None or limits.depth is None or one.depth == limits.depth - 1
    assert sum(start.request.max_steps or 0 for start in action.starts) <= max(0, max_steps - state.step)


FATES = st.sampled_from(["finished", "error", "cancelled", "refused", "lost"])


@given(st.lists(st.sampled_from(["helper", "work"]), min_size=1, max_size=6), st.data(), st.booleans())
def test_every_call_of_a_mixed_answer_has_one_result_and_tools_come_first(
    tools: list[str], data: st.DataObject, propagates: bool
) -> None:
    """S-63 S-65."""
    state, mail = opened(on_child_error="propagate" if propagates else "return"), Mailbox()
    state = answered(state, *tools)
    results, order, failed = Counter[str](), list[str](), False
    names = {f"1/{number}": tool for number, tool in enumerate(tools)}
    while not isinstance(action := next_action(state, mail), Generate | CommitTurn):
        if isinstance(action, CallTools):
            order += [names[call.call_id] for call in action.calls]
            assert set(order) == {"work"}
            results.update(call.call_id for call in action.calls)
            outcomes = tuple(ToolOutcome(call_id=call.call_id) for call in action.calls)
            state = ran(state, *outcomes)
        if isinstance(action, CallDelegates):
            order += [names[start.call.call_id] for start in action.starts]
            assert {start.call.tool for start in action.starts} == {"helper"}
            ends = [_fate(start, data.draw(FATES)) for start in action.starts]
            failed = any(isinstance(one, ErrorDetail) or one.stop_reason != "finished" for one in ends)
            results.update(
                start.call.call_id
                for start, one in zip(action.starts, ends, strict=True)
                if isinstance(one, TurnResult) and one.report is not None  # it has recorded its result itself
            )
            state = delegated(state, action, ends)
    results.update(outcome.call_id for outcome in action.failed)
    assert results == Counter(action.call_ids)
    assert order == sorted(order, reverse=True)
    assert isinstance(action, CommitTurn) is (failed and propagates)


def _fate(start: StartDelegate, fate: str) -> TurnResult | ErrorDetail:
    if fate == "lost":
        return LOST
    if fate == "refused":
        return TurnResult(session=start.session, turn=None, agent="helper", stop_reason=StopReason.ERROR, error="no")
    return ended(start, Spent(), 1, StopReason(fate))


def test_delegates_do_not_begin_in_a_turn_that_a_tool_has_ended() -> None:
    """S-65: their calls have error results that say so."""
    state = answered(opened(), "helper", "work")
    state = ran(state, ToolOutcome(call_id="1/1", stop="enough"))
    action = next_action(state, Mailbox())
    assert isinstance(action, CommitTurn)
    (withdrawn,) = action.failed
    assert withdrawn.error is not None
    assert (withdrawn.call_id, withdrawn.error.code) == ("1/0", "tool.cancelled")


def test_a_depth_that_was_lowered_meanwhile_refuses_the_delegate() -> None:
    """S-70: an update may come between the answer and its delegates."""
    state = answered(opened(budgets=Budgets(depth=1)), "helper")
    lowered = state.policy.model_copy(update={"budgets": Budgets(depth=0)})
    action = next_action(replace(state, policy=lowered), Mailbox())
    assert isinstance(action, CallDelegates)
    assert action.starts == ()
    (refused,) = action.refused
    assert refused.error is not None
    assert refused.error.code == "budget.depth_exhausted"


def test_a_cancel_still_charges_what_delegates_have_used() -> None:
    """S-57 S-62."""
    state = answered(opened(), "helper")
    action = next_action(state, Mailbox())
    assert isinstance(action, CallDelegates)
    spent = Spent(usage=Usage(input_tokens=5), llm_calls=2, delegated_steps=3)
    state = delegates.charge(state, action, [ended(action.starts[0], spent, 2, StopReason.CANCELLED)])
    mail = Mailbox(cancel=CancelRequest(reason="enough"), cancel_at=NOW)
    _, _, commit = asked_next(state, mail, stopped=True)
    assert isinstance(commit, CommitTurn)
    assert (commit.spent.delegated_steps, commit.spent.llm_calls) == (5, 3)


def test_a_warning_says_when_delegates_have_used_a_share_of_a_budget() -> None:
    """S-70."""
    state = answered(opened(budgets=Budgets(llm_calls=10)), "helper")
    action = next_action(state, Mailbox())
    assert isinstance(action, CallDelegates)
    state = delegated(state, action, [ended(action.starts[0], Spent(llm_calls=7), 7)])
    assert [getattr(one.event, "dimension", None) for one in state.decided] == ["llm_calls"]


def failing(state: TurnState, fates: str) -> TurnState:
    """The state after an answer that calls a delegate for each letter: x fails, o helps."""
    state = answered(state, *["helper"] * len(fates))
    action = next_action(state, Mailbox())
    assert isinstance(action, CallDelegates)
    ends = [
        LOST if fate == "x" else ended(start, Spent(), 1) for start, fate in zip(action.starts, fates, strict=False)
    ]
    return delegated(state, action, ends)


def test_delegates_that_fail_in_ten_answers_in_a_row_end_the_turn() -> None:
    """S-19 S-63: however many of one answer fail, they are one error, which the model reads first."""
    state = failing(opened(), "x" * 15)
    for _ in range(8):
        assert isinstance(next_action(state, Mailbox()), Generate)
        state = failing(state, "xx")
    assert isinstance(next_action(state, Mailbox()), Generate)
    state = failing(state, "x")
    assert state.ending is not None
    assert state.ending.error is not None
    assert state.ending.error.code == "tool.delegate_failed"


@pytest.mark.parametrize("helped", ["xo", "ox"])
def test_one_delegate_of_an_answer_that_helps_begins_the_count_anew(helped: str) -> None:
    """S-19 S-63: whichever of them it is, as they work side by side."""
    state = opened()
    for fates in [*["x"] * 9, helped, *["x"] * 9]:
        state = failing(state, fates)
    assert state.ending is None


@pytest.mark.parametrize(
    ("limits", "reason", "code"),
    [
        ({"budgets": Budgets(llm_calls=19)}, StopReason.BUDGET_EXHAUSTED, "budget.llm_calls_exhausted"),
        ({"max_steps": 19}, StopReason.MAX_STEPS_REACHED, None),
    ],
)
def test_delegates_that_did_not_start_are_no_errors_in_a_row(
    limits: dict[str, Any], reason: StopReason, code: str | None
) -> None:
    """S-63 S-70: the limit ends the turn, and the stop record names it; nine failures before change nothing."""
    state = opened(**limits)
    for _ in range(9):
        state = failing(state, "x")
    state = answered(state, *["helper"] * 30)
    action = next_action(state, Mailbox())
    assert isinstance(action, CallDelegates)
    state = delegated(state, action, [ended(start, Spent(llm_calls=1), 1) for start in action.starts])
    commit = next_action(state, Mailbox())
    assert isinstance(commit, CommitTurn)
    assert (commit.stop_reason, commit.error and commit.error.code) == (reason, code)


def test_a_row_that_ends_the_turn_names_a_delegate_that_failed_and_not_one_that_did_not_start() -> None:
    """S-51 S-63."""
    state = opened(max_steps=12)
    for _ in range(9):
        state = failing(state, "x")
    state = failing(state, "xxx")
    assert state.ending is not None
    assert state.ending.error is not None
    assert state.ending.error.message.startswith("10 tool errors in a row; the last one, of helper: helper was term")


@pytest.mark.parametrize(("asked", "first_call", "started"), [(4, "0.2", 4), (9, "0.2", 5), (9, None, 9), (9, "7", 1)])
def test_as_many_delegates_start_as_could_each_pay_for_a_first_call(
    asked: int, first_call: str | None, started: int
) -> None:
    """S-70: nine shares too small for a call would help nobody; one is started whatever is reckoned."""
    priced = HELPER if first_call is None else HELPER.model_copy(update={"first_call_usd": Decimal(first_call)})
    state = opened(budgets=Budgets(cost_usd=Decimal("1.01")), tools={"helper": priced})
    state = answered(state, *["helper"] * asked)
    action = next_action(state, Mailbox())
    assert isinstance(action, CallDelegates)
    shares = [start.request.budgets.cost_usd for start in action.starts if start.request.budgets is not None]
    assert [round(share, 15) for share in shares if share is not None] == [round(Decimal(1) / started, 15)] * started
    assert sum(share for share in shares if share is not None) <= 1
    told = [refused.error and (refused.error.code, refused.error.message) for refused in action.refused]
    assert told == [("tool.delegate_failed", TOO_MANY)] * (asked - started)


TOO_MANY = "too little money is left for so many delegates at once; this one did not start: ask for it again"


@given(budgets, budgets)
def test_a_delegate_is_held_to_the_smaller_limit_in_each_dimension(own: Budgets, share: Budgets) -> None:
    """S-70."""
    both = tightest(own, share)
    for name in ("cost_usd", "llm_calls", "tool_calls", "behavior_calls", "events", "depth"):
        known = [one for one in (getattr(own, name), getattr(share, name)) if one is not None]
        assert getattr(both, name) == min(known, default=None)
    assert both.warn_at == own.warn_at


def test_what_was_never_committed_charges_nothing() -> None:
    state = answered(opened(), "helper")
    action = next_action(state, Mailbox())
    assert isinstance(action, CallDelegates)
    assert delegates.charge(state, action, [LOST]).spent == state.spent


def test_the_outcome_of_a_delegate_names_its_session() -> None:
    """S-63: so that a person finds it."""
    start = call_delegates(state := answered(opened(), "helper"), state.calls.pending).starts[0]
    for fate in ("error", "lost", "refused"):
        outcome = outcome_of(start, _fate(start, fate))
        assert outcome.error is not None
        assert start.session in outcome.error.message


@pytest.mark.parametrize(
    ("settings", "agent"),
    [
        (DelegateSettings(agent="helper", interactive=True), "helper"),
        (DelegateSettings(spawns=True), "a"),  # a clone has its caller's name
    ],
)
def test_a_call_starts_the_agent_of_its_tool_as_the_tool_is_set(settings: DelegateSettings, agent: str) -> None:
    """S-61 S-64."""
    state = answered(opened(tools={"helper": ToolPolicy(delegate=settings)}), "helper")
    (start,) = call_delegates(state, state.calls.pending).starts
    assert start.request.agent == agent
    assert start.request.delegated is not None
    assert start.request.delegated.interactive is settings.interactive
    assert start.request.delegated.spawns is settings.spawns


@given(st.from_regex(SESSION_ID_PATTERN, fullmatch=True), st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True))
def test_the_session_of_a_delegate_is_a_session_id_and_its_own(root: str, tool: str) -> None:
    """S-62: also below one whose id is as long as it may be."""
    names = {
        delegate_session(root, tool, session, call, seed)
        for session in ("a", "b")
        for call in ("c", "d")
        for seed in ("", "s", "t")
    }
    assert len(names) == 12
    for name in names:
        assert len(name) <= 200
        Continuation(agent="a", prompt="p", request_id=name)


@pytest.mark.parametrize("name", ["helper", "re.searcher", "x" * 100])
def test_any_name_of_an_agent_is_a_name_that_providers_take(name: str) -> None:
    st.from_regex(WIRE_NAME_PATTERN)
    ToolDeclaration(name=tool_name_of(name), description="", parameters={}, reference="")


@pytest.mark.parametrize("kind", list(CLONE_TYPES))
def test_a_clone_keeps_the_callers_tools_and_model_but_for_the_spawner(kind: str) -> None:
    """S-64."""
    spawner = ToolDeclaration(
        name="spawn_agent", description="", parameters={}, reference="", delegate=DelegateSettings(spawns=True)
    )
    work = ToolDeclaration(name="work", description="", parameters={}, reference="m:work")
    guard = HookRule(name="guard", on="tool_error", reaction=Fail())
    caller = AgentDefinition(
        name="a",
        model="p/m",
        tools=(spawner, work),
        finish_tool="work",
        instructions="mine",
        max_steps=500,
        max_tool_turns=2,
        hooks=(guard,),
    )
    clone = clone_agent(caller, {"task": "t", "agent_type": kind, "custom_instructions": "Be brief."})
    assert (clone.name, clone.model, clone.tools, clone.finish_tool) == ("a", "p/m", (work,), None)
    assert (clone.max_tool_turns, clone.hooks) == (None, (guard,))
    assert clone.instructions.startswith("You ")
    assert clone.instructions.endswith("\n\nBe brief.")
    assert clone.max_steps == {"explore": 20, "plan": 15, "test": 25, "review": 15, "general": 30}[kind]
