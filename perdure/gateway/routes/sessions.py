"""Sessions: start one, fork one, list them, and see where one stands."""

from typing import Annotated, cast

from fastapi import Query
from pydantic import Field
from starlette.requests import Request
from starlette.status import HTTP_202_ACCEPTED

from perdure.client import ResumeOptions, TurnOptions
from perdure.client.asks import Fork, Start
from perdure.client.session_lists import read_page
from perdure.client.views import SessionView as Seen
from perdure.contracts.turns import RunState, StopReason, TurnStatus
from perdure.contracts.values import Label
from perdure.gateway.access import AdmittedSession, GatewayOf, OwnSession, Reader, Starter
from perdure.gateway.bodies import Router
from perdure.gateway.starts import IdempotencyKey, Starting, content_of, options_of, start_once
from perdure.gateway.views import (
    LIMIT,
    Cursor,
    Limit,
    Moment,
    OfTenant,
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
from perdure.store.records import SessionFilter

router = Router(prefix="/v1", tags=["sessions"])


@router.post("/sessions", status_code=HTTP_202_ACCEPTED, operation_id="start_session")
async def start_session(
    request: Request, body: StartBody, gateway: GatewayOf, caller: Starter, idempotency_key: IdempotencyKey = None
) -> TurnTicket:
    """Start a turn, of a new session unless one is named. Answered once Temporal has the turn."""
    if body.session is not None:
        request.state.session = body.session  # for the audit log, also if the prompt is refused
    options = options_of(body, caller) | {"turn": body.turn, "history": body.history}
    options["tools"] = [tool.model_dump(mode="json") for tool in body.tools]
    ask = Start(
        agent=body.agent,
        prompt=content_of(body.prompt),
        session=body.session,
        options=cast("TurnOptions", options),
    )
    starting = Starting(
        action="start",
        ask=ask,
        body=body,
        key=idempotency_key,
        request_id=body.request_id,
        is_named=body.session is not None,
    )
    return await start_once(gateway, caller, request, starting)


class ForkBody(ResumeBody):
    """Beginning of a new session."""

    into: SessionName | None = Field(default=None, description="The new session's id; else the gateway makes one")


@router.post("/sessions/{session}/fork", status_code=HTTP_202_ACCEPTED, operation_id="fork_session")
async def fork_session(
    caller: Starter,
    request: Request,
    body: ForkBody,
    session: AdmittedSession,
    gateway: GatewayOf,
    idempotency_key: IdempotencyKey = None,
) -> TurnTicket:
    """Begin a new session from a step of another, which stays as it is and may even run."""
    ask = Fork(
        session=session,
        into=body.into,
        prompt=content_of(body.prompt) if body.prompt is not None else "",
        at=body.at,
        turn=body.turn,
        options=cast("ResumeOptions", options_of(body, caller)),
    )
    starting = Starting(
        action=f"fork {session}",
        ask=ask,
        body=body,
        key=idempotency_key,
        request_id=body.request_id,
        is_named=body.into is not None,
    )
    return await start_once(gateway, caller, request, starting)


@router.get("/sessions", operation_id="list_sessions")
async def list_sessions(
    gateway: GatewayOf,
    caller: Reader,
    *,
    agent: Annotated[Label | None, Query(description="Of the last turn")] = None,
    state: RunState | None = None,
    stop_reason: StopReason | None = None,
    reason_code: Label | None = None,
    since: Annotated[Moment | None, Query(description="Whose last turn began since then, with a time zone")] = None,
    caller_session: Annotated[SessionName | None, Query(alias="caller", description="Only its delegates")] = None,
    delegates: bool = True,
    tenant: OfTenant = None,
    text: Annotated[Label | None, Query(description="In the id, or in the last turn's prompt, answer or error")] = None,
    limit: Limit = LIMIT,
    cursor: Cursor = None,
) -> Page[SessionView]:
    """The sessions of the tenant, those whose last turn began last first; filters add up. Without tokens, of all."""
    wanted: SessionFilter = {
        "tenant": caller.choose(tenant),
        "before": read_place(cursor),
        "agent": agent,
        "state": state,
        "stop_reason": stop_reason,
        "reason_code": reason_code,
        "since": since,
        "caller": caller_session,
        "delegates": delegates,
        "text": text,
    }
    views, place = await read_page(gateway.client.views, wanted, limit)
    items = [SessionView.model_validate(_fields(view)) for view in views]
    return Page(items=items, next=write_cursor(*place) if place is not None else None)


def _fields(view: Seen) -> dict[str, object]:
    """Fields of a session as services read them."""
    fields: dict[str, object] = {**view.fields, "tenant": view.tenant or "", "waits_for": view.waits_for}
    if view.opened is not None and view.opened[1].result is None:
        fields |= {"steps": view.glance.steps, "cost_usd": str(view.glance.cost_usd)}
    first = next((line.strip() for line in view.glance.prompt.splitlines() if line.strip()), "")
    return {**fields, "prompt": first}


@router.get("/sessions/{session}", operation_id="get_session")
async def get_session(
    caller: Reader,
    session: OwnSession,
    gateway: GatewayOf,
) -> SessionDetail:
    """Get a session: its open or last turn, what waits for people, and why it stands still if it does."""
    view = await gateway.client.session_view(session)
    own = view.tenant if view.tenant is not None else caller.tenant
    return SessionDetail.model_validate({**_fields(view), "tenant": own, "requests": view.requests})


@router.get("/sessions/{session}/status", operation_id="get_status")
async def get_status(
    _: Reader,
    session: OwnSession,
    gateway: GatewayOf,
) -> TurnStatus:
    """Get the status of the running turn, asked of the worker that runs it."""
    return await gateway.client.status(session)
