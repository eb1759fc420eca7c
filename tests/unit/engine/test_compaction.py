"""When a turn makes room for more: ahead of need, after a refusal, or because somebody asks; once for each step."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from perdure.contracts.agents import CompactionPolicy, TurnPolicy
from perdure.contracts.budgets import Budgets, Usage
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.generations import Compact, Compacted, Generate, Generation
from perdure.contracts.tools import PlannedCall, ToolOutcome
from perdure.contracts.turns import CommitTurn, StopReason
from perdure.engine import generation
from perdure.engine.state import Mailbox, Origin, TurnState
from tests.unit.engine.asked import next_action
from tests.unit.engine.opening import compacted, failed, ran

MAIL = Mailbox()
OVERFLOW = ErrorDetail(code="llm.context_overflow", title="generation", message="too long")
REFUSED = ErrorDetail(code="llm.auth_error", title="generation", message="no key")
SUMMARY = Compacted(tip="c", summarised=20, usage=Usage(input_tokens=500, output_tokens=50), cost_usd=Decimal("0.1"))
NOTHING = Compacted(tip="t0", reason="of 4 messages none can be summarised")


def opened(above: int | None = 1_000, guidance: str | None = None, **state: Any) -> TurnState:
    policy = TurnPolicy(agent="a", model="p/m", compaction=CompactionPolicy(above_tokens=above))
    policy = policy.model_copy(update=state.pop("policy", {}))
    origin = Origin(session="s", turn=1, definition="d", started_at=datetime.now(UTC), guidance=guidance)
    return TurnState(origin=origin, tip="t0", policy=policy, **state)


def worked(state: TurnState, tokens: int) -> TurnState:
    """The state after a generation of that size with one call, whose result is there."""
    call = PlannedCall(call_id="c1", tool="work")
    usage = Usage(input_tokens=tokens - 10, output_tokens=10)
    state = generation.with_answer(state, Generation(tip="t1", calls=(call,), usage=usage, cost_usd=Decimal(0)))
    return ran(state, ToolOutcome(call_id="c1"))


def compaction(state: TurnState) -> Compact:
    action = next_action(state, MAIL)
    assert isinstance(action, Compact)
    return action


def generate(state: TurnState) -> Generate:
    action = next_action(state, MAIL)
    assert isinstance(action, Generate)
    return action


def end(state: TurnState) -> CommitTurn:
    action = next_action(state, MAIL)
    assert isinstance(action, CommitTurn)
    return action


@pytest.mark.parametrize(("tokens", "due"), [(1_000, False), (1_001, True)])
def test_a_compaction_is_due_above_the_threshold_and_not_below(tokens: int, due: bool) -> None:
    """S-44: what the last generation read and wrote is the size of the conversation."""
    action = next_action(worked(opened(), tokens), MAIL)
    assert isinstance(action, Compact if due else Generate)
    if isinstance(action, Compact):
        assert (action.trigger, action.step, action.parent) == ("threshold", 2, "t1")


def test_a_generation_follows_its_compaction_with_the_results_it_was_to_read() -> None:
    """S-41: no step is used; the calls at hand keep their results."""
    state = compacted(worked(opened(), 2_000), SUMMARY)
    following = generate(state)
    assert (following.step, following.parent, following.call_ids, following.compacted) == (2, "c", ("c1",), True)
    assert state.spent.usage.total_tokens == 2_550
    assert (state.spent.llm_calls, state.spent.cost_usd) == (2, Decimal("0.1"))


def test_an_overflow_is_recovered_once_for_each_step() -> None:
    """S-41"""
    state = failed(opened(None), OVERFLOW)
    first = compaction(state)
    assert (first.trigger, first.failure) == ("overflow_recovery", OVERFLOW)
    state = compacted(state, SUMMARY)
    assert generate(state).compacted is True
    state = failed(state, OVERFLOW)
    assert (end(state).stop_reason, end(state).error) == (StopReason.ERROR, OVERFLOW)


def test_the_next_step_may_be_compacted_again() -> None:
    state = compacted(failed(opened(None), OVERFLOW), SUMMARY)
    state = failed(worked(state, 500), OVERFLOW)
    assert compaction(state).step == 2


def test_an_overflow_with_nothing_to_summarise_ends_the_turn_with_the_overflow() -> None:
    state = compacted(failed(opened(), OVERFLOW), NOTHING)
    assert end(state).error == OVERFLOW


def test_an_overflow_whose_summary_fails_ends_the_turn_with_that_failure() -> None:
    state = compacted(failed(opened(), OVERFLOW), REFUSED)
    assert end(state).error == REFUSED


@pytest.mark.parametrize("outcome", [NOTHING, REFUSED])
def test_without_a_compaction_ahead_of_need_the_turn_goes_on_and_tries_again_when_there_is_more(
    outcome: Compacted | ErrorDetail,
) -> None:
    state = compacted(worked(opened(), 2_000), outcome)
    assert generate(state).compacted is True
    state = worked(state, 2_000)
    assert isinstance(next_action(state, MAIL), Generate)
    assert isinstance(next_action(worked(state, 2_200), MAIL), Generate)
    assert isinstance(next_action(worked(state, 2_201), MAIL), Compact)


def test_what_is_kept_may_be_large_without_a_compaction_at_every_step() -> None:
    """After one, the next is due when the conversation has grown by a tenth."""
    state = worked(compacted(worked(opened(), 2_000), SUMMARY), 1_800)
    assert isinstance(next_action(state, MAIL), Generate)
    assert isinstance(next_action(worked(state, 1_900), MAIL), Generate)
    assert isinstance(next_action(worked(state, 2_000), MAIL), Compact)


def test_a_turn_opened_by_a_release_without_compaction_ends_at_an_overflow() -> None:
    """Recorded histories replay: their policy has no compaction."""
    state = opened(policy={"compaction": None})
    assert generate(state).compacted is True  # so that generate records the failure as the last one
    assert end(failed(state, OVERFLOW)).error == OVERFLOW


def test_a_person_may_ask_for_a_compaction_which_is_the_whole_turn() -> None:
    """S-44"""
    state = opened(guidance="keep the names")
    asked = compaction(state)
    assert (asked.trigger, asked.guidance) == ("manual", "keep the names")
    assert end(compacted(state, SUMMARY)).stop_reason is StopReason.FINISHED
    assert end(compacted(state, NOTHING)).stop_reason is StopReason.FINISHED
    assert end(compacted(state, REFUSED)).error == REFUSED


def test_budgets_count_the_call_that_writes_a_summary() -> None:
    """N model calls are N, summaries included."""
    state = opened(policy={"budgets": Budgets(llm_calls=2)})
    state = compacted(worked(state, 2_000), SUMMARY)
    assert end(state).stop_reason is StopReason.BUDGET_EXHAUSTED


def test_no_summary_is_written_for_a_generation_that_no_limit_allows() -> None:
    state = worked(opened(policy={"max_steps": 1}), 2_000)
    assert end(state).stop_reason is StopReason.MAX_STEPS_REACHED


def rejected(state: TurnState) -> TurnState:
    detail = ErrorDetail(code="llm.schema_violation", title="generation", message="at $.total: not a number")
    return generation.with_answer(state, Generation(tip="t1", rejected=detail, cost_usd=Decimal(0)))


def test_an_answer_outside_the_schema_goes_back_while_corrections_are_left_and_ends_the_turn_then() -> None:
    """S-72: none are left by default."""
    state = rejected(opened(policy={"output_corrections": 1}))
    assert (generate(state).step, generate(state).corrections) == (2, 1)
    ended = end(rejected(state))
    assert (ended.stop_reason, ended.error and ended.error.code) == (StopReason.ERROR, "llm.schema_violation")
    assert end(rejected(opened())).stop_reason is StopReason.ERROR


def test_corrections_are_counted_over_the_whole_turn() -> None:
    """Calls between two bad answers are no way round the bound."""
    state = worked(rejected(opened(policy={"output_corrections": 1})), 100)
    assert end(rejected(state)).stop_reason is StopReason.ERROR
