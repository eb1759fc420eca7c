"""The turns of a session: send to them, go on, stop one, change its limits, and read how each stands or ended."""

import re
from datetime import datetime
from decimal import Decimal
from typing import Annotated, ClassVar, cast

from fastapi import Header, Path
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.status import HTTP_202_ACCEPTED

from perdure.client import ResumeOptions, UnknownSessionError
from perdure.client.asks import GUIDANCE, Compact, Resume, Send
from perdure.client.requests import SendOptions
from perdure.contracts.budgets import MOST_USD, Limits
from perdure.contracts.checkpoints import JobStatus
from perdure.contracts.queues import TurnPriority
from perdure.contracts.sends import WhenBusy
from perdure.contracts.turns import BudgetStatus, RunState, TurnResult
from perdure.contracts.values import Label
from perdure.gateway.access import AdmittedSession, GatewayOf, OwnSession, Reader, Runner, Starter
from perdure.gateway.bodies import MEDIUM, Body, Json, Router
from perdure.gateway.following import wait_until
from perdure.gateway.problems import ProblemCode, ProblemError
from perdure.gateway.starts import IdempotencyKey, Starting, content_of, options_of, start_once
from perdure.gateway.views import LIMIT, Cursor, Limit, Page, Prompt, ResumeBody, TurnTicket, page_of
from perdure.store.records import Closure

router = Router(prefix="/v1", tags=["turns"])

LONGEST_WAIT = 60
"""Seconds that a read may wait for a turn's end."""

_WAIT = re.compile(r"(?:^|[,;\s])wait=(\d{1,6})(?:$|[,;\s])")


class MessageBody(Body):
    """A message for a session."""

    longest: ClassVar[int | None] = None

    prompt: Prompt
    when_busy: WhenBusy = Field(default="queue", description="What to do with the message while a turn runs")
    request_id: Label | None = Field(default=None, description="Id of the message: sending it twice is harmless")
    context: dict[str, Json] | None = Field(default=None, description="Context of the turn that takes the message")
    priority: TurnPriority | None = Field(
        default=None, description="From 1, the most urgent, to 5; counts if the message begins a run"
    )


@router.post("/sessions/{session}/messages", status_code=HTTP_202_ACCEPTED, operation_id="send_message")
async def send_message(  # FastAPI's parameters
    caller: Starter,
    request: Request,
    body: MessageBody,
    session: AdmittedSession,
    gateway: GatewayOf,
    idempotency_key: IdempotencyKey = None,
) -> TurnTicket:
    """Send a message: an idle session starts the turn at once, a busy one does what ``when_busy`` says."""
    options = SendOptions(context=body.context, by=caller.name, priority=body.priority)
    ask = Send(session=session, prompt=content_of(body.prompt), when_busy=body.when_busy, options=options)
    starting = Starting(action="send", ask=ask, body=body, key=idempotency_key, request_id=body.request_id)
    return await start_once(gateway, caller, request, starting)


@router.post("/sessions/{session}/resume", status_code=HTTP_202_ACCEPTED, operation_id="resume_session")
async def resume_session(  # FastAPI's parameters
    caller: Starter,
    request: Request,
    body: ResumeBody,
    session: AdmittedSession,
    gateway: GatewayOf,
    idempotency_key: IdempotencyKey = None,
) -> TurnTicket:
    """Go on with an idle session from its end, or rewind it to an earlier step."""
    ask = Resume(
        session=session,
        prompt=content_of(body.prompt) if body.prompt is not None else "",
        at=body.at,
        turn=body.turn,
        options=cast("ResumeOptions", options_of(body, caller)),
    )
    starting = Starting(action="resume", ask=ask, body=body, key=idempotency_key, request_id=body.request_id)
    return await start_once(gateway, caller, request, starting)


class CompactBody(Body):
    """Guidance of a summary."""

    longest: ClassVar[int | None] = MEDIUM

    guidance: str = Field(default=GUIDANCE, min_length=1, max_length=10_000)
    request_id: Label | None = None


@router.post("/sessions/{session}/compact", status_code=HTTP_202_ACCEPTED, operation_id="compact_session")
async def compact_session(  # FastAPI's parameters
    caller: Starter,
    request: Request,
    session: AdmittedSession,
    gateway: GatewayOf,
    body: CompactBody | None = None,
    idempotency_key: IdempotencyKey = None,
) -> TurnTicket:
    """Summarise the conversation of an idle session, for the models that read it."""
    asked = body or CompactBody()
    ask = Compact(session=session, guidance=asked.guidance)
    starting = Starting(action="compact", ask=ask, body=asked, key=idempotency_key, request_id=asked.request_id)
    return await start_once(gateway, caller, request, starting)


class CancelBody(Body):
    """Target of a cancel."""

    reason: str = Field(default="", max_length=1000, description="Why; kept in the turn's result")
    turn: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Number of the turn, running or queued; null is the running one"
    )
    drop_queue: bool = Field(default=False, description="Cancel all queued messages too")
    force: bool = Field(
        default=False,
        description="Terminate the workflow and drop what is queued, unasked: for a turn whose own code fails",
    )


