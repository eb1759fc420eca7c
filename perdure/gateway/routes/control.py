"""Control: pause a session, erase one, cancel many; refuse the tenant's turns by agent and model, and stop them."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Annotated

from fastapi import Header, Path
from pydantic import AfterValidator, AwareDatetime, BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.status import HTTP_204_NO_CONTENT

from perdure.client import Block, BlockOutcome, CancelOutcome, NotErased, RequestRefusedError, ResumeOutcome
from perdure.client.cancels import OpenFilter
from perdure.client.resumes import PER_SECOND, EndedFilter
from perdure.contracts.blocks import BLOCK_ID_PATTERN
from perdure.contracts.errors import ReasonCode
from perdure.contracts.turns import RunState
from perdure.contracts.values import Label, read_moment
from perdure.gateway.access import Admin, GatewayOf, OwnSession, Runner
from perdure.gateway.bodies import Body, Router
from perdure.gateway.problems import ProblemError
from perdure.gateway.views import Page, SessionName
from perdure.store import SessionRecord

router = Router(prefix="/v1", tags=["control"])


class PauseBody(Body):
    """Reason for a pause."""

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


class ErasedView(BaseModel):
    """Report of an erasure."""

    session: str
    tombstone: str = Field(description="Id of the proof that the store keeps")
    delegates: list[str] = Field(description="Sessions of delegates that were erased with it")
    not_erased: list[NotErased] = Field(description="Those that run: ask again once their turns have ended")
    schedules: list[str] = Field(description="Schedules that sent messages to one of them, which were removed")
    kept_steps: int = Field(description="Steps that forks stand on, which stay")
    histories: int = Field(description="Runs that the Temporal server was told to delete")


_REPRESENTATION = re.compile(r"(?:^|[,;\s])return=representation(?:$|[,;\s])")


@router.delete(
    "/sessions/{session}",
    status_code=HTTP_204_NO_CONTENT,
    operation_id="delete_session",
    responses={
        200: {
            "description": "What was erased, for Prefer: return=representation, or if a delegate's session was not",
            "model": ErasedView,
        }
    },
)
async def delete_session(
    caller: Admin,
    session: OwnSession,
    gateway: GatewayOf,
    *,
    histories: bool = False,
    prefer: Annotated[str | None, Header(description="return=representation: a report is returned")] = None,
) -> Response:
    """Erase an idle session and its delegates' from the store; with ``histories`` also their histories in Temporal.

    With ``Prefer: return=representation`` (RFC 7240) the answer is a report, which names removed schedules. It is a
    report, too, if a delegate runs and could not be erased: end its turn, and ask again.
    """
    erased = await gateway.client.delete(session, histories=histories, by=caller.name)
    preferred = _REPRESENTATION.search(prefer or "") is not None
    if not (preferred or erased.not_erased):
        return Response(status_code=HTTP_204_NO_CONTENT, headers={"Vary": "Prefer"})
    view = ErasedView(
        session=session,
        tombstone=erased.tombstone.id,
        delegates=list(erased.delegates),
        not_erased=list(erased.not_erased),
        schedules=list(erased.schedules),
        kept_steps=erased.kept_steps,
        histories=erased.histories,
    )
    headers = {"Vary": "Prefer", **({"Preference-Applied": "return=representation"} if preferred else {})}
    return JSONResponse(view.model_dump(), headers=headers)


class TurnsBody(Body):
    """Which turns of the tenant are meant; a turn must match all given filters.

    Without tokens, and without ``tenant``, these are the turns of all tenants.
    """

    tenant: Label | None = Field(default=None, description="Only this tenant's; a token names none but its own")
    agent: Label | None = Field(default=None, description="Only turns of this agent")
    since: Annotated[AwareDatetime, AfterValidator(read_moment)] | None = Field(
        default=None, description="Only turns that began since, with a UTC offset"
    )


class CancelAllBody(TurnsBody):
    """Which running turns of the tenant to cancel; a turn must match all given filters, and none matches all.

    Without tokens, and without ``tenant``, these are the turns of all tenants.
    """

    reason: str = Field(default="", max_length=1000, description="Why; kept in each turn's result")
    dry_run: bool = Field(default=True, description="Cancel nothing, and return what would be cancelled")
    drop_queue: bool = Field(default=True, description="Cancel the queued messages of the sessions too")
    force: bool = Field(default=False, description="End those by force whose own code fails: they take no cancel")
    state: RunState | None = Field(default=None, description="Only sessions in this state")
    caller: SessionName | None = Field(default=None, description="Only the delegates of this session")


class CancelledPage(BaseModel):
    """Outcomes of a cancel, one a session."""

    items: list[CancelOutcome]


@router.post("/cancel", operation_id="cancel_sessions")
async def cancel_sessions(who: Admin, body: CancelAllBody, gateway: GatewayOf) -> CancelledPage:
    """Cancel the running turns that match the filters, at most 5,000; turns that begin meanwhile go on."""
    since: datetime | None = body.since
    wanted: OpenFilter = {
        "tenant": who.choose(body.tenant),
        "agent": body.agent,
        "state": body.state,
        "since": since,
        "caller": body.caller,
    }
    found = await gateway.client.cancel_all(
        body.reason, dry_run=body.dry_run, drop_queue=body.drop_queue, force=body.force, **wanted
    )
    return CancelledPage(items=found)


class ResumeAllBody(TurnsBody):
    """Which ended turns of the tenant go on; a turn must match all given filters.

    Without tokens, and without ``tenant``, these are the turns of all tenants.
    """

    dry_run: bool = Field(default=True, description="Resume nothing, and return what would be resumed")
    reason_code: Label | None = Field(default=None, description="Only turns that ended with this code; null: any error")
    per_second: float = Field(
        default=PER_SECOND, ge=1, le=100, allow_inf_nan=False, description="How many turns begin in a second at most"
    )
    limit: int = Field(default=100, ge=1, le=500, description="How many are resumed; ask again until none is")


class ResumedPage(BaseModel):
    """Outcomes of a resume, one a session."""

    items: list[ResumeOutcome]


@router.post("/resume", operation_id="resume_sessions")
async def resume_sessions(who: Admin, body: ResumeAllBody, gateway: GatewayOf) -> ResumedPage:
    """Resume the sessions whose last turns ended as the filters say, the oldest first; asking twice is harmless."""
    since: datetime | None = body.since
    wanted: EndedFilter = {
        "tenant": who.choose(body.tenant),
        "reason_code": body.reason_code,
        "agent": body.agent,
        "since": since,
    }

    @asynccontextmanager
    async def admit(session: SessionRecord) -> AsyncIterator[None]:
        gateway.check(who)
        try:
            async with gateway.begin_next(session):
                yield
        except ProblemError as error:
            raise RequestRefusedError(error.detail) from None

    found = await gateway.client.resume_all(
        dry_run=body.dry_run, per_second=body.per_second, limit=body.limit, by=who.name, admit=admit, **wanted
    )
    return ResumedPage(items=found)


BlockId = Annotated[str, Path(pattern=BLOCK_ID_PATTERN, description="The block's id")]


class BlockBody(Body):
    """Which turns of the tenant to refuse and stop; a turn must match all given filters."""

    agent: Label | None = Field(default=None, min_length=1, description="Only turns of this agent")
    model: Label | None = Field(
        default=None, min_length=1, description="Only turns that may call this model, as in openai/gpt-4o"
    )
    everything: bool = Field(default=False, description="All turns of the tenant, instead of filters")
    reason: Label = Field(default="", description="Why; shown to everyone whose turn is refused")
    dry_run: bool = Field(default=False, description="Change nothing, and return what would be cancelled and refused")
    keep_running: bool = Field(default=False, description="Only refuse new turns; let open ones go on")


class LiftView(BaseModel):
    """Whether a block is lifted now."""

    block: str
    lifted: bool
    changed: bool = Field(description="False if the block was lifted before")


@router.post("/blocks", operation_id="block_turns")
async def block_turns(request: Request, caller: Admin, body: BlockBody, gateway: GatewayOf) -> BlockOutcome:
    """Refuse the tenant's matching new turns until the block is lifted, and cancel matching open ones."""
    if body.everything == (body.agent is not None or body.model is not None):
        msg = "name an agent or a model, or set everything; not both"
        raise ProblemError(422, ReasonCode.REQUEST_INVALID, msg)
    in_force = {(known.agent, known.model) for known in await gateway.client.blocks(tenant=caller.tenant)}
    if not body.dry_run and (body.agent, body.model) not in in_force:
        await gateway.limits.check_blocks(gateway.client, caller.tenant)
    outcome = await gateway.client.block(
        body.reason,
        by=caller.name,
        dry_run=body.dry_run,
        keep_running=body.keep_running,
        agent=body.agent,
        model=body.model,
        tenant=caller.tenant,
    )
    request.state.block = outcome.block.id  # for the audit log
    return outcome


@router.get("/blocks", operation_id="list_blocks")
async def list_blocks(caller: Admin, gateway: GatewayOf, *, lifted: bool = False) -> Page[Block]:
    """List the tenant's blocks in force, the oldest first; with ``lifted`` also lifted ones."""
    return Page(items=await gateway.client.blocks(lifted=lifted, tenant=caller.tenant))


@router.post("/blocks/{block}/lift", operation_id="lift_block")
async def lift_block(request: Request, caller: Admin, block: BlockId, gateway: GatewayOf) -> LiftView:
    """Lift a block of the tenant: new turns are accepted again."""
    request.state.block = block
    changed = await gateway.client.unblock(block, by=caller.name, tenant=caller.tenant)
    return LiftView(block=block, lifted=True, changed=changed)
