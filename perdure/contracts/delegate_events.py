"""The events of a caller's log that tell of its delegates; what a delegate does stands in its own session's log."""

from decimal import Decimal
from typing import Literal

from perdure.contracts.budgets import Usage
from perdure.contracts.turns import StopReason
from perdure.contracts.values import Value


class DelegateStart(Value):
    """A delegate begins to work on a call, in a session of its own."""

    type: Literal["delegate_start"] = "delegate_start"
    call_id: str
    tool: str
    agent: str
    delegate: str
    """The session."""


class DelegateEnd(Value):
    """A delegate has ended; what it used, with its own delegates, is charged to the caller."""

    type: Literal["delegate_end"] = "delegate_end"
    call_id: str
    tool: str
    agent: str
    delegate: str
    stop_reason: StopReason
    reason_code: str | None = None
    error: str | None = None
    steps: int
    usage: Usage
    cost_usd: Decimal
