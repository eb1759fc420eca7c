"""Reading a response from the log, and following it: what is stored first, then what comes."""

from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from contextlib import aclosing
from datetime import UTC, datetime

from perdure.client import TurnClosedError
from perdure.client.stream import from_store
from perdure.client.views import TurnView
from perdure.contracts.turns import RunState
from perdure.gateway.access import Gateway, missing_as
from perdure.gateway.doors.responses.events import TurnFold, WireEvent
from perdure.gateway.doors.responses.objects import (
    Ending,
    Item,
    Shape,
    asked_call,
    describe_decision,
    describe_inputs,
    describe_part,
    describe_response,
    describe_words,
    texts_of,
    tools_of,
)
from perdure.gateway.doors.responses.places import NOTE, PARKED, SPACE, Place, ResponseId, item_id
from perdure.gateway.following import follow_news, reader_at, take_log, take_news
from perdure.gateway.hub import News
from perdure.gateway.problems import ProblemCode, ProblemError
from perdure.store.live import Feed

EARLY = SPACE - 2
"""Place of a response's first event where it is told before a worker has opened the turn."""


def unknown_response(text: str) -> ProblemError:
    """The refusal of an id: in the same words whether nobody has the response or another tenant."""
    return ProblemError(404, ProblemCode.UNKNOWN_TURN, f"there is no response {text[:200]!r}")


async def find_turn(gateway: Gateway, place: ResponseId) -> TurnView:
    """The turn of a response.

    Raises:
        ProblemError: There is none.
    """
    with missing_as(unknown_response(str(place))):
        return await gateway.client.turn_view(place.session, place.turn)


async def shape_of(gateway: Gateway, digest: str | None) -> Shape:
    """Shape of a turn's responses, before its log is read: by the digest of its definition, if it has been opened."""
    if digest is None:
        return Shape()
    store = await gateway.client.store()
    definition = await from_store(lambda: store.definition(digest))
    return Shape(
        model=definition.name,
        tools=tools_of(definition.tools),
        names=frozenset(tool.name for tool in definition.tools),
        output_schema=definition.output_schema,
        params=definition.generate_params,
    )


async def read_turn(gateway: Gateway, place: ResponseId, view: TurnView) -> TurnFold:
    """The fold of the turn's log so far.

    Raises:
        EventsGoneError: The retention of the agent has deleted it.
    """
    fold = TurnFold(place.session, place.turn, await shape_of(gateway, view.definition))
    if view.started_at is None:
        return fold
    reader = await reader_at(gateway, place.session, place.turn)
    await take_log(reader, fold, place.turn)
    fold.settle()
    if view.closure is not None:
        fold.close(_ending_of(view))
    return fold


def _ending_of(view: TurnView) -> Ending:
    """The end of a turn that the log does not have: a worker refused it, or Temporal has ended its workflow."""
    if view.closure is not None:
        return Ending("failed", view.closure.at, view.closure.text, "runtime.turn_closed", "error")
    result = view.result
    code, text = ("", "") if result is None else (result.reason_code or "", result.error or "")
    return Ending("failed", view.ended_at, text, code, "error")


async def describe(gateway: Gateway, place: ResponseId) -> Item:
    """The response as it is now.

    Raises:
        ProblemError: There is none.
    """
    view = await find_turn(gateway, place)
    fold = await read_turn(gateway, place, view)
    if (found := fold.response(place.segment)) is not None:
        return found
    if place.segment == len(fold.segments) + 1 and not fold.has_ended:
        return _describe_unbegun(place, view, fold)
    raise unknown_response(str(place))


async def check_exists(gateway: Gateway, place: ResponseId) -> None:
    """Refuse a stream of a response that there is not, without reading the turn where its first response is meant.

    Raises:
        ProblemError: There is none.
        EventsGoneError: The retention of the agent has deleted its log.
    """
    if place.segment > 1:
        await describe(gateway, place)
    elif (await find_turn(gateway, place)).started_at is not None:
        reader = await reader_at(gateway, place.session, place.turn)
        await reader.read()


async def read_inputs(gateway: Gateway, place: ResponseId) -> list[Item]:
    """Items that the response was asked with, in order.

    Raises:
        ProblemError: There is no such response.
    """
    await describe(gateway, place)
    fold = await read_turn(gateway, place, await find_turn(gateway, place))
    return [] if place.segment > len(fold.segments) else inputs_of(fold, place.segment)


def inputs_of(fold: TurnFold, segment: int) -> list[Item]:
    """Items that a response of a turn was asked with, in order."""
    place = ResponseId(fold.session, fold.turn, segment)
    inputs, words = fold.segments[segment - 1].inputs, fold.segments[segment - 1].words
    asked_in = place.turn - (segment == 1)  # replies that begin a turn are to the requests of the turn before
    said = [describe_decision(place.session, asked_in, one, fold.results.get(one.request_id)) for one in inputs]
    beside = [describe_words(place, f"beside/{segment}/{at}", one.content, one.parts) for at, one in enumerate(words)]
    return describe_inputs(place, fold.prompt, [*said, *beside])


