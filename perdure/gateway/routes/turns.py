"""The turns of a session: send to them, go on, stop one, change its limits, and read how each stands or ended."""

import asyncio
import contextlib
import re
from datetime import datetime
from decimal import Decimal
from typing import Annotated, cast

from fastapi import APIRouter, Header, Path
from pydantic import BaseModel, Field
from starlette.responses import Response
from starlette.status import HTTP_202_ACCEPTED

from perdure.client import Client, ResumeOptions, Turn, UnknownSessionError
from perdure.client.client import GUIDANCE
from perdure.client.executions import Runs
from perdure.contracts.budgets import MOST_USD, Limits
from perdure.contracts.checkpoints import JobStatus
from perdure.contracts.queues import TurnPriority
from perdure.contracts.turns import BudgetStatus, RunState, TurnResult, WhenBusy
from perdure.contracts.values import JsonValue, Label
from perdure.gateway.access import Gateway, GatewayOf, OwnSession, Reader, Runner
from perdure.gateway.problems import ProblemCode, ProblemError
from perdure.gateway.starts import IdempotencyKey, Starting, content_of, options_of, start_once
from perdure.gateway.views import LIMIT, Body, Cursor, Limit, Page, Prompt, ResumeBody, TurnTicket, page_of
from perdure.store import TurnRecord
from perdure.store.errors import NotFoundError

router = APIRouter(prefix="/v1", tags=["turns"])

LONGEST_WAIT = 60
"""Seconds that a read may wait for a turn's end."""

_WAIT = re.compile(r"(?:^|[,;\s])wait=(\d{1,6})(?:$|[,;\s])")


class MessageBody(Body):
    """A message for a session."""

    prompt: Prompt
    when_busy: WhenBusy = Field(default="queue", description="What to do with the message while a turn runs")
    request_id: Label | None = Field(default=None, description="Id of the message: sending it twice is harmless")
    context: dict[str, JsonValue] | None = Field(default=None, description="Context of the turn that takes the message")
    priority: TurnPriority | None = Field(
        default=None, description="From 1, the most urgent, to 5; counts if the message begins a run"
    )


@router.post("/sessions/{session}/messages", status_code=HTTP_202_ACCEPTED, operation_id="send_message")
async def send_message(
    caller: Runner,
    body: MessageBody,
    session: OwnSession,
    gateway: GatewayOf,
    idempotency_key: IdempotencyKey = None,
) -> TurnTicket:
    """Send a message: an idle session starts the turn at once, a busy one does what ``when_busy`` says."""
    content = content_of(body.prompt)

    async def begin(request_id: str) -> Turn:
        return await gateway.client.send(
            session,
            content,
            when_busy=body.when_busy,
            request_id=request_id or None,
            context=body.context,
            by=caller.name,
            priority=body.priority,
        )

    starting = Starting(
        action="send",
        session=session,
        body=body,
        key=idempotency_key,
        request_id=body.request_id,
        steers=body.when_busy == "steer",
    )
    return await start_once(gateway, caller, starting, begin)


@router.post("/sessions/{session}/resume", status_code=HTTP_202_ACCEPTED, operation_id="resume_session")
async def resume_session(
    caller: Runner,
    body: ResumeBody,
    session: OwnSession,
    gateway: GatewayOf,
    idempotency_key: IdempotencyKey = None,
) -> TurnTicket:
    """Go on with an idle session from its end, or rewind it to an earlier step."""
    content = content_of(body.prompt) if body.prompt is not None else ""

    async def begin(request_id: str) -> Turn:
        options = cast("ResumeOptions", options_of(body, caller, request_id))
        return await gateway.client.resume(session, content, at=body.at, turn=body.turn, **options)

    starting = Starting(
        action="resume",
        session=session,
        body=body,
        key=idempotency_key,
        request_id=body.request_id,
        model=body.model,
    )
    return await start_once(gateway, caller, starting, begin)


class CompactBody(Body):
    """What a summary keeps in mind."""

    guidance: str = Field(default=GUIDANCE, min_length=1, max_length=10_000)
    request_id: Label | None = None


@router.post("/sessions/{session}/compact", status_code=HTTP_202_ACCEPTED, operation_id="compact_session")
async def compact_session(
    caller: Runner,
    session: OwnSession,
    gateway: GatewayOf,
    body: CompactBody | None = None,
    idempotency_key: IdempotencyKey = None,
) -> TurnTicket:
    """Summarise the conversation of an idle session, for the models that read it."""
    asked = body or CompactBody()

    async def begin(request_id: str) -> Turn:
        return await gateway.client.compact(session, asked.guidance, request_id=request_id or None)

    starting = Starting(action="compact", session=session, body=asked, key=idempotency_key, request_id=asked.request_id)
    return await start_once(gateway, caller, starting, begin)


