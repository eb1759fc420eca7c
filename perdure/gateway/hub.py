"""The hub: what one gateway process keeps of the sessions that are followed, however many follow.

Each followed session has one channel: a task reads its events as they come and keeps the last of them, each made into
bytes once. A follower is a number, its place in the log: it takes what the channel keeps behind that place, and reads
older events from the store. So a slow follower costs others nothing, and memory grows with the sessions only. Of a
session whose answers are followed while they are written, the hub holds one lease and one feed.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal
from weakref import WeakKeyDictionary

from perdure.client import Client
from perdure.client.deltas import DeltaBatch, watch
from perdure.client.stream import from_store
from perdure.contracts.deltas import Place
from perdure.contracts.values import replace
from perdure.gateway.sse import PING_EVERY, Frame, encode_notice
from perdure.store import Store
from perdure.store.errors import StoreError
from perdure.store.live import Feed

MOST_FRAMES = 256
"""Events that a channel keeps."""

MOST_BYTES = 1_000_000
"""Bytes that they have together, at most; the last one is kept however long it is."""

PAGE = 100
"""Older events that a follower reads at once."""

DELTA = "delta"
"""The name of a delta; it has no id, so that a browser comes again after the last event."""

GapPolicy = Literal["backfill", "notify"]
"""Policy for a follower that is behind what the channel keeps: every event, or a notice in place of the older ones."""


@dataclass(frozen=True)
class Gap:
    """Events that a follower does not get: those after ``after`` and before ``oldest``."""

    after: int
    oldest: int
    latest: int


@dataclass(frozen=True)
class News:
    """Batch that a follower takes at once.

    Attributes:
        frames: Events, in order, without a gap; none when nothing has come for a while.
        known: Events up to this number stood in the log when the follower came.
        gap: What is left out before the frames.
    """

    frames: Sequence[Frame] = ()
    known: int = 0
    gap: Gap | None = None


class Channel:
    """The last events of one session, and who waits for more.

    Attributes:
        latest: The number of the last event.
        followers: How many follow.
        is_closed: Whether no more events come: no turn runs or waits, or they cannot be read.
        failure: Why they cannot be read.
    """

    def __init__(self, client: Client, session: str) -> None:
        self._client = client
        self._session = session
        self._frames: deque[Frame] = deque()
        self._bytes = 0
        self._news = asyncio.Event()
        self.is_closed = False
        self.failure: Exception | None = None
        self.latest = 0
        self.followers = 0
        self.ready = asyncio.Event()

    @property
    def oldest(self) -> int:
        """The number of the first event that is kept, or will be."""
        return self._frames[0].seq if self._frames else self.latest + 1

    async def run(self) -> None:
        """Read the session's events, to the end of its last turn."""
        try:
            store = await self._client.store()
            last = (await from_store(lambda: store.last_seqs([self._session]))).get(self._session, 0)
            after = max(0, last - MOST_FRAMES)
            for envelope in await from_store(lambda: store.events(self._session, after=after, limit=MOST_FRAMES)):
                self._keep(Frame(envelope))
            self.latest = max(self.latest, last)  # where a sweep has deleted all of them
            self.ready.set()
            async for envelope in self._client.events(self._session, self.latest):
                self._keep(Frame(replace(envelope, replayed=False)))
                self._tell()
        except Exception as error:  # noqa: BLE001 - its followers tell it, each in its own stream
            self.failure = error
        finally:
            self.is_closed = True
            self.ready.set()
            self._tell()

    def _keep(self, frame: Frame) -> None:
        self._frames.append(frame)
        self._bytes += len(frame.body)
        self.latest = frame.seq
        while len(self._frames) > MOST_FRAMES or (self._bytes > MOST_BYTES and len(self._frames) > 1):
            self._bytes -= len(self._frames.popleft().body)

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def frames_after(self, after: int) -> list[Frame]:
        """Kept frames after ``after``, which must not be older than the one before ``oldest``."""
        start = after + 1 - self.oldest
        return [self._frames[place] for place in range(start, len(self._frames))]

    async def wait(self, longest: timedelta) -> bool:
        """Wait until more events are kept, or none will be; False if the time is over before."""
        try:
            async with asyncio.timeout(longest.total_seconds()):
                await self._news.wait()
        except TimeoutError:
            return False
        return True


