"""The counters of a worker. Activities count real events, so nothing is counted again on replay.

What is true of all workers together is read from the store when somebody asks: a worker that ends loses nothing.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from perdure.contracts.errors import REASONS, ReasonCode
from perdure.contracts.events import Event, ToolEnd, ToolError
from perdure.contracts.names import Metric
from perdure.store.errors import StoreError
from perdure.store.records import PeopleWaitedFor

STORE_PATIENCE = 5.0
"""Seconds that a scrape waits for the store."""

UNKNOWN_TOOL = "(unknown)"
"""Label of the tools that models make up; no tool can have this name."""

OTHER = "other"
"""Outcome of a call that failed with a code of somebody's own: label values are few."""

MOST_TENANTS = 200
"""Tenants that metrics of turns name; those of all further ones are counted together, as ``other``."""

_SLOW = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)
_BYTES = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
_LONG = (1, 5, 15, 60, 300, 900, 3600, 14_400, 86_400, 259_200)


class Metrics:
    """One object for each metric of :class:`perdure.contracts.names.Metric`; times are in seconds."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.turns_started = _counter(registry, Metric.TURNS_STARTED, "Turns opened", "agent", "tenant")
        self.turns_ended = _counter(
            registry, Metric.TURNS_ENDED, "Turns committed", "agent", "stop_reason", "reason_code", "tenant"
        )
        self._tenants: set[str] = set()
        self.turn_seconds = _histogram(registry, Metric.TURN_SECONDS, "From open to commit", _LONG, "agent")
        self.steps = _counter(registry, Metric.STEPS, "Generations stored", "agent")
        self.generation_seconds = _histogram(
            registry, Metric.GENERATION_SECONDS, "Model calls that answered", _SLOW, "model"
        )
        self.generation_retries = _counter(
            registry, Metric.GENERATION_RETRIES, "Model calls to be sent again", "model", "reason_code"
        )
        self.tokens = _counter(registry, Metric.TOKENS, "Tokens as the provider reports them", "model", "kind")
        self.cost_usd = _counter(registry, Metric.COST_USD, "US dollars, as far as prices are known", "model")
        self.calls_waiting = Gauge(
            Metric.CALLS_WAITING,
            "Model calls that wait for their turn at a limited key",
            ["provider"],
            registry=registry,
        )
        self.calls_per_second = Gauge(
            Metric.CALLS_PER_SECOND,
            "Pace of the provider's slowest key; +Inf while none is limited",
            ["provider"],
            registry=registry,
        )
        self.tool_calls = _counter(registry, Metric.TOOL_CALLS, "Tool calls by outcome", "tool", "outcome")
        self.tool_seconds = _histogram(registry, Metric.TOOL_SECONDS, "Tool bodies", _SLOW, "tool")
        self.tools_abandoned = _counter(
            registry, Metric.TOOLS_ABANDONED, "Blocking tool bodies that ran on after a cancel or time-out", "tool"
        )
        self.cancel_seconds = _histogram(
            registry, Metric.CANCEL_SECONDS, "From the cancel request to the commit of the turn", _SLOW
        )
        self.history_bytes = _histogram(
            registry, Metric.HISTORY_BYTES, "History of a turn's last run when it ends", _BYTES, "agent"
        )
        self.store_seconds = _histogram(registry, Metric.STORE_SECONDS, "Store transactions", _FAST, "operation")

    def tenant_label(self, tenant: str) -> str:
        """The tenant as a label's value: each label is kept for ever, so the first 200 of a worker get their names."""
        if tenant in self._tenants or len(self._tenants) < MOST_TENANTS:
            self._tenants.add(tenant)
            return tenant
        return OTHER

    def note_cancel(self, took: timedelta) -> None:
        """Note how long a cancel took, from its request to the commit of its turn."""
        self.cancel_seconds.observe(max(0.0, took.total_seconds()))

    def store_operation(self, operation: str, seconds: float) -> None:
        """Note one store transaction."""
        self.store_seconds.labels(operation).observe(seconds)

    def show_pace(self, provider: str, rate: float | None, waiting: int) -> None:
        """Show how fast a provider is called, and how many calls wait."""
        self.calls_waiting.labels(provider).set(waiting)
        self.calls_per_second.labels(provider).set(math.inf if rate is None else rate)

    def count_outcomes(self, written: Iterable[tuple[str, Event]]) -> None:
        """Count the outcome of each tool call that these new events of the log end, however it was ended."""
        for _, event in written:
            if isinstance(event, ToolError) or (isinstance(event, ToolEnd) and not event.recorded):
                self.tool_calls.labels(*_outcome_of(event)).inc()


def _outcome_of(event: ToolEnd | ToolError) -> tuple[str, str]:
    """The labels of a call: its tool and how it ended."""
    if event.error is None:
        return event.tool, "ok"
    tool = UNKNOWN_TOOL if event.error.code == ReasonCode.TOOL_UNKNOWN else event.tool
    return tool, event.error.code if event.error.code in REASONS else OTHER


class PeopleCollector(Collector):
    """How many turns wait for people, from the store: every worker of it says the same.

    While the store is away the metrics are absent, which is not the same as zero.
    """

    def __init__(self, read: Callable[[], Awaitable[PeopleWaitedFor]]) -> None:
        """``read`` runs on the loop that makes this; pages are asked for on threads."""
        self._read = read
        self._loop = asyncio.get_running_loop()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The gauges of this moment."""
        asked = asyncio.run_coroutine_threadsafe(self._ask(), self._loop)
        try:
            waits = asked.result(STORE_PATIENCE)
        except (StoreError, TimeoutError):
            asked.cancel()
            return
        seconds = 0.0 if waits.since is None else (datetime.now(UTC) - waits.since).total_seconds()
        yield GaugeMetricFamily(Metric.WAITING_FOR_INPUT, "Turns that wait for a person now", waits.turns)
        yield GaugeMetricFamily(Metric.WAITING_SECONDS, "How long the first of them has waited", max(0.0, seconds))

    async def _ask(self) -> PeopleWaitedFor:
        return await self._read()


def _counter(registry: CollectorRegistry, name: Metric, text: str, *labels: str) -> Counter:
    return Counter(name, text, labels, registry=registry)


def _histogram(
    registry: CollectorRegistry, name: Metric, text: str, buckets: tuple[float, ...], *labels: str
) -> Histogram:
    return Histogram(name, text, labels, registry=registry, buckets=buckets)
