"""What a worker's page says of the whole fleet: read when it is asked for, in one query of the store.

What costs more, or may be a moment behind anyway, is asked for less often.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Generic, TypeVar

import temporalio.client
from temporalio.service import RPCError

from perdure.activities.store_gauges import Figures, Queued
from perdure.client.errors import ClientError
from perdure.client.read import closures
from perdure.contracts.names import AGENT_TURN, SearchAttribute
from perdure.settings import Settings
from perdure.store import Store

VISIBILITY_PATIENCE = 2.0
"""Seconds that a scrape waits for what Temporal's visibility says."""

CLOSURES_SECONDS = 10.0
"""How long what Temporal says of ended workflows is kept: its visibility is behind by as much."""

BYTES_SECONDS = 60.0
"""How long the store's sizes are kept."""

MOST_QUEUED = 100
"""Queued turns that are listed to find the oldest: of more, the age is that of one of the youngest hundred, or more."""

T = TypeVar("T")


class _Kept(Generic[T]):
    """A value that is asked for again only when it has become old."""

    def __init__(self, seconds: float, monotonic: Callable[[], float]) -> None:
        self._seconds, self._monotonic = seconds, monotonic
        self._asked_at, self._value = -seconds, list[T]()

    async def get(self, ask: Callable[[], Awaitable[T]]) -> T:
        now = self._monotonic()
        if not self._value or now - self._asked_at >= self._seconds:
            self._value, self._asked_at = [await ask()], now
        return self._value[0]


class FleetFigures:
    """The figures of all workers that share a store."""

    def __init__(
        self,
        store: Store,
        temporal: temporalio.client.Client,
        settings: Settings,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._temporal = temporal
        self._queued_query = (
            f'WorkflowType = "{AGENT_TURN}" AND ExecutionStatus = "Running" AND TaskQueue = "{settings.task_queue}" '
            f"AND {SearchAttribute.STATE} IS NULL"
        )
        self._shows_state = settings.search_attributes == "on"
        self._closed = _Kept[Collection[str]](CLOSURES_SECONDS, monotonic)
        self._bytes = _Kept[dict[str, int]](BYTES_SECONDS, monotonic)

    async def read(self) -> Figures:
        """The figures now.

        Raises:
            StoreError: The store cannot say.
        """
        for_slots = await self._store.queued_turns()
        queued = asyncio.create_task(self._count_queued([turn.session for turn in for_slots]))
        try:
            closed = await self._closed.get(self._find_closed)
            turns = await self._store.open_turns(without=closed)
            sizes = await self._bytes.get(self._store.table_bytes)
            return Figures(turns, await queued, sizes, Counter(turn.agent for turn in for_slots))
        finally:
            queued.cancel()

    async def _find_closed(self) -> Collection[str]:
        """The sessions whose open turn Temporal has ended; none while it cannot be asked."""
        begun = await self._store.open_runs()
        try:
            async with asyncio.timeout(VISIBILITY_PATIENCE):
                return list(await closures(self._temporal, begun))
        except (ClientError, TimeoutError):
            return ()

    async def _count_queued(self, for_slots: Sequence[str]) -> Queued | None:
        """The turns that no worker has taken yet, without those that wait for slots; None if visibility is silent."""
        if not self._shows_state:
            return None
        left_out, others = for_slots[:MOST_QUEUED], set(for_slots[MOST_QUEUED:])
        query = self._queued_query
        if left_out:
            query += f" AND WorkflowId NOT IN ({', '.join(map(json.dumps, left_out))})"
        try:
            async with asyncio.timeout(VISIBILITY_PATIENCE):
                counted = max((await self._temporal.count_workflows(query)).count - len(others), 0)
                if counted == 0:
                    return Queued()
                listed = self._temporal.list_workflows(query, limit=MOST_QUEUED)
                since = [run.start_time async for run in listed if run.id not in others]
                return Queued(counted, min(since, default=None))
        except (RPCError, TimeoutError):
            return None
