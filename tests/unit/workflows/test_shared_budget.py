"""A budget that several turns of a user's workflow share: shares never sum up to more than what is left."""

from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure.contracts.budgets import Budgets, Spent
from perdure.contracts.dimensions import COUNTED
from perdure.contracts.errors import ErrorDetail
from perdure.workflow import SharedBudget

LIMITS = st.builds(
    Budgets,
    llm_calls=st.none() | st.integers(1, 20),
    tool_calls=st.none() | st.integers(0, 20),
    cost_usd=st.none() | st.decimals("0.01", "100", places=2),
)


def used_of(grant: Budgets, part: int) -> Spent:
    """A quarter, a half, three quarters or all of a share."""
    counts = {name: limit * part // 4 for name in COUNTED if (limit := getattr(grant, name)) is not None}
    return Spent(cost_usd=(grant.cost_usd or Decimal(0)) * part / 4, **counts)


@given(LIMITS, st.integers(1, 4), st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=30))
@example(Budgets(cost_usd=Decimal("4.28")), 3, [(True, 0), (False, 0), (True, 0), (False, 3), *[(True, 0)] * 3])
def test_the_shares_and_what_was_used_are_never_more_than_the_budget(
    budgets: Budgets, at_once: int, moves: list[tuple[bool, int]]
) -> None:
    """S-82."""
    shared, running = SharedBudget(budgets, at_once=at_once), list[Budgets]()
    for begins, part in moves:
        if begins and isinstance(share := shared.share(), Budgets):
            shared.hold(share)
            running.append(share)
        elif running:
            grant = running.pop()
            shared.give_back(grant, used_of(grant, part) if part else None)
        assert len(running) <= at_once
        for name in (*COUNTED, "cost_usd"):
            limit = getattr(budgets, name)
            if limit is not None:
                reserved = sum(getattr(grant, name) for grant in running)
                assert getattr(shared.spent, name) + reserved <= limit


@given(LIMITS, st.integers(1, 4))
def test_a_share_is_missing_for_good_only_while_no_turn_can_give_one_back(budgets: Budgets, at_once: int) -> None:
    """S-82: else a workflow would wait for ever, or fail too early."""
    shared, running = SharedBudget(budgets, at_once=at_once), list[Budgets]()
    while isinstance(share := shared.share(), Budgets) and len(running) < at_once:
        shared.hold(share)
        running.append(share)
    assert share is None or len(running) < at_once
    for grant in running:
        shared.give_back(grant, None)
    assert isinstance(shared.share(), Budgets | ErrorDetail)


def test_bad_shares_are_refused_with_the_fix() -> None:
    with pytest.raises(ValueError, match="at_once: is the number of turns"):
        SharedBudget(Budgets(llm_calls=3), at_once=0)
    with pytest.raises(ValueError, match="share budgets without a scope"):
        SharedBudget(Budgets(llm_calls=3, scope="session"))
