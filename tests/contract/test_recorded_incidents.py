"""The rules of deploy/ over series that Prometheus scraped in incidents: what fires within a minute, and what never.

``incidents/`` has what ``python -m tests.chaos.incidents --only NAME --record tests/contract/incidents`` wrote.
"""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chaos.recording import LOOKED_AT, STEP, notation, scraped_for
from tests.contract.repository import ROOT
from tests.faults.prometheus import program_or_skip

RULES = sorted((ROOT / "deploy/prometheus/rules").glob("*.yml"))
RECORDED = {file.stem: file for file in sorted((Path(__file__).parent / "incidents").glob("*.yml"))}

FIRES: Mapping[str, Sequence[str]] = {
    "every-worker-is-replaced": (),
    "postgresql-is-down": ("PerdureStoreAway",),
    "temporal-is-away": ("PerdureTemporalAway",),
    "the-provider-is-away": ("PerdureRetryStorm",),
}
"""What each incident fires, within a minute of its beginning; nothing else fires, neither in it nor after it."""

WITHIN = 60


def seconds(text: str) -> int:
    return int(text.removesuffix("s"))


def firing(at: int, alerts: Sequence[str]) -> dict[str, Any]:
    """A check that these alerts fire then, and of those that are looked at no others."""
    labels = "|".join(LOOKED_AT)
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in alerts]
    expression = f'group by (alertname) (ALERTS{{alertstate="firing",alertname=~"{labels}"}})'
    return {"expr": expression, "eval_time": f"{at}s", "exp_samples": samples}


@pytest.mark.deep
@pytest.mark.parametrize("name", RECORDED)
def test_an_outage_of_a_minute_is_told_within_it_and_a_rollout_is_none(name: str, tmp_path: Path) -> None:
    recorded = yaml.safe_load(RECORDED[name].read_text(encoding="utf-8"))
    began, ended = seconds(recorded["began"]), seconds(recorded["ended"])
    groups = [group["name"] for file in RULES for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]]
    checks = [
        *(firing(at, ()) for at in range(0, began + STEP, STEP)),
        firing(began + WITHIN, FIRES[name]),
        firing(ended, FIRES[name]),
    ]
    if not FIRES[name]:
        checks += [firing(at, ()) for at in range(began, ended + WITHIN, STEP)]
    made = {
        "rule_files": [*map(str, RULES)],
        "group_eval_order": groups,
        "evaluation_interval": f"{STEP}s",
        "tests": [
            {
                "interval": recorded["interval"],
                "input_series": recorded["input_series"],
                "promql_expr_test": checks,
            }
        ],
    }
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump(made), encoding="utf-8")
    done = subprocess.run(
        [program_or_skip("promtool"), "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_incident_that_is_expected_was_recorded() -> None:
    assert RECORDED.keys() == FIRES.keys()


@pytest.mark.parametrize("name", RECORDED)
def test_a_recording_has_the_series_of_what_is_looked_at(name: str) -> None:
    """Without series nothing fires, and a test of silence would be content."""
    recorded = yaml.safe_load(RECORDED[name].read_text(encoding="utf-8"))
    assert recorded["incident"].lower().replace(" ", "-") == name
    assert seconds(recorded["ended"]) - seconds(recorded["began"]) >= WITHIN
    names = {entry["series"].partition("{")[0] for entry in recorded["input_series"]}
    absent_when_well = {
        "temporal_long_request_failure_total",
        "temporal_request_failure_total",
        "perdure_generation_retries_total",
        "perdure_generation_retries_created",
    }
    assert {metric for alert in LOOKED_AT for metric in scraped_for(alert)} - absent_when_well <= names


def test_a_series_is_written_as_promtool_reads_it() -> None:
    """A gap ends a series: promtool would carry its last value on for five minutes."""
    samples = [(15.0, "1"), (30.0, "1"), (45.0, "1"), (90.0, "2.5")]
    assert notation(samples, 0, 120) == "_ 1x2 stale _ 2.5 stale _"
