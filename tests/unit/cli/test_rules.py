"""``perdure doctor --rules``: a rule over a metric that nobody has is named, with the nearest one that there is."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from perdure.cli.errors import ExitCode
from perdure.cli.main import cli
from perdure.cli.rules import known_metrics, metrics_in, read_expressions

RULES = """
groups:
  - name: ours
    rules:
      - alert: Slow
        expr: max(perdure_waiting_for_input_seconds) > 60 and up{job="perdure_worker"} == 1
      - record: our:turns
        expr: sum by (agent) (rate(%s[5m]))
"""


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["doctor", *arguments])


def rules(folder: Path, metric: str) -> Path:
    file = folder / "rules.yml"
    file.write_text(RULES % metric)
    return file


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("a", {"a"}),
        ('sum by (agent, le) (rate(a_bucket{job=~"b|c", d="e{f}"}[5m] offset 1h)) > 1e3', {"a_bucket"}),
        ("a / on (x) group_left (y, z) b unless ignoring (q) c", {"a", "b", "c"}),
        ("sum(a) by (b) + count without (c) (d)", {"a", "d"}),
        ("histogram_quantile(0.9, x:y:rate5m) or vector(0)", {"x:y:rate5m"}),
        ("topk(3, a) and bool_metric == bool 1", {"a", "bool_metric"}),
        ('{__name__="a", job="b"}', {"a"}),
        ("rate(a[$__rate_interval]) * $factor # of c", {"a"}),
        ("max_over_time(rate(a[5m])[1h:1m]) > 1h30m", {"a"}),
        ('label_replace(a, "b", "$1", "c", "(d) e")', {"a"}),
        ("sum", set()),
        ("sum(sum)", set()),
    ],
)
def test_the_metrics_of_an_expression_are_found(expression: str, names: set[str]) -> None:
    assert metrics_in(expression) == names


@pytest.mark.parametrize(
    "metric", ["perdure_turns_ended_total", "perdure_turns_ended_created", "perdure_http_seconds_bucket", "node_load1"]
)
def test_known_metrics_and_those_of_others_pass(tmp_path: Path, metric: str) -> None:
    result = doctor("--rules", str(rules(tmp_path, metric)))
    assert (result.exit_code, "perdure has all perdure_* metrics in it" in result.output) == (ExitCode.FINISHED, True)


@pytest.mark.parametrize(
    ("metric", "near"),
    [
        ("perdure_turns_end_total", "did you mean perdure_turns_ended_total?"),
        ("perdure_turns_ended_total_bucket", "did you mean perdure_turns_ended_total?"),
        ("perdure_xyzzy", "docs/metrics.md lists them"),
    ],
)
def test_an_unknown_metric_is_refused_with_its_place_and_the_fix(tmp_path: Path, metric: str, near: str) -> None:
    file = rules(tmp_path, metric)
    result = doctor("--rules", str(file))
    assert result.exit_code == ExitCode.USAGE
    assert f"{file}: our:turns: perdure has no metric {metric}; {near}" in result.output
    (check,) = json.loads(doctor("--json", "--rules", str(tmp_path)).output)["checks"]
    assert (check["check"], check["ok"], check["fix"]) == ("rules", False, near)


def test_panels_rows_and_variables_of_a_dashboard_are_read(tmp_path: Path) -> None:
    inner = {"title": "inner", "targets": [{"expr": "perdure_inner"}]}
    variables = [
        {"type": "query", "name": "agent", "query": {"query": 'label_values(perdure_turns{a="b,c"}, agent)'}},
        {"type": "query", "name": "label", "query": "label_values(perdure)"},
        {"type": "textbox", "name": "session", "query": "perdure_no_query"},
    ]
    dashboard = {
        "panels": [
            {"title": "outer", "targets": [{"expr": "rate(perdure_outer[5m])"}, {"hide": True}]},
            {"title": "row", "type": "row", "panels": [inner]},
        ],
        "templating": {"list": variables},
    }
    file = tmp_path / "dashboard.json"
    file.write_text(json.dumps(dashboard))
    found = {name for expression in read_expressions(file) for name in metrics_in(expression.text)}
    assert found == {"perdure_outer", "perdure_inner", "perdure_turns"}


def test_the_resource_of_kubernetes_is_read_too(tmp_path: Path) -> None:
    file = tmp_path / "rule.yaml"
    groups = RULES.replace("\n", "\n  ") % "perdure_nothing"
    file.write_text(f"apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nspec:{groups}\n")
    assert "perdure_nothing" in doctor("--rules", str(file)).output


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("none.yml", None, "cannot be read"),
        ("broken.yml", "groups: [", "cannot be read"),
        ("broken.json", "{", "cannot be read"),
        ("other.yml", "services: {}", "no rule and no panel"),
        ("list.json", "[]", "no rule and no panel"),
    ],
)
def test_a_file_that_holds_neither_is_refused(tmp_path: Path, name: str, text: str | None, said: str) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_text(text)
    result = doctor("--rules", str(file))
    assert (result.exit_code, result.output.count("\n")) == (ExitCode.USAGE, 1)
    assert f"{file}" in result.output
    assert said in result.output


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    result = doctor("--rules", str(tmp_path))
    assert (result.exit_code, "has no .yml, .yaml or .json" in result.output) == (ExitCode.USAGE, True)


def test_series_that_a_metric_brings_along_are_known() -> None:
    assert {"perdure_cancel_seconds_bucket", "perdure_cancel_seconds_sum", "perdure_steps_created"} <= known_metrics()
    assert not {"perdure_steps", "perdure_steps_total_count"} & known_metrics()