class CancelView(BaseModel):
    """Outcome of a cancel."""

    session: str
    stops: bool = Field(description="False if there was nothing to cancel")


@router.post("/sessions/{session}/cancel", status_code=HTTP_202_ACCEPTED, operation_id="cancel_session")
async def cancel_session(
    _: Runner, session: OwnSession, gateway: GatewayOf, body: CancelBody | None = None
) -> CancelView:
    """Cancel the running turn; an idle session stays as it is."""
    asked = body or CancelBody()
    stops = await gateway.client.cancel(
        session, asked.reason, asked.turn, drop_queue=asked.drop_queue, force=asked.force
    )
    return CancelView(session=session, stops=stops)


class ExtendBody(Body):
    """New limits of the running turn: each is the limit of the whole turn, not an increment; others stay."""

    turn: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Refuse unless this turn is the one that runs"
    )
    end: bool = Field(default=False, description="Accept a limit that is used up already; the turn then ends")
    max_steps: int | None = Field(default=None, ge=1, le=1_000_000_000)
    cost_usd: Decimal | None = Field(default=None, gt=0, lt=MOST_USD)
    llm_calls: int | None = Field(default=None, ge=1, le=1_000_000_000)
    tool_calls: int | None = Field(default=None, ge=0, le=1_000_000_000)
    behavior_calls: int | None = Field(default=None, ge=0, le=1_000_000_000)
    events: int | None = Field(default=None, ge=1, le=1_000_000_000)
    seconds: float | None = Field(default=None, gt=0, le=3_000_000_000)
    patches: int | None = Field(default=None, ge=0, le=1_000_000_000)
    depth: int | None = Field(default=None, ge=0, le=1_000)


@router.post("/sessions/{session}/extend", operation_id="extend_turn")
async def extend_turn(
    _: Runner,
    body: ExtendBody,
    session: OwnSession,
    gateway: GatewayOf,
) -> BudgetStatus:
    """Change limits of the running turn; sending the same twice is harmless."""
    limits = cast("Limits", body.model_dump(exclude={"turn", "end"}, exclude_none=True))
    return await gateway.client.extend(session, turn=body.turn, end=body.end, **limits)


@router.get("/sessions/{session}/budget", operation_id="get_budget")
async def get_budget(
    _: Reader,
    session: OwnSession,
    gateway: GatewayOf,
) -> BudgetStatus:
    """The limits of the running turn, and what counts against them."""
    budget = await gateway.client.budget(session)
    if budget is None:
        msg = f"no turn of session {session!r} runs, or no worker answers for it"
        raise ProblemError(409, ProblemCode.SESSION_IDLE, msg)
    return budget


class TurnView(BaseModel):
    """A turn: open while it has neither a result nor a closure."""

    session: str
    turn: int
    state: RunState
    job_status: JobStatus
    request_id: str | None = None
    agent: str | None = Field(default=None, description="Null, as what follows, before a worker has opened the turn")
    started_at: datetime | None = None
    ended_at: datetime | None = None
    result: TurnResult | None = None
    closure: Closure | None = Field(
        default=None, description="End of its workflow by Temporal, which could not end the turn itself"
    )
    trace_id: str | None = Field(default=None, description="Of a turn that is traced, where one turn is asked for")


@router.get("/sessions/{session}/turns", operation_id="list_turns")
async def list_turns(
    _: Reader, session: OwnSession, gateway: GatewayOf, limit: Limit = LIMIT, cursor: Cursor = None
) -> Page[TurnView]:
    """The turns of a session with their results, in order."""
    views = await gateway.client.turn_views(session)
    return page_of([TurnView.model_validate(view, from_attributes=True) for view in views], cursor, limit)


@router.get("/sessions/{session}/turns/{turn}", operation_id="get_turn")
async def get_turn(
    caller: Reader,
    session: OwnSession,
    turn: Annotated[int, Path(ge=1, le=1_000_000)],
    gateway: GatewayOf,
    response: Response,
    prefer: Annotated[
        str | None, Header(max_length=200, description="wait=30 waits up to so many seconds, 60 at most, for its end")
    ] = None,
) -> TurnView:
    """A turn; with ``Prefer: wait=30`` (RFC 7240) the answer comes when the turn ends, or after that time."""
    seconds = 0
    if (asked := _WAIT.search(prefer or "")) is not None:
        seconds = min(int(asked[1]), LONGEST_WAIT)
        response.headers["Preference-Applied"] = f"wait={seconds}"
        response.headers["Vary"] = "Prefer"
    try:
        view = await gateway.client.turn_view(session, turn)
        if seconds and view.state is not RunState.ENDED:
            joined = await gateway.client.attach(session, turn)
            with gateway.hold(caller) as gone:
                await wait_until(joined.result(), (gateway.stopping.wait(), gone.wait()), seconds)
            gateway.check(caller)
            view = await gateway.client.turn_view(session, turn)
    except UnknownSessionError as error:
        raise ProblemError(404, ProblemCode.UNKNOWN_TURN, str(error)) from error
    return TurnView.model_validate(view, from_attributes=True)
