"""Figures of the whole fleet on a worker's page: read when it is asked for, in one query of the store.

What costs more, or may be a moment behind anyway, is asked for less often.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Generic, TypeVar

import temporalio.client
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.telling.store_gauges import Figures, Queued
from perdure.client.errors import ClientError
from perdure.client.executions import Runs
from perdure.client.read import closures
from perdure.client.retention import read_sweeps
from perdure.client.unopened import REPORTED
from perdure.client.unstarted import UnstartedRuns
from perdure.client.waits import Waits
from perdure.contracts.names import AGENT_TURN, KNOCK, NOTIFY, SWEEP, SearchAttribute
from perdure.contracts.turns import RunState
from perdure.contracts.waits import Cause
from perdure.settings import Settings
from perdure.store import Store

VISIBILITY_PATIENCE = 2.0
"""Seconds that a scrape waits for what Temporal's visibility says."""

CLOSURES_SECONDS = 10.0
"""Time that Temporal's answer about ended workflows is kept: its visibility is behind by as much."""

BYTES_SECONDS = 60.0
"""Time that the store's sizes are kept."""

STANDING_SECONDS = 5.0
"""Time without news in a turn before Temporal is asked what it waits for; the answer is kept as long."""

MOST_LISTED = 500
"""Running turns among which those that stand still are looked for."""

MOST_STANDING = 20
"""Turns that Temporal is asked about: those that workers lately refused, and those in which nothing has happened for
longest."""

REFUSED_AGE = timedelta(minutes=1)
"""Time that a turn which this worker has refused is asked about: its call is tried again after some seconds."""

ERRANDS_SECONDS = 60.0
"""Time that Temporal's answer about errands, sweeps and failing turns is kept."""

ERRANDS_AGE = timedelta(hours=1)
"""Errands that failed longer ago are not counted any more."""

ERRANDS = {KNOCK: "schedule", NOTIFY: "webhook", SWEEP: "sweep"}
"""Names of errands, by their workflow types."""

MOST_REFUSED = 200
"""Runs of schedules that have ended without a trace in Temporal's index, and that the store is asked about."""

MOST_STUCK = 500
"""Errands whose own code fails that are counted."""

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


@dataclass(frozen=True, kw_only=True)
class Errands:
    """Temporal's figures of errands and of failing turns; None or missing where it does not say."""

    failing: int | None = None
    failed: Mapping[str, int] = field(default_factory=dict[str, int])
    sweeps_missing: float | None = None


