"""A tool's error that ends the turn, and stop conditions that are about such errors: which of both it is."""

import pytest

from perdure import stop
from perdure.contracts.conditions import AnyCondition
from perdure.contracts.turns import StopReason
from tests.unit.engine.test_hooks import Move, play

ABORTS = Move(calls=("abort",))

SAVED: list[tuple[tuple[AnyCondition, ...], str]] = [
    ((stop.step_count(1), stop.tool_error()), "tool_error()"),
    ((stop.tool_error("work"), stop.step_count(1)), "tool_error(tool='work')"),
    ((stop.step_count(1) & stop.tool_error(),), "(step_count(count=1) & tool_error())"),
    ((stop.tool_error("other") | stop.tool_error(),), "(tool_error(tool='other') | tool_error())"),
]


@pytest.mark.parametrize(("conditions", "stopped_by"), SAVED)
def test_a_condition_on_the_error_finishes_the_turn_wherever_it_stands(
    conditions: tuple[AnyCondition, ...], stopped_by: str
) -> None:
    """S-20 S-34."""
    commit = play([ABORTS], stop_conditions=conditions).commit
    assert (commit.stop_reason, commit.stopped_by, commit.error) == (StopReason.FINISHED, stopped_by, None)


OTHERS: list[AnyCondition] = [
    stop.step_count(1),
    ~stop.tool_error("other"),
    stop.step_count(1) | stop.tool_error("other"),
    stop.step_count(1) | (stop.tool_error() & stop.never()),
]


@pytest.mark.parametrize("condition", OTHERS)
def test_a_condition_that_holds_for_another_reason_does_not_hide_the_error(condition: AnyCondition) -> None:
    """S-20."""
    commit = play([ABORTS], stop_conditions=(condition,)).commit
    assert (commit.stop_reason, commit.stopped_by) == (StopReason.ERROR, None)
