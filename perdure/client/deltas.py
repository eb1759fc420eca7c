"""Following answers while they are written: their pieces between the events, and the lease that asks for them.

A piece is shown between the events of its own step only: never before the events that came before it, and never once
the answer is stored.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from perdure.client.stream import from_store
from perdure.contracts.deltas import START, Delta, Place
from perdure.contracts.events import Envelope
from perdure.store import Store
from perdure.store.errors import StoreError
from perdure.store.live import RENEW_EVERY, Feed

LAST_EVENTS = 20
"""Events at the end of a log among which one is of the step that runs: some are of no step."""

_ENDS = frozenset({"generation_content", "generation_end", "generation_error", "generation_step"})
"""Events after which nothing more of a step's answer is shown."""


class DeltaReader:
    """One reader's place in the pieces of a session, between the events that the reader has seen.

    Attributes:
        place: The place of the last delta given.
    """

    def __init__(self, until: int = 0, newest: tuple[int, int] = (0, 0)) -> None:
        """Show no delta before the events that come before it.

        Args:
            until: The number of the last event that the log had when the reader came; 0 if the reader has that one.
            newest: Turn and step of the last event that the reader has.
        """
        self.place: Place = START
        self._until = until
        self._newest = newest
        self._ended = (0, 0)

    def note(self, envelope: Envelope) -> None:
        """Take note of an event that was shown."""
        at = (envelope.turn, envelope.step)
        if envelope.seq >= self._until:
            self._until = 0
        self._newest = max(self._newest, at)
        kind = envelope.event.type
        if kind == "agent_end":
            self._ended = max(self._ended, (envelope.turn + 1, 0))
        elif kind in _ENDS:
            self._ended = max(self._ended, at)

    def take(self, feed: Feed) -> tuple[Delta, ...]:
        """Take the deltas of the feed that may be shown now and were not shown yet."""
        at = feed.place[:2]
        if at <= self._ended:
            self.place = max(self.place, feed.place)
            return ()
        if self._until or feed.place <= self.place or at > self._newest:
            return ()
        deltas = feed.take(self.place)
        self.place = feed.place
        return deltas


async def reader_from(store: Store, session: str, after: int) -> DeltaReader:
    """A reader of deltas that has the events of the session up to this number."""
    known = (await from_store(lambda: store.last_seqs([session]))).get(session, 0)
    if after < known:
        return DeltaReader(until=known)
    last = await from_store(lambda: store.events(session, after=max(0, known - LAST_EVENTS), limit=LAST_EVENTS))
    return DeltaReader(newest=max(((line.turn, line.step) for line in last), default=(0, 0)))


@asynccontextmanager
async def watch(store: Store, session: str) -> AsyncIterator[None]:
    """Ask for streamed answers of a session for as long as this lasts."""
    await from_store(lambda: store.watch(session))
    renewing = asyncio.create_task(_renew(store, session), name="perdure-watch")
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.wait([renewing])


async def _renew(store: Store, session: str) -> None:
    while True:
        await asyncio.sleep(RENEW_EVERY.total_seconds())
        with contextlib.suppress(StoreError):  # answers come whole meanwhile
            await store.watch(session)


@dataclass(frozen=True)
class DeltaBatch:
    """Pieces that are shown at once, and the place before them: who is at the same place is shown the same."""

    feed: Feed
    after: Place
    deltas: tuple[Delta, ...]


Item = TypeVar("Item")


async def merge_deltas(
    items: AsyncGenerator[Item, None], feed: Feed, note: Callable[[DeltaReader, Any], None], reader: DeltaReader
) -> AsyncGenerator[Item | DeltaBatch, None]:
    """The items, and between them the pieces of the answers that are being written.

    Args:
        items: Events, alone or several at once.
        feed: The pieces of their session.
        note: Tells the reader of the events of an item.
        reader: Stands where the items begin.
    """
    coming = asyncio.ensure_future(anext(items, None))
    news = asyncio.ensure_future(feed.wait(feed.version))
    try:
        while True:
            after = reader.place
            if not coming.done() and (deltas := reader.take(feed)):
                yield DeltaBatch(feed, after, deltas)
            if news.done():
                news = asyncio.ensure_future(feed.wait(feed.version))
            both: list[asyncio.Future[Any]] = [coming, news]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                continue
            item = coming.result()
            if item is None:
                return
            note(reader, item)
            yield item
            coming = asyncio.ensure_future(anext(items, None))
            await asyncio.sleep(0)  # what is known already comes before any piece
    finally:
        for task in (coming, news):
            task.cancel()
        await asyncio.gather(coming, news, return_exceptions=True)
        await items.aclose()


async def with_deltas(
    events: AsyncGenerator[Envelope, None], store: Store, session: str, after: int
) -> AsyncGenerator[Envelope | Delta, None]:
    """The events of a session after one, and between them the pieces of the answers that are being written."""
    reader = await reader_from(store, session, after)
    async with (
        watch(store, session),
        store.live.follow(session) as feed,
        aclosing(merge_deltas(events, feed, DeltaReader.note, reader)) as merged,
    ):
        async for item in merged:
            if isinstance(item, DeltaBatch):
                for delta in item.deltas:
                    yield delta
            else:
                yield item
