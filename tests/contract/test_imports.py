"""What comes along with an import, seen in a fresh interpreter: no vendor, no server, no side effect."""

import ast
import json
from pathlib import Path

import pytest

from tests.contract.repository import PURE, ROOT, modules, run

pytestmark = pytest.mark.deep

IMPORT_AND_TELL = """
import importlib, json, os, sys
wanted, unwanted = json.loads(sys.argv[1])
before = dict(os.environ)
came_along = {}
for name in wanted:
    importlib.import_module(name)
    for vendor in unwanted:
        if vendor in sys.modules:
            came_along.setdefault(vendor, name)
changed = sorted(key for key in before.keys() | dict(os.environ).keys() if before.get(key) != os.environ.get(key))
print(json.dumps([came_along, changed]))
"""

VENDORS = ["litellm", "mcp", "openai"]
APPLICATION = ["perdure.workflows", "perdure.activities", "perdure.worker"]
OURS_BUT_NOT_PURE = ["perdure.client", "perdure.store", "perdure.cli", "perdure.gateway", "perdure.settings"]
OUTSIDE = [*VENDORS, "temporalio", "sqlalchemy", "click", "starlette", "httpx", "prometheus_client"]

IN_MEMORY = {
    f"perdure.testing.{name}"
    for name in (
        "calls",
        "in_memory",
        "memory_runtime",
        "simulated_checks",
        "simulated_faults",
        "simulated_replay",
        "simulation",
        "stand_in",
    )
}
"""Modules of run_in_memory, which does in its process what a worker does; perdure.testing itself imports none."""

OF_THE_SDK = {"perdure.cli.mcp_tasks"}
"""An extension of MCP's SDK, imported where ``perdure mcp`` runs."""

CASES = {
    "the top package": (["perdure"], OUTSIDE + OURS_BUT_NOT_PURE),
    "the pure packages": (modules(*PURE), OUTSIDE + OURS_BUT_NOT_PURE),
    "the store": (modules("perdure/store"), [*VENDORS, "temporalio", "perdure.client"]),
    "the client": (modules("perdure/client"), [*VENDORS, *APPLICATION]),
    "the command line": (["perdure.cli.main"], [*VENDORS, *APPLICATION]),
    "the library": (
        [name for name in modules("perdure") if name not in IN_MEMORY | OF_THE_SDK],
        [*VENDORS, *APPLICATION],
    ),
    "the workflows": (modules("workflows"), [*VENDORS, "sqlalchemy", "httpx", "perdure.activities", "perdure.worker"]),
}


@pytest.mark.parametrize(("wanted", "unwanted"), CASES.values(), ids=CASES.keys())
def test_an_import_brings_nothing_unwanted_and_changes_nothing(
    wanted: list[str], unwanted: list[str], tmp_path: Path
) -> None:
    done = run("-c", IMPORT_AND_TELL, json.dumps([wanted, unwanted]), cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert done.stderr == ""
    *printed, told = done.stdout.splitlines()
    assert printed == []
    came_along, changed = json.loads(told)
    assert came_along == {}
    assert changed == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["world", "mail", "runtime", "visibility", "options", "failures"])
def test_what_a_turn_does_does_not_know_the_runtime_under_it(name: str) -> None:
    """The same world runs on Temporal, in memory and in a simulation: it names no ``temporalio.workflow``."""
    tree = ast.parse((ROOT / "workflows" / f"{name}.py").read_text())
    named = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module is not None]
    assert not [node.module for node in named if f"{node.module}." in {"temporalio.workflow.", "asyncio."}]
    assert "workflow" not in [alias.name for node in named if node.module == "temporalio" for alias in node.names]
    assert not [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name in {"asyncio", "temporalio.workflow"}
    ]


def test_every_module_of_the_pure_packages_is_looked_at() -> None:
    wanted, _ = CASES["the pure packages"]
    assert {"perdure.contracts.turns", "perdure.agents.agent", "perdure.engine.turn"} <= set(wanted)


TELL_AT_LITELLM = """
import importlib, os, sys
os.environ.pop("LITELLM_LOCAL_MODEL_COST_MAP", None)
class Tell:
    def find_spec(self, name, *_):
        if name == "litellm":
            print(os.environ.get("LITELLM_LOCAL_MODEL_COST_MAP"), flush=True)
            os._exit(0)
sys.meta_path.insert(0, Tell())
importlib.import_module(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("first", "told"),
    [
        ("perdure.activities.models.litellm_door", ["True"]),
        ("perdure.activities.models.model_call", []),
        ("perdure.testing.in_memory", []),
        ("perdure.worker.app", []),
    ],
)
def test_litellm_fetches_nothing_and_is_imported_by_its_door_only(first: str, told: list[str], tmp_path: Path) -> None:
    """Without a network each fetch of its price list is tried for seconds; its import takes some itself."""
    done = run("-c", TELL_AT_LITELLM, first, cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert done.stdout.split() == told, done.stderr
