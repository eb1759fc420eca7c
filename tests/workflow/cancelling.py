"""The two ways to cancel a turn, and what both must come to."""

from typing import Any, Literal

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import CancelledError

from perdure.contracts.turns import TurnResult
from tests.house import House

How = Literal["signal", "temporal"]

BOTH_WAYS = pytest.mark.parametrize("how", ["signal", "temporal"])

REASONS: dict[How, str] = {"signal": "no longer needed", "temporal": "cancelled through Temporal"}
"""What stands behind "Operation aborted" in the result."""

Handle = WorkflowHandle[Any, Any]


async def cancel(handle: Handle, how: How) -> None:
    """Ask the turn to stop."""
    if how == "signal":
        await handle.signal("cancel", {"reason": REASONS[how]})
    else:
        await handle.cancel()


async def cancelled(house: House, handle: Handle, how: How, turn: int = 1) -> TurnResult:
    """The result of a turn that was cancelled so, once the execution and the store both say it."""
    if how == "signal":
        result = TurnResult.model_validate(await handle.result())
        assert (await handle.describe()).status is WorkflowExecutionStatus.COMPLETED
        assert (result.stop_reason, result.error) == ("cancelled", f"Operation aborted: {REASONS[how]}")
    else:
        with pytest.raises(WorkflowFailureError) as failure:
            await handle.result()
        assert isinstance(failure.value.cause, CancelledError)
        assert (await handle.describe()).status is WorkflowExecutionStatus.CANCELED
    stored = (await house.store.turn(house.session, turn)).result
    assert stored is not None
    assert (stored.stop_reason, stored.reason_code) == ("cancelled", "runtime.aborted")
    assert stored.error == f"Operation aborted: {REASONS[how]}"
    (end,) = [line for line in await house.events("agent_end") if line["turn"] == turn]
    assert (end["stop_reason"], end["error"]) == ("cancelled", stored.error)
    return stored
