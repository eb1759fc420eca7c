"""Control of sessions: pause one and have it go on, erase one, and cancel many at once."""

from datetime import datetime

from fastapi import APIRouter
from pydantic import AwareDatetime, BaseModel, Field
from starlette.status import HTTP_204_NO_CONTENT

from perdure.client import CancelOutcome
from perdure.client.cancels import OpenFilter
from perdure.contracts.turns import Label, RunState
from perdure.gateway.access import Admin, GatewayOf, OwnSession, Runner
from perdure.gateway.views import Body, SessionName

router = APIRouter(prefix="/v1", tags=["control"])


class PauseBody(Body):
    """Why a session is paused."""

    reason: Label = Field(default="", description="Why; shown to everyone who looks at the session")


class PauseView(BaseModel):
    """Whether a session is paused now."""

    session: str
    paused: bool
    changed: bool = Field(description="False if the session was so before")


@router.post("/sessions/{session}/pause", operation_id="pause_session")
async def pause_session(
    caller: Runner, session: OwnSession, gateway: GatewayOf, body: PauseBody | None = None
) -> PauseView:
    """Pause a session and its delegates: running calls finish, and no new one begins until it is unpaused."""
    reason = body.reason if body is not None else ""
    changed = await gateway.client.pause(session, reason, by=caller.name)
    return PauseView(session=session, paused=True, changed=changed)


@router.post("/sessions/{session}/unpause", operation_id="unpause_session")
async def unpause_session(caller: Runner, session: OwnSession, gateway: GatewayOf) -> PauseView:
    """Let a paused session and its delegates go on."""
    changed = await gateway.client.unpause(session, by=caller.name)
    return PauseView(session=session, paused=False, changed=changed)


@router.delete("/sessions/{session}", status_code=HTTP_204_NO_CONTENT, operation_id="delete_session")
async def delete_session(caller: Admin, session: OwnSession, gateway: GatewayOf, *, histories: bool = False) -> None:
    """Erase an idle session and its delegates' from the store; with ``histories`` also their histories in Temporal."""
    await gateway.client.delete(session, histories=histories, by=caller.name)


class CancelAllBody(Body):
    """Which running turns of the tenant to cancel; a turn must match all given filters, and none matches all."""

    reason: str = Field(default="", max_length=1000, description="Why; kept in each turn's result")
    dry_run: bool = Field(default=True, description="Cancel nothing, and return what would be cancelled")
    drop_queue: bool = Field(default=True, description="Cancel the queued messages of the sessions too")
    agent: Label | None = Field(default=None, description="Only turns of this agent")
    state: RunState | None = Field(default=None, description="Only sessions in this state")
    since: AwareDatetime | None = Field(default=None, description="Only turns that began since, with a UTC offset")
    caller: SessionName | None = Field(default=None, description="Only the delegates of this session")


class CancelledPage(BaseModel):
    """What came of each session."""

    items: list[CancelOutcome]


@router.post("/cancel", operation_id="cancel_sessions")
async def cancel_sessions(who: Admin, body: CancelAllBody, gateway: GatewayOf) -> CancelledPage:
    """Cancel the running turns that match the filters, at most 5,000; turns that begin meanwhile go on."""
    since: datetime | None = body.since
    wanted: OpenFilter = {
        "tenant": who.tenant,
        "agent": body.agent,
        "state": body.state,
        "since": since,
        "caller": body.caller,
    }
    found = await gateway.client.cancel_all(body.reason, dry_run=body.dry_run, drop_queue=body.drop_queue, **wanted)
    return CancelledPage(items=found)
