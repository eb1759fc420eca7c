"""Todos are a list that only its rules change, and an attempt at completion is let through when none is open."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.agents.builtin_tools import attempt_completion, clear_todo, finish, todo
from perdure.contracts.agents import TurnPolicy
from perdure.contracts.generations import Generation
from perdure.contracts.tools import MAX_TODOS, ChangeTodos, ClearTodos, PlannedCall, Todo
from perdure.contracts.turns import StopReason
from perdure.engine import calls, generation
from perdure.engine.state import Origin, TurnState

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def planned(tool: Any, number: int = 0, **arguments: Any) -> PlannedCall:
    call = PlannedCall(call_id=f"c{number}", tool=tool.name)
    return calls.plan(tool.declaration, call, json.dumps(arguments))


def answered(state: TurnState, *made: PlannedCall, text: str = "") -> TurnState:
    return calls.carry_out(generation.with_answer(state, Generation(tip="t1", calls=made, preview=text)))


def opened(**fields: Any) -> TurnState:
    origin = Origin(session="s", turn=1, definition="d", started_at=NOW)
    return TurnState(origin=origin, tip="t0", policy=TurnPolicy(agent="a", model="p/m"), **fields)


CHANGES = st.one_of(
    st.builds(
        ChangeTodos,
        new_titles=st.lists(st.text(min_size=1, max_size=3), max_size=40).map(tuple),
        completed=st.lists(st.integers(-1, 120), max_size=3).map(tuple),
    ),
    st.builds(ClearTodos),
)


@given(st.lists(CHANGES, max_size=8))
def test_todos_are_what_a_plain_list_would_be(changes: list[Any]) -> None:
    """S-39: ids are places from 0, a call that cannot be carried out changes nothing, clearing begins at 0 again."""
    expected: list[tuple[str, bool]] = []
    state = opened()
    for number, change in enumerate(changes):
        tool = todo if isinstance(change, ChangeTodos) else clear_todo
        call = PlannedCall(call_id=f"c{number}", tool=tool.name, builtin=change)
        state = answered(state, call)
        fails = False
        if isinstance(change, ClearTodos):
            expected = []
        else:
            longer = [*expected, *((title, False) for title in change.new_titles)]
            fails = len(longer) > MAX_TODOS or any(not 0 <= one < len(longer) for one in change.completed)
            if not fails:
                expected = [(title, done or at in change.completed) for at, (title, done) in enumerate(longer)]
        (outcome,) = state.calls.outcomes
        assert (outcome.error is not None) is fails
        assert [(one.title, one.completed) for one in state.todos] == expected
        if not fails:
            listed = json.loads(outcome.preview)["todos"]
            assert listed == [{"id": at, "title": t, "completed": done} for at, (t, done) in enumerate(expected)]


@given(st.lists(st.booleans(), max_size=5), st.booleans())
def test_an_attempt_is_let_through_exactly_when_no_todo_is_open(done: list[bool], has_text: bool) -> None:
    """S-39."""
    state = opened(todos=tuple(Todo(title="x", completed=one) for one in done))
    state = answered(state, planned(attempt_completion), text="the result" if has_text else "")
    (outcome,) = state.calls.outcomes
    if all(done):
        assert (state.ending is not None) is has_text
        assert state.completing is not has_text
    else:
        assert state.ending is None
        assert not state.completing
        assert [one["id"] for one in json.loads(outcome.preview)["open_todos"]] == [
            at for at, one in enumerate(done) if not one
        ]


def test_completion_waits_for_every_other_call_of_the_answer() -> None:
    """S-39."""
    state = answered(opened(), planned(finish, summary="done"), PlannedCall(call_id="c1", tool="work"))
    assert (state.ending, state.calls.outcomes) == (None, ())
    state = calls.carry_out(replace(state, calls=replace(state.calls, pending=())))
    assert state.ending is not None
    assert state.ending.stop_reason is StopReason.FINISHED


def test_lists_that_would_not_fit_into_one_payload_are_given_once() -> None:
    """The last of the calls has the whole list."""
    titles = ["x" * 500] * 50
    made = [planned(todo, 0, new_titles=titles), *(planned(todo, number) for number in range(1, 100))]
    state = answered(opened(), *made)
    assert sum(len(outcome.preview.encode()) for outcome in state.calls.outcomes) < calls.MAX_RESULTS + 100_000
    assert len(json.loads(state.calls.outcomes[-1].preview)["todos"]) == 50
    assert state.calls.outcomes[0].preview == calls.LATER


@pytest.mark.parametrize("shown", ["[]", "{", '{"completed": ["x"]}', '{"new_titles": [1]}', "***"])
def test_arguments_that_do_not_fit_are_rejected(shown: str) -> None:
    """S-22."""
    call = calls.plan(todo.declaration, PlannedCall(call_id="c", tool="todo"), shown)
    assert call.builtin is None
    assert call.rejected is not None
    assert call.rejected.code == "tool.invalid_input"


def test_only_a_change_is_a_patch() -> None:
    """S-70."""
    uses = [calls.own_uses_of(one) for one in (planned(todo, new_titles=["a"]), planned(todo), planned(clear_todo))]
    assert ["patches" in one.uses for one in uses if one is not None] == [True, False, True]
    assert calls.own_uses_of(PlannedCall(call_id="c", tool="work")) is None
