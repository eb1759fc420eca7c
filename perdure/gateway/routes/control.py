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

    reason: Label = Field(default="", description="Who looks at the session reads it")


class PauseView(BaseModel):
    """Whether a session is paused now."""

    session: str
    paused: bool
    changed: bool = Field(description="False if it was so before")


@router.post("/sessions/{session}/pause", operation_id="pause_session")
async def pause_session(
    caller: Runner, session: OwnSession, gateway: GatewayOf, body: PauseBody | None = None
) -> PauseView:
    """Have a session and its delegates stand still: what runs finishes, and nothing begins until it is unpaused."""
    reason = body.reason if body is not None else ""
    changed = await gateway.client.pause(session, reason, by=caller.name)
    return PauseView(session=session, paused=True, changed=changed)


@router.post("/sessions/{session}/unpause", operation_id="unpause_session")
async def unpause_session(caller: Runner, session: OwnSession, gateway: GatewayOf) -> PauseView:
    """Have a paused session and its delegates go on."""
    changed = await gateway.client.unpause(session, by=caller.name)
    return PauseView(session=session, paused=False, changed=changed)


@router.delete("/sessions/{session}", status_code=HTTP_204_NO_CONTENT, operation_id="delete_session")
async def delete_session(_: Admin, session: OwnSession, gateway: GatewayOf, *, histories: bool = False) -> None:
    """Erase an idle session and its delegates' from the store; ``histories``: also what Temporal has of them."""
    await gateway.client.delete(session, histories=histories)


class CancelAllBody(Body):
    """Which running turns of the tenant are to stop; filters add up, and none means all."""

    reason: str = Field(default="", max_length=1000, description="Kept with each turn")
    dry_run: bool = Field(default=True, description="Whether nothing is cancelled, and the answer says what would be")
    drop_queue: bool = Field(default=True, description="Whether messages that wait are dropped too")
    agent: Label | None = Field(default=None, description="Of the running turn")
    state: RunState | None = None
    since: AwareDatetime | None = Field(default=None, description="Whose turn began since then, with a time zone")
    caller: SessionName | None = Field(default=None, description="Only its delegates")


class CancelledPage(BaseModel):
    """What came of each session."""

    items: list[CancelOutcome]


@router.post("/cancel", operation_id="cancel_sessions")
async def cancel_sessions(who: Admin, body: CancelAllBody, gateway: GatewayOf) -> CancelledPage:
    """Stop the running turns that a filter means, at most 5,000; what begins meanwhile is left alone."""
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
