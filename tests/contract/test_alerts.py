"""Rules and dashboards of deploy/: only metrics that there are, each alert with its page, promtool's tests pass."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from perdure.cli.rules import find_unknown_metrics, known_metrics, metrics_in, read_expressions
from perdure.contracts.names import GatewayMetric, Metric
from tests.contract.repository import ROOT
from tests.faults.prometheus import OWN, program_or_skip

pytestmark = pytest.mark.deep

RULES = sorted((ROOT / "deploy/prometheus/rules").glob("*.yml"))
TESTS = sorted((ROOT / "deploy/prometheus/tests").glob("*.yml"))
DASHBOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
PAGE = (ROOT / "docs/operations.md").read_text(encoding="utf-8")

OF_OTHERS = {
    "ALERTS",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "temporal_activity_execution_failed_total",
    "temporal_activity_schedule_to_start_latency_seconds_bucket",
    "temporal_activity_schedule_to_start_latency_seconds_count",
    "temporal_activity_succeed_endtoend_latency_seconds_count",
    "temporal_long_request_failure_total",
    "temporal_long_request_total",
    "temporal_num_pollers",
    "temporal_request_failure_total",
    "temporal_request_total",
    "temporal_worker_task_slots_available",
    "temporal_worker_task_slots_used",
    "temporal_workflow_failed_total",
    "temporal_workflow_task_execution_failed_total",
    "up",
}
"""Series of Prometheus, of the process and of the Temporal SDK, as tests/faults/test_alerts.py sees them."""


def loaded(files: list[Path]) -> Iterator[dict[str, Any]]:
    for file in files:
        yield yaml.safe_load(file.read_text(encoding="utf-8"))


ALERTS: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for file in loaded(RULES)
    for group in file["groups"]
    for rule in group["rules"]
    if "alert" in rule
}
RECORDED = {
    rule["record"] for file in loaded(RULES) for group in file["groups"] for rule in group["rules"] if "record" in rule
}


def used() -> set[str]:
    """Every series that a rule or a panel names."""
    return {
        name
        for file in (*RULES, *DASHBOARDS)
        for expression in read_expressions(file)
        for name in metrics_in(expression.text.replace("$__range", "5m"))
    }


def test_every_series_of_rules_and_dashboards_is_one_that_there_is() -> None:
    """An alert over a metric that nobody has never fires, and nobody is told."""
    assert used() - known_metrics() - RECORDED <= OF_OTHERS
    assert [*find_unknown_metrics(ROOT / "deploy/prometheus/rules")] == []
    assert [*find_unknown_metrics(ROOT / "deploy/grafana/dashboards")] == []


def test_every_metric_is_shown_or_watched() -> None:
    """A metric that no dashboard and no rule uses is one that nobody looks at."""
    stems = {re.sub(r"_(bucket|count|sum|created)$", "", name) for name in used()}
    assert {str(name) for name in (*Metric, *GatewayMetric)} - stems == set()


def test_every_recorded_series_is_used_and_what_a_team_sets_is_recorded() -> None:
    assert used() & RECORDED == RECORDED
    assert set(OWN) <= RECORDED


def test_each_alert_has_its_section_of_the_page_and_each_section_its_alert() -> None:
    sections = re.findall(r"^### (Perdure\w+)$", PAGE, re.MULTILINE)
    assert sorted(sections) == sorted(ALERTS)
    assert len(set(sections)) == len(sections)


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_how_grave_it_is_what_to_do_and_where_to_read(name: str) -> None:
    alert = ALERTS[name]
    assert alert["labels"]["severity"] in {"critical", "warning"}
    assert set(alert["annotations"]) == {"summary", "runbook_url"}
    assert alert["annotations"]["runbook_url"] == f"docs/operations.md#{name.lower()}"
    assert len(alert["annotations"]["summary"]) > 40


@pytest.mark.parametrize("name", ALERTS)
def test_a_section_begins_with_how_grave_the_alert_is_and_after_how_long_it_fires(name: str) -> None:
    held = re.sub(r"m$", " min", re.sub(r"([sh])$", r" \1", ALERTS[name].get("for", "")))
    when = f"after {held}" if held else "at once"
    assert f"### {name}\n\n*{ALERTS[name]['labels']['severity']}*, {when}: " in PAGE


def test_each_threshold_has_its_reason() -> None:
    text = (ROOT / "deploy/prometheus/rules/perdure-alerts.yml").read_text(encoding="utf-8")
    assert re.findall(r"(?<!\n)\n(?!      #)[^\n]*\n {6}- alert: (\w+)", text) == []


def test_promtool_takes_the_configuration_and_its_tests_of_the_rules_pass() -> None:
    promtool = program_or_skip("promtool")
    checks = [
        ["check", "config", str(ROOT / "deploy/prometheus/prometheus.yml")],
        ["check", "rules", "--lint-fatal", *map(str, RULES)],
        ["test", "rules", *map(str, TESTS)],
    ]
    for check in checks:
        done = subprocess.run([promtool, *check], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_tested_to_fire_and_to_be_silent() -> None:
    checks = [
        (check["alertname"], bool(check["exp_alerts"]))
        for file in loaded(TESTS)
        for test in file["tests"]
        for check in test["alert_rule_test"]
    ]
    assert {name for name, fires in checks if fires} == set(ALERTS)
    assert {name for name, fires in checks if not fires} == set(ALERTS)


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_a_dashboard_can_be_provisioned(file: Path) -> None:
    """Each panel says what it shows, in which unit, from the chosen data source, in a place of its own."""
    board = json.loads(file.read_text(encoding="utf-8"))
    assert board["uid"] == file.stem
    assert board["title"]
    assert board["description"]
    assert (
        board["templating"]["list"][0] | {"type": "datasource", "name": "datasource"} == board["templating"]["list"][0]
    )
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places: set[tuple[int, int]] = set()
    for panel in panels:
        grid = panel["gridPos"]
        cells = {
            (x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert grid["x"] + grid["w"] <= 24
        assert not places & cells, panel["title"]
        places |= cells
        if panel["type"] in {"row", "text"}:
            continue
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"]


def test_dashboards_have_names_of_their_own_and_name_alerts_that_there_are() -> None:
    boards = [json.loads(file.read_text(encoding="utf-8")) for file in DASHBOARDS]
    assert len({board["uid"] for board in boards}) == len({board["title"] for board in boards}) == len(boards)
    assert set(re.findall(r"\bPerdure[A-Z]\w+", json.dumps(boards))) <= set(ALERTS)
    assert set(
        re.findall(r"\bPerdure[A-Z]\w+", " ".join(alert["annotations"]["summary"] for alert in ALERTS.values()))
    ) <= set(ALERTS)


def test_grafana_finds_the_dashboards_and_prometheus() -> None:
    provisioning = ROOT / "deploy/grafana/provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((provisioning / "dashboards/perdure.yml").read_text())["providers"]
    assert (source["type"], source["isDefault"], provider["options"]["path"]) == (
        "prometheus",
        True,
        "/etc/grafana/dashboards",
    )
