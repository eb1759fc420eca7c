"""The series of an incident as Prometheus scraped them, in the notation of promtool's tests.

What is computed by hand knows what its author expects of an outage; ``tests/contract/test_recorded_incidents.py`` has
the rules of deploy/ look at what one does.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from perdure.cli.rules import metrics_in, read_expressions
from tests.contract.repository import ROOT
from tests.faults.prometheus import Prometheus

STEP = 15
"""Seconds between two samples: the scrape interval of deploy/prometheus/prometheus.yml."""

LOOKED_AT = (
    "PerdureGatewayDown",
    "PerdureNoWorker",
    "PerdureRetryStorm",
    "PerdureStoreAway",
    "PerdureTemporalAway",
    "PerdureTurnsStandStill",
    "PerdureWorkerDown",
    "PerdureWorkerRestarts",
)
"""The alerts whose series are kept: those of processes and of what they need, models among it."""

HEAD = """\
# Made by `python -m tests.chaos.incidents --only {name!r} --record {folder}`:
# three workers and two gateways under load, scraped every {step} s by Prometheus with deploy/prometheus/prometheus.yml.
# Each value is what Prometheus had at that moment; `_` is no sample, `stale` the end of a series.
"""


@dataclass(frozen=True, kw_only=True)
class Times:
    """When the recording starts, the incident began and ended, and the recording ends; in seconds of the epoch."""

    start: float
    began: float
    ended: float
    end: float


Sample = tuple[float, str]


async def record(watching: Prometheus, name: str, folder: Path, times: Times) -> Path:
    """Write the series of an incident into a file of its own."""
    wanted = {metric for alert in LOOKED_AT for metric in scraped_for(alert)}
    series = [
        {"series": _selector(labels), "values": notation(samples, times.start, times.end)}
        for metric in sorted(wanted)
        for labels, samples in await watching.series(metric, times.start, times.end, STEP)
    ]
    made = {
        "incident": name,
        "interval": f"{STEP}s",
        "began": f"{round(times.began - times.start)}s",
        "ended": f"{round(times.ended - times.start)}s",
        "input_series": series,
    }
    path = folder / (name.lower().replace("'", "").replace(" ", "-") + ".yml")
    head = HEAD.format(name=name, folder=folder, step=STEP)
    path.write_text(head + yaml.safe_dump(made, sort_keys=False, width=1_000_000), encoding="utf-8")
    return path


def scraped_for(name: str) -> set[str]:
    """The metrics that an alert or a recorded series is made of."""
    files = sorted((ROOT / "deploy/prometheus/rules").glob("*.yml"))
    rules = {rule.place.rpartition(": ")[2]: rule.text for file in files for rule in read_expressions(file)}
    found, left = set[str](), [name]
    while left:
        metrics = set(metrics_in(rules[left.pop()]))
        left += metrics & rules.keys()
        found |= metrics - rules.keys()
    return found


def _selector(labels: Mapping[str, str]) -> str:
    inner = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()) if name != "__name__")
    return f"{labels['__name__']}{{{inner}}}"


def notation(samples: Iterable[Sample], start: float, end: float) -> str:
    """Samples as promtool reads them: one value for each step, runs of one value shortened."""
    known, words, there = {round((at - start) / STEP): value for at, value in samples}, list[str](), False
    for step in range(int((end - start) // STEP) + 1):
        value = known.get(step)
        words.append(value if value is not None else "stale" if there else "_")
        there = value is not None
    return " ".join(_shortened(words))


def _shortened(words: Sequence[str]) -> Iterable[str]:
    """``1 1 1`` as ``1x2``: the value and how often it comes again."""
    at = 0
    while at < len(words):
        again = at
        while again + 1 < len(words) and words[again + 1] == words[at]:
            again += 1
        times = again - at
        if words[at] == "_":
            yield f"_x{times + 1}" if times else "_"
        else:
            yield f"{words[at]}x{times}" if times and words[at] != "stale" else words[at]
        at = again + 1
