"""Hooks written in Python: the activity that calls them, and what the turn makes of its end."""

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError

from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.hooks import React, Reacted
from perdure.contracts.turns import CommitTurn, TurnResult
from perdure.engine import hooks
from perdure.engine.state import TurnState
from perdure.engine.turn import Failed
from perdure.workflows import failures, options, stubs, visibility


def called(state: TurnState, action: React) -> workflow.ActivityHandle[Reacted]:
    """Have the hooks called."""
    return workflow.start_activity(
        stubs.react, action, summary=visibility.hooks_summary(action), **options.reacting(state.policy, action)
    )


def came(outcome: Reacted | BaseException) -> Reacted | Failed:
    """What came of the activity."""
    if isinstance(outcome, Reacted):
        return outcome
    if isinstance(outcome, ActivityError):
        return Failed(failures.detail(outcome, "hooks"))
    return Failed(ErrorDetail(code=ReasonCode.RUNTIME_HOOK_FAILED, title="hooks", message=str(outcome)))


def at_the_end(state: TurnState, commit: CommitTurn, result: TurnResult) -> list[workflow.ActivityHandle[Any]]:
    """Have the hooks for the end of the turn called, if there are any."""
    last = hooks.at_the_end(state, commit, result, workflow.now())
    return [] if last is None else [called(state, last)]
