"""Metric names in Prometheus rules and Grafana dashboards, for ``perdure doctor --rules``.

Prometheus takes a rule over a metric that nobody has, and such an alert never fires. Only names that begin with
``perdure_`` are judged: which others there are only the user's Prometheus knows.
"""

import difflib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from perdure.cli.errors import MistakeError
from perdure.contracts.names import GatewayMetric, Metric
from perdure.contracts.values import JsonValue

OURS = "perdure_"

_NOT_CODE = re.compile(r"#[^\n]*|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|`[^`]*`")
_NAMED = re.compile(r"\b__name__\s*=\s*[\"']([A-Za-z_:][\w:]*)[\"']")
_BRACES = re.compile(r"\{[^{}]*\}|\[[^\[\]]*\]|\$\w+|\$\{\w+\}")
_LABELS = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^()]*\)", re.IGNORECASE)
_NUMBERS = re.compile(r"\b(?:0x[0-9a-f]+|(?:\d+(?:ms|[smhdwy]))+|\d+(?:\.\d+)?(?:e[+-]?\d+)?)\b", re.IGNORECASE)
_NAME = re.compile(r"(?<![\w:])([A-Za-z_:][\w:]*)(?!\s*\(|[\w:])")
_WORDS = {
    *("and", "or", "unless", "bool", "offset", "start", "end", "nan", "inf"),
    *("by", "without", "on", "ignoring", "group_left", "group_right"),
    *("sum", "min", "max", "avg", "group", "stddev", "stdvar", "count", "count_values", "bottomk", "topk", "quantile"),
}
"""Words beside the names of metrics in an expression: operators, and aggregations before their labels."""

_LABEL_VALUES = re.compile(r"\blabel_values\(\s*(?:(?P<expr>.+)\s*,\s*)?\w+\s*\)\s*$", re.DOTALL)
"""The query of a dashboard's variable; its last argument is a label."""


@dataclass(frozen=True)
class Expression:
    """A query of a file: where it stands, and its text."""

    place: str
    text: str


@dataclass(frozen=True)
class UnknownMetric:
    """A metric that no process of perdure has, and the nearest one that there is."""

    place: str
    name: str
    near: str | None


def known_metrics() -> frozenset[str]:
    """Every series of workers and gateways, with the ones that a histogram and a counter bring along."""
    names = {str(name) for name in (*Metric, *GatewayMetric)}
    for name in tuple(names):
        stem = name.removesuffix("_total")
        names.add(f"{stem}_created")
        if stem == name:
            names |= {f"{name}_{part}" for part in ("bucket", "sum", "count")}
    return frozenset(names)


def find_unknown_metrics(path: Path) -> list[UnknownMetric]:
    """The metrics of perdure that a file of rules or dashboards, or a folder of them, names and no process has.

    Raises:
        MistakeError: A file cannot be read, or is neither rules nor a dashboard.
    """
    known = known_metrics()
    used = [
        (expression.place, name)
        for file in _files(path)
        for expression in read_expressions(file)
        for name in sorted(metrics_in(expression.text))
    ]
    return [
        UnknownMetric(place, name, next(iter(difflib.get_close_matches(name, known, n=1)), None))
        for place, name in used
        if name.startswith(OURS) and name not in known
    ]


def metrics_in(expression: str) -> set[str]:
    """The names of metrics in a PromQL expression; what a function or a label is called is none."""
    found = set(_NAMED.findall(expression))
    text = _NOT_CODE.sub(" ", expression)
    while (inner := _BRACES.sub(" ", text)) != text:
        text = inner
    text = _NUMBERS.sub(" ", _LABELS.sub(" ", text))
    return found | {name for name in _NAME.findall(text) if name.lower() not in _WORDS}


def read_expressions(file: Path) -> list[Expression]:
    """The queries of a file: of rules, of a PrometheusRule of Kubernetes, or of a Grafana dashboard.

    Raises:
        MistakeError: It cannot be read, or is neither.
    """
    try:
        text = file.read_text(encoding="utf-8")
        read: list[JsonValue] = [json.loads(text)] if file.suffix == ".json" else list(yaml.safe_load_all(text))
    except (OSError, ValueError, yaml.YAMLError) as error:
        msg = f"{file} cannot be read: {' '.join(str(error).split())[:200]}; name a file of rules or a dashboard"
        raise MistakeError(msg) from error
    found = [
        expression
        for document in read
        if isinstance(document, dict)
        for expression in (*_of_rules(file, document), *_of_dashboard(file, document))
    ]
    if not found:
        msg = f"{file} has no rule and no panel; name a file with 'groups' of rules, or a dashboard's JSON"
        raise MistakeError(msg)
    return found


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix in {".yml", ".yaml", ".json"})
    if not files:
        msg = f"the folder {path} has no .yml, .yaml or .json; name the rules or the dashboards"
        raise MistakeError(msg)
    return files


def _of_rules(file: Path, document: dict[str, JsonValue]) -> Iterator[Expression]:
    spec = document.get("spec", document)
    for group in _list_of(spec, "groups"):
        for rule in _list_of(group, "rules"):
            if isinstance(rule, dict):
                name = rule.get("alert") or rule.get("record") or "a rule without a name"
                yield Expression(f"{file}: {name}", str(rule.get("expr", "")))


def _of_dashboard(file: Path, document: dict[str, JsonValue]) -> Iterator[Expression]:
    document = inner if isinstance(inner := document.get("dashboard"), dict) else document
    for panel in _list_of(document, "panels"):
        if isinstance(panel, dict):
            for target in _list_of(panel, "targets"):
                if isinstance(target, dict) and "expr" in target:
                    yield Expression(f"{file}: {panel.get('title', 'a panel')}", str(target["expr"]))
            yield from _of_dashboard(file, {"panels": panel.get("panels", [])})
    for variable in _list_of(document.get("templating", {}), "list"):
        if isinstance(variable, dict) and variable.get("type") == "query":
            query = variable.get("query")
            text = query.get("query") if isinstance(query, dict) else query
            asked = _LABEL_VALUES.search(str(text))
            yield Expression(f"{file}: ${variable.get('name')}", (asked["expr"] or "") if asked else str(text))


def _list_of(value: JsonValue, name: str) -> list[JsonValue]:
    held = value.get(name) if isinstance(value, dict) else None
    return held if isinstance(held, list) else []
