"""The routes of this door. A completion is a response of the other door, told in the words of this protocol."""

import contextlib
import json
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from perdure.client import ClientError
from perdure.gateway.access import Gateway, GatewayOf, Reader, Starter, act_for
from perdure.gateway.bodies import Router
from perdure.gateway.callers import Caller, Scope
from perdure.gateway.doors import Door
from perdure.gateway.doors.chat.carrying import ChatCarrier
from perdure.gateway.doors.chat.chunks import Chunks
from perdure.gateway.doors.chat.headers import read_headers
from perdure.gateway.doors.chat.requests import WORDS, ChatBody, in_our_names, read_chat
from perdure.gateway.doors.chat.threads import page_of
from perdure.gateway.doors.responses.carrying import Carried, Carrier
from perdure.gateway.doors.responses.errors import CLIENT_CLOSED_REQUEST, describe_error, write_error
from perdure.gateway.doors.responses.events import WireEvent
from perdure.gateway.doors.responses.following import ask_again, find_turn, follow, read_turn
from perdure.gateway.doors.responses.objects import Item
from perdure.gateway.doors.responses.places import PATHS, ResponseId
from perdure.gateway.doors.responses.refusals import WaitsError, lacking
from perdure.gateway.doors.responses.replies import last_asking
from perdure.gateway.doors.responses.routes import models_router
from perdure.gateway.following import wait_for_client
from perdure.gateway.problems import CutAnswerError, ProblemError, gateway_stops
from perdure.gateway.sse import PING, EventStream
from perdure.gateway.sse import Chunks as Bytes
from perdure.gateway.starts import IdempotencyKey
from perdure.store.live import Feed

router = Router(prefix=PATHS, include_in_schema=False)


