"""Delegates whose workflows say nothing to their caller: what they came to and have spent is in the store."""

from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

from perdure.contracts.budgets import Spent
from perdure.contracts.turns import CommitTurn, StopReason, TurnResult
from perdure.engine.delegates import StartDelegate
from perdure.workflows import options, stubs

ASKED_AGAIN = timedelta(seconds=1)
"""Wait before a delegate that runs already is started once more; it doubles."""

LONGEST_WAIT = timedelta(minutes=5)
"""Upper bound of that wait: a delegate may work for days, and each start stands in the caller's history."""


async def accounted(start: StartDelegate) -> TurnResult | None:
    """What a delegate came to that Temporal has ended; its turn is closed, if nobody did. None if it never began.

    The turn of a delegate is the only one of its session.
    """
    commit = CommitTurn(
        session=start.session,
        store=start.request.store,
        turn=1,
        tip="",
        stop_reason=StopReason.ERROR,
        steps=0,
        spent=Spent(),
        delegated=start.request.delegated,
        abandoned=True,
    )
    try:
        return await workflow.execute_activity(
            stubs.commit_turn, commit, summary=f"{start.call.tool}: ended by Temporal", **options.bookkeeping()
        )
    except ActivityError:
        return None
