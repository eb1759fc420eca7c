"""A store that is older than what Temporal knows, as after a restore: found by comparing both, and brought up to date.

Turns that have ended are open in it, later turns of its sessions are missing, or whole sessions. What the turns said
and did is lost with the store's rows; that they ran, and how they ended, Temporal knows for as long as it keeps
histories.
"""

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import temporalio.client
from pydantic import ValidationError
from temporalio.client import WorkflowExecution, WorkflowFailureError
from temporalio.service import RPCError

from perdure.client.connect import is_missing, rpc_errors
from perdure.contracts.events import AgentStart
from perdure.contracts.names import AGENT_TURN
from perdure.contracts.turns import Continuation, OpenTurn, TurnResult
from perdure.store import Store
from perdure.store.commit_turn import close_behind
from perdure.store.records import SessionRecord, TurnRecord

LOOKED_AT = 500
"""Newest ended turns that are compared where nobody says how many."""

AT_ONCE = 100
"""Sessions in one query."""

READ_AT_ONCE = 20
"""Results that are read at the same time."""

UNKNOWN_PROMPT = "(a message that the restored record does not have)"


@dataclass(frozen=True, kw_only=True)
class EndedRun:
    """A turn that has ended for Temporal.

    Attributes:
        session: The turn's session.
        request_id: The id of the run, as the request of a turn that the store lacks.
        began: When the run began.
        result: The result of the turn.
    """

    session: str
    request_id: str
    began: datetime
    result: TurnResult


@dataclass(frozen=True, kw_only=True)
class Differences:
    """Turns that have ended for Temporal and that the store shows otherwise.

    Attributes:
        open: Turns that are open in the store.
        behind: Turns of known sessions that the store lacks, in their order.
        missing: Sessions that the store lacks, with the number of their last turn.
    """

    open: Sequence[EndedRun] = ()
    behind: Sequence[EndedRun] = ()
    missing: Mapping[str, int]

    def __bool__(self) -> bool:
        return bool(self.open or self.behind or self.missing)


async def compare(
    temporal: temporalio.client.Client,
    store: Store,
    queue: str,
    *,
    limit: int = LOOKED_AT,
    most_open: int | None = None,
) -> Differences:
    """Compare the store with what Temporal knows of the turns of a task queue. Changes nothing.

    The open turns of the store are looked up, and of Temporal's ended turns the newest.

    Args:
        temporal: The server.
        store: The store.
        queue: The task queue of the turns.
        limit: Ended turns of Temporal's that are looked at, besides those of open turns.
        most_open: Open turns of the store that are looked up, the oldest first; all without it.

    Raises:
        ClientError: The server does not answer.
    """
    ended = f'WorkflowType = "{AGENT_TURN}" AND TaskQueue = {json.dumps(queue)} AND ExecutionStatus = "Completed"'
    runs: dict[str, WorkflowExecution] = {}
    begun = await store.open_runs()
    open_runs = sorted(begun, key=lambda session: begun[session])[:most_open]
    with rpc_errors():
        for names in (open_runs[place : place + AT_ONCE] for place in range(0, len(open_runs), AT_ONCE)):
            listed = f"{ended} AND WorkflowId IN ({', '.join(map(json.dumps, names))})"
            runs |= {run.run_id: run async for run in temporal.list_workflows(listed)}
        runs |= {run.run_id: run async for run in temporal.list_workflows(ended, limit=limit)}
        names = sorted({run.id for run in runs.values()})
        known = await _read_sessions(store, names)
        suspects = [run for run in runs.values() if _is_suspect(run, known.get(run.id), begun.get(run.id))]
        gate = asyncio.Semaphore(READ_AT_ONCE)
        ends = await asyncio.gather(*(_read_end(temporal, run, gate) for run in suspects))
        found = [end for end in ends if end is not None]
    # Turns end meanwhile: the store is asked again, now that Temporal's word is known.
    known = await _read_sessions(store, sorted({end.session for end in found}))
    open_ends, behind = list[EndedRun](), list[EndedRun]()
    missing = dict[str, int]()
    for end in sorted(found, key=lambda end: (end.session, end.result.turn or 0)):
        number = end.result.turn or 0
        if end.session not in known:
            if await store.tombstone(end.session) is None:
                missing[end.session] = number
        elif number == known[end.session][0].open_turn:
            open_ends.append(end)
        elif number > known[end.session][0].turn and end.result.report is None:
            behind.append(end)
    return Differences(open=open_ends, behind=behind, missing=missing)


async def reconcile(store: Store, found: Differences) -> None:
    """Close what is open in the store, and add the turns that it lacks, each with the end ``runtime.store_behind``.

    The next turn of such a session then tells its model that work was done which the conversation does not show. Safe
    to run again. Missing sessions stay as they are: nothing of them can be restored.
    """
    for end in found.open:
        await _close(store, end)
    for end in found.behind:
        session, last = (await _read_sessions(store, [end.session]))[end.session]
        if session.open_turn is not None or (end.result.turn or 0) <= session.turn:
            continue
        (started,) = await store.events_by_key(end.session, (f"{last.turn}/agent_start",)) or (None,)
        context = started.event.context if started is not None and isinstance(started.event, AgentStart) else None
        request = Continuation(agent=last.agent, prompt=UNKNOWN_PROMPT, tenant=session.tenant, context=context)
        opening = OpenTurn(session=end.session, request=request, request_id=end.request_id, run_started_at=end.began)
        await store.open_turn(opening, await store.definition(last.definition))
        await _close(store, end, session.turn + 1)


async def _close(store: Store, end: EndedRun, turn: int | None = None) -> None:
    number = turn or end.result.turn or 0
    await store.write("close_behind", lambda rows: close_behind(rows, end.session, number, end.result))


async def _read_sessions(store: Store, names: Sequence[str]) -> dict[str, tuple[SessionRecord, TurnRecord]]:
    found: dict[str, tuple[SessionRecord, TurnRecord]] = {}
    for part in (names[place : place + AT_ONCE] for place in range(0, len(names), AT_ONCE)):
        found |= {session.session: (session, last) for session, last in await store.sessions(limit=AT_ONCE, only=part)}
    return found


def _is_suspect(run: WorkflowExecution, known: tuple[SessionRecord, TurnRecord] | None, begun: datetime | None) -> bool:
    """Whether the store may not have the end of this run; its result decides. ``begun``: of the session's open turn."""
    if known is None:
        return True
    if begun is not None:
        return run.close_time is None or run.close_time >= begun
    ended = known[1].ended_at
    return ended is None or run.start_time > ended


async def _read_end(
    temporal: temporalio.client.Client, run: WorkflowExecution, gate: asyncio.Semaphore
) -> EndedRun | None:
    """The end of a run; None if it opened no turn, or cannot be read."""
    handle = temporal.get_workflow_handle(run.id, run_id=run.run_id, result_type=TurnResult)
    with contextlib.suppress(WorkflowFailureError, ValidationError):
        try:
            async with gate:
                result = await handle.result(follow_runs=False)
        except RPCError as error:
            if is_missing(error):
                return None
            raise
        if result.turn is not None:
            return EndedRun(session=run.id, request_id=run.run_id, began=run.start_time, result=result)
    return None
