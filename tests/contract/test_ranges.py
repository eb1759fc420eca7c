"""The ranges of what the base install requires: a program with the client shares them with its other packages."""

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from perdure.libraries import NAMES, TESTED
from tests.contract.repository import PACKAGES, ROOT, sources

BASE = {
    needed.name: needed
    for needed in map(
        Requirement, tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    )
}

UNBOUND = {"packaging": "its majors are years, and what perdure uses of it is a standard: requirements and specifiers"}
"""Libraries without an upper bound, with the reason."""


@pytest.mark.parametrize("name", sorted(BASE.keys() - UNBOUND))
def test_a_library_of_the_base_install_is_bound_by_a_major_release_alone(name: str) -> None:
    (upper,) = [bound.version for bound in BASE[name].specifier if bound.operator not in {">", ">="}]
    (bound,) = [str(bound) for bound in BASE[name].specifier if bound.version == upper]
    assert re.fullmatch(r"<[1-9]\d*", bound)


@pytest.mark.parametrize("name", UNBOUND)
def test_a_library_without_an_upper_bound_has_the_lower_one_alone(name: str) -> None:
    assert [bound.operator for bound in BASE[name].specifier] == [">="]


@pytest.mark.parametrize(
    ("release", "fits"), [("1.35.0", True), ("1.36.0", True), ("1.99.1", True), ("1.34.9", False), ("2.0.0", False)]
)
def test_the_client_goes_with_each_minor_release_of_temporalio_from_the_tested_one_on(release: str, fits: bool) -> None:
    assert BASE["temporalio"].specifier.contains(release) is fits


@pytest.mark.parametrize("name", TESTED)
def test_the_locked_release_is_one_that_a_worker_is_said_to_be_tested_with(name: str) -> None:
    """Whoever locks a newer one moves the range, and looks at the names."""
    locked = re.findall(rf"^{name}==(\S+)", (ROOT / "requirements/run.txt").read_text(encoding="utf-8"), re.MULTILINE)
    tested = Requirement(f"{name}{TESTED[name]}").specifier
    assert [release for release in locked if tested.contains(release)] == locked != []
    assert {str(bound) for bound in tested if bound.operator == ">="} <= {str(bound) for bound in BASE[name].specifier}


PRIVATE = re.compile(r"_[a-zA-Z]\w*")


def private_names(text: str) -> Iterator[str]:
    """Names that a module takes from elsewhere although they are private, in an import, with a dot or in quotes."""
    own = re.findall(
        r"\b(?:class|def) (_\w+)|\b(?:self|cls)\.(_\w+)|^(_\w+)\b|\b(?:os|sys)\.(_\w+)", text, re.MULTILINE
    )
    ours = {name for names in own for name in names}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            yield from private_parts(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from private_parts(alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield from {node.attr} - ours if PRIVATE.fullmatch(node.attr) else ()
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from {node.value} - ours if PRIVATE.fullmatch(node.value) else ()


def private_parts(paths: Iterable[str]) -> Iterator[str]:
    parts = [part for path in paths if path.startswith("temporalio.") for part in path.split(".")]
    yield from (part for part in parts if part.startswith("_") or part == "bridge")


def test_a_private_name_of_temporalio_is_used_by_workers_alone_and_compared_before_they_start() -> None:
    """What a client touches of it is public, so that a newer minor release cannot take it away."""
    found = {
        path: names
        for path in sources(*PACKAGES)
        if "temporalio" in (text := (ROOT / path).read_text(encoding="utf-8"))
        and path.name != "libraries.py"
        and (names := set(private_names(text)))
    }
    assert found.keys() == {Path("activities/heartbeat.py")}
    compared = {
        part
        for name in NAMES
        if name.library == "temporalio"
        for part in (*name.module.split("."), *name.path.split("."), *name.sets)
    }
    assert found[Path("activities/heartbeat.py")] - compared == set()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("from temporalio.client._client import Client", {"_client"}),
        ("from temporalio.bridge import proto", {"bridge"}),
        ("import temporalio.bridge.client", {"bridge"}),
        ("def f(client):\n    return client._impl", {"_impl"}),
        ("context = vars(activity)['_Context']", {"_Context"}),
        ("class A:\n    def f(self):\n        return self._own", set()),
        ("from temporalio.client import Client", set()),
    ],
)
def test_a_private_name_is_found_however_it_is_written(text: str, names: set[str]) -> None:
    assert set(private_names(text)) == names
