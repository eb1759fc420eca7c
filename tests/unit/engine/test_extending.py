"""Other limits for a running turn: what is set, what is refused, and what is told of it."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from perdure.contracts.agents import TurnPolicy
from perdure.contracts.budgets import Budgets, ExtendRequest, Spent
from perdure.contracts.hooks import BudgetChanged
from perdure.contracts.tools import Delegated
from perdure.contracts.turns import StopReason
from perdure.engine.limits import ExtendError, Wanted, admit, extend
from perdure.engine.state import Ending, Origin, TurnState

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def running(**fields: Any) -> TurnState:
    policy = TurnPolicy(agent="a", model="p/m", max_steps=5, budgets=Budgets(cost_usd=Decimal(2), tool_calls=3))
    spent = Spent(cost_usd=Decimal("1.5"), tool_calls=3, llm_calls=2)
    base: dict[str, Any] = {"policy": policy, "spent": spent, "step": 2}
    origin = Origin(session="s", turn=1, definition="d", started_at=NOW, delegated=fields.pop("delegated", None))
    return TurnState(origin=origin, tip="t0", **{**base, **fields})


def test_limits_are_set_as_a_whole_and_each_change_is_told_once() -> None:
    asked = ExtendRequest(max_steps=9, cost_usd=Decimal(3), seconds=timedelta(minutes=5))
    state = extend(running(), asked, NOW)
    assert (state.policy.max_steps, state.policy.budgets.cost_usd) == (9, Decimal(3))
    told = [one.event for one in state.decided if isinstance(one.event, BudgetChanged)]
    assert [(one.dimension, one.before, one.after) for one in told] == [
        ("max_steps", "5", "9"),
        ("cost_usd", "2", "3"),
        ("seconds", None, "300"),
    ]
    assert extend(state, asked, NOW) == state


def test_two_changes_while_a_generation_is_retried_are_two_events() -> None:
    """S-45: the first is in the log already when the second is made, and a key stands there once."""
    once = extend(running(), ExtendRequest(max_steps=9), NOW)
    twice = extend(once.with_written(1), ExtendRequest(max_steps=12), NOW)
    (first,), (second,) = once.decided, twice.decided
    assert first.key != second.key


REFUSED = {
    "max_steps": (ExtendRequest(max_steps=2), "max_steps: 2 is used already"),
    "cost_usd": (ExtendRequest(cost_usd=Decimal("1.5")), "cost_usd: 1.5 is used already"),
    "llm_calls": (ExtendRequest(llm_calls=1), "llm_calls: 2 is used already"),
    "tool_calls": (ExtendRequest(tool_calls=2), "tool_calls: 3 is used already"),
    "seconds": (ExtendRequest(seconds=timedelta(seconds=60)), "seconds: 60 is used already"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_limit_that_is_used_up_is_refused_unless_it_is_said_that_the_turn_ends(name: str) -> None:
    asked, told = REFUSED[name]
    with pytest.raises(ExtendError, match=told):
        extend(running(), asked, NOW + timedelta(minutes=1))
    state = extend(running(), asked.model_copy(update={"end": True}), NOW)
    limit = state.policy.max_steps if name == "max_steps" else getattr(state.policy.budgets, name)
    assert limit == getattr(asked, name)


def test_a_lower_limit_with_something_left_is_taken() -> None:
    assert extend(running(), ExtendRequest(max_steps=3, tool_calls=3), NOW).policy.max_steps == 3


def test_a_budget_that_was_about_to_end_the_turn_does_not_once_it_is_raised() -> None:
    _, _, exhausted = admit(Budgets(tool_calls=3), Spent(tool_calls=3), [Wanted(tool="work")])
    state = running(exhausted=exhausted)
    assert extend(state, ExtendRequest(max_steps=9), NOW).exhausted == exhausted
    assert extend(state, ExtendRequest(tool_calls=4), NOW).exhausted is None


@pytest.mark.parametrize("limit", [{"cost_usd": "1e9999999"}, {"cost_usd": "Infinity"}, {"seconds": 1e12}])
def test_a_limit_that_nothing_can_be_counted_against_is_refused(limit: dict[str, Any]) -> None:
    """What it is compared with, in the workflow, would raise there."""
    with pytest.raises(ValidationError):
        ExtendRequest.model_validate(limit)
    with pytest.raises(ValidationError):
        Budgets.model_validate(limit)


def test_the_limits_of_a_delegate_are_its_callers() -> None:
    """S-70: else the tree could use more than its caller was given."""
    above = Delegated(
        session="lead", turn=1, step=1, call_id="c", tool="helper", definition="d", root="lead", depth=1, approval=None
    )
    with pytest.raises(ExtendError, match="extend session lead"):
        extend(running(delegated=above), ExtendRequest(max_steps=9), NOW)


def test_limits_for_another_turn_than_the_one_that_runs_are_refused() -> None:
    assert extend(running(), ExtendRequest(turn=1, max_steps=9), NOW).policy.max_steps == 9
    with pytest.raises(ExtendError, match="turn 1 is the one that runs, and not turn 2"):
        extend(running(), ExtendRequest(turn=2, max_steps=9), NOW)


def test_a_turn_that_has_ended_is_left_as_it_is() -> None:
    state = running(ending=Ending(stop_reason=StopReason.FINISHED))
    with pytest.raises(ExtendError, match=r"turn 1 has ended \(finished\); the next message begins another one"):
        extend(state, ExtendRequest(max_steps=9), NOW)
