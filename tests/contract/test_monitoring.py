"""What the chart gives Prometheus and Grafana: the rules and dashboards of deploy/, from where they stand."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.manifests import CHART, MONITORING, Manifest, RenderError, Values, helm, helm_template
from tests.contract.repository import ROOT
from tests.faults.prometheus import program_or_skip

pytestmark = pytest.mark.deep

RULES = sorted((ROOT / "deploy/prometheus/rules").glob("*.yml"))
DASHBOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
WATCHED: Values = MONITORING | {"prometheusRule": {"enabled": True}, "dashboards": {"enabled": True}}
OBJECTIVES: dict[str, float | str] = {
    "failed_ratio": 0.05,
    "usd_per_hour": 2_000_000,
    "person_seconds": "60",
    "turn_seconds": 1,
}


def of_kind(objects: Sequence[Manifest], kind: str) -> list[Manifest]:
    return [item for item in objects if item["kind"] == kind]


def rules_of(manifests: Sequence[Manifest]) -> Iterator[dict[str, Any]]:
    for item in of_kind(manifests, "PrometheusRule"):
        for group in item["spec"]["groups"]:
            yield from group["rules"]


def test_the_rules_of_the_chart_are_those_of_deploy() -> None:
    written = {file.stem: yaml.safe_load(file.read_text(encoding="utf-8"))["groups"] for file in RULES}
    rendered = {
        item["metadata"]["name"]: item["spec"]["groups"] for item in of_kind(helm_template(WATCHED), "PrometheusRule")
    }
    assert rendered == written
    assert written


def test_the_dashboards_of_the_chart_are_those_of_deploy() -> None:
    """The sidecar of Grafana's chart reads each key of a ConfigMap that has its label."""
    found: dict[str, str] = {}
    for item in of_kind(helm_template(WATCHED), "ConfigMap"):
        if item["metadata"]["labels"].get("grafana_dashboard") == "1":
            found |= item["data"]
    assert {name: json.loads(text) for name, text in found.items()} == {
        file.name: json.loads(file.read_text(encoding="utf-8")) for file in DASHBOARDS
    }
    assert found


def test_rules_ask_for_jobs_that_the_monitors_name() -> None:
    """up{job="…"} of a job that nobody has is never 0."""
    objects = helm_template(WATCHED)
    jobs = {
        relabeling["replacement"]
        for item in of_kind(objects, "ServiceMonitor")
        for endpoint in item["spec"]["endpoints"]
        for relabeling in endpoint["relabelings"]
        if relabeling["targetLabel"] == "job"
    }
    assert set(re.findall(r'\bjob="([^"]*)"', json.dumps([*rules_of(objects)]).replace('\\"', '"'))) == jobs
    assert jobs == {job["job_name"] for job in _scraped()}


def _scraped() -> list[dict[str, Any]]:
    made = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8"))
    jobs: list[dict[str, Any]] = made["scrape_configs"]
    return jobs


def test_an_objective_of_the_values_takes_the_place_of_the_one_of_deploy(tmp_path: Path) -> None:
    """Every objective has a value, every value an objective, and promtool takes what comes of it."""
    objects = helm_template(WATCHED | {"prometheusRule": {"enabled": True, "objectives": OBJECTIVES}})
    prefix = "perdure:objective:"
    told = {rule["record"]: rule["expr"] for rule in rules_of(objects) if rule.get("record", "").startswith(prefix)}
    assert told.keys() == {prefix + name for name in OBJECTIVES}
    figures = {name: float(expression.removeprefix("vector(").removesuffix(")")) for name, expression in told.items()}
    assert figures == {prefix + name: float(number) for name, number in OBJECTIVES.items()}
    file = tmp_path / "rules.yml"
    file.write_text(
        yaml.safe_dump({"groups": [g for i in of_kind(objects, "PrometheusRule") for g in i["spec"]["groups"]]})
    )
    done = subprocess.run(
        [program_or_skip("promtool"), "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("values", [{"prometheusRule": {"enabled": True}}, {"dashboards": {"enabled": True}}], ids=str)
def test_a_chart_that_was_fetched_without_its_links_is_refused(tmp_path: Path, values: Values) -> None:
    """An archive without links would install a chart that watches nothing, and nobody would be told."""
    shutil.copytree(CHART, tmp_path / "perdure", ignore=lambda folder, names: [n for n in names if n == "files"])
    with pytest.raises(RenderError, match="it was fetched without its links; install what helm package makes"):
        helm_template(values, chart=tmp_path / "perdure")


def test_a_packaged_chart_has_what_the_links_lead_to(tmp_path: Path) -> None:
    command = [helm(), "package", str(CHART), "--destination", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    (package,) = tmp_path.glob("*.tgz")
    assert helm_template(WATCHED, chart=package) == helm_template(WATCHED)
