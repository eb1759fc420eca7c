"""Turns by random scripts keep every promise of the engine, thousands of them, without a server."""

import random
from dataclasses import replace
from itertools import cycle, islice
from statistics import median
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from perdure.contracts.budgets import Budgets
from perdure.contracts.generations import Generate
from perdure.contracts.hooks import DecidedEvent, RunHooks
from perdure.contracts.turns import StopReason
from perdure.engine.limits import CODES
from perdure.engine.state import TurnState
from perdure.engine.world import Action
from tests.unit.engine import invariants, ledgers, waiting
from tests.unit.engine.simulation import Played, play

pytestmark = pytest.mark.timeout(1200)  # half a minute of work, at the lowest priority in a whole run

CASES = 700
"""Of a run of the fast lane; the deep lane plays 2,500."""

CHOICES = 400
"""So many choices are more than most turns take; behind them everything is calm."""

INVARIANTS = (*invariants.INVARIANTS, *ledgers.INVARIANTS, *waiting.INVARIANTS)


def keep_every_promise(choices: bytes) -> None:
    played = play(choices)
    for holds in INVARIANTS:
        holds(played)


@pytest.mark.parametrize("cases", [CASES, pytest.param(2_500, marks=pytest.mark.deep)])
def test_whatever_happens_in_a_turn_every_promise_is_kept(cases: int) -> None:
    """S-18 S-32 to S-39, S-46 S-54 S-57 S-59 S-60 S-62 S-65 S-70 to S-72: each is a function of its own."""
    scripts = given(st.binary(min_size=CHOICES, max_size=CHOICES))(keep_every_promise)
    settings(max_examples=cases, derandomize=True, database=None)(scripts)()


def scripted(number: int) -> bytes:
    return random.Random(1_400 + number).randbytes(CHOICES)


@pytest.fixture(scope="module")
def many() -> list[Played]:
    return [play(scripted(number)) for number in range(600)]


def test_the_scripts_reach_every_kind_of_end_action_and_decision(many: list[Played]) -> None:
    """S-32 S-70: a promise is worth what its cases are."""
    commits = [played.commit for played in many]
    assert {commit.stop_reason for commit in commits} == set(StopReason)
    exhausted = {commit.error.code for commit in commits if commit.error is not None}
    assert exhausted >= {*CODES.values(), "tool.max_turns_exhausted", "runtime.hook_failed", "runtime.failed_by_hook"}
    actions = [moment.action for played in many for moment in played.moments]
    assert {type(action) for action in actions} == set(get_args(Action))
    boundaries = {action.boundary for action in actions if isinstance(action, RunHooks)}
    assert boundaries == {"start", "generation", "step", "stalled", "error"}
    decided = {type(one.event) for played in many for one in played.log}
    assert decided == set(get_args(DecidedEvent))
    assert max(commit.steps for commit in commits) > 5


def test_the_same_script_is_the_same_turn(many: list[Played]) -> None:
    """S-80: the engine reads no clock and draws no number."""
    for number, played in enumerate(many[:50]):
        assert play(scripted(number)).moments == played.moments


LONG: dict[str, Any] = {
    "max_steps": 200,
    "budgets": Budgets(),
    "hooks": (),
    "stop_conditions": (),
    "max_tool_turns": None,
}


STATE = TypeAdapter(TurnState)


def size_of(state: TurnState) -> int:
    return len(STATE.dump_json(state))


def test_the_state_of_a_turn_does_not_grow_with_its_steps() -> None:
    """S-46 S-80: a turn of a thousand steps rotates as easily as one of ten; todos have a limit of their own.

    Delegates in the background stay known, so that they can be waited for once more.
    """
    compared = 0
    for number in range(200):
        played = play(bytes(islice(cycle(scripted(number)[:97]), 40_000)), **LONG)
        states = [moment.state for moment in played.moments if isinstance(moment.action, Generate)]
        sizes = [size_of(replace(state, todos=(), background=())) for state in states]
        middle = len(sizes) // 2
        if played.commit.steps > 60:
            compared += 1
            assert median(sizes[middle:]) <= median(sizes[:middle]) + 400
    assert compared >= 5
