"""Budgets are exact: N allows N, over a whole tree of delegates."""

from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.budgets import Budgets, Dimensions, Spent, Usage
from perdure.contracts.dimensions import COUNTED
from perdure.engine.limits import (
    CODES,
    Dimension,
    Holds,
    Wanted,
    admit,
    exhausted_error,
    forbids_generation,
    in_usd,
    is_exhausted,
    share,
    warnings,
)
from tests.unit.engine.opening import NOW

CALL_DIMENSIONS: list[Dimension] = ["tool_calls", "behavior_calls", "events", "patches"]


@pytest.mark.parametrize("dimension", CALL_DIMENSIONS)
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_a_budget_of_calls_admits_exactly_so_many(dimension: Dimension, limit: int) -> None:
    """S-70: the others get an error result, and the turn ends."""
    calls = [Wanted(tool="work", uses=(dimension,))] * (limit + 2)
    spent, errors, ending = admit(Budgets.model_validate({dimension: limit}), Spent(), calls)
    assert [error is None for error in errors] == [True] * limit + [False, False]
    assert getattr(spent, dimension) == limit
    assert ending is not None
    assert (ending.code, ending.title) == (CODES[dimension], "agent")
    last = errors[-1]
    assert last is not None
    assert (last.code, last.title) == (CODES[dimension], "work")
    assert f"{limit} of {limit}" in last.message


def test_a_budget_that_is_just_used_up_by_the_calls_ends_nothing() -> None:
    """S-70."""
    _, _, ending = admit(Budgets(tool_calls=2), Spent(), [Wanted(tool="work")] * 2)
    assert ending is None


@pytest.mark.parametrize(("limit", "depth", "allowed"), [(0, 1, False), (1, 1, True), (1, 2, False), (None, 9, True)])
def test_depth_admits_exactly_so_many_levels(limit: int | None, depth: int, *, allowed: bool) -> None:
    """S-70."""
    _, errors, ending = admit(Budgets(depth=limit), Spent(), [Wanted(tool="ask", depth=depth)])
    assert (errors == [None]) is allowed
    assert allowed or (ending is not None and ending.code == "budget.depth_exhausted")


FORBIDDEN = [
    (Budgets(llm_calls=3), Spent(llm_calls=2), Spent(llm_calls=3), "budget.llm_calls_exhausted"),
    (Budgets(events=3), Spent(events=2), Spent(events=3), "budget.events_exhausted"),
    (
        Budgets(cost_usd=Decimal("0.3")),
        Spent(cost_usd=Decimal("0.2999")),
        Spent(cost_usd=Decimal("0.3")),
        "budget.cost_exhausted",
    ),
]


@pytest.mark.parametrize(("budgets", "below", "at", "code"), FORBIDDEN)
def test_a_generation_is_forbidden_at_the_limit(budgets: Budgets, below: Spent, at: Spent, code: str) -> None:
    """S-70."""
    assert forbids_generation(budgets, below) is None
    error = forbids_generation(budgets, at)
    assert error is not None
    assert error.code == code


amounts = st.decimals(0, 10, places=4)
budgets = st.builds(
    Budgets,
    cost_usd=st.none() | st.decimals("0.0001", 10, places=4),
    llm_calls=st.none() | st.integers(1, 50),
    tool_calls=st.none() | st.integers(0, 50),
    events=st.none() | st.integers(1, 50),
)
spendings = st.builds(
    Spent,
    cost_usd=amounts,
    llm_calls=st.integers(0, 60),
    tool_calls=st.integers(0, 60),
    events=st.integers(0, 60),
)


@given(budgets, spendings, st.integers(1, 64))
def test_the_shares_of_all_children_are_never_more_than_what_is_left(
    limits: Budgets, spent: Spent, children: int
) -> None:
    """S-70: a child's use counts for the tree."""
    each = share(limits, spent, children)
    for name in ("cost_usd", "llm_calls", "tool_calls", "events"):
        limit = getattr(limits, name)
        if limit is None:
            assert getattr(each, name) is None
        else:
            assert getattr(each, name) * children <= max(0, limit - getattr(spent, name)) + Decimal("1e-20")


