"""The routes of this door. Every response is durable, ``background`` or not: a closed connection ends no job."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from datetime import timedelta
from typing import Annotated, Literal

from fastapi import Path, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from perdure.contracts.errors import ReasonCode
from perdure.contracts.turns import RunState
from perdure.gateway.access import Gateway, GatewayOf, Reader, Runner, Starter, act_for
from perdure.gateway.bodies import Router
from perdure.gateway.callers import Caller, Scope
from perdure.gateway.doors import Door
from perdure.gateway.doors.responses import conversation_routes
from perdure.gateway.doors.responses.carrying import Carrier, own_response
from perdure.gateway.doors.responses.errors import CLIENT_CLOSED_REQUEST, describe_error, write_error
from perdure.gateway.doors.responses.events import WireEvent
from perdure.gateway.doors.responses.following import (
    ask_again,
    check_exists,
    describe,
    find_turn,
    first_event,
    follow,
    read_inputs,
    read_turn,
)
from perdure.gateway.doors.responses.objects import Item, describe_list
from perdure.gateway.doors.responses.places import PATHS, Place, ResponseId
from perdure.gateway.doors.responses.requests import ResponseBody, read_request
from perdure.gateway.doors.responses.settings import NO_SETTINGS, Settings
from perdure.gateway.following import cancel_turn, drain, wait_for_client
from perdure.gateway.problems import ProblemCode, ProblemError, gateway_stops
from perdure.gateway.sse import PING, Chunks, EventStream
from perdure.gateway.starts import IdempotencyKey
from perdure.store.records import RegisteredAgent

router = Router(prefix=PATHS, include_in_schema=False)

models_router = Router(prefix=PATHS, include_in_schema=False)
"""Agents as models, for each door of OpenAI's."""

EARLY = timedelta(seconds=1)
"""A client that streams is told its response's id after so long, if no worker has opened the turn yet."""

LAST_NUMBER = 2**53
"""Numbers that every client can hold are below."""

ResponsePath = Annotated[str, Path(max_length=500)]


