"""What the workers of a session counted, and what its store says: the sums have to agree, whatever fault there was.

A real Prometheus adds up what it saw of each worker before that one ended. Here each worker writes its counters down
after each transaction, as if it were scraped then: only what a kill cuts off between a commit and its count is lost,
and nothing may be counted twice.
"""

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from perdure.activities.telling.log_counters import LogCounters
from perdure.contracts.events import Envelope
from perdure.contracts.names import Metric
from perdure.contracts.turns import TurnResult
from perdure.store.records import Written

Sums = dict[str, float]

_COMPARED = {
    Metric.TURNS_STARTED: ("agent",),
    Metric.TURNS_ENDED: ("stop_reason",),
    Metric.STEPS: ("agent",),
    Metric.TOKENS: ("kind",),
    Metric.COST_USD: (),
    Metric.UNPRICED_CALLS: (),
    Metric.TOOL_CALLS: ("tool", "outcome"),
    Metric.GENERATION_RETRIES: (),
}
"""The counters that are compared, each summed up by these labels."""


def write_down(folder: Path) -> None:
    """Have this process write its counters into the folder after each transaction that it counts."""
    count, kept, one = LogCounters.count, folder / f"counted.{os.getpid()}", threading.Lock()

    def counting(self: LogCounters, written: Sequence[Written]) -> None:
        count(self, written)
        with one:
            new = kept.with_suffix(f"{kept.suffix}.new")
            new.write_text(json.dumps(dict(_sums_of(vars(self)["_metrics"]))), encoding="utf-8")
            new.replace(kept)

    LogCounters.count = counting  # type: ignore[method-assign]


def _sums_of(metrics: Any) -> Iterator[tuple[str, float]]:
    registry, sums = CollectorRegistry(), dict[str, float]()
    for collector in vars(metrics).values():
        if hasattr(collector, "collect"):
            registry.register(collector)
    for family in registry.collect():
        for sample in family.samples:
            if (by := _COMPARED.get(sample.name)) is not None and sample.labels.get("purpose") != "lost":  # type: ignore[call-overload]
                series = _series(sample.name, *(sample.labels[label] for label in by))
                sums[series] = sums.get(series, 0) + sample.value
    yield from sums.items()


def _series(name: str, *labels: str) -> str:
    return " ".join((name, *labels))


def read_counted(folder: Path) -> Sums:
    """What all workers have counted."""
    total = Counter[str]()
    for file in folder.glob("counted.*[0-9]"):
        total.update(json.loads(file.read_text(encoding="utf-8")))
    return dict(total)


def read_stored(log: Sequence[Envelope], results: Sequence[TurnResult], calls: Sequence[Any]) -> Sums:
    """What the store says: what was paid by the results of the turns, outcomes by what models read."""
    agent = next(str(envelope.event.agent) for envelope in log if envelope.event.type == "agent_start")
    total = Counter[str]()
    for result in results:
        total[_series(Metric.TURNS_STARTED, agent)] += 1
        total[_series(Metric.TURNS_ENDED, result.stop_reason)] += 1
        for kind in ("input", "output", "cached"):
            total[_series(Metric.TOKENS, kind)] += getattr(result.usage, f"{kind}_tokens")
        total[Metric.UNPRICED_CALLS] += result.unpriced_calls
    sums: Sums = {**total, Metric.COST_USD: float(sum((result.cost_usd for result in results), Decimal(0)))}
    sums[_series(Metric.STEPS, agent)] = sum(envelope.event.type == "generation_end" for envelope in log)
    sums[Metric.GENERATION_RETRIES] = sum(envelope.event.type == "generation_retry" for envelope in log)
    for call in calls:
        series = _series(Metric.TOOL_CALLS, call.name, call.error.code if call.error else "ok")
        sums[series] = sums.get(series, 0) + 1
    return sums


def differences_of(counted: Sums, stored: Sums, *, may_lose: bool) -> Iterator[str]:
    """Where the counters are more than the store's sums; or less, unless a process was killed or its commit cut off."""
    for series in sorted({*counted, *stored}):
        has, owes = counted.get(series, 0), stored.get(series, 0)
        if has > owes + 1e-9 or (has < owes - 1e-9 and not may_lose):
            yield f"{series}: the workers counted {has:g}, the store has {owes:g}"