@router.post("/chat/completions", operation_id="create_chat_completion")
async def create_chat_completion(
    caller: Starter,
    _: Reader,
    request: Request,
    body: ChatBody,
    gateway: GatewayOf,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Start a turn, or give one the results that it waits for; then stream its completion, or wait for it."""
    configured = gateway.client.settings
    told = read_headers(request, configured, body.model)
    speaker, session = told.by(caller), told.session_for(caller.tenant, body.model)
    asked = read_chat(body, tunes=caller.may(Scope.TUNE))
    asked = replace(asked, model=configured.chat_task_agent) if told.task else asked
    carrier = Carrier(gateway, speaker, request, idempotency_key, WORDS)
    if session is not None:
        carrier = ChatCarrier(gateway, speaker, request, idempotency_key, session)
    with in_our_names():
        try:
            carried = await carrier.carry_out(asked, body)
        except WaitsError as waits:
            if "result" in waits.needs.values():
                raise
            carried = await _find_asking(gateway, waits)  # people read a chat: they are asked once more
    settings = asked.settings if carried.applies else asked.settings.unapplied
    place, base = carried.place, configured.gateway_url or str(request.base_url).rstrip("/")
    chunks = Chunks(
        place=place,
        model=body.model,
        created=int(time.time()),
        shows=configured.chat_calls,
        link=f"{base}{page_of(place.session)}",
        decides=session is not None and configured.chat_decisions == "words" and caller.may(Scope.APPROVE),
        left_alone=settings.left_alone,
        seen=carried.seen or 0,
        is_continued=carried.seen == 0,
        offered=[str(tool["name"]) for tool in asked.tools] if carried.applies else (),
    )
    reader = await act_for(gateway, caller, place.session)
    if body.stream:
        return await _stream(gateway, reader, carried, chunks, tells_usage=body.tells_usage)
    return await _wait(gateway, reader, request, carried, chunks)


async def _leave(gateway: Gateway, caller: Caller, place: ResponseId) -> None:
    """Cancel the turn of a client that has closed its connection, if that is what it means."""
    if gateway.client.settings.chat_closed == "cancel" and not gateway.stopping.is_set():
        with contextlib.suppress(ClientError):
            await gateway.client.cancel(place.session, f"{caller.name} has closed the connection", place.turn)


async def _find_asking(gateway: Gateway, waits: WaitsError) -> Carried:
    """The segment that asked for what a turn waits for."""
    place = ResponseId(waits.session, waits.turn)
    fold = await read_turn(gateway, place, await find_turn(gateway, place))
    return Carried(replace(place, segment=last_asking(fold)), [*waits.needs], applies=False)


async def _events_of(
    gateway: Gateway, carried: Carried, chunks: Chunks, feed: Feed | None
) -> AsyncGenerator[list[WireEvent], None]:
    """The stream events of what came of the request, with pieces of answers if there is a feed of them."""
    place = carried.place
    if carried.missing:  # it has ended, and waits on: not all of its calls were replied to
        chunks.fold = await read_turn(gateway, place, await find_turn(gateway, place))
        yield ask_again(chunks.fold, place.segment, carried.missing)
        return
    async with aclosing(follow(gateway, place, None, feed, chunks.make)) as events:
        async for found in events:
            if found or chunks.has_begun or (asking := await _find_asking_before(gateway, place)) is None:
                yield found
                continue
            chunks.fold = await read_turn(gateway, asking.place, await find_turn(gateway, asking.place))
            yield ask_again(chunks.fold, asking.place.segment, asking.missing)
            return


async def _find_asking_before(gateway: Gateway, place: ResponseId) -> Carried | None:
    """The segment that asks people, if a message waits behind its turn; None if nothing of it waits for people."""
    view = await gateway.client.session_view(place.session)
    if view.opened is None or view.opened[1].turn >= place.turn:
        return None
    waits = lacking(view, {"answer", "approval"})
    return None if waits is None else await _find_asking(gateway, waits)


async def _wait(gateway: Gateway, caller: Caller, request: Request, carried: Carried, chunks: Chunks) -> Response:
    """The completion; if it takes long, behind spaces, so that no proxy and no client gives it up.

    Raises:
        ProblemError: The turn failed soon, the gateway stops, or the tenant has too many streams. What comes later cuts
            the answer off: the client tries again, joins the job, and is told at once.
    """
    answer, beginning = _put_together(_events_of(gateway, carried, chunks, None), chunks), list[bytes]()
    leave = partial(_leave, gateway, caller, carried.place)

    async def begin() -> None:
        beginning.append((await anext(answer))[0])

    if await wait_for_client(gateway, caller, request, begin):
        await answer.aclose()
        await leave()
        return Response(status_code=CLIENT_CLOSED_REQUEST)  # to nobody; the job goes on, and a retry joins it
    if not beginning:
        await answer.aclose()
        raise gateway_stops(f"the job {carried.place.session}", "send the same request again, which joins it")
    if chunks.usage is not None:
        return Response(beginning[0], media_type="application/json")
    async with AsyncExitStack() as stack:
        stack.push_async_callback(answer.aclose)
        stack.enter_context(gateway.limits.stream(caller.tenant))
        ends = gateway.ends(stack.enter_context(gateway.hold(caller)))
        return _SlowAnswer(answer, place="", ends=ends, closing=stack.pop_all(), farewell=_cut, leave=leave)


class _SlowAnswer(EventStream):
    """An answer in JSON that comes in pieces."""

    media_type = "application/json"


def _cut(_: ProblemError, __: str) -> bytes:
    raise CutAnswerError("there is no completion; the client is told why when it tries again") from None


async def _put_together(events: AsyncGenerator[list[WireEvent], None], chunks: Chunks) -> Bytes:
    """The completion as bytes, behind a space for each time that nothing came for long."""
    told: list[Item] = []
    async with aclosing(events):
        async for found in events:
            if not found:
                yield b" ", ""
            for event in found:
                told += chunks.take(event)
    yield json.dumps(chunks.whole(told)).encode(), ""


async def _stream(gateway: Gateway, caller: Caller, carried: Carried, chunks: Chunks, *, tells_usage: bool) -> Response:
    """The stream of a completion.

    Raises:
        ProblemError: The tenant has too many streams.
    """
    async with AsyncExitStack() as stack:
        stack.enter_context(gateway.limits.stream(caller.tenant))
        ends = gateway.ends(stack.enter_context(gateway.hold(caller)))
        feed = await stack.enter_async_context(gateway.hub.deltas.follow(carried.place.session))
        encoded = _encode(_events_of(gateway, carried, chunks, feed), chunks, tells_usage=tells_usage)
        leave = partial(_leave, gateway, caller, carried.place)
        return EventStream(encoded, place="", ends=ends, closing=stack.pop_all(), farewell=say_why, leave=leave)


async def _encode(events: AsyncGenerator[list[WireEvent], None], chunks: Chunks, *, tells_usage: bool) -> Bytes:
    """The chunks as bytes; the first comes at once, also where no worker has opened the turn."""
    more: Item = {"usage": None} if tells_usage else {}
    yield encode_chunk({**chunks.begin(), **more}), ""
    async with aclosing(events):
        async for found in events:
            told = [chunk for event in found for chunk in chunks.take(event)]
            if told or not found:
                yield b"".join(encode_chunk({**chunk, **more}) for chunk in told) or PING, ""
    if tells_usage:
        yield encode_chunk(chunks.usage_chunk()), ""
    yield b"data: [DONE]\n\n", ""


def encode_chunk(chunk: Item) -> bytes:
    """A chunk as the stream has it."""
    return b"data: %s\n\n" % json.dumps(chunk).encode()


def say_why(problem: ProblemError, _: str) -> bytes:
    """The end of a stream whose completion is none: no client takes the text before it for an answer."""
    return encode_chunk({"error": describe_error(problem.status, problem.code, problem.detail)})


router.routes.extend(models_router.routes)

DOOR = Door(prefix=f"{PATHS}/", router=router, form=write_error)
