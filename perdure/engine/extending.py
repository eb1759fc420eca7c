"""Other limits for a turn that runs. Pure, and part of the workflow."""

from datetime import datetime, timedelta
from decimal import Decimal

from perdure.contracts.budgets import ExtendRequest
from perdure.contracts.hooks import BudgetChanged
from perdure.engine.budgets import CODES
from perdure.engine.state import TurnState

Limit = int | Decimal | timedelta

_ENDING = frozenset({"max_steps", "cost_usd", "llm_calls", "events", "seconds"})
"""Limits that end a turn as soon as they are used up; the others do when one more is asked for."""


class ExtendError(ValueError):
    """The limits cannot be set; the message is one line with the cause and the fix."""


def extended(state: TurnState, asked: ExtendRequest, now: datetime) -> TurnState:
    """The state with the new limits; with the limits that it has already, it is the same.

    Raises:
        ExtendError: The turn is over, or a limit is used up already and nobody said that it may be.
    """
    if asked.turn is not None and asked.turn != state.turn:
        msg = f"turn {state.turn} is the one that runs, and not turn {asked.turn}"
        raise ExtendError(msg)
    if state.delegated is not None:
        msg = f"the limits of a delegate are its share of its caller's; extend session {state.delegated.session}"
        raise ExtendError(msg)
    if state.ending is not None:
        msg = f"turn {state.turn} has ended ({state.ending.stop_reason}); the next message begins another one"
        raise ExtendError(msg)
    for name, limit in asked.limits.items():
        _check(name, limit, _used(state, name, now), ends=asked.end)
    before = {name: _limit(state, name) for name in asked.limits}
    budgets = {name: limit for name, limit in asked.limits.items() if name != "max_steps"}
    policy = state.policy.model_copy(
        update={
            "max_steps": asked.max_steps or state.policy.max_steps,
            "budgets": state.policy.budgets.model_copy(update=budgets),
        }
    )
    exhausted = None if _lifts(state, asked) else state.exhausted
    changed = [
        BudgetChanged(dimension=name, before=None if was is None else _shown(was), after=_shown(asked.limits[name]))
        for name, was in before.items()
        if was != asked.limits[name]
    ]
    short = state.short and not changed
    state = state.model_copy(update={"policy": policy, "exhausted": exhausted, "short": short})
    return state.with_decided(*changed)


def _check(name: str, limit: Limit, used: Limit | None, *, ends: bool) -> None:
    if ends or used is None:
        return
    too_low = used >= limit if name in _ENDING else used > limit  # type: ignore[operator] # of one kind by their name
    if too_low:
        msg = f"{name}: {_shown(used)} is used already, so that {_shown(limit)} would end the turn; "
        raise ExtendError(msg + 'name more, or add "end": true to end it so')


def _used(state: TurnState, name: str, now: datetime) -> Limit | None:
    """What counts against a limit; nothing does against ``depth``."""
    if name == "max_steps":
        return state.step + state.spent.delegated_steps
    if name == "seconds":
        return now - state.started_at - state.waited
    used: Limit | None = getattr(state.spent, name, None)
    return used


def _limit(state: TurnState, name: str) -> Limit | None:
    limit: Limit | None = getattr(state.policy if name == "max_steps" else state.policy.budgets, name)
    return limit


def _lifts(state: TurnState, asked: ExtendRequest) -> bool:
    """Whether the budget that was about to end the turn is among those that were raised."""
    if state.exhausted is None:
        return False
    name = next(name for name, code in CODES.items() if code == state.exhausted.code)
    limit, was = asked.limits.get(name), _limit(state, name)
    return limit is not None and was is not None and limit > was  # type: ignore[operator] # of one kind by their name


def _shown(limit: Limit) -> str:
    return f"{limit.total_seconds():g}" if isinstance(limit, timedelta) else str(limit)