def _describe_unbegun(place: ResponseId, view: TurnView, fold: TurnFold) -> Item:
    """A response whose first event is not written: it is queued, or was refused."""
    ended = view.state is RunState.ENDED
    ending = _ending_of(view) if ended else Ending("queued")
    created_at = view.started_at or datetime.now(UTC)
    if fold.segments:
        created_at = fold.segments[-1].created_at
    return describe_response(place, Shape(model=view.agent or ""), created_at=created_at, ending=ending)


Make = Callable[[str, int, Shape, Place], TurnFold]
"""Makes a fold of a turn, for a reader at a place."""


async def follow(
    gateway: Gateway, place: ResponseId, after: Place | None = None, feed: Feed | None = None, make: Make = TurnFold
) -> AsyncGenerator[list[WireEvent], None]:
    """The stream events of a response behind a number, until it ends; an empty list when nothing has come for long.

    Args:
        gateway: The gateway.
        place: The response.
        after: Where the reader stands, behind the last event that it has; None is before all.
        feed: Pieces of answers, to be shown too.
        make: Makes the fold, of this protocol or of another one.
    """
    view = await find_turn(gateway, place)
    at = after or Place()
    fold = make(place.session, place.turn, await shape_of(gateway, view.definition), at)
    reader = await reader_at(gateway, place.session, place.turn)
    async with aclosing(await follow_news(gateway, place.session, reader, feed)) as news:
        try:
            async for item in news:
                if view.definition is None:  # no worker had opened the turn yet
                    view = await find_turn(gateway, place)
                    fold.shape = await shape_of(gateway, view.definition)
                found = await take_news(gateway, place.session, fold, item)
                told = [event for event in found if event.segment == place.segment and not _is_told(event, at)]
                if told or (isinstance(item, News) and not item.frames):
                    yield told
                if (told and told[-1].is_last) or _is_over(fold, place):
                    return
        except TurnClosedError:
            pass
    for last in await _end(gateway, place, fold):
        yield last


def _is_told(event: WireEvent, at: Place) -> bool:
    """Whether the reader was told of the response before its turn was opened."""
    return at.at >= EARLY and event.body["type"] == "response.created"


def _is_over(fold: TurnFold, place: ResponseId) -> bool:
    """Whether nothing more comes of the response: its reader has seen its end."""
    segments = fold.segments
    return fold.has_ended or (len(segments) >= place.segment and segments[place.segment - 1].ending is not None)


async def _end(gateway: Gateway, place: ResponseId, fold: TurnFold) -> list[list[WireEvent]]:
    """The stream events of an end that the log does not have."""
    view = await find_turn(gateway, place)
    if view.state is not RunState.ENDED:
        return []
    if fold.segments:
        return [fold.close(_ending_of(view))]
    body = _describe_unbegun(place, view, fold)
    number = await _number_before(gateway, place, EARLY + 1)
    return [[WireEvent(place.segment, {"type": "response.failed", "sequence_number": number, "response": body})]]


async def first_event(gateway: Gateway, place: ResponseId) -> WireEvent:
    """The event that tells a client of its response before a worker has opened the turn."""
    number = await _number_before(gateway, place, EARLY)
    view = await find_turn(gateway, place)
    body = describe_response(
        place, Shape(model=view.agent or ""), created_at=datetime.now(UTC), ending=Ending("queued")
    )
    return WireEvent(place.segment, {"type": "response.created", "sequence_number": number, "response": body})


async def _number_before(gateway: Gateway, place: ResponseId, at: int) -> int:
    """A number before those of all events of a turn, also if a worker opens it meanwhile."""
    reader = await reader_at(gateway, place.session, place.turn)
    return reader.after * SPACE + at


def ask_again(fold: TurnFold, segment: int, missing: Collection[str]) -> list[WireEvent]:
    """The stream events of a response that asks once more, for what it still waits for and nothing else."""
    response = fold.response(segment) or {}
    notes = {item_id(NOTE, fold.session, fold.turn, call) for call in missing}
    items = [item for item in fold.segments[segment - 1].items if asked_call(item) in missing or item["id"] in notes]
    begun: Item = {**response, "status": "in_progress", "output": []}
    told: list[tuple[str, Item]] = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
    ]
    for index, item in enumerate(items):
        about: Item = {"output_index": index, "item": item}
        text = [*_tell_again(item, index)] if item["type"] == "message" else []
        told += [("response.output_item.added", about), *text, ("response.output_item.done", about)]
    told.append(("response.completed", {"response": {**response, "output": [*items]}}))
    return [
        WireEvent(segment, {"type": kind, "sequence_number": fold.seq * SPACE + PARKED + at, **fields})
        for at, (kind, fields) in enumerate(told)
    ]


def _tell_again(message: Item, index: int) -> Iterator[tuple[str, Item]]:
    """The events of the text of a message that is told once more."""
    (text,) = texts_of([message])
    about: Item = {"item_id": message["id"], "output_index": index, "content_index": 0}
    yield "response.content_part.added", {**about, "part": describe_part("")}
    yield "response.output_text.delta", {**about, "delta": text, "logprobs": []}
    yield "response.output_text.done", {**about, "text": text, "logprobs": []}
    yield "response.content_part.done", {**about, "part": describe_part(text)}
