"""A turn as it is when it has been opened, under any policy."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from perdure.contracts.agents import TurnPolicy
from perdure.contracts.budgets import Paid
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.generations import Compacted
from perdure.contracts.tools import ToolOutcome
from perdure.engine import calls, delegates, generation
from perdure.engine.calls import ToolResults
from perdure.engine.delegates import CallDelegates, End
from perdure.engine.generation import Failed
from perdure.engine.state import Origin, TurnState

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def opened(**policy: Any) -> TurnState:
    """The turn of an agent with these settings."""
    origin = Origin(session="s", turn=1, definition="d", started_at=NOW)
    settings = TurnPolicy.model_validate({"agent": "a", "model": "p/m", **policy})
    return TurnState(origin=origin, tip="t0", policy=settings)


def delegated(state: TurnState, action: CallDelegates, ended: Sequence[End]) -> TurnState:
    """The state after the delegates of a step have come to this."""
    return calls.with_delegates(delegates.charge(state, action, ended), action, ended)


def ran(state: TurnState, *outcomes: ToolOutcome, aborted: ErrorDetail | None = None) -> TurnState:
    """The state after the tools of a step have come to this."""
    return calls.with_tools(state, ToolResults(outcomes, aborted))


def failed(state: TurnState, error: ErrorDetail, paid: Paid = Paid()) -> TurnState:  # noqa: B008 - frozen
    """The state after a model call has failed for good."""
    return generation.with_failure(state, Failed(error, paid))


def compacted(state: TurnState, outcome: Compacted | ErrorDetail) -> TurnState:
    """The state after a compaction has come to this."""
    return generation.with_compaction(state, Failed(outcome) if isinstance(outcome, ErrorDetail) else outcome)
