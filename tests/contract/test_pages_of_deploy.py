"""The pages, the chart and compose.yaml agree: defaults, sizes, and the versions of the programs beside perdure."""

import re
import subprocess
import sys
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from perdure.cli.worker import STOP_MARGIN
from perdure.settings import PREFIX, Settings, credentials_in
from tests.contract.manifests import CHART, TREE, Manifest
from tests.contract.repository import ROOT

VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
COMPOSE = (ROOT / "deploy/compose.yaml").read_text(encoding="utf-8")
DOCS = ROOT / "docs"
PAGE = (DOCS / "deployment.md").read_text(encoding="utf-8")
PLACES = [*DOCS.glob("*.md"), *(ROOT / "deploy").rglob("*.y*ml"), *(ROOT / "deploy").rglob("*.md")]


def default_of(path: str) -> Any:
    """The default of a value of the chart, or of a setting, as it is written in pages."""
    if path.startswith(PREFIX):
        default: Any = Settings.model_fields[path.removeprefix(PREFIX).lower()].default
        return f"{default.total_seconds():g}" if isinstance(default, timedelta) else str(default)
    found: Any = VALUES
    for name in path.split("."):
        found = found[name]
    if isinstance(found, dict) and "requests" in found:
        requests, limits = found["requests"], found["limits"]
        return f"{requests['cpu']}, {requests['memory']}; limit {limits['memory']}"
    if isinstance(found, bool):
        return "on" if found else "off"
    return str(found)


SIZES = {
    value: default
    for names, defaults in re.findall(
        r"^\| (`[\w.]+`(?:, `[\w.]+`)*) \| ([^|]+?) \|", PAGE.split("## Sizes")[1], re.MULTILINE
    )
    for value, default in zip(
        re.findall(r"`([\w.]+)`", names), defaults.split(", ") if ", `" in names else [defaults], strict=True
    )
}
"""The defaults of the page's table of sizes, which may have several names and as many defaults in a row."""


@pytest.mark.parametrize("value", SIZES)
def test_the_sizes_of_the_page_are_the_defaults_of_the_chart(value: str) -> None:
    assert SIZES[value] == default_of(value)


def test_the_table_of_sizes_was_read() -> None:
    assert SIZES.keys() == {
        *("worker.replicas", "worker.resources", "worker.separateRoles", "gateway.replicas"),
        "PERDURE_GATEWAY_MAX_STREAMS",
    }


NUMBERS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "ten": 10, "twenty": 20}
SECONDS = {"": 1, "seconds": 1, "minutes": 60, "hours": 3600}
_NUMBER = rf"\b({'|'.join(NUMBERS)}|\d[\d,]*)\b(?: (seconds|minutes|hours)\b)?"
_NAME = rf"`((?:{'|'.join(VALUES)})\.(?!yaml)\w+|PERDURE_\w+)`"
_BESIDE = re.compile(rf"\({_NAME}(?:, {_NUMBER})?\)|{_NAME} seconds \((\d+)\)")


def figures_in(page: str) -> list[tuple[str, int]]:
    """The numbers that a page's sentences give for a value of the chart or a setting that stands beside them.

    ``ten minutes (`keda.stabilizationSeconds`)``, ``(`PERDURE_MAX_ACTIVITIES`, 200)``, ``… seconds (300)``.
    """
    found, flat = [], re.sub(r"\s+", " ", page)
    for beside in _BESIDE.finditer(flat):
        name, number, unit, other, seconds = beside.groups()
        before = re.split(r"[.|;()]", flat[max(0, beside.start() - 80) : beside.start()])[-1]
        if other:
            found.append((other, int(seconds)))
        elif number:
            found.append((name, _read(number, unit)))
        elif numbers := re.findall(_NUMBER, before):
            found.append((name, _read(*numbers[-1])))
    return found


def _read(number: str, unit: str | None) -> int:
    return (NUMBERS.get(number) or int(number.replace(",", ""))) * SECONDS[unit or ""]


def test_a_number_beside_a_name_is_its_default() -> None:
    figures = [
        (page.name, *figure) for page in sorted(DOCS.glob("*.md")) for figure in figures_in(page.read_text("utf-8"))
    ]
    assert len(figures) >= 5
    assert [figure for figure in figures if str(figure[2]) != default_of(figure[1])] == []


