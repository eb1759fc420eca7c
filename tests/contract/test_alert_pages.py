"""Numbers that operations.md, dashboards and the rules' reasons give are those of the rules and of the code."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from perdure.activities.store_access import PATIENCE
from perdure.settings import Settings
from tests.contract.repository import ROOT

RULES = ROOT / "deploy/prometheus/rules"
PAGE = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
ALERTS_TEXT = (RULES / "perdure-alerts.yml").read_text(encoding="utf-8")

UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "day": 86_400, "days": 86_400, "MB": 1e6, "%": 0.01}
_WITH_UNIT = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?) ?(min|MB|days|day|[smhd%])(?!\w)")
_PRODUCT = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)(?: \* (\d+(?:\.\d+)?))?(?![\w.])")


def rules() -> Iterator[dict[str, Any]]:
    """Every rule of deploy/."""
    for file in RULES.glob("*.yml"):
        for group in yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader)["groups"]:
            yield from group["rules"]


ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}
RECORDED: dict[str, str] = {rule["record"]: rule["expr"] for rule in rules() if "record" in rule}
OBJECTIVES = {
    name.removeprefix("perdure:objective:"): expr
    for name, expr in RECORDED.items()
    if name.startswith("perdure:objective:")
}


def numbers_of_text(text: str) -> set[float]:
    """The numbers of a sentence, in seconds, bytes and shares; not what stands in code."""
    plain = re.sub(r"`[^`]*`", " ", text)
    with_unit = {round(float(number) * UNITS[unit], 6) for number, unit in _WITH_UNIT.findall(plain)}
    return with_unit | {
        float(number) for number in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?!\w)", _WITH_UNIT.sub(" ", plain))
    }


def numbers_of_rule(rule: dict[str, Any]) -> set[float]:
    """The numbers of an alert: of its expression, of the series it is made of, and its objective's multiples."""
    expression = _unfold(rule["expr"])
    found = {float(first) * float(second or 1) for first, second in _PRODUCT.findall(expression)}
    found |= {float(first) for first, _ in _PRODUCT.findall(expression)}
    found |= {float(number) * UNITS[unit] for number, unit in re.findall(r"\b(\d+)([smhd])\b", expression)}
    for name in ("for", "keep_firing_for"):
        found |= {float(number) * UNITS[unit] for number, unit in re.findall(r"(\d+)([smhd])", rule.get(name, ""))}
    for objective in re.findall(r"perdure:objective:(\w+)", rule["expr"]):
        found |= {number * _value(OBJECTIVES[objective]) for number in found}
    return {round(number, 6) for number in found}


def _unfold(expression: str) -> str:
    """An expression with those of the recorded series it names, and theirs, behind it."""
    named = [RECORDED[name] for name in set(re.findall(r"perdure:[\w:]+", expression)) if name in RECORDED]
    return " ".join([re.sub(r"perdure:[\w:]+", " ", expression), *map(_unfold, named)])


def _value(expression: str) -> float:
    first, second = _PRODUCT.findall(expression)[0]
    return float(first) * float(second or 1)


def lead_of(name: str) -> str:
    """The paragraph of the page that says when an alert fires."""
    found = re.search(rf"^### {name}\n\n(.*?)\n\n", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_fires_at_the_numbers_of_its_section(name: str) -> None:
    assert numbers_of_text(lead_of(name)) <= numbers_of_rule(ALERTS[name])


def test_the_objectives_are_those_of_the_settings() -> None:
    told = re.findall(r"`perdure:objective:(\w+)`, (\d+)( [\w%]+)", PAGE)
    assert {name: float(number) * UNITS.get(unit.strip(), 1) for name, number, unit in told} == {
        name: _value(expr) for name, expr in OBJECTIVES.items()
    }


@pytest.mark.parametrize(
    "file", sorted((ROOT / "deploy/grafana/dashboards").glob("*.json")), ids=lambda file: file.stem
)
def test_a_panel_names_the_threshold_of_its_alert(file: Path) -> None:
    said = re.findall(r"Alert: (\w+), above (\d[^.\"]*)", json.dumps(json.loads(file.read_text(encoding="utf-8"))))
    for name, threshold in said:
        assert numbers_of_text(threshold) <= numbers_of_rule(ALERTS[name]), name


def test_numbers_of_the_code_are_those_that_page_and_reasons_give() -> None:
    patience = f"{PATIENCE.seconds // 60} minutes"
    assert f"a worker holds an answer or a result that it has for up to {patience}." in PAGE
    assert f"is held for {patience}, then it is paid again" in re.sub(r"\s+#?\s*", " ", ALERTS_TEXT)
    threads = Settings.model_fields["tool_threads"].default
    assert f"A worker has {threads} (PERDURE_TOOL_THREADS)" in ALERTS_TEXT


def test_another_number_in_a_rule_is_noticed() -> None:
    rule = ALERTS["PerdureTurnsQueued"]
    planted = rule | {"expr": rule["expr"].replace("> 5 * 60", "> 4 * 60")}
    assert numbers_of_text(lead_of("PerdureTurnsQueued")) - numbers_of_rule(planted) == {300}
