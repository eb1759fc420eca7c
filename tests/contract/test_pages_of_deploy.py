"""The pages, the chart and compose.yaml agree: defaults, sizes, and the versions of the programs beside perdure."""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from perdure.settings import Settings, credentials_in
from tests.contract.manifests import CHART
from tests.contract.repository import ROOT

VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
COMPOSE = (ROOT / "deploy/compose.yaml").read_text(encoding="utf-8")
DOCS = ROOT / "docs"
PAGE = (DOCS / "deployment.md").read_text(encoding="utf-8")
PLACES = [*DOCS.glob("*.md"), *(ROOT / "deploy").rglob("*.y*ml"), *(ROOT / "deploy").rglob("*.md")]


def default_of(path: str) -> Any:
    """The default of a value of the chart, as it is written in pages."""
    found: Any = VALUES
    for name in path.split("."):
        found = found[name]
    if isinstance(found, dict) and "requests" in found:
        requests, limits = found["requests"], found["limits"]
        return f"{requests['cpu']}, {requests['memory']}; limit {limits['memory']}"
    if isinstance(found, bool):
        return "on" if found else "off"
    return str(found)


SIZES = dict(re.findall(r"^\| `((?:worker|gateway)\.\w+)`[^|]*\| ([^|]+?) \|", PAGE.split("## Sizes")[1], re.MULTILINE))


@pytest.mark.parametrize("value", SIZES)
def test_the_sizes_of_the_page_are_the_defaults_of_the_chart(value: str) -> None:
    assert SIZES[value].split(",")[0] == default_of(value) or SIZES[value] == default_of(value)


def test_the_table_of_sizes_was_read() -> None:
    assert {"worker.replicas", "worker.resources", "worker.separateRoles", "gateway.replicas"} <= SIZES.keys()


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
