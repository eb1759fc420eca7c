"""The routes of this door. A run is durable: a closed connection ends none, and a run is read again from the log."""

import contextlib
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import Annotated
from urllib.parse import quote

from fastapi import Header, Path
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from perdure.client import WrongTurnError
from perdure.contracts.errors import ReasonCode
from perdure.contracts.turns import RunState
from perdure.gateway.access import Gateway, GatewayOf, Reader, Runner, SessionId, Starter, act_for
from perdure.gateway.bodies import Router
from perdure.gateway.callers import Caller
from perdure.gateway.doors import Door
from perdure.gateway.doors.agui.carrying import RunCarrier, own_run
from perdure.gateway.doors.agui.events import RunFold, run_started
from perdure.gateway.doors.agui.places import Seen, name_events
from perdure.gateway.doors.agui.requests import RunBody, read_run
from perdure.gateway.doors.responses.events import TurnFold, WireEvent
from perdure.gateway.doors.responses.following import find_turn, follow
from perdure.gateway.doors.responses.objects import Item, Shape
from perdure.gateway.doors.responses.places import Place, ResponseId
from perdure.gateway.problems import Problem, ProblemError
from perdure.gateway.sse import PING, Chunks, EventStream

PREFIX = "/agui"

router = Router(prefix=PREFIX, include_in_schema=False)

AgentName = Annotated[str, Path(max_length=200)]
RunPath = Annotated[str, Path(max_length=200)]


@router.post("/{agent}", operation_id="run_agent")
async def run_agent(
    agent: AgentName, caller: Starter, _: Reader, request: Request, body: RunBody, gateway: GatewayOf
) -> Response:
    """Start a turn, reply to one that waits, or find the same run again; then stream its events."""
    place = await RunCarrier(gateway, caller, request, agent).carry_out(read_run(body), body)
    return await _stream(gateway, await act_for(gateway, caller, place.session), place, agent, body.run)


@router.get("/{agent}/threads/{session}/runs/{run}", operation_id="get_run")
async def get_run(
    agent: AgentName,
    session: SessionId,
    run: RunPath,
    caller: Reader,
    request: Request,
    gateway: GatewayOf,
    last_event_id: Annotated[str | None, Header(max_length=50)] = None,
) -> Response:
    """The events of a run from its beginning, or behind the one that was seen last, then what comes."""
    seen = None if last_event_id is None else Seen.parse(last_event_id)
    place = await own_run(gateway, caller, agent, session, run)
    request.state.session = session
    return await _stream(gateway, await act_for(gateway, caller, session), place, agent, run, seen)


@router.delete("/{agent}/threads/{session}/runs/{run}", operation_id="cancel_run")
async def cancel_run(
    agent: AgentName, session: SessionId, run: RunPath, caller: Runner, request: Request, gateway: GatewayOf
) -> Response:
    """Cancel the turn of a run; one that has ended stays as it is."""
    place = await own_run(gateway, caller, agent, session, run)
    request.state.session = session
    view = await find_turn(gateway, place)
    if view.state is not RunState.ENDED:
        with contextlib.suppress(WrongTurnError):  # it has ended meanwhile
            await gateway.client.cancel(session, f"cancelled by {caller.name}", place.turn)
    return Response(status_code=204)


async def _stream(
    gateway: Gateway, caller: Caller, place: ResponseId, agent: str, run: str, seen: Seen | None = None
) -> Response:
    """The stream of a run, whose address is in the header ``Content-Location``.

    Raises:
        ProblemError: The tenant has too many streams, or there is no such run.
    """

    def make(session: str, turn: int, shape: Shape, at: Place) -> TurnFold:
        return RunFold(session, turn, shape, at, run=run)

    async with AsyncExitStack() as stack:
        stack.enter_context(gateway.limits.stream(caller.tenant))
        ends = gateway.ends(stack.enter_context(gateway.hold(caller)))
        feed = await stack.enter_async_context(gateway.hub.deltas.follow(place.session))
        first = run_started(place.session, run, place.turn, place.segment)
        at = None if seen is None else seen.place
        chunks = _encode(first, follow(gateway, place, at, feed, make), seen)
        stream = EventStream(chunks, place="", ends=ends, closing=stack.pop_all(), farewell=_say_why)
        where = f"{PREFIX}/{quote(agent, safe='')}/threads/{quote(place.session)}/runs/{place.turn}.{place.segment}"
        stream.headers["Content-Location"] = where
        return stream


async def _encode(first: Item, following: AsyncGenerator[list[WireEvent], None], seen: Seen | None) -> Chunks:
    """The events as bytes; the first does not wait for a worker."""
    if seen is None:
        yield encode_event(first, "0"), ""
    async with aclosing(following):
        async for found in following:
            named = name_events(found, seen)
            yield b"".join(encode_event(_finish(event.body), name) for name, event in named) or PING, ""


def _say_why(problem: ProblemError, _: str) -> bytes:
    """The end of a stream whose run goes on; it has no id, so that a reader comes again behind the last event."""
    body = {"type": "RUN_ERROR", "message": problem.detail, "code": str(problem.code)}
    return b"data: %s\n\n" % json.dumps(body).encode()


def _finish(body: Item) -> Item:
    """An event without what only the fold needs; of a turn that no worker has opened, its end."""
    if body["type"] == "response.failed":
        response = body["response"]
        told = response if isinstance(response, dict) else {}
        error, metadata = told.get("error"), told.get("metadata")
        message = error.get("message") if isinstance(error, dict) else None
        code = metadata.get("reason_code") if isinstance(metadata, dict) else None
        at = told.get("created_at")
        stamp: Item = {"timestamp": at * 1000} if isinstance(at, int) else {}
        said = message or "the turn was refused"
        return {"type": "RUN_ERROR", "message": said, "code": code or "runtime.internal", **stamp}
    return {name: value for name, value in body.items() if name != "sequence_number"}


def encode_event(body: Item, name: str) -> bytes:
    """The event as the stream has it, with its id."""
    return b"id: %s\ndata: %s\n\n" % (name.encode(), json.dumps(body).encode())


def write_error(problem: Problem, headers: Mapping[str, str] | None) -> Response:
    """The problem as AG-UI's event of a run that failed; ``code`` is ours."""
    status = 404 if problem.code == ReasonCode.REQUEST_UNKNOWN_AGENT else problem.status
    body = {"type": "RUN_ERROR", "message": problem.detail, "code": str(problem.code)}
    return JSONResponse(body, status, headers=dict(headers or {}))


DOOR = Door(prefix=f"{PREFIX}/", router=router, form=write_error)
