"""The page on deployment names what there is: values, components, services, variables, and the search attributes."""

import re

import pytest
import yaml

from perdure.contracts.names import SEARCH_ATTRIBUTE_TYPES
from perdure.settings import Settings
from tests.compose import load
from tests.contract.manifests import CHART, TREE
from tests.contract.repository import ROOT
from tests.contract.test_manifests import assert_exists

PAGE = (ROOT / "docs/deployment.md").read_text(encoding="utf-8")
NEEDED = {"POSTGRES_PASSWORD": "pw", "GRAFANA_PASSWORD": "pw"}


def section(title: str) -> str:
    """The text of a section."""
    return PAGE.partition(f"## {title}")[2].partition("\n## ")[0]


def first_cells(text: str) -> set[str]:
    """What stands in code in the first cell of each row of the tables."""
    rows = re.findall(r"^\| ([^|]*) \|", text, flags=re.MULTILINE)
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row)}


def test_temporal_cloud_gets_every_search_attribute() -> None:
    told = dict(re.findall(r'--search-attribute "(\w+)=(\w+)"', PAGE))
    assert told == {str(name): kind for name, kind in SEARCH_ATTRIBUTE_TYPES.items()}


def test_services_of_compose_are_told_with_their_ports() -> None:
    services = load(NEEDED)["services"]
    table = section("Compose: a fleet on one machine")
    assert {name for name in first_cells(table) if " " not in name} == set(services)
    published = {port.rpartition(":")[0] for service in services.values() for port in service.get("ports", [])}
    assert set(re.findall(r"127\.0\.0\.1:\d+", table)) == published


def test_values_that_are_named_are_values() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    tops = "|".join(values)
    named = set(re.findall(rf"[`= ]((?:{tops})\.(?!yaml)\w+)", PAGE))
    assert len(named) > 15
    for name in named:
        top, _, rest = name.partition(".")
        assert top == "config" or rest in values[top], name


def test_components_and_overlays_are_those_of_the_tree() -> None:
    found = first_cells(section("Kubernetes with kustomize"))
    assert found == {path.name for path in (TREE / "components").iterdir()}
    overlays = set(re.findall(r"`(overlays/[\w-]+)`", PAGE))
    assert overlays == {f"overlays/{path.name}" for path in (TREE / "overlays").iterdir()}


def test_variables_that_are_named_are_settings() -> None:
    ours = set(re.findall(r"PERDURE_[A-Z0-9_]+", PAGE)) - {"PERDURE_TOKEN"}
    assert ours <= {f"PERDURE_{name}".upper() for name in Settings.model_fields}


@pytest.mark.parametrize("command", sorted(set(re.findall(r"perdure perdure ([^>\n]+)|-- perdure ([^\n]+)", PAGE))))
def test_verbs_that_are_named_are_verbs(command: tuple[str, str]) -> None:
    words = "".join(command).split()
    assert_exists(["perdure", *(word for word in words if word not in {"me", "run", "read"})])
