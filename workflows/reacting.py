"""Hooks written in Python: the activity that calls them, and what the turn makes of its end."""

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError

from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.reacting import React, Reacted
from perdure.contracts.turns import CommitTurn, TurnResult
from perdure.engine import hooks
from perdure.engine.state import Mailbox, TurnState
from perdure.workflows import failures, options, stubs, visibility


def called(state: TurnState, action: React) -> workflow.ActivityHandle[Reacted]:
    """Have the hooks called."""
    return workflow.start_activity(
        stubs.react, action, summary=visibility.hooks_summary(action), **options.reacting(state.policy, action)
    )


def heard(state: TurnState, mail: Mailbox, outcome: Reacted | BaseException, *, stopped: bool) -> TurnState:
    """The state after their activity has ended; of a turn that was stopped meanwhile, it changes nothing."""
    if stopped:
        return state
    if isinstance(outcome, Reacted):
        return hooks.reacted(state, mail, outcome, workflow.now())
    if isinstance(outcome, ActivityError):
        return hooks.failed(state, failures.detail(outcome, "hooks"))
    error = ErrorDetail(code=ReasonCode.RUNTIME_HOOK_FAILED, title="hooks", message=str(outcome))
    return hooks.failed(state, error)


def at_the_end(state: TurnState, commit: CommitTurn, result: TurnResult) -> list[workflow.ActivityHandle[Any]]:
    """Have the hooks for the end of the turn called, if there are any."""
    last = hooks.at_the_end(state, commit, result, workflow.now())
    return [] if last is None else [called(state, last)]
