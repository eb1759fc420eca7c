"""A turn as it is when it has been opened, under any policy."""

from datetime import UTC, datetime
from typing import Any

from perdure.contracts.agents import TurnPolicy
from perdure.engine.hook_state import HookState
from perdure.engine.state import TurnState

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
