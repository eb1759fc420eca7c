"""The cancel of many sessions at once, by a filter."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple, TypedDict

from perdure.client.errors import ClientError, RequestRefusedError, WrongTurnError
from perdure.client.executions import Runs
from perdure.client.read import Ask, Listed, is_listed, list_sessions
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
        turn: The turn that ran or waited for a slot when the sessions were listed; no other one is stopped.
        outcome: ``would_cancel`` of a dry run; ``cancelled``: the turn is to stop; ``ended``: it had ended by then;
            ``failed``: ``error`` says why.
    """

    session: str
    turn: int
    agent: str
    outcome: Literal["would_cancel", "cancelled", "ended", "failed"]
    error: str = ""


class Target(NamedTuple):
    """A turn that a filter means; one that waits for a slot is known by its request."""

    session: str
    turn: int
    agent: str
    request_id: str | None = None


async def list_open(store: Store, ask: Ask, wanted: OpenFilter) -> list[Target]:
    """The turns that a filter means: those that wait for a slot, and those that are open, the last to begin first.

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
    found: list[Listed] = []
    if state is not RunState.QUEUED:
        for each in (RunState.RUNNING, RunState.WAITING_FOR_INPUT) if state is None else (state,):
            fields["state"] = each
            found += await list_sessions(store, ask, limit=MOST, **fields)
    found.sort(key=lambda row: row[1].started_at, reverse=True)
    queued = [
        turn for turn in await store.queued_turns(wanted.get("tenant")) if is_listed(turn, {**fields, "state": state})
    ]
    targets = [Target(turn.session, turn.turn, turn.agent, turn.request_id) for turn in queued]
    return [*targets, *(Target(session.session, last.turn, last.agent) for session, last in found)][:MOST]


async def cancel_listed(runs: Runs, listed: Sequence[Target], reason: str, *, drop_queue: bool) -> list[CancelOutcome]:
    """Have the listed turns stopped, twenty at a time; what begins meanwhile is left alone."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def cancel(target: Target) -> CancelOutcome:
        turn = target.turn if target.request_id is None else None
        request = CancelRequest(reason=reason, turn=turn, request_id=target.request_id, drop_queue=drop_queue)
        async with slots:
            try:
                stops = await runs.cancel(target.session, request)
            except WrongTurnError:
                stops = False
            except ClientError as error:
                return outcome_of(target, "failed", str(error))
        return outcome_of(target, "cancelled" if stops else "ended")

    return list(await asyncio.gather(*map(cancel, listed)))


def outcome_of(
    target: Target, outcome: Literal["would_cancel", "cancelled", "ended", "failed"], error: str = ""
) -> CancelOutcome:
    """What came of one turn."""
    return CancelOutcome(session=target.session, turn=target.turn, agent=target.agent, outcome=outcome, error=error)
