"""The turns of a session: send to one, stop one."""

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.status import HTTP_202_ACCEPTED

from perdure.client import Turn
from perdure.contracts.turns import Label, WhenBusy
from perdure.contracts.values import JsonValue
from perdure.gateway.access import GatewayOf, OwnSession, Runner
from perdure.gateway.audit import audit
from perdure.gateway.starts import IdempotencyKey, Starting, content_of, start_once
from perdure.gateway.views import Body, Prompt, TurnTicket

router = APIRouter(prefix="/v1", tags=["turns"])


class MessageBody(Body):
    """A message for a session."""

    prompt: Prompt
    when_busy: WhenBusy = Field(default="queue", description="What becomes of it while a turn runs")
    request_id: Label | None = Field(default=None, description="The same id is the same message")
    context: dict[str, JsonValue] | None = Field(default=None, description="Of the turn that takes it")


@router.post("/sessions/{session}/messages", status_code=HTTP_202_ACCEPTED, operation_id="send_message")
async def send_message(
    body: MessageBody,
    session: OwnSession,
    gateway: GatewayOf,
    caller: Runner,
    idempotency_key: IdempotencyKey = None,
) -> TurnTicket:
    """Send a message: an idle session starts the turn at once, a busy one does what ``when_busy`` says."""

    async def begin(request_id: str) -> Turn:
        return await gateway.client.send(
            session,
            content_of(body.prompt),
            when_busy=body.when_busy,
            request_id=request_id or None,
            context=body.context,
            by=caller.name,
        )

    starting = Starting(action="send", session=session, body=body, key=idempotency_key, request_id=body.request_id)
    ticket = await start_once(gateway, caller, starting, begin)
    audit(caller, "send", session, "done")
    return ticket


class CancelBody(Body):
    """What is to stop."""

    reason: str = Field(default="", max_length=1000, description="Kept with the turn")
    turn: int | None = Field(default=None, ge=1, le=1_000_000, description="Only this one, which may be waiting")
    drop_queue: bool = Field(default=False, description="Whether messages that wait are dropped too")


class CancelView(BaseModel):
    """What came of a cancel."""

    session: str
    stops: bool = Field(description="False if no turn was to stop")


@router.post("/sessions/{session}/cancel", status_code=HTTP_202_ACCEPTED, operation_id="cancel_session")
async def cancel_session(
    session: OwnSession, gateway: GatewayOf, caller: Runner, body: CancelBody | None = None
) -> CancelView:
    """Have the running turn stopped; one that is idle stays so."""
    asked = body or CancelBody()
    stops = await gateway.client.cancel(session, asked.reason, asked.turn, drop_queue=asked.drop_queue)
    audit(caller, "cancel", session, "done")
    return CancelView(session=session, stops=stops)