@router.post("/responses", operation_id="create_response")
async def create_response(
    caller: Starter,
    _: Reader,
    request: Request,
    body: ResponseBody,
    gateway: GatewayOf,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Start a turn, or say to one what it waits for; then stream the response, wait for its end, or neither."""
    asked = read_request(body, tunes=caller.may(Scope.TUNE))
    carrier = Carrier(gateway, caller, request, idempotency_key)
    carried = await carrier.carry_out(asked, body)
    place, missing = carried.place, carried.missing
    settings = asked.settings if carried.applies else asked.settings.unapplied
    reader = await act_for(gateway, caller, place.session)
    if missing:
        return await _ask_again(gateway, place, missing, stream=body.stream is True)
    if body.stream:
        return await _stream(gateway, reader, place, settings=settings)
    if not body.background and await wait_for_client(gateway, reader, request, lambda: drain(follow(gateway, place))):
        return Response(status_code=CLIENT_CLOSED_REQUEST)  # to nobody; the job goes on, and a retry joins it
    response = await describe(gateway, place)
    if not body.background and response["status"] in _UNENDED:
        raise _unended(place)
    return JSONResponse(settings.told(response))


async def _ask_again(gateway: Gateway, place: ResponseId, missing: Sequence[str], *, stream: bool) -> Response:
    """The response that asked, with what it still waits for: not all of its requests were replied to."""
    fold = await read_turn(gateway, place, await find_turn(gateway, place))
    events = ask_again(fold, place.segment, missing)
    if not stream:
        return JSONResponse(events[-1].body["response"])
    return Response(b"".join(map(encode_event, events)), media_type="text/event-stream")


_UNENDED = frozenset({"queued", "in_progress"})


def _unended(place: ResponseId) -> ProblemError:
    """The error of a gateway that stops before the response ends: clients take any response for the whole answer.

    They send the request again by themselves, and get the same response.
    """
    again = f"send the same request again, or read it at GET {PATHS}/responses/{place}"
    return gateway_stops(f"the response {place}", again)


@router.get("/responses/{response}", operation_id="get_response")
async def get_response(
    response: ResponsePath,
    caller: Reader,
    request: Request,
    gateway: GatewayOf,
    *,
    stream: bool = False,
    starting_after: Annotated[int | None, Query(ge=0, lt=LAST_NUMBER)] = None,
) -> Response:
    """The response as it is now; or the events of its stream behind a number, then what comes."""
    place = await own_response(gateway, caller, response)
    request.state.session = place.session
    if not stream:
        return JSONResponse(await describe(gateway, place))
    return await _stream(gateway, await act_for(gateway, caller, place.session), place, starting_after)


@router.get("/responses", operation_id="refuse_socket")
@router.post("/responses/compact", operation_id="refuse_compact")
@router.post("/responses/input_tokens", operation_id="refuse_input_tokens")
@router.delete("/responses/{response}", operation_id="refuse_delete")
async def refuse(_: Reader, request: Request) -> Response:
    """Refuse what this door does not have, by name and with what to do instead."""
    kind, instead = _NOT_HERE[request.scope["route"].operation_id]
    raise ProblemError(405, ProblemCode.METHOD_NOT_ALLOWED, f"{kind} is not here; {instead}")


_NOT_HERE: Mapping[str, tuple[str, str]] = {
    "refuse_socket": ("the WebSocket form of this API", "POST /responses, with stream"),
    "refuse_compact": ("POST /responses/compact", "an agent summarises by itself: set compaction of its definition"),
    "refuse_input_tokens": ("POST /responses/input_tokens", "the usage of a response has what its models counted"),
    "refuse_delete": ("deleting one response", "DELETE /conversations/{id} erases its session"),
}


@router.post("/responses/{response}/cancel", operation_id="cancel_response")
async def cancel_response(
    response: ResponsePath, caller: Runner, _: Reader, request: Request, gateway: GatewayOf
) -> Response:
    """Cancel the turn of the response, whoever waits for it; one that has ended stays as it is."""
    place = await own_response(gateway, caller, response)
    request.state.session = place.session
    view = await find_turn(gateway, place)
    if view.state is not RunState.ENDED:
        await cancel_turn(gateway, caller, request, place.session, place.turn)
    return JSONResponse(await describe(gateway, place))


@router.get("/responses/{response}/input_items", operation_id="list_input_items")
async def list_input_items(
    response: ResponsePath,
    caller: Reader,
    request: Request,
    gateway: GatewayOf,
    *,
    order: Literal["asc", "desc"] = "desc",
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: Annotated[str | None, Query(max_length=200)] = None,
) -> Response:
    """List what the response was asked with: the prompt, or what was said to the response before it."""
    place = await own_response(gateway, caller, response)
    request.state.session = place.session
    items = await read_inputs(gateway, place)
    if order == "desc":
        items.reverse()
    begin = 0
    if after is not None:
        begin = next((number for number, item in enumerate(items, start=1) if item["id"] == after), -1)
        if begin < 0:
            raise ProblemError(422, ReasonCode.REQUEST_INVALID, "after: the list has no item of that id")
    page = items[begin : begin + limit]
    return JSONResponse(describe_list(page, has_more=begin + limit < len(items)))


@models_router.get("/models", operation_id="list_models")
async def list_models(_: Reader, gateway: GatewayOf) -> Response:
    """The agents that workers have registered, as models."""
    store = await gateway.client.store()
    models = [_describe_model(agent) for agent in await store.agents()]
    return JSONResponse({"object": "list", "data": models})


@models_router.get("/models/{model:path}", operation_id="get_model")
async def get_model(model: Annotated[str, Path(max_length=200)], _: Reader, gateway: GatewayOf) -> Response:
    """One agent as a model."""
    store = await gateway.client.store()
    found = next((agent for agent in await store.agents() if agent.name == model), None)
    if found is None:
        msg = f"no worker has registered an agent {model!r}; GET /models lists the agents"
        raise ProblemError(404, ReasonCode.REQUEST_UNKNOWN_AGENT, msg)
    return JSONResponse(_describe_model(found))


def _describe_model(agent: RegisteredAgent) -> Item:
    return {"id": agent.name, "object": "model", "created": int(agent.seen_at.timestamp()), "owned_by": "perdure"}


for more in (conversation_routes.router, models_router):
    router.routes.extend(more.routes)


async def _stream(
    gateway: Gateway, caller: Caller, place: ResponseId, after: int | None = None, settings: Settings = NO_SETTINGS
) -> Response:
    """The stream of a response.

    Raises:
        ProblemError: The tenant has too many streams, the log ends before that number, or there is no such response.
    """
    if after is not None:
        await _check_cursor(gateway, place, after)
    await check_exists(gateway, place)
    async with AsyncExitStack() as stack:
        stack.enter_context(gateway.limits.stream(caller.tenant))
        ends = gateway.ends(stack.enter_context(gateway.hold(caller)))
        feed = await stack.enter_async_context(gateway.hub.deltas.follow(place.session))
        at = None if after is None else Place.parse(after)
        chunks = _encode(gateway, place, after, follow(gateway, place, at, feed), settings)
        return EventStream(chunks, place=str(after or 0), ends=ends, closing=stack.pop_all(), farewell=say_why)


async def _check_cursor(gateway: Gateway, place: ResponseId, after: int) -> None:
    store = await gateway.client.store()
    last = (await store.last_seqs([place.session])).get(place.session, 0)
    if Place.parse(after).seq > last:
        msg = "starting_after: no event of this response has that number yet; give the one of the last event received"
        raise ProblemError(422, ReasonCode.REQUEST_INVALID, msg)


async def _encode(
    gateway: Gateway,
    place: ResponseId,
    after: int | None,
    following: AsyncGenerator[list[WireEvent], None],
    settings: Settings,
) -> Chunks:
    """The events as bytes; the first comes soon, also where no worker has opened the turn."""
    async with aclosing(following):
        coming = asyncio.ensure_future(anext(following, None))
        is_early, at = False, str(after or 0)
        try:
            if after is None and not (await asyncio.wait({coming}, timeout=EARLY.total_seconds()))[0]:
                is_early = True
                early = await first_event(gateway, place)
                yield encode_event(early, settings), str(early.number)
            found = await coming
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        while found is not None:
            told = [event for event in found if not (is_early and event.body["type"] == "response.created")]
            at = str(told[-1].number) if told else at
            yield b"".join(encode_event(event, settings) for event in told) or PING, at
            found = await anext(following, None)


def say_why(problem: ProblemError, place: str) -> bytes:
    """The end of a stream whose response goes on: OpenAI's ``error`` event, with the last number that was told.

    Clients know its code and message in either of two places, and no client takes the text before it for an answer.
    """
    told = describe_error(problem.status, problem.code, problem.detail)
    body = {**told, "type": "error", "sequence_number": int(place), "error": told}
    return b"event: error\ndata: %s\n\n" % json.dumps(body).encode()


def encode_event(event: WireEvent, settings: Settings = NO_SETTINGS) -> bytes:
    """The event as the stream has it; a response in it tells what became of the settings of its request."""
    body, response = event.body, event.body.get("response")
    if isinstance(response, dict):
        body = {**body, "response": settings.told(response)}
    return b"event: %s\ndata: %s\n\n" % (str(body["type"]).encode(), json.dumps(body).encode())


DOOR = Door(prefix=f"{PATHS}/", router=router, form=write_error)
