"""Turns that are open in the store although Temporal has ended their workflows: read, never written.

A workflow that was terminated, has failed or timed out cannot end its turn. Nobody else does before the session's next
message: an operator may reset the workflow, and its turn then goes on.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Unpack

import temporalio.client
from temporalio.client import WorkflowExecution, WorkflowExecutionStatus

from perdure.client.connect import rpc_errors
from perdure.contracts.errors import ReasonCode
from perdure.contracts.names import AGENT_TURN
from perdure.contracts.turns import RunState, StopReason
from perdure.store import SessionRecord, Store, TurnRecord
from perdure.store.records import Closure, PeopleWaitedFor, SessionFilter

MOST = 10_000
"""Ended workflows that are looked at."""

AT_ONCE = 100
"""Workflow ids in one query."""

_HOW = {
    WorkflowExecutionStatus.TERMINATED: "was terminated",
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.TIMED_OUT: "timed out",
}

Listed = tuple[SessionRecord, TurnRecord]

Ask = Callable[[Mapping[str, datetime]], Awaitable[Mapping[str, Closure]]]
"""Says which turns Temporal has ended: :func:`closures`, with a client."""


async def closures(temporal: temporalio.client.Client, begun: Mapping[str, datetime]) -> dict[str, Closure]:
    """How Temporal has ended the workflows of open turns, by session.

    One query, and a second one only if it finds some: visibility is asked, which may be a moment behind.

    Args:
        temporal: The server.
        begun: When the first run of each open turn began, by session. Runs of earlier turns had closed by then.

    Raises:
        ClientError: The server does not answer, or refuses.
    """
    if not begun:
        return {}
    statuses, earliest = '"Terminated", "Failed", "TimedOut"', min(begun.values()).isoformat()
    query = f'WorkflowType = "{AGENT_TURN}" AND ExecutionStatus IN ({statuses}) AND CloseTime >= "{earliest}"'
    ended: dict[str, Closure] = {}
    with rpc_errors():
        async for run in temporal.list_workflows(query, limit=MOST):
            first, at = begun.get(run.id), run.close_time
            if first is None or at is None or at < first:  # of another turn
                continue
            if run.id not in ended or ended[run.id].at < at:
                ended[run.id] = _closure(run, at)
        for names in (list(ended)[place : place + AT_ONCE] for place in range(0, len(ended), AT_ONCE)):
            ids = ", ".join(map(json.dumps, names))
            async for run in temporal.list_workflows(f'WorkflowId IN ({ids}) AND ExecutionStatus = "Running"'):
                ended.pop(run.id, None)  # it was reset
    return ended


def _closure(run: WorkflowExecution, at: datetime) -> Closure:
    how = _HOW[run.status or WorkflowExecutionStatus.FAILED]
    text = f"the turn's workflow {how} before the turn could end; 'perdure send {run.id} …' goes on from its last step"
    return Closure(at=at, how=how.removeprefix("was "), text=text)


async def list_sessions(store: Store, ask: Ask, *, limit: int, **wanted: Unpack[SessionFilter]) -> list[Listed]:
    """Sessions with their last turns, those that began last first; open turns that Temporal has ended are ended.

    Raises:
        StoreError: The store does not answer.
    """
    state = wanted.get("state")
    if state is not None and state is not RunState.ENDED:
        return await _still_open(store, ask, limit, wanted)
    found = [await _with_closures(store, ask, list(await store.sessions(limit=limit, **wanted)))]
    if state is RunState.ENDED or wanted.get("stop_reason") or wanted.get("reason_code"):
        found.append(await _closed(store, ask, wanted))
    merged = sorted((row for rows in found for row in rows), key=lambda row: row[1].started_at, reverse=True)
    return merged[:limit]


async def _still_open(store: Store, ask: Ask, limit: int, wanted: SessionFilter) -> list[Listed]:
    asked = limit
    while True:
        rows = await _with_closures(store, ask, list(await store.sessions(limit=asked, **wanted)))
        kept = [row for row in rows if row[1].closure is None]
        if len(kept) >= limit or len(rows) < asked:
            return kept[:limit]
        asked *= 2


async def _closed(store: Store, ask: Ask, wanted: SessionFilter) -> list[Listed]:
    """Those of the open turns that are wanted as ended ones."""
    if wanted.get("stop_reason") not in {None, StopReason.ERROR}:
        return []
    if wanted.get("reason_code") not in {None, ReasonCode.RUNTIME_TURN_CLOSED}:
        return []
    ended = await ask(await store.open_runs())
    other: SessionFilter = {**wanted, "state": None, "stop_reason": None, "reason_code": None}
    rows = await store.sessions(limit=len(ended), only=list(ended), **other) if ended else ()
    return [listed for row in rows if (listed := _as_ended(row, ended))[1].closure is not None]


async def _with_closures(store: Store, ask: Ask, rows: list[Listed]) -> list[Listed]:
    names = [session.session for session, _ in rows if session.open_turn is not None]
    if not names:
        return rows
    ended = await ask(await store.open_runs(names))
    return [_as_ended(row, ended) for row in rows]


def _as_ended(row: Listed, ended: Mapping[str, Closure]) -> Listed:
    session, turn = row
    closure = ended.get(session.session)
    if closure is None or session.open_turn is None:
        return row
    return (
        session.model_copy(update={"open_turn": None, "waiting": False}),
        turn.model_copy(update={"closure": closure, "ended_at": closure.at}),
    )


async def people_waited_for(store: Store, ask: Ask) -> PeopleWaitedFor:
    """How many turns wait for a person now; one that Temporal has ended does not.

    Raises:
        StoreError: The store does not answer.
    """
    waits = await store.people_waited_for()
    if waits.turns == 0:
        return waits
    ended = await ask(await store.open_runs())
    return await store.people_waited_for(without=list(ended)) if ended else waits
