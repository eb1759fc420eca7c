"""The cancel of many sessions at once, by a filter; and the end by force of a turn that cannot be asked."""

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple, TypedDict

from temporalio.client import WorkflowExecutionStatus

from perdure.client.errors import ClientError, RequestRefusedError, WrongTurnError
from perdure.client.executions import Runs
from perdure.client.read import Listed, ask_of, is_listed, list_sessions
from perdure.client.sessions import Sessions
from perdure.client.unopened import find_unopened, is_meant
from perdure.contracts.names import AGENT_TURN
from perdure.contracts.turns import CancelRequest, RunState
from perdure.contracts.values import Value
from perdure.store import Store
from perdure.store.errors import NotFoundError, StoreError
from perdure.store.records import SessionFilter

MOST = 5_000
"""Sessions that one call cancels."""

AT_ONCE = 20
"""Cancels that are on their way at the same time."""


Outcome = Literal["would_cancel", "cancelled", "ended", "terminated", "failed"]


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
    """Outcome of the cancel of one session.

    Attributes:
        turn: The turn that ran or waited for a slot when the sessions were listed; no other one is stopped.
        outcome: ``would_cancel`` of a dry run; ``cancelled``: the turn is to stop; ``ended``: it had ended by then;
            ``terminated``: it cannot be asked, and was ended by force; ``failed``: ``error`` says why.
    """

    session: str
    turn: int
    agent: str
    outcome: Outcome
    error: str = ""


class Target(NamedTuple):
    """A turn that a filter means; one that is not open is known by its request."""

    session: str
    turn: int
    agent: str
    request_id: str | None = None


async def list_open(sessions: Sessions, wanted: OpenFilter) -> list[Target]:
    """The turns that a filter means: those that no worker has opened, that wait for a slot, and that are open.

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
    # First: what opens meanwhile is found as an open turn.
    store, ask = await sessions.store(), ask_of(sessions.temporal)
    unopened = await find_unopened(sessions.temporal, store, sessions.settings.task_queue, limit=MOST)
    unopened = [turn for turn in unopened if is_meant(turn, {**fields, "state": state}, states={RunState.RUNNING})]
    found: list[Listed] = []
    if state is not RunState.QUEUED:
        for each in (RunState.RUNNING, RunState.WAITING_FOR_INPUT) if state is None else (state,):
            fields["state"] = each
            found += await list_sessions(store, ask, limit=MOST, **fields)
    found.sort(key=lambda row: row[1].started_at, reverse=True)
    queued = [
        turn for turn in await store.queued_turns(wanted.get("tenant")) if is_listed(turn, {**fields, "state": state})
    ]
    known = {turn.session for turn in queued} | {session.session for session, _ in found}
    others = [turn for turn in unopened if turn.session not in known]
    targets = [Target(turn.session, turn.turn, turn.agent, turn.request_id) for turn in others]
    targets += [Target(turn.session, turn.turn, turn.agent, turn.request_id) for turn in queued]
    return [*targets, *(Target(session.session, last.turn, last.agent) for session, last in found)][:MOST]


async def cancel_one(sessions: Sessions, session: str, request: CancelRequest, *, force: bool) -> bool:
    """Have a turn of the session stopped, or with ``force`` end its running one; False if there is none.

    Raises:
        RequestRefusedError: ``force`` cannot end a turn that waits.
    """
    if not force:
        return await sessions.runs.cancel(session, request)
    if request.turn is not None:
        raise RequestRefusedError("turn: force ends the running turn and all that wait for it; leave the number out")
    return await end_by_force(sessions.runs, await sessions.store(), session, request.reason)


async def end_by_force(runs: Runs, store: Store, session: str, reason: str) -> bool:
    """End a turn in the store as cancelled, then its workflow; also delegates that fail. False if none is open.

    In this order: who follows the turn reads its end, and what it still does the store refuses.
    """
    open_turn: int | None = None
    with contextlib.suppress(NotFoundError):
        open_turn = (await store.session(session)).open_turn
    run = await runs.describe(session)  # after that: the turn is of this run, or of one before
    closed = None if open_turn is None else await store.close_lost_turn(session, open_turn, reason=reason)
    if run is None or run.status != WorkflowExecutionStatus.RUNNING or run.workflow_type != AGENT_TURN:
        return closed is not None
    below = [child.workflow_id for child in run.raw_description.pending_children]
    ended = await runs.terminate(session, run.run_id, reason)
    await store.leave_queue(session)
    for delegate in below:  # those that can are cancelled by themselves
        if await runs.fails(delegate):
            await end_by_force(runs, store, delegate, reason)
    return ended or closed is not None


async def cancel_listed(
    sessions: Sessions, listed: Sequence[Target], reason: str, *, drop_queue: bool, force: bool = False
) -> list[CancelOutcome]:
    """Have the listed turns stopped, twenty at a time; what begins meanwhile is left alone.

    A turn whose own code fails takes no cancel, and is ended with ``force``.
    """
    slots, runs, store = asyncio.Semaphore(AT_ONCE), sessions.runs, await sessions.store()

    async def cancel(target: Target) -> CancelOutcome:
        turn = target.turn if target.request_id is None else None
        request = CancelRequest(reason=reason, turn=turn, request_id=target.request_id, drop_queue=drop_queue)
        async with slots:
            try:
                fails = await runs.fails(target.session)
                if fails and force:
                    await end_by_force(runs, store, target.session, reason)
                    return outcome_of(target, "terminated")
                stops = await runs.cancel(target.session, request)
            except WrongTurnError:
                return outcome_of(target, "ended")
            except (ClientError, StoreError) as error:
                return outcome_of(target, "failed", str(error))
        if fails:
            msg = (
                "its own code fails in every worker, so that it takes no cancel before that is mended; "
                f"'perdure cancel {target.session} --force' ends it"
            )
            return outcome_of(target, "failed", msg)
        return outcome_of(target, "cancelled" if stops else "ended")

    return list(await asyncio.gather(*map(cancel, listed)))


def outcome_of(target: Target, outcome: Outcome, error: str = "") -> CancelOutcome:
    """Outcome of one turn."""
    return CancelOutcome(session=target.session, turn=target.turn, agent=target.agent, outcome=outcome, error=error)