def test_what_a_delegate_used_is_charged_once() -> None:
    """S-62: usage and steps add up."""
    child = Spent(usage=Usage(input_tokens=3), cost_usd=Decimal("0.1"), llm_calls=2, events=5, delegated_steps=4)
    spent = Spent(usage=Usage(input_tokens=1), llm_calls=1).with_delegate(child, steps=2).with_delegate(child, steps=2)
    assert (spent.usage.input_tokens, spent.cost_usd, spent.llm_calls) == (7, Decimal("0.2"), 5)
    assert (spent.events, spent.delegated_steps) == (10, 12)


@given(budgets, st.lists(spendings, min_size=1, max_size=6))
def test_each_share_is_warned_of_once(limits: Budgets, spendings: list[Spent]) -> None:
    limits = limits.model_copy(update={"warn_at": (Decimal("0.5"), Decimal("0.8"))})
    spent, said = Spent(), list[tuple[str, Decimal]]()
    for more in spendings:
        after = spent.with_delegate(more, steps=0)
        said += [(warning.dimension, warning.share) for warning in warnings(limits, spent, after)]
        spent = after
    assert len(said) == len(set(said))
    for name in ("cost_usd", "llm_calls", "tool_calls", "events"):
        limit = getattr(limits, name)
        for part in limits.warn_at:
            passed = limit is not None and limit > 0 and getattr(spent, name) >= part * limit
            assert ((name, part) in said) is passed


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        ("0", "$0"),
        ("0.50", "$0.50"),
        ("0.0002894666666666666666666666667", "$0.0002895"),
        ("1E-9", "$0.000000001"),
        ("0.00099999999", "$0.001000"),
        ("12345.678", "$12345.68"),
        ("2E+3", "$2000"),
    ],
)
def test_money_is_written_with_four_digits_or_to_the_cent_and_is_never_nothing(amount: str, text: str) -> None:
    """S-70: shares have as many digits as a decimal has."""
    assert in_usd(Decimal(amount)) == text


def test_the_errors_and_warnings_of_a_share_are_short() -> None:
    """S-70."""
    limits = Budgets(cost_usd=Decimal("0.01") / 3)
    spent = Spent(cost_usd=Decimal("0.01") / 3)
    (warning,) = warnings(limits, Spent(), spent)
    forbidden = forbids_generation(limits, spent)
    assert forbidden is not None
    assert warning.used == "$0.003333 of $0.003333"
    assert forbidden.message.endswith(": $0.003333 of $0.003333")


def test_a_budget_of_an_unknown_dimension_has_a_code_of_its_own() -> None:
    """S-68: such as one of a later release; it ends a turn as any other."""
    error = exhausted_error("breaths", "3 of 3")
    assert (error.code, error.message) == ("budget.exhausted", "a budget of the turn is used up: 3 of 3")
    assert is_exhausted(error.code)
    assert is_exhausted("budget.cost_exhausted")
    assert not is_exhausted("tool.timeout")


def test_each_dimension_that_whole_numbers_count_is_shared_and_given_back() -> None:
    """S-70: one that is left out here would be granted whole to each delegate. ``depth`` is no amount."""
    whole = {name for name, field in Dimensions.model_fields.items() if field.annotation == int | None}
    assert set(COUNTED) == whole - {"depth"}
    limits, used = Budgets.model_validate(counts_of(9)), Spent.model_validate(counts_of(3))
    assert share(limits, used, 2).model_dump(include=set(COUNTED)) == counts_of(3)
    total = used.with_delegate(Spent.model_validate(counts_of(1)), 1)
    assert total.model_dump(include=set(COUNTED)) == counts_of(4)


def test_the_clock_of_the_time_budget_counts_no_held_second_twice() -> None:
    """S-70: people and a pause hold it at the same time; a status that asks meanwhile settles what was held so far."""
    at = [NOW + timedelta(seconds=seconds) for seconds in range(0, 60, 10)]
    holds = Holds()
    assert holds.settle(at[0]) == timedelta(0)
    holds.hold("people", at[0])
    holds.hold("pause", at[1])
    assert holds.settle(at[2]) == at[2] - at[0]
    assert holds.release("people", at[3]) == timedelta(0)
    assert (holds.any, holds.release("pause", at[4])) == (True, at[4] - at[2])
    assert (holds.any, holds.settle(at[5])) == (False, timedelta(0))


def counts_of(of_each: int) -> dict[str, int]:
    return dict.fromkeys(COUNTED, of_each)
