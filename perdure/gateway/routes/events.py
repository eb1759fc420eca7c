"""The events of a session, as they come."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Annotated, NamedTuple

from fastapi import Header, Query
from starlette.responses import Response
from starlette.status import HTTP_200_OK, HTTP_204_NO_CONTENT

from perdure.client import RequestRefusedError, TurnClosedError
from perdure.client.deltas import DeltaBatch, DeltaReader, merge_deltas, reader_from
from perdure.client.tree import Tree, TreePlace
from perdure.contracts.errors import PerdureError
from perdure.contracts.events import Envelope, event_type, is_called
from perdure.contracts.values import JsonValue
from perdure.gateway.access import Gateway, GatewayOf, OwnSession, Reader
from perdure.gateway.bodies import Router
from perdure.gateway.following import note_news
from perdure.gateway.hub import DeltaFeeds, Gap, GapPolicy, Hub, News
from perdure.gateway.problems import ProblemCode, problem_of
from perdure.gateway.sse import DROPPED, END, PING, PING_EVERY, RESYNC, Chunks, EventStream, Frame, encode_notice

router = Router(prefix="/v1", tags=["events"])

_ANSWERS: dict[int | str, dict[str, object]] = {
    200: {
        "description": "Server-sent events, until no turn of the session runs or waits",
        "content": {"text/event-stream": {}},
    },
    204: {"description": "The session has no turn that runs or waits, and nothing after that event"},
}

Types = Annotated[str, Query(max_length=2_000, description="Only events of these types, separated by commas")]


@router.get(
    "/sessions/{session}/events",
    status_code=HTTP_200_OK,
    operation_id="follow_session",
    response_class=Response,
    responses=_ANSWERS,
)
async def follow_session(
    session: OwnSession,
    gateway: GatewayOf,
    caller: Reader,
    *,
    after: Annotated[str, Query(max_length=8_000, description="The id of the last event seen; 0 is before all")] = "0",
    types: Types = "",
    gap_policy: Annotated[GapPolicy, Query(description="What a reader gets that is far behind")] = "backfill",
    tree: Annotated[bool, Query(description="The events of delegates too")] = False,
    deltas: Annotated[bool, Query(description="The session's answers while they are written too")] = False,
    last_event_id: Annotated[
        str | None, Header(max_length=8_000, description="As ``after``, and wins over it: browsers send it")
    ] = None,
) -> Response:
    """Follow a session through its turns: the events after one that was seen, then what comes."""
    place = _read_place(last_event_id or after, tree=tree)
    names = _read_types(types)
    if tree and gap_policy == "notify":
        raise RequestRefusedError("gap_policy: a tree is always whole; leave tree=1 or gap_policy=notify out")
    last = await _read_end(gateway, session, place)
    if await _is_over(gateway, session, place, last):
        return Response(status_code=HTTP_204_NO_CONTENT)
    async with AsyncExitStack() as stack:
        stack.enter_context(gateway.limits.stream(caller.tenant))
        ends = gateway.ends(stack.enter_context(gateway.hold(caller)))
        feeds = gateway.hub.deltas
        feed = await stack.enter_async_context(feeds.follow(session)) if deltas else None
        reader = await reader_from(await gateway.client.store(), session, place.after)
        if tree:
            whole = Tree(await gateway.client.store(), partial(_read_frames, gateway.hub), _envelope_of)
            await whole.begin(session, place)
            note = partial(_note_marked, session)
            merged = whole.merge() if feed is None else merge_deltas(whole.merge(), feed, note, reader)
            lost = _encode_lost(session, place.after, last, whole.lost) if whole.lost else b""
            chunks = _encode_tree(merged, names, feeds, lost)
        else:
            news = gateway.hub.follow(session, place.after, gap_policy)
            following = news if feed is None else merge_deltas(news, feed, note_news, reader)
            chunks = _encode(following, names, feeds)
        return EventStream(_end(chunks, session, place), place=str(place), ends=ends, closing=stack.pop_all())


def _read_place(text: str, *, tree: bool) -> TreePlace:
    if not tree and not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise RequestRefusedError(
            f"after: {text[:100]!r} is no number of an event; give the id of one that you have seen"
        )
    return TreePlace.parse(text)


def _read_types(types: str) -> list[str]:
    names = [name.strip() for name in types.split(",") if name.strip()]
    try:
        for name in names:
            event_type(name)
    except ValueError as error:
        raise RequestRefusedError(f"types: {error}") from None
    return names


async def _read_end(gateway: Gateway, session: str, place: TreePlace) -> int:
    """The number of the log's last event, which is not before the reader's place."""
    store = await gateway.client.store()
    last = (await store.last_seqs([session])).get(session, 0)
    if place.after > last:
        msg = f"session {session!r} has {last} events, so that nothing can come after {place.after}"
        raise RequestRefusedError(f"after: {msg}; give the id of one that you have seen")
    return last


async def _is_over(gateway: Gateway, session: str, place: TreePlace, last: int) -> bool:
    """Whether nothing more comes for a reader; browsers come again for ever unless they are told so."""
    if place.after < last or not last or place.delegates:
        return False
    return not await gateway.client.runs(session)


def _is_wanted(frame: Frame, types: Sequence[str]) -> bool:
    return not types or is_called(frame.envelope.event, types)


def _note_marked(session: str, reader: DeltaReader, item: tuple["_Marked", TreePlace]) -> None:
    """Note an event of the session itself: its deltas stand between its own events, not between those of delegates."""
    if item[0].frame is not None and item[0].frame.envelope.session == session:
        reader.note(item[0].frame.envelope)


async def _encode(
    following: AsyncGenerator[News | DeltaBatch, None], types: Sequence[str], feeds: DeltaFeeds
) -> Chunks:
    sent = time.monotonic()
    place = ""
    async with aclosing(following):
        async for news in following:
            if isinstance(news, DeltaBatch):
                yield feeds.encode(news), place
                sent = time.monotonic()
                continue
            parts = [
                frame.encode(str(frame.seq), replayed=frame.seq <= news.known)
                for frame in news.frames
                if _is_wanted(frame, types)
            ]
            if news.gap is not None:
                parts.append(_encode_gap(news.gap))
            if news.frames:
                place = str(news.frames[-1].seq)
            if parts or time.monotonic() - sent >= PING_EVERY.total_seconds():
                yield b"".join(parts) or PING, place
                sent = time.monotonic()


def _encode_gap(gap: Gap, session: str = "") -> bytes:
    """A notice that events are left out; in a tree it names their session."""
    told: dict[str, JsonValue] = {"after_seq": gap.after, "oldest": gap.oldest, "latest": gap.latest}
    return encode_notice(RESYNC, {"session": session, **told} if session else told)


def _encode_lost(session: str, after: int, last: int, lost: Sequence[str]) -> bytes:
    """A notice that nothing more comes of delegates that the reader's place names."""
    told: dict[str, JsonValue] = {"after_seq": after, "oldest": after + 1, "latest": last, "lost": list(lost)}
    return encode_notice(RESYNC, {"session": session, **told})