class Hub:
    """The channels of the sessions that are followed here."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.deltas = DeltaFeeds(client)
        self._channels: dict[str, Channel] = {}
        self._tasks: dict[Channel, asyncio.Task[None]] = {}

    @property
    def sessions(self) -> int:
        """Number of followed sessions."""
        return len(self._channels)

    async def close(self) -> None:
        """Follow nothing any more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def follow(self, session: str, after: int, gap_policy: GapPolicy = "backfill") -> AsyncGenerator[News, None]:
        """The session's events after that number, as they come, until no turn of it runs or waits.

        Raises:
            TurnClosedError: The workflow closed and its turn will never end.
            PerdureError: The events cannot be read any more, for whatever reason the client names.
        """
        channel = self._enter(session)
        try:
            await channel.ready.wait()
            known = channel.latest
            while True:
                if after + 1 < channel.oldest:
                    if gap_policy == "notify":
                        gap = Gap(after=after, oldest=channel.oldest, latest=channel.latest)
                        yield News(known=known, gap=gap)
                        after = gap.oldest - 1
                        continue
                    frames = await self._read(session, after)
                    first = frames[0].seq if frames else channel.oldest
                    if first > after + 1:  # the retention of the session's agent has deleted what was between
                        yield News(known=known, gap=Gap(after=after, oldest=first, latest=channel.latest))
                        after = first - 1
                else:
                    frames = channel.frames_after(after)
                if frames:
                    after = frames[-1].seq
                    yield News(frames, known)
                elif channel.is_closed:
                    if channel.failure is not None:
                        raise channel.failure
                    return
                elif not await channel.wait(PING_EVERY):
                    yield News()
        finally:
            self._leave(session, channel)

    async def _read(self, session: str, after: int) -> list[Frame]:
        store = await self._client.store()
        return [Frame(found) for found in await from_store(lambda: store.events(session, after=after, limit=PAGE))]

    def _enter(self, session: str) -> Channel:
        channel = self._channels.get(session)
        if channel is None or channel.is_closed:
            channel = self._channels[session] = Channel(self._client, session)
            self._tasks[channel] = asyncio.create_task(channel.run(), name=f"perdure-hub-{session}")
        channel.followers += 1
        return channel

    def _leave(self, session: str, channel: Channel) -> None:
        channel.followers -= 1
        if channel.followers:
            return
        if self._channels.get(session) is channel:
            del self._channels[session]
        with contextlib.suppress(KeyError):
            self._tasks.pop(channel).cancel()


class _Lease:
    """Lease that asks for a session's deltas, for as long as somebody here wants them."""

    def __init__(self, store: Store, session: str) -> None:
        self.followers = 0
        self._task = asyncio.create_task(self._hold(store, session), name=f"perdure-deltas-{session}")

    @staticmethod
    async def _hold(store: Store, session: str) -> None:
        with contextlib.suppress(StoreError):  # answers then come whole
            async with watch(store, session):
                await asyncio.Event().wait()

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class DeltaFeeds:
    """The deltas of the sessions that are followed here."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._leases: dict[str, _Lease] = {}
        self._made: WeakKeyDictionary[Feed, tuple[int, dict[Place, bytes]]] = WeakKeyDictionary()

    @asynccontextmanager
    async def follow(self, session: str) -> AsyncIterator[Feed]:
        """The session's feed; answers are asked for as streams for as long as this lasts."""
        store = await self._client.store()
        lease = self._leases.get(session)
        if lease is None:
            lease = self._leases[session] = _Lease(store, session)
        lease.followers += 1
        try:
            async with store.live.follow(session) as feed:
                yield feed
        finally:
            lease.followers -= 1
            if not lease.followers:
                self._leases.pop(session, None)
                await lease.end()

    def encode(self, batch: DeltaBatch) -> bytes:
        """The frames of these deltas, made once for all who are at the same place."""
        version, made = self._made.get(batch.feed, (-1, {}))
        if version != batch.feed.version:
            made = {}
            self._made[batch.feed] = (batch.feed.version, made)
        frames = made.get(batch.after)
        if frames is None:
            parts = [encode_notice(DELTA, delta.model_dump(mode="json")) for delta in batch.deltas]
            frames = made[batch.after] = b"".join(parts)
        return frames
