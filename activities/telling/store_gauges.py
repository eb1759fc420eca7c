"""The gauges that all workers share: read from the store and from Temporal at each scrape.

Every worker of a store reports the same value, so aggregate with ``max()``. While the store is away they are absent,
which is not zero.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from perdure.contracts.names import Metric
from perdure.store.errors import StoreError
from perdure.store.records import OpenTurns

STORE_PATIENCE = 5.0
"""Seconds that a scrape waits for the store."""

UP, DOWN = 1, 0


@dataclass(frozen=True)
class Queued:
    """Turns whose workflow was started and that no worker has taken yet; ``since`` is when the oldest was started.

    Turns that wait for a slot are not among them.
    """

    turns: int = 0
    since: datetime | None = None


@dataclass(frozen=True)
class Figures:
    """The figures of one scrape; a figure that could not be read is None."""

    open: OpenTurns
    queued: Queued | None
    table_bytes: dict[str, int]
    for_slots: Mapping[str, int] = field(default_factory=dict[str, int])
    """Turns that wait for a slot, by agent."""
    without_version: int | None = None
    """Turns that need a version of their agent that no worker has."""
    failing: int | None = None
    """Turns whose own code fails; None if the server does not report any."""
    failed_errands: Mapping[str, int] = field(default_factory=dict[str, int])
    """Messages of schedules, deliveries and sweeps that failed of late, by what they are."""
    sweeps_missing: float | None = None
    """Intervals since the last sweep; None if no agent has a retention."""


class StoreCollector(Collector):
    """The figures of this moment, as gauges."""

    def __init__(self, read: Callable[[], Awaitable[Figures]]) -> None:
        """``read`` runs on the event loop of the caller; Prometheus' client calls :meth:`collect` on other threads."""
        self._read = read
        self._loop = asyncio.get_running_loop()

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The gauges without values, so that the registration at the worker's start reads nothing."""
        return _gauges(None)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The gauges of this moment; those that could not be read are left out."""
        asked = asyncio.run_coroutine_threadsafe(self._ask(), self._loop)
        try:
            figures = asked.result(STORE_PATIENCE)
        except (StoreError, TimeoutError):
            asked.cancel()
            return
        yield from (gauge for gauge in _gauges(figures) if gauge.samples)

    async def _ask(self) -> Figures:
        return await self._read()


_TEXTS = {
    Metric.TURNS_RUNNING: "Turns that are open and wait for no person",
    Metric.OLDEST_TURN_SECONDS: "Age of the oldest of them",
    Metric.WAITING_FOR_INPUT: "Turns that wait for a person now",
    Metric.WAITING_SECONDS: "How long the first of them has waited",
    Metric.TURNS_QUEUED: "Turns that no worker has taken yet",
    Metric.OLDEST_QUEUED_SECONDS: "Age of the oldest of them",
    Metric.TURNS_WITHOUT_VERSION: "Turns that need a version of their agent that no worker has",
    Metric.TURNS_FAILING: "Turns whose own code fails in every worker",
    Metric.SWEEPS_MISSING: "Intervals since the last sweep of old sessions",
}


def _gauges(figures: Figures | None) -> Iterator[GaugeMetricFamily]:
    values = {} if figures is None else _values(figures)
    for name, text in _TEXTS.items():
        yield GaugeMetricFamily(name, text, values.get(name))
    waiting = GaugeMetricFamily(Metric.TURNS_WAITING_FOR_SLOT, "Turns that wait for a slot", labels=("agent",))
    counts: Mapping[str, int] = figures.for_slots if figures is not None else {}
    for agent, turns in counts.items():
        waiting.add_metric((agent,), turns)
    yield waiting
    errands = GaugeMetricFamily(Metric.ERRANDS_FAILED, "Errands that failed within the last hour", labels=("kind",))
    failed: Mapping[str, int] = figures.failed_errands if figures is not None else {}
    for kind, count in failed.items():
        errands.add_metric((kind,), count)
    yield errands
    sizes = GaugeMetricFamily(Metric.STORE_BYTES, "Bytes of the store on the disk", labels=("table",))
    for table, size in (figures.table_bytes if figures is not None else {}).items():
        sizes.add_metric((table,), size)
    yield sizes


def _values(figures: Figures) -> dict[Metric, float]:
    turns, queued = figures.open, figures.queued
    values: dict[Metric, float] = {
        Metric.TURNS_RUNNING: turns.running,
        Metric.OLDEST_TURN_SECONDS: _seconds_since(turns.running_since),
        Metric.WAITING_FOR_INPUT: turns.waiting,
        Metric.WAITING_SECONDS: _seconds_since(turns.waiting_since),
    }
    if queued is not None:
        values[Metric.TURNS_QUEUED] = queued.turns
        values[Metric.OLDEST_QUEUED_SECONDS] = _seconds_since(queued.since)
    if figures.without_version is not None:
        values[Metric.TURNS_WITHOUT_VERSION] = figures.without_version
    if figures.failing is not None:
        values[Metric.TURNS_FAILING] = figures.failing
    if figures.sweeps_missing is not None:
        values[Metric.SWEEPS_MISSING] = figures.sweeps_missing
    return values


def _seconds_since(moment: datetime | None) -> float:
    return 0.0 if moment is None else max(0.0, (datetime.now(UTC) - moment).total_seconds())


class McpCollector(Collector):
    """Whether this worker can use its MCP servers: 1 for a connected one, 0 for one that it cannot use.

    A server that was not needed yet, is disabled or was closed is absent.
    """

    def __init__(self, read: Callable[[], Iterable[tuple[str, bool]]]) -> None:
        """``read`` gives each server's name and whether it can be used."""
        self._read = read

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The gauge without values."""
        return (_up(()),)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The gauge of this moment."""
        yield _up(self._read())


def _up(servers: Iterable[tuple[str, bool]]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(Metric.MCP_SERVER_UP, "Whether the server can be used", labels=("server",))
    states: dict[str, bool] = {}
    for name, usable in servers:
        states[name] = states.get(name, True) and usable  # one name may stand for several configurations
    for name, usable in states.items():
        gauge.add_metric((name,), UP if usable else DOWN)
    return gauge
