"""What the pages say of the chart, of compose.yaml and of the Temporal servers is what stands there."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.manifests import CHART
from tests.contract.repository import ROOT

VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
COMPOSE = (ROOT / "deploy/compose.yaml").read_text(encoding="utf-8")
DOCS = ROOT / "docs"
PAGE = (DOCS / "deployment.md").read_text(encoding="utf-8")


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


@pytest.mark.deep
def test_the_page_names_the_temporal_servers_that_are_used() -> None:
    """Those of compose.yaml are one release; the tests' is that of the package with the server."""
    (of_compose,) = set(
        re.findall(r"image: temporalio/(?:server|admin-tools):\$\{TEMPORAL_VERSION:-(\d+\.\d+)\.\d+\}", COMPOSE)
    )
    said = subprocess.run(
        [Path(sys.executable).parent / "temporal", "--version"], capture_output=True, text=True, check=True
    ).stdout
    of_tests = re.search(r"Server (\d+\.\d+)\.", said)
    assert of_tests is not None
    assert f"`compose.yaml` has server {of_compose}, the tests run with {of_tests[1]}" in PAGE
    tested = {
        page.name: re.findall(r"tested with Temporal (\d+\.\d+)", page.read_text(encoding="utf-8"))
        for page in DOCS.glob("*.md")
    }
    assert {version for versions in tested.values() for version in versions} == {of_tests[1]}
