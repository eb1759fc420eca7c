"""Sessions: start one, fork one, list them, and see where one stands."""

from datetime import datetime
from typing import Annotated, cast

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.requests import Request
from starlette.status import HTTP_202_ACCEPTED

from perdure.client import ResumeOptions, Turn, TurnOptions
from perdure.client.executions import Runs
from perdure.client.read import closures, is_listed, place_of, session_fields
from perdure.client.requests import session_id
from perdure.contracts.turns import RunState, StopReason, TurnStatus
from perdure.contracts.values import Label, replace
from perdure.gateway.access import Gateway, GatewayOf, OwnSession, Reader, Runner
from perdure.gateway.starts import IdempotencyKey, Starting, content_of, derived_session, options_of, start_once
from perdure.gateway.views import (
    LIMIT,
    Cursor,
    Limit,
    Page,
    ResumeBody,
    SessionDetail,
    SessionName,
    SessionView,
    StartBody,
    TurnTicket,
    read_place,
    write_cursor,
)
from perdure.store.errors import NotFoundError
from perdure.store.records import SessionFilter

router = APIRouter(prefix="/v1", tags=["sessions"])


@router.post("/sessions", status_code=HTTP_202_ACCEPTED, operation_id="start_session")
async def start_session(
    request: Request, body: StartBody, gateway: GatewayOf, caller: Runner, idempotency_key: IdempotencyKey = None
) -> TurnTicket:
    """Start a turn, of a new session unless one is named. Answered once Temporal has the turn."""
    if body.session is not None:
        session = body.session
    elif idempotency_key is not None:
        session = derived_session(body.agent, caller, idempotency_key)
    else:
        session = session_id(body.agent)
    request.state.session = session  # for the audit log
    content = content_of(body.prompt)

    async def begin(request_id: str) -> Turn:
        options = options_of(body, caller, request_id) | {"turn": body.turn, "history": body.history}
        return await gateway.client.start(body.agent, content, session=session, **cast("TurnOptions", options))

    starting = Starting(
        action="start",
        session=session,
        body=body,
        key=idempotency_key,
        request_id=body.request_id,
        new=True,
        named=body.session is not None,
        agent=body.agent,
        model=body.model,
    )
    return await start_once(gateway, caller, starting, begin)


class ForkBody(ResumeBody):
    """Where a new session begins."""

    into: SessionName | None = Field(default=None, description="The new session's id; else the gateway makes one")


@router.post("/sessions/{session}/fork", status_code=HTTP_202_ACCEPTED, operation_id="fork_session")
async def fork_session(
    caller: Runner,
    request: Request,
    body: ForkBody,
    session: OwnSession,
    gateway: GatewayOf,
    idempotency_key: IdempotencyKey = None,
) -> TurnTicket:
    """Begin a new session from a step of another, which stays as it is and may even run."""
    if body.into is not None:
        into = body.into
    else:
        into = derived_session(session, caller, idempotency_key) if idempotency_key else session_id(session)
    request.state.session = into
    content = content_of(body.prompt) if body.prompt is not None else ""

    async def begin(request_id: str) -> Turn:
        options = cast("ResumeOptions", options_of(body, caller, request_id))
        return await gateway.client.fork(session, content, at=body.at, turn=body.turn, into=into, **options)

    starting = Starting(
        action=f"fork {session}",
        session=into,
        body=body,
        key=idempotency_key,
        request_id=body.request_id,
        new=True,
        named=body.into is not None,
        model=body.model,
        source=session,
    )
    return await start_once(gateway, caller, starting, begin)