class FleetFigures:
    """The figures of all workers that share a store."""

    def __init__(
        self,
        store: Store,
        temporal: temporalio.client.Client,
        settings: Settings,
        unstarted_deliveries: Callable[[timedelta], int] = lambda _: 0,
        *,
        refused_versions: Callable[[timedelta], Sequence[str]] = lambda _: (),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to read; nothing is asked yet.

        Args:
            store: The store.
            temporal: The client.
            settings: The worker's.
            unstarted_deliveries: Says how many deliveries the server has refused to start here within a time.
            refused_versions: Names the sessions whose calls this worker has refused for their version within a time.
            monotonic: The clock.
        """
        self._refused_versions = refused_versions
        self._unstarted_deliveries = unstarted_deliveries
        self._store = store
        self._temporal = temporal
        self._queued_query = (
            f'WorkflowType = "{AGENT_TURN}" AND ExecutionStatus = "Running" AND TaskQueue = "{settings.task_queue}" '
            f"AND {SearchAttribute.STATE} IS NULL"
        )
        self._shows_state = settings.search_attributes == "on"
        self._closed = _Kept[Collection[str]](CLOSURES_SECONDS, monotonic)
        self._bytes = _Kept[dict[str, int]](BYTES_SECONDS, monotonic)
        self._waits = Waits(Runs(temporal))
        self._without_version = _Kept[int | None](STANDING_SECONDS, monotonic)
        self._errands = _Kept[Errands](ERRANDS_SECONDS, monotonic)
        self._queue = settings.task_queue
        self._unstarted = UnstartedRuns(temporal, settings.task_queue)

    async def read(self) -> Figures:
        """The figures now.

        Raises:
            StoreError: The store cannot say.
        """
        for_slots = await self._store.queued_turns()
        queued = asyncio.create_task(self._count_queued([turn.session for turn in for_slots]))
        without_version = asyncio.create_task(self._without_version.get(self._count_without_version))
        try:
            closed = await self._closed.get(self._find_closed)
            turns = await self._store.open_turns(without=closed)
            sizes = await self._bytes.get(self._store.table_bytes)
            errands = await self._errands.get(self._read_errands)
            return Figures(
                turns,
                await queued,
                sizes,
                Counter(turn.agent for turn in for_slots),
                without_version=await without_version,
                failing=errands.failing,
                failed_errands=errands.failed,
                sweeps_missing=errands.sweeps_missing,
            )
        finally:
            queued.cancel()
            without_version.cancel()

    async def _read_errands(self) -> Errands:
        """The errands and failing turns; nothing while Temporal cannot be asked."""
        retentions = await self._store.retentions()
        since = (datetime.now(UTC) - ERRANDS_AGE).isoformat()
        on_queue = f"TaskQueue = {json.dumps(self._queue)}"
        of_late = f'CloseTime >= "{since}" AND {on_queue}'
        lost = f'ExecutionStatus IN ("Failed", "TimedOut", "Terminated") AND {of_late}'
        unstarted = asyncio.create_task(self._count_unstarted(of_late))
        refused = self._unstarted_deliveries(ERRANDS_AGE)
        try:
            async with asyncio.timeout(VISIBILITY_PATIENCE):
                reported = f'{REPORTED} IS NOT NULL AND ExecutionStatus = "Running" AND {on_queue}'
                failing = await self._count(f'{reported} AND WorkflowType = "{AGENT_TURN}"')
                stuck = Counter[str]()
                if failing is not None:
                    others = self._temporal.list_workflows(
                        f'{reported} AND WorkflowType != "{AGENT_TURN}"', limit=MOST_STUCK
                    )
                    stuck.update([ERRANDS[run.workflow_type] async for run in others if run.workflow_type in ERRANDS])
                failed = {
                    kind: await self._count(f'WorkflowType = "{name}" AND {lost}') for name, kind in ERRANDS.items()
                }
                sweeps = await read_sweeps(self._temporal, self._queue) if retentions else None
        except (RPCError, ClientError, TimeoutError):
            unstarted.cancel()
            return Errands(failed={ERRANDS[NOTIFY]: refused} if refused else {})
        counts = {kind: count + stuck[kind] for kind, count in failed.items() if count is not None}
        counts[ERRANDS[NOTIFY]] = counts.get(ERRANDS[NOTIFY], 0) + refused
        counts[ERRANDS[KNOCK]] = counts.get(ERRANDS[KNOCK], 0) + await unstarted
        return Errands(
            failing=failing,
            failed=counts,
            sweeps_missing=None if sweeps is None else sweeps.count_missing(datetime.now(UTC)),
        )

    async def _count_unstarted(self, of_late: str) -> int:
        """The runs of schedules that became no turn: Temporal has not started them, or a worker refused to open them.

        0 while Temporal cannot be asked.
        """
        try:
            async with asyncio.timeout(VISIBILITY_PATIENCE):
                return await self._unstarted.count(ERRANDS_AGE) + await self._count_refused(of_late)
        except (RPCError, TimeoutError):
            return 0

    async def _count_refused(self, of_late: str) -> int:
        """The turns of schedules that ended and that the store does not know: a worker refused to open them."""
        query = (
            f'TemporalScheduledById IS NOT NULL AND WorkflowType = "{AGENT_TURN}" AND {of_late} '
            'AND ExecutionStatus != "ContinuedAsNew"'
        )
        if self._shows_state:
            query += f" AND {SearchAttribute.STATE} IS NULL"
        refused = 0
        async for run in self._temporal.list_workflows(query, limit=MOST_REFUSED):
            if await self._store.turn_by_request(run.id, run.run_id) is None:
                refused += await self._store.tombstone(run.id) is None
        return refused

    async def _count(self, query: str) -> int | None:
        """The workflows that a query finds; None if the server knows no such search attribute."""
        try:
            return (await self._temporal.count_workflows(query)).count
        except RPCError as error:
            if error.status is RPCStatusCode.INVALID_ARGUMENT:
                return None
            raise

    async def _find_closed(self) -> Collection[str]:
        """The sessions whose open turn Temporal has ended; none while it cannot be asked."""
        begun = await self._store.open_runs()
        try:
            async with asyncio.timeout(VISIBILITY_PATIENCE):
                return list(await closures(self._temporal, begun))
        except (ClientError, TimeoutError):
            return ()

    async def _count_without_version(self) -> int | None:
        """The turns that no worker can carry on; None if Temporal does not say.

        First those that this worker has refused: others may have stood for longer, and there may be more of them than
        Temporal is asked about.
        """
        refused = self._refused_versions(REFUSED_AGE)[:MOST_STANDING]
        lacking = await self._find_without_version(refused)
        listed = await self._store.sessions(state=RunState.RUNNING, limit=MOST_LISTED)
        before = datetime.now(UTC) - timedelta(seconds=STANDING_SECONDS)
        standing = sorted((row.updated_at, row.session) for row, _ in listed if row.updated_at < before)
        others = [session for _, session in standing if session not in refused][:MOST_STANDING]
        found = await self._find_without_version(others)
        if not lacking and found is None:
            return None
        return len(lacking or ()) + len(found or ())

    async def _find_without_version(self, sessions: Sequence[str]) -> list[str] | None:
        try:
            async with asyncio.timeout(VISIBILITY_PATIENCE):
                waits = await self._waits.waits_of(sessions)
        except TimeoutError:
            return None
        return [session for session, wait in waits.items() if wait.cause is Cause.VERSION]

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
