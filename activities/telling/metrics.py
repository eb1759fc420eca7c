"""The metrics of a worker; ``docs/metrics.md`` says what each means and how to aggregate it.

``log_counters.py`` counts events of the log, ``store_gauges.py`` reads the figures that all workers share.
"""

import math
import time
from collections import deque
from datetime import timedelta
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from perdure.contracts.names import Metric
from perdure.store.errors import RefusalCause

OTHER = "other"
"""Label value in place of values beyond ``MOST_VALUES``: each label value is a time series that is never dropped."""

MOST_VALUES = 200
"""Values of a label for tenants, agents or models in one worker; further ones are counted together as ``other``."""

MOST_NAMES = 1_000
"""Names that a worker remembers of what has happened of late."""

_SLOW = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)
_BYTES = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
_LONG = (1, 5, 15, 60, 300, 900, 3600, 14_400, 86_400, 259_200)


class _Few:
    """The values of a label that requests can make up: only the first ``MOST_VALUES`` are kept."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def name(self, value: str) -> str:
        """The value, or ``other``."""
        if value in self._known or len(self._known) < MOST_VALUES:
            self._known.add(value)
            return value
        return OTHER


class Recent:
    """When something happened in this process, the last thousand times."""

    def __init__(self) -> None:
        self._times = deque[float](maxlen=1_000)

    def note(self) -> None:
        """Note that it happens now."""
        self._times.append(time.monotonic())

    def count(self, age: timedelta) -> int:
        """Count the occurrences within that time."""
        since = time.monotonic() - age.total_seconds()
        return sum(at >= since for at in self._times)


class RecentNames:
    """Names of what something has happened to in this process, the last thousand, with when it did."""

    def __init__(self) -> None:
        self._times: dict[str, float] = {}

    def note(self, name: str) -> None:
        """Note that it happens now."""
        self._times.pop(name, None)
        self._times[name] = time.monotonic()
        if len(self._times) > MOST_NAMES:
            del self._times[next(iter(self._times))]

    def names(self, age: timedelta) -> list[str]:
        """The names of those to which it has happened within that time, the last one first."""
        since = time.monotonic() - age.total_seconds()
        return [name for name, at in reversed(self._times.items()) if at >= since]


class Metrics:
    """One object for each metric that a worker counts or measures itself; times are in seconds."""

    def __init__(self, registry: CollectorRegistry, *, tenants: bool = False, build_id: str = "") -> None:
        """Register all metrics; with ``tenants`` labels name the tenants, otherwise that label is empty."""
        self._with_tenants = tenants
        self._tenants, self._agents, self._models = _Few(), _Few(), _Few()
        build = Gauge(Metric.BUILD_INFO, "1; the labels say what runs", ("version", "build_id"), registry=registry)
        build.labels(version("perdure"), build_id).set(1)
        self._count_turns(registry)
        self._count_model_calls(registry)
        self._count_calls(registry)
        self.history_bytes = _histogram(
            registry, Metric.HISTORY_BYTES, "History of a turn's last run when it ends", _BYTES, "agent"
        )
        self.store_seconds = _histogram(registry, Metric.STORE_SECONDS, "Store transactions", _FAST, "operation")
        self.store_refusals = _counter(registry, Metric.STORE_REFUSALS, "Operations that the store refused", "cause")
        for cause in RefusalCause:
            self.store_refusals.labels(cause)  # a first refusal is an increase only if there was a zero before
        self.unstarted_deliveries = Recent()  # a part of a figure that all workers share
        self.refused_versions = RecentNames()  # the same: sessions whose calls this worker lacks the version for
        self.codec_failures = _counter(
            registry, Metric.CODEC_FAILURES, "Payloads that could not be decrypted", "key_id"
        )

    def _count_turns(self, registry: CollectorRegistry) -> None:
        self.turns_started = _counter(registry, Metric.TURNS_STARTED, "Turns opened", "agent", "tenant")
        self.turns_ended = _counter(
            registry, Metric.TURNS_ENDED, "Turns committed", "agent", "stop_reason", "reason_code", "tenant"
        )
        self.turns_refused = _counter(
            registry,
            Metric.TURNS_REFUSED,
            "Requests that never became a turn",
            *("agent", "reason_code", "tenant"),
        )
        self.turn_seconds = _histogram(registry, Metric.TURN_SECONDS, "From open to commit", _LONG, "agent")
        self.steps = _counter(registry, Metric.STEPS, "Answers of models stored", "agent")
        self.cancel_seconds = _histogram(
            registry, Metric.CANCEL_SECONDS, "From the cancel request to the commit of the turn", _SLOW
        )
        self.input_requests = _counter(
            registry, Metric.INPUT_REQUESTS, "Requests to people, and what became of them", "kind", "decision"
        )
        self.budget_warnings = _counter(
            registry, Metric.BUDGET_WARNINGS, "Shares of budgets that were used up", "dimension"
        )
        self.recoveries = _counter(
            registry, Metric.RECOVERIES, "Attempts that went on after one that was lost with its worker", "kind"
        )

    def _count_model_calls(self, registry: CollectorRegistry) -> None:
        self.generation_seconds = _histogram(
            registry, Metric.GENERATION_SECONDS, "Model calls that answered", _SLOW, "model"
        )
        self.generation_retries = _counter(
            registry, Metric.GENERATION_RETRIES, "Failed model calls to be sent again", "model", "reason_code"
        )
        self.generation_failures = _counter(
            registry, Metric.GENERATION_FAILURES, "Model calls not sent again", "model", "reason_code"
        )
        self.unusable_streams = _counter(
            registry, Metric.UNUSABLE_STREAMS, "Streams that ended in good order and were no answers", "model"
        )
        self.fallbacks = _counter(registry, Metric.FALLBACKS, "Changes to another model", "model", "to")
        self.compactions = _counter(registry, Metric.COMPACTIONS, "Compactions by outcome", "agent", "outcome")
        self.tokens = _counter(
            registry,
            Metric.TOKENS,
            "Tokens as the provider reports them",
            *("model", "kind", "purpose", "agent", "tenant"),
        )
        self.cost_usd = _counter(
            registry,
            Metric.COST_USD,
            "US dollars, as far as prices are known",
            *("model", "purpose", "agent", "tenant"),
        )
        self.unpriced_calls = _counter(registry, Metric.UNPRICED_CALLS, "Answers of unknown price", "model")
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

    def _count_calls(self, registry: CollectorRegistry) -> None:
        self.tool_calls = _counter(registry, Metric.TOOL_CALLS, "Tool calls by outcome", "tool", "outcome")
        self.tool_seconds = _histogram(registry, Metric.TOOL_SECONDS, "Tool bodies", _SLOW, "tool")
        self.tools_abandoned = _counter(
            registry, Metric.TOOLS_ABANDONED, "Blocking tool bodies that ran on after a cancel or time-out", "tool"
        )
        self.hook_calls = _counter(
            registry, Metric.HOOK_CALLS, "Calls of hooks written in Python", "agent", "hook", "outcome"
        )
        self.delegates = _counter(registry, Metric.DELEGATES, "Delegates that ended", "agent", "outcome")
        self.mcp_call_seconds = _histogram(registry, Metric.MCP_CALL_SECONDS, "Calls of MCP servers", _SLOW, "server")
        self.mcp_reconnects = _counter(
            registry, Metric.MCP_RECONNECTS, "Connections opened after one that broke", "server"
        )

    def note_cancel(self, took: timedelta) -> None:
        """Note how long a cancel took, from its request to the commit of its turn."""
        self.cancel_seconds.observe(max(0.0, took.total_seconds()))

    def note_refused(self, agent: str, reason_code: str, tenant: str) -> None:
        """Note a request that never became a turn."""
        self.turns_refused.labels(self.agent(agent), reason_code, self.tenant(tenant)).inc()

    def store_operation(self, operation: str, seconds: float) -> None:
        """Note one store transaction."""
        self.store_seconds.labels(operation).observe(seconds)

    def store_refused(self, cause: RefusalCause) -> None:
        """Note an operation that the store refused."""
        self.store_refusals.labels(cause).inc()

    def show_pace(self, provider: str, rate: float | None, waiting: int) -> None:
        """Show the calls per second to a provider (None: no limit), and how many calls wait."""
        self.calls_waiting.labels(provider).set(waiting)
        self.calls_per_second.labels(provider).set(math.inf if rate is None else rate)

    def note_mcp_call(self, server: str, seconds: float) -> None:
        """Note one call of an MCP server, however it ended."""
        self.mcp_call_seconds.labels(server).observe(seconds)

    def note_mcp_reconnect(self, server: str) -> None:
        """Note a new connection to an MCP server in place of a broken one."""
        self.mcp_reconnects.labels(server).inc()

    def note_recovery(self, kind: str) -> None:
        """Note that an attempt goes on after one that was lost with its worker."""
        self.recoveries.labels(kind).inc()

    def tenant(self, name: str) -> str:
        """The tenant as a label value unless ``tenants`` is off; else empty, which Prometheus takes as no label."""
        return self._tenants.name(name) if self._with_tenants else ""

    def agent(self, name: str) -> str:
        """The agent as a label value, or ``other``: start requests may bring agents of any name."""
        return self._agents.name(name)

    def model(self, name: str) -> str:
        """The model as a label value, or ``other``: agents of start requests may name any model."""
        return self._models.name(name)


def _counter(registry: CollectorRegistry, name: Metric, text: str, *labels: str) -> Counter:
    return Counter(name, text, labels, registry=registry)


def _histogram(
    registry: CollectorRegistry, name: Metric, text: str, buckets: tuple[float, ...], *labels: str
) -> Histogram:
    return Histogram(name, text, labels, registry=registry, buckets=buckets)
