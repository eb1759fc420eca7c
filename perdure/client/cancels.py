"""The cancel of many sessions at once, by a filter."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Literal, TypedDict

from perdure.client.errors import ClientError, RequestRefusedError, WrongTurnError
from perdure.client.executions import Runs
from perdure.client.read import Ask, Listed, list_sessions
from perdure.contracts.turns import CancelRequest, RunState
from perdure.contracts.values import Value
from perdure.store import Store
from perdure.store.records import SessionFilter

MOST = 5_000
"""Sessions that one call cancels."""

AT_ONCE = 20
"""Cancels that are on their way at the same time."""


class OpenFilter(TypedDict, total=False):
    """Filter of sessions whose turn runs or waits for people; ``since`` leaves out turns that began earlier.

    ``caller`` keeps only the delegates of that session. ``delegates=True`` has delegates cancelled by themselves too;
    otherwise those of a cancelled caller end with it.
    """

    tenant: str | None
    agent: str | None
    state: RunState | None
    since: datetime | None
    caller: str | None
    delegates: bool


class CancelOutcome(Value):
    """What came of the cancel of one session.

    Attributes:
        turn: The turn that ran when the sessions were listed; no other one is stopped.
        outcome: ``would_cancel`` of a dry run; ``cancelled``: the turn is to stop; ``ended``: it had ended by then;
            ``failed``: ``error`` says why.
    """

    session: str
    turn: int
    agent: str
    outcome: Literal["would_cancel", "cancelled", "ended", "failed"]
    error: str = ""


async def list_open(store: Store, ask: Ask, wanted: OpenFilter) -> list[Listed]:
    """The sessions that a filter means, those whose turn began last first.

    Raises:
        RequestRefusedError: The filter wants sessions that have ended.
    """
    state = wanted.get("state")
    if state is RunState.ENDED:
        raise RequestRefusedError(
            "state: a session that has ended has no turn to cancel; name another, or leave it out"
        )
    fields: SessionFilter = {
        "tenant": wanted.get("tenant"),
        "agent": wanted.get("agent"),
        "since": wanted.get("since"),
        "caller": wanted.get("caller"),
        "delegates": wanted.get("delegates", wanted.get("caller") is not None),
    }
    states = (RunState.RUNNING, RunState.WAITING_FOR_INPUT) if state is None else (state,)
    found: list[Listed] = []
    for each in states:
        fields["state"] = each
        found += await list_sessions(store, ask, limit=MOST, **fields)
    return sorted(found, key=lambda row: row[1].started_at, reverse=True)[:MOST]


async def cancel_listed(runs: Runs, listed: Sequence[Listed], reason: str, *, drop_queue: bool) -> list[CancelOutcome]:
    """Have the listed turns stopped, twenty at a time; what begins meanwhile is left alone."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def cancel(row: Listed) -> CancelOutcome:
        request = CancelRequest(reason=reason, turn=row[1].turn, drop_queue=drop_queue)
        async with slots:
            try:
                stops = await runs.cancel(row[0].session, request)
            except WrongTurnError:
                stops = False
            except ClientError as error:
                return outcome_of(row, "failed", str(error))
        return outcome_of(row, "cancelled" if stops else "ended")

    return list(await asyncio.gather(*map(cancel, listed)))


def outcome_of(
    row: Listed, outcome: Literal["would_cancel", "cancelled", "ended", "failed"], error: str = ""
) -> CancelOutcome:
    """What came of one session."""
    session, turn = row
    return CancelOutcome(session=session.session, turn=turn.turn, agent=turn.agent, outcome=outcome, error=error)