@router.get("/sessions", operation_id="list_sessions")
async def list_sessions(  # noqa: PLR0913  # one for each filter
    gateway: GatewayOf,
    caller: Reader,
    *,
    agent: Annotated[Label | None, Query(description="Of the last turn")] = None,
    state: RunState | None = None,
    stop_reason: StopReason | None = None,
    reason_code: Label | None = None,
    since: Annotated[datetime | None, Query(description="Whose last turn began since then, with a time zone")] = None,
    caller_session: Annotated[SessionName | None, Query(alias="caller", description="Only its delegates")] = None,
    delegates: bool = True,
    text: Annotated[Label | None, Query(description="In the id, or in the last turn's answer or error")] = None,
    limit: Limit = LIMIT,
    cursor: Cursor = None,
) -> Page[SessionView]:
    """The sessions of the tenant, those whose last turn began last first; filters add up."""
    wanted: SessionFilter = {
        "tenant": caller.tenant,
        "before": read_place(cursor),
        "agent": agent,
        "state": state,
        "stop_reason": stop_reason,
        "reason_code": reason_code,
        "since": since.astimezone() if since is not None else None,
        "caller": caller_session,
        "delegates": delegates,
        "text": text,
    }
    if state is RunState.QUEUED:
        return await _queued(gateway, wanted, limit)
    rows = await gateway.client.sessions(limit=limit, **wanted)
    items = [SessionView.model_validate(session_fields(session, last)) for session, last in rows]
    return Page(items=items, next=write_cursor(*place_of(rows[-1])) if len(rows) == limit else None)


async def _queued(gateway: Gateway, wanted: SessionFilter, limit: int) -> Page[SessionView]:
    """The sessions whose turns wait for a slot, those that came last first; one has maybe no turn yet."""
    store, before = await gateway.client.store(), wanted.get("before")
    turns = [turn for turn in await store.queued_turns(wanted.get("tenant")) if is_listed(turn, wanted)]
    turns = [turn for turn in turns if before is None or (turn.queued_at, turn.session) < before]
    shown = turns[:limit]
    known = (
        {
            session.session: (session, last)
            for session, last in await store.sessions(limit=limit, only=[turn.session for turn in shown])
        }
        if shown
        else {}
    )
    items = [
        SessionView.model_validate(session_fields(*known[turn.session]))
        if turn.session in known
        else SessionView(session=turn.session, agent=turn.agent, state=RunState.QUEUED)
        for turn in shown
    ]
    last = shown[-1] if len(turns) > limit else None
    return Page(items=items, next=write_cursor(last.queued_at, last.session) if last is not None else None)


@router.get("/sessions/{session}", operation_id="get_session")
async def get_session(
    _: Reader,
    session: OwnSession,
    gateway: GatewayOf,
) -> SessionDetail:
    """Where a session stands: its open or last turn, what waits for people, and why it stands still if it does."""
    client, store = gateway.client, await gateway.client.store()
    try:
        record = await store.session(session)
    except NotFoundError:
        return await _unopened(gateway, session)
    last = await store.turn(session, record.turn)
    requests = list(await store.open_requests(session))
    if last.result is None:
        ended = await closures(client.temporal, await store.open_runs([session]))
        if (closure := ended.get(session)) is not None:
            record = replace(record, open_turn=None)
            last = replace(last, closure=closure, ended_at=closure.at)
            requests = []
    record = replace(record, waiting=bool(requests) and record.open_turn is not None)
    record = replace(record, queued=bool(await store.queued_turns(session=session)))
    waits = await client.waits_for(session) if record.state is not RunState.ENDED else None
    fields = {**session_fields(record, last), "requests": requests, "waits_for": waits}
    return SessionDetail.model_validate(fields)


async def _unopened(gateway: Gateway, session: str) -> SessionDetail:
    """A session that is claimed, and whose first turn no worker has opened, or has refused to."""
    client = gateway.client
    turn = await client.attach(session)
    wait = await client.waits_for(session)
    if wait is not None or await Runs(client.temporal).is_running(session):
        store = await client.store()
        queued = next(iter(await store.queued_turns(session=session)), None)
        state, agent = (RunState.RUNNING, None) if queued is None else (RunState.QUEUED, queued.agent)
        return SessionDetail(session=session, agent=agent, state=state, waits_for=wait)
    result = await turn.result()
    return SessionDetail(
        session=session,
        state=RunState.ENDED,
        job_status=result.job_status,
        stop_reason=result.stop_reason,
        reason_code=result.reason_code,
        error=result.error,
    )


@router.get("/sessions/{session}/status", operation_id="get_status")
async def get_status(
    _: Reader,
    session: OwnSession,
    gateway: GatewayOf,
) -> TurnStatus:
    """Where the running turn stands, asked of the worker that runs it."""
    return await gateway.client.status(session)