@pytest.mark.parametrize(
    ("sentence", "figures"),
    [
        ("one worker for each five tasks\n(`keda.backlogPerWorker`), and", [("keda.backlogPerWorker", 5)]),
        ("lower for ten minutes (`keda.stabilizationSeconds`).", [("keda.stabilizationSeconds", 600)]),
        ("calls at once (`PERDURE_MAX_ACTIVITIES`, 1,200)", [("PERDURE_MAX_ACTIVITIES", 1200)]),
        ("get `PERDURE_SHUTDOWN_GRACE` seconds (20) to end", [("PERDURE_SHUTDOWN_GRACE", 20)]),
        ("at `PERDURE_SHUTDOWN_GRACE`. Two (`worker.yaml`), three; no number (`keda.prometheus`)", []),
    ],
)
def test_numbers_beside_names_are_read(sentence: str, figures: list[tuple[str, int]]) -> None:
    assert figures_in(sentence) == figures


def test_counts_of_the_page_are_those_of_compose_and_of_the_pods() -> None:
    flat = re.sub(r"\s+", " ", PAGE)
    workers = re.search(r"\| `worker` \| (\w+) workers;", flat)
    answers = re.search(r"first answers for (\w+) seconds more", flat)
    assert workers is not None
    assert answers is not None
    assert NUMBERS[workers[1]] == yaml.safe_load(COMPOSE)["services"]["worker"]["deploy"]["replicas"]
    gateway = (CHART / "templates/gateway.yaml").read_text(encoding="utf-8")
    assert f'"preStopSeconds" {NUMBERS[answers[1]]}\n' in gateway


def test_what_stops_containers_waits_as_long_as_a_pod() -> None:
    told = re.findall(r"(?:docker stop -t |TimeoutStopSec=)(\d+)", PAGE)
    grace = float(default_of("PERDURE_SHUTDOWN_GRACE")) + STOP_MARGIN.total_seconds()
    assert [float(seconds) for seconds in told] == [grace, grace]


def test_no_default_is_the_single_worker_that_the_page_warns_of() -> None:
    assert "Never 1" in PAGE
    assert min(VALUES["worker"]["replicas"], VALUES["gateway"]["replicas"], VALUES["keda"]["minReplicas"]) >= 2


def test_the_chart_asks_for_what_was_measured() -> None:
    """docs/sizing.md says why; a GB is less than a Gi."""
    sizing = (DOCS / "sizing.md").read_text(encoding="utf-8")
    asked = re.search(r"request (\d+) core and (\d+) GB, limit (\d+) GB", sizing)
    assert asked is not None
    cores, memory, limit = asked.groups()
    assert default_of("worker.resources") == f"{cores}, {memory}Gi; limit {limit}Gi"
    streams = re.search(r"1 core and (\d+) MB, the chart's limit", sizing)
    assert streams is not None
    assert VALUES["gateway"]["resources"]["limits"]["memory"] == f"{streams[1]}Mi"


