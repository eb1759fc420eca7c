"""Reading and following a log, and waiting for an end: for the native routes and for each door."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

from starlette.requests import Request

from perdure.client import SessionErasedError, TurnClosedError, UnknownSessionError, WrongTurnError
from perdure.client.deltas import DeltaBatch, DeltaReader, merge_deltas, reader_from
from perdure.client.stream import EventReader, from_store
from perdure.client.views import SessionView
from perdure.contracts.deltas import Delta
from perdure.contracts.events import Envelope
from perdure.gateway.access import Gateway, act_for, own_session
from perdure.gateway.callers import Caller
from perdure.gateway.hub import News
from perdure.gateway.sse import wait_until_gone
from perdure.store.live import Feed

T = TypeVar("T")


class Fold(Protocol[T]):
    """A turn as a door tells it: takes the log and pieces of answers, and returns what the client reads of each."""

    @property
    def seq(self) -> int:
        """Number of the last event that was taken."""
        ...

    @property
    def is_asking(self) -> bool:
        """Whether the last events are requests, and more of their group may follow."""
        ...

    def take(self, envelope: Envelope) -> list[T]:
        """Take one event of the log."""
        ...

    def take_delta(self, delta: Delta) -> list[T]:
        """Take a piece of an answer."""
        ...

    def settle(self) -> list[T]:
        """Take it that the group of requests is whole."""
        ...


async def own_view(gateway: Gateway, caller: Caller, session: str) -> SessionView | None:
    """The caller's session as it is; None if the caller has none of that id, or a request beside this one begins it.

    Raises:
        SessionErasedError: It was the caller's, and was erased.
    """
    try:
        await own_session(session, await act_for(gateway, caller, session), gateway)
        return await gateway.client.session_view(session)
    except SessionErasedError:
        raise
    except UnknownSessionError:
        return None


async def reader_at(gateway: Gateway, session: str, turn: int) -> EventReader:
    """A reader that stands before the turn."""
    reader = EventReader(await gateway.client.store(), session, 0)
    await reader.skip_to(turn)
    return reader


async def follow_news(
    gateway: Gateway, session: str, reader: EventReader, feed: Feed | None
) -> AsyncGenerator[News | DeltaBatch, None]:
    """News of a session behind a reader, with the pieces of answers if there is a feed of them."""
    news = gateway.hub.follow(session, reader.after)
    if feed is None:
        return news
    return merge_deltas(news, feed, note_news, await reader_from(await gateway.client.store(), session, reader.after))


def note_news(reader: DeltaReader, news: News) -> None:
    """Tell a reader of deltas which events stand before them."""
    for frame in news.frames:
        reader.note(frame.envelope)


async def take_log(reader: EventReader, fold: Fold[Any], turn: int) -> None:
    """Have the fold take what is written of its turn."""
    while page := await reader.read():
        for envelope in page:
            fold.take(envelope)
        if page[-1].turn > turn:
            break


async def take_news(gateway: Gateway, session: str, fold: Fold[T], item: News | DeltaBatch) -> list[T]:
    """Have the fold take what has come; its requests are whole once no other stands behind them."""
    if isinstance(item, DeltaBatch):
        return [told for delta in item.deltas for told in fold.take_delta(delta)]
    found = [told for frame in item.frames for told in fold.take(frame.envelope)]
    if fold.is_asking and not await asks_on(gateway, session, fold.seq):
        found += fold.settle()
    return found


async def asks_on(gateway: Gateway, session: str, seq: int) -> bool:
    """Whether another request stands behind this event: those of a step are written at once, and may be read in two."""
    store = await gateway.client.store()
    behind = await from_store(lambda: store.events(session, after=seq, limit=1))
    return bool(behind) and behind[0].event.type == "user_input_required"


async def drain(following: AsyncGenerator[Any, None]) -> None:
    """Wait until nothing more comes."""
    async with aclosing(following):
        async for _ in following:
            pass


CANCEL_SECONDS = 10
"""Longest time that a cancel waits for the end of its turn."""


async def cancel_turn(gateway: Gateway, caller: Caller, request: Request, session: str, turn: int | None) -> bool:
    """Cancel a turn of the caller's, and wait until it has ended, or the client has gone; whether there was one.

    Without a number it is the turn that runs, also if no worker has opened it yet. One that has ended stays as it is.

    Raises:
        ClientError: As the client raises it.
        ProblemError: The tenant has too many streams, or the caller may not stay.
    """
    stops = False
    with contextlib.suppress(WrongTurnError):  # it has ended meanwhile
        stops = await gateway.client.cancel(session, f"cancelled by {caller.name}", turn)
    if not stops:
        return False
    reader = await act_for(gateway, caller, session)
    found = await gateway.client.attach(session, turn)
    with contextlib.suppress(TurnClosedError):
        await wait_for_client(gateway, reader, request, found.result, CANCEL_SECONDS)
    return True


async def wait_for_client(
    gateway: Gateway,
    caller: Caller,
    request: Request,
    wait: Callable[[], Coroutine[Any, Any, object]],
    seconds: float | None = None,
) -> bool:
    """Wait as long as the client waits for its answer, and the gateway goes on; whether the client has gone.

    Raises:
        ProblemError: The tenant has too many streams, or the caller may not stay.
    """
    has_gone = asyncio.Event()

    async def leave() -> None:
        await wait_until_gone(request.receive)
        has_gone.set()

    with gateway.limits.stream(caller.tenant), gateway.hold(caller) as gone:
        await wait_until(wait(), (gateway.stopping.wait(), gone.wait(), leave()), seconds)
    gateway.check(caller)
    return has_gone.is_set()


async def wait_until(
    awaited: Coroutine[Any, Any, object], ends: Sequence[Coroutine[Any, Any, object]], seconds: float | None = None
) -> None:
    """Wait for one thing, or until one of ``ends`` has ended, but no longer than so many seconds; it may raise."""
    waiting = asyncio.create_task(awaited)
    tasks: list[asyncio.Task[Any]] = [waiting, *map(asyncio.create_task, ends)]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            waiting.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
