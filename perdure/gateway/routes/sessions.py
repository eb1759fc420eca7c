"""Sessions: start one, list them, and see where one stands."""

from typing import cast

from fastapi import APIRouter
from starlette.status import HTTP_202_ACCEPTED

from perdure.client import Turn, TurnOptions
from perdure.client.executions import Runs
from perdure.client.read import closures
from perdure.client.requests import session_id
from perdure.contracts.turns import RunState
from perdure.contracts.values import replace
from perdure.gateway.access import Gateway, GatewayOf, OwnSession, Reader, Runner
from perdure.gateway.audit import audit
from perdure.gateway.starts import IdempotencyKey, Starting, content_of, derived_session, options_of, start_once
from perdure.gateway.views import SessionDetail, StartBody, TurnTicket, session_fields
from perdure.store.errors import NotFoundError

router = APIRouter(prefix="/v1", tags=["sessions"])


@router.post("/sessions", status_code=HTTP_202_ACCEPTED, operation_id="start_session")
async def start_session(
    body: StartBody, gateway: GatewayOf, caller: Runner, idempotency_key: IdempotencyKey = None
) -> TurnTicket:
    """Start a turn, of a new session unless one is named. Answered once Temporal has the turn."""
    if body.session is not None:
        session = body.session
    elif idempotency_key is not None:
        session = derived_session(body.agent, caller, idempotency_key)
    else:
        session = session_id(body.agent)
    starting = Starting(
        action="start", session=session, body=body, key=idempotency_key, request_id=body.request_id, new=True
    )

    async def begin(request_id: str) -> Turn:
        options = options_of(body, caller, request_id) | {"turn": body.turn, "history": body.history}
        return await gateway.client.start(
            body.agent, content_of(body.prompt), session=session, **cast("TurnOptions", options)
        )

    ticket = await start_once(gateway, caller, starting, begin)
    audit(caller, "start", session, "done")
    return ticket


@router.get("/sessions/{session}", operation_id="get_session")
async def get_session(session: OwnSession, gateway: GatewayOf, caller: Reader) -> SessionDetail:
    """Where a session stands: its open or last turn, what waits for people, and why it stands still if it does."""
    client, store = gateway.client, await gateway.client.store()
    audit(caller, "read", session, "done")
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
    waits = await client.waits_for(session) if record.open_turn is not None else None
    return SessionDetail.model_validate(
        {**session_fields(record, last), "requests": requests, "waits_for": waits}, from_attributes=True
    )


async def _unopened(gateway: Gateway, session: str) -> SessionDetail:
    """A session that is claimed, and whose first turn no worker has opened, or has refused to."""
    client = gateway.client
    turn = await client.attach(session)
    wait = await client.waits_for(session)
    if wait is not None or await Runs(client.temporal).is_running(session):
        return SessionDetail(session=session, state=RunState.RUNNING, waits_for=wait)
    result = await turn.result()
    return SessionDetail(
        session=session,
        state=RunState.ENDED,
        job_status=result.job_status,
        stop_reason=result.stop_reason,
        reason_code=result.reason_code,
        error=result.error,
    )