OBJECTS: list[Manifest] = list(
    yaml.load_all((TREE / "base/perdure.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)
)
KINDS = {"deploy": "Deployment", "job": "Job"}


def flaws_of_kubectl(page: str) -> list[str]:
    """What a page's commands for Kubernetes name and the tree does not have: objects, and labels of pods."""
    made = {(item["kind"], item["metadata"]["name"]) for item in OBJECTS}
    pods = [item["spec"]["template"]["metadata"]["labels"] for item in OBJECTS if "template" in item.get("spec", {})]
    flaws = []
    for command in re.findall(r"\bkubectl [^`\n]+", page):
        for kind, name in re.findall(r"\b(deploy|job)[/ ](perdure[\w-]*)", command):
            if (KINDS[kind], name) not in made:
                flaws.append(f"{kind}/{name}")
        for label, value in re.findall(r"(?:-l|-L|--selector) ([\w./-]+)(?:=([\w-]+))?", command):
            if not any(value in ("", labels[label]) for labels in pods if label in labels):
                flaws.append(f"{label}={value}")
    return flaws


def test_commands_for_kubernetes_name_what_is_there() -> None:
    assert {
        page.name: flaws for page in DOCS.glob("*.md") if (flaws := flaws_of_kubectl(page.read_text("utf-8")))
    } == {}


def test_a_command_for_kubernetes_that_finds_nothing_is_noticed() -> None:
    page = "`kubectl logs deploy/perdure-workers`\n    kubectl get pods -l app=perdure -L app.kubernetes.io/version\n"
    right = "kubectl get pods -l app.kubernetes.io/component=worker; kubectl logs job/perdure-migrate"
    assert flaws_of_kubectl(page + right) == ["deploy/perdure-workers", "app=perdure", "app.kubernetes.io/version="]


def secret_settings() -> set[str]:
    """The settings whose values are secrets: keys and tokens by their names, and addresses of databases."""
    found = set()
    for field, info in Settings.model_fields.items():
        variable = f"PERDURE_{field}".upper()
        address = re.search("database|postgresql", info.description or "") is not None
        if credentials_in({variable: "k1" * 16}) or address:
            found.add(variable)
    return found


def test_the_chart_refuses_every_secret_among_its_plain_variables() -> None:
    helpers = (CHART / "templates/_helpers.tpl").read_text(encoding="utf-8")
    (listed,) = re.findall(r"\$secrets := list ([^}]*?) -", helpers)
    assert set(re.findall(r'"(\w+)"', listed)) == secret_settings() | {"TEMPORAL_API_KEY"}


def test_the_page_and_the_values_name_every_secret_of_all_processes() -> None:
    """The gateways' tokens are a file of their own Secret."""
    (row,) = re.findall(r"^\| `perdure` \| every process \| (.*) \|$", PAGE, re.MULTILINE)
    assert set(re.findall(r"`(PERDURE_\w+)`", row)) == secret_settings() - {"PERDURE_GATEWAY_TOKENS"}
    values = (CHART / "values.yaml").read_text(encoding="utf-8")
    (comment,) = re.findall(r"^existingSecret: perdure # (.*)$", values, re.MULTILINE)
    assert set(re.findall(r"PERDURE_\w+", comment)) <= secret_settings()


NAMED = {
    "the Temporal server": r"temporalio/(?:server|admin-tools):\$\{TEMPORAL_VERSION:-(\d+\.\d+)\.\d+\}"
    r"|`compose\.yaml` has server (\d+\.\d+)|tested with Temporal (\d+\.\d+)",
    "KEDA": r"KEDA (\d+\.\d+)",
    "the Temporal Worker Controller": r"Worker Controller (\d+\.\d+)",
    "perdure": r"\?ref=v(\d+\.\d+\.\d+)|\nappVersion: (\d+\.\d+\.\d+)",
}
"""How pages, chart, tree and compose.yaml name the version of each program; features that began with one are others."""


def versions_in(pattern: str, texts: Iterable[str]) -> list[str]:
    """The versions that these texts name, each as often as it is named."""
    return [next(filter(None, found.groups())) for text in texts for found in re.finditer(pattern, text)]


@pytest.mark.parametrize("program", NAMED)
def test_every_place_names_one_version_of_a_program(program: str) -> None:
    found = versions_in(NAMED[program], (file.read_text(encoding="utf-8") for file in PLACES))
    assert len(found) >= 2, "the pattern finds nothing any more"
    assert len(set(found)) == 1, found


def test_two_versions_of_a_program_are_noticed() -> None:
    texts = ["image: temporalio/server:${TEMPORAL_VERSION:-1.31.0}", "(tested with Temporal 1.32; one before 1.31)"]
    assert versions_in(NAMED["the Temporal server"], texts) == ["1.31", "1.32"]


@pytest.mark.deep
def test_the_tests_run_with_the_server_and_the_ui_of_compose() -> None:
    said = subprocess.run(
        [Path(sys.executable).parent / "temporal", "--version"], capture_output=True, text=True, check=True
    ).stdout
    of_compose = dict(re.findall(r"image: temporalio/(server|ui):\$\{\w+:-([\d.]+)\}", COMPOSE))
    assert f"(Server {of_compose['server']}, UI {of_compose['ui']})" in said
