"""docs/metrics.md tells of the metrics that there are: each name with its type, its labels and how to sum it up."""

import re
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family

from perdure.activities.telling.metrics import Metrics
from perdure.activities.telling.store_gauges import Figures, McpCollector, StoreCollector
from perdure.contracts.names import Metric
from perdure.gateway.metrics import HttpMetrics
from perdure.store.records import OpenTurns
from tests.contract.repository import ROOT
from tests.faults.metric_causes import MOVED_ELSEWHERE, MOVES

PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(perdure_\w+)` \| (\w+) \|([^|]*)\| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
OURS = "perdure_"

Row = tuple[str, tuple[str, ...]]


def rows(text: str) -> dict[str, Row]:
    """Type and labels of each metric of a table."""
    return {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels, *_ in (match.groups() for match in ROW.finditer(text))
    }


def registered(*registries: CollectorRegistry) -> Iterator[tuple[str, Row]]:
    """The same of each metric that is registered."""
    for registry in registries:
        for collector in vars(registry)["_collector_to_names"]:
            families: list[Family] = list(getattr(collector, "describe", list)())
            for family in families:
                labels = vars(collector).get("_labelnames", vars(family).get("_labelnames", ()))
                name = f"{family.name}_total" if family.type == "counter" else family.name
                if name.startswith(OURS):
                    yield name, (family.type, tuple(labels))


async def test_the_page_has_each_metric_with_its_type_and_labels() -> None:
    worker, gateway = PAGE.split("## Gateway")
    own, http = CollectorRegistry(), HttpMetrics(CollectorRegistry())

    async def quiet() -> Figures:
        return Figures(OpenTurns(), None, {})

    Metrics(own)
    own.register(StoreCollector(quiet))
    own.register(McpCollector(list))
    assert rows(worker) == dict(registered(own))
    assert set(rows(worker)) == set(Metric)
    assert rows(gateway) == dict(registered(http.registry))


def test_each_metric_says_how_workers_are_summed_up() -> None:
    """A gauge that every worker shows alike would be a multiple of the truth as a sum."""
    says = {match[1]: (match[2], match[5].strip()) for match in ROW.finditer(PAGE)}
    assert set(says) > set(Metric)
    assert {name for name, (kind, how) in says.items() if kind in {"counter", "histogram"} and how != "sum"} == set()
    assert {how for _, how in says.values()} == {"sum", "max", "min", "`count by (version)`"}


def test_a_metric_that_is_missing_on_the_page_is_noticed() -> None:
    left_out = PAGE.replace("`perdure_steps_total`", "steps")
    assert set(rows(PAGE)) - set(rows(left_out)) == {"perdure_steps_total"}


def test_every_metric_of_the_page_has_a_cause_that_moves_it() -> None:
    """A metric that nothing moves is one that nobody has seen work."""
    assert sorted([*MOVES, *MOVED_ELSEWHERE]) == sorted(set(rows(PAGE)))
    for metric, (file, words) in MOVED_ELSEWHERE.items():
        assert words in (ROOT / file).read_text(encoding="utf-8"), f"{metric} in {file}"