class CancelBody(Body):
    """What to cancel."""

    reason: str = Field(default="", max_length=1000, description="Why; kept in the turn's result")
    turn: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Number of the turn, running or queued; null is the running one"
    )
    drop_queue: bool = Field(default=False, description="Cancel all queued messages too")


class CancelView(BaseModel):
    """What came of a cancel."""

    session: str
    stops: bool = Field(description="False if there was nothing to cancel")


@router.post("/sessions/{session}/cancel", status_code=HTTP_202_ACCEPTED, operation_id="cancel_session")
async def cancel_session(
    _: Runner, session: OwnSession, gateway: GatewayOf, body: CancelBody | None = None
) -> CancelView:
    """Cancel the running turn; an idle session stays as it is."""
    asked = body or CancelBody()
    stops = await gateway.client.cancel(session, asked.reason, asked.turn, drop_queue=asked.drop_queue)
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
    """A turn: open while it has no result."""

    session: str
    turn: int
    state: RunState
    job_status: JobStatus
    request_id: str | None = None
    agent: str | None = Field(default=None, description="Null, as what follows, before a worker has opened the turn")
    started_at: datetime | None = None
    ended_at: datetime | None = None
    result: TurnResult | None = None
    trace_id: str | None = Field(default=None, description="Of a turn that is traced, where one turn is asked for")


def _view(record: TurnRecord, *, waiting: bool) -> TurnView:
    state = RunState.WAITING_FOR_INPUT if waiting else RunState.RUNNING
    return TurnView(
        **record.model_dump(include={"session", "turn", "request_id", "agent", "started_at", "ended_at"}),
        state=state if record.result is None else RunState.ENDED,
        job_status=record.job_status,
        result=record.result,
    )


@router.get("/sessions/{session}/turns", operation_id="list_turns")
async def list_turns(
    _: Reader, session: OwnSession, gateway: GatewayOf, limit: Limit = LIMIT, cursor: Cursor = None
) -> Page[TurnView]:
    """The turns of a session with their results, in order."""
    store = await gateway.client.store()
    waiting = {request.turn for request in await store.open_requests(session)}
    return page_of(
        [_view(record, waiting=record.turn in waiting) for record in await store.turns(session)], cursor, limit
    )


@router.get("/sessions/{session}/turns/{turn}", operation_id="get_turn")
async def get_turn(
    _: Reader,
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
        joined = await gateway.client.attach(session, turn)
    except UnknownSessionError as error:
        if (refused := await _refused(gateway.client, session, turn)) is not None:
            return refused
        raise ProblemError(404, ProblemCode.UNKNOWN_TURN, str(error)) from error
    if seconds:
        await _wait_for_end(gateway, joined, seconds)
    return await _turn_view(gateway.client, session, turn)


async def _wait_for_end(gateway: Gateway, turn: Turn, seconds: int) -> None:
    """Wait until the turn has ended, but no longer; nor when this process is about to stop.

    Raises:
        TurnClosedError: Its workflow was terminated, timed out or failed before it could end.
    """
    ending = asyncio.ensure_future(turn.result())
    stopping = asyncio.ensure_future(gateway.stopping.wait())
    try:
        await asyncio.wait({ending, stopping}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if ending.done():
            ending.result()
    finally:
        for task in (ending, stopping):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task


async def _turn_view(client: Client, session: str, turn: int) -> TurnView:
    store = await client.store()
    try:
        record = await store.turn(session, turn)
    except NotFoundError:
        refused = await _refused(client, session, turn)
        state = RunState.QUEUED if await store.queued_turns(session=session) else RunState.RUNNING
        return refused or TurnView(session=session, turn=turn, state=state, job_status=JobStatus.RUNNING)
    view = _view(record, waiting=bool(await store.open_requests(session)))
    return view.model_copy(update={"trace_id": (await store.traces(session, [turn])).get(turn)})


async def _refused(client: Client, session: str, turn: int) -> TurnView | None:
    """The turn that a worker refused to open, so that it has no row; by the session's newest run."""
    runs, store = Runs(client.temporal), await client.store()
    try:
        last = (await store.session(session)).turn
    except NotFoundError:
        last = 0
    newest = await runs.find_newest(session)
    if turn != last + 1 or newest is None or newest.running:
        return None
    result = (await runs.close(session, newest.run_id)).result
    if result is None or result.turn is not None:
        return None
    status, state = result.job_status, RunState.ENDED
    return TurnView(session=session, turn=turn, state=state, job_status=status, agent=result.agent, result=result)