class _Marked(NamedTuple):
    """A frame, and whether it is replayed; no frame when nothing has come for a while, or behind a notice of a gap."""

    frame: Frame | None
    replayed: bool = False
    notice: bytes = b""


async def _read_frames(hub: Hub, session: str, after: int) -> AsyncGenerator[_Marked, None]:
    following = hub.follow(session, after)
    async with aclosing(following):
        async for news in following:
            for frame in news.frames:
                yield _Marked(frame, frame.seq <= news.known)
            if news.gap is not None:
                yield _Marked(None, notice=_encode_gap(news.gap, session))
            elif not news.frames:
                yield _Marked(None)


def _envelope_of(marked: _Marked) -> Envelope | None:
    return None if marked.frame is None else marked.frame.envelope


async def _encode_tree(
    merged: AsyncGenerator[tuple[_Marked, TreePlace] | DeltaBatch, None],
    types: Sequence[str],
    feeds: DeltaFeeds,
    lost: bytes,
) -> Chunks:
    sent = time.monotonic()
    async with aclosing(merged):
        last = ""
        if lost:
            yield lost, last
        async for item in merged:
            if isinstance(item, DeltaBatch):
                yield feeds.encode(item), last
                sent = time.monotonic()
                continue
            marked, place = item
            last = str(place)
            part = marked.notice
            if marked.frame is not None and _is_wanted(marked.frame, types):
                part = marked.frame.encode(str(place), replayed=marked.replayed)
            if part or time.monotonic() - sent >= PING_EVERY.total_seconds():
                yield part or PING, str(place)
                sent = time.monotonic()


async def _end(chunks: Chunks, session: str, place: TreePlace) -> Chunks:
    """The chunks, and a notice of how they ended."""
    last = str(place)
    async with aclosing(chunks):
        try:
            async for chunk, behind in chunks:
                last = behind or last
                yield chunk, last
        except PerdureError as error:
            problem = problem_of(error)
            told = {"code": problem.code if problem else ProblemCode.INTERNAL, "detail": str(error)}
            name = END if isinstance(error, TurnClosedError) else DROPPED
            yield encode_notice(name, {"session": session, "after": last, **told}), last
            return
    yield encode_notice(END, {"session": session, "after": last, "code": None, "detail": ""}), last
