"""A turn as it is when it has been opened, under any policy."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from perdure.contracts.agents import TurnPolicy
from perdure.engine import after
from perdure.engine.delegates import CallDelegates, End
from perdure.engine.state import HookState, TurnState

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def opened(**policy: Any) -> TurnState:
    """The turn of an agent with these settings; its hooks, if it has any, are due."""
    state = TurnState(
        session="s",
        turn=1,
        definition="d",
        tip="t0",
        started_at=NOW,
        policy=TurnPolicy.model_validate({"agent": "a", "model": "p/m", **policy}),
    )
    return state.model_copy(update={"hooks": HookState(boundary="start" if state.policy.hooks else None)})


def delegated(state: TurnState, action: CallDelegates, ended: Sequence[End]) -> TurnState:
    """The state after the delegates of a step have come to this."""
    return after.delegated(after.charged(state, action, ended), action, ended)
