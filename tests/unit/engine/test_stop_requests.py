"""A tool asks that the turn ends: what the engine makes of it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from perdure.contracts.tools import PlannedCall, ToolOutcome
from perdure.contracts.turns import CommitTurn, StopReason
from perdure.engine.state import Calls, Mailbox
from tests.unit.engine.asked import next_action
from tests.unit.engine.opening import opened, ran
from tests.unit.engine.test_step import FINISH, POLICIES, SCRIPTS, WORK, Asked, Move, play

STOP = Move(calls=(Asked(fate="stop"),))


def test_the_turn_ends_finished_when_all_calls_of_the_answer_have_their_results() -> None:
    """S-30: the model is not asked again."""
    played = play([WORK, Move(calls=(Asked(), Asked("ship", "stop"), Asked(fate="caught"))), WORK])
    assert (played.commit.stop_reason, played.commit.stopped_by) == (StopReason.FINISHED, "ship: enough")
    assert (played.generations, played.commit.call_ids) == (2, ("2/0/ok", "2/1/stop", "2/2/caught"))


def test_of_two_requests_the_first_in_the_models_order_counts() -> None:
    """S-30."""
    played = play([Move(calls=(Asked("one", "stop"), Asked("two", "stop")))])
    assert played.commit.stopped_by == "one: enough"


def test_an_aborting_sibling_wins() -> None:
    """S-20 S-30."""
    played = play([Move(calls=(Asked(fate="stop"), Asked(fate="abort")))])
    assert (played.commit.stop_reason, played.commit.stopped_by) == (StopReason.ERROR, None)


def test_a_steered_message_does_not_take_the_ending_back() -> None:
    """S-30: it is kept for the transcript."""
    played = play([Move(calls=(Asked(fate="stop"),), steered=1), WORK])
    assert (played.generations, played.commit.stopped_by) == (1, "work: enough")
    assert len(played.commit.steered) == 1


@pytest.mark.parametrize("limit", [{"max_steps": 1}, {"budgets": {"llm_calls": 1}}, {"budgets": {"tool_calls": 1}}])
def test_a_limit_that_is_reached_in_the_same_step_is_not_the_reason(limit: dict[str, Any]) -> None:
    """S-30: the tool had its wish, and nothing was left to do."""
    assert play([STOP, WORK], **limit).commit.stopped_by == "work: enough"


def test_calls_that_wait_for_a_person_are_withdrawn() -> None:
    """S-30: as when the finish tool ends the turn."""
    asking = PlannedCall(call_id="c2", tool="pay", needs="approval")
    state = replace(
        opened(), calls=Calls(pending=(PlannedCall(call_id="c1", tool="ship"),), asking=(asking,), ids=("c1", "c2"))
    )
    state = ran(state, ToolOutcome(call_id="c1", stop="out"))
    action = next_action(state, Mailbox())
    assert isinstance(action, CommitTurn)
    assert (action.stopped_by, action.call_ids) == ("ship: out", ("c1", "c2"))


def test_what_nobody_asked_for_is_in_no_payload() -> None:
    """Histories of earlier releases have no such field, and later ones only where it says something."""
    assert "stopped_by" not in play([FINISH]).commit.model_dump(exclude_defaults=True)
    assert "stopped_by" in play([STOP]).commit.model_dump(exclude_defaults=True)


@given(SCRIPTS, POLICIES)
def test_a_turn_that_was_stopped_is_finished_and_its_last_answer_asked_for_it(
    script: list[Move], policy: dict[str, Any]
) -> None:
    """S-30: whatever else happens."""
    played = play(script, **policy)
    commit = played.commit
    stops = [call_id for call_id in commit.call_ids if call_id.endswith("/stop") and call_id in played.ran]
    aborts = [call_id for call_id in commit.call_ids if call_id.endswith("/abort") and call_id in played.ran]
    ended_by_tools = commit.stop_reason is not StopReason.CANCELLED
    assert (commit.stopped_by is not None) == (bool(stops) and not aborts and ended_by_tools)
    assert commit.stopped_by is None or commit.stop_reason is StopReason.FINISHED
