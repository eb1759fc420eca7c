"""Deltas of answers for the followers of one gateway: one lease and one feed a session, each frame made once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from perdure.client import Client
from perdure.client.deltas import DeltaBatch, watch
from perdure.contracts.deltas import Place
from perdure.gateway.sse import encode_notice
from perdure.store import Store
from perdure.store.errors import StoreError
from perdure.store.live import Feed

DELTA = "delta"
"""The name of a delta; it has no id, so that a browser comes again after the last event."""


class _Lease:
    """What asks for a session's deltas, for as long as somebody here wants them."""

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
