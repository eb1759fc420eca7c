"""How stop conditions are written: as a list or by name, and not without end."""

from collections.abc import Callable
from typing import Any

import pytest

from perdure import Agent, HookRule, stop
from perdure.contracts.conditions import CONDITIONS, MAX_CONDITIONS, AllOf, AnyCondition, AnyOf
from perdure.contracts.hooks import Finish
from perdure.contracts.turns import TurnRequest

ALWAYS: dict[str, object] = {"type": "always"}


def agent(conditions: Any) -> Agent:
    return Agent(name="a", model="p/m", stop_conditions=conditions)


def request(conditions: object) -> TurnRequest:
    return TurnRequest.model_validate({"agent": "a", "prompt": "p", "stop_conditions": conditions})


def nested(count: int) -> dict[str, object]:
    condition: dict[str, object] = ALWAYS
    for _ in range(count - 1):
        condition = {"type": "not", "condition": condition}
    return condition


def test_conditions_may_be_named_by_a_map() -> None:
    """S-35: the name is what ``stopped_by`` says."""
    made = agent({"often": stop.step_count(9), "done": stop.output("done").named("else")}).stop_conditions
    assert made == (stop.step_count(9).named("often"), stop.output("done").named("done"))
    assert request({"often": {"type": "step_count", "count": 9}}).stop_conditions == made[:1]
    assert CONDITIONS.validate_json('{"often": {"type": "step_count", "count": 9}}') == made[:1]


NO_LIST: list[Callable[[], object]] = [
    lambda: agent(stop.always()),
    lambda: agent(stop.always() & stop.step_count(9)),
    lambda: request(ALWAYS),
]


@pytest.mark.parametrize("make", NO_LIST)
def test_one_condition_is_no_list_and_says_what_to_write(make: Callable[[], object]) -> None:
    """S-35."""
    with pytest.raises(ValueError, match=r"write a list: stop_conditions=\[…\]"):
        make()


TOO_MANY: list[Callable[[int], object]] = [
    lambda count: request([ALWAYS, {"type": "any_of", "conditions": [ALWAYS] * (count - 2)}]),
    lambda count: request([{"type": "any_of", "conditions": [ALWAYS] * (count - 1)}]),
    lambda count: request([ALWAYS, {"type": "all_of", "conditions": [nested(9), *[ALWAYS] * (count - 11)]}]),
    lambda count: request([nested(count)]),
    lambda count: agent([AnyOf(conditions=(stop.always(),) * (count - 1))]),
    lambda count: HookRule(name="r", on="step_end", when=AllOf(conditions=_always(count - 1)), reaction=Finish()),
]


def _always(count: int) -> tuple[AnyCondition, ...]:
    return (stop.always(),) * count


@pytest.mark.parametrize("make", TOO_MANY)
def test_the_parts_of_combined_conditions_count_too(make: Callable[[int], object]) -> None:
    """S-35: all of them are in the history of each turn."""
    make(MAX_CONDITIONS)
    with pytest.raises(ValueError, match="51 conditions, those within others counted; 50 are the most"):
        make(MAX_CONDITIONS + 1)


@pytest.mark.parametrize("many", [200, 900, 5_000])
def test_conditions_that_nest_without_end_are_refused(many: int) -> None:
    """S-35."""
    with pytest.raises(ValueError, match="is more than 64 levels deep"):
        request([nested(many)])
