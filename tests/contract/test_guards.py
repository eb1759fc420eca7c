"""Each guard of the code is shown to bite: faults are planted in a copy, and the guard names them.

A guard runs once over all of its faults, since a run takes seconds; each fault has a module of its own.
"""

import ast
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.contract.repository import PACKAGES, ROOT, copy_of_the_code, run, sources

pytestmark = pytest.mark.deep

LINT_IMPORTS = "from importlinter.cli import lint_imports_command as main; main()"

FORBIDDEN_IMPORTS = [
    ("perdure/engine/{}.py", "import random", "perdure.engine.{} -> random"),
    ("perdure/llm/{}.py", "import perdure.engine", "perdure.llm.{} -> perdure.engine"),
    ("perdure/security/{}.py", "import os", "perdure.security.{} -> os"),
    ("perdure/contracts/{}.py", "import temporalio", "perdure.contracts.{} -> temporalio"),
    ("perdure/agents/{}.py", "def f() -> None:\n    import time", "perdure.agents.{} -> time"),
    ("perdure/engine/{}.py", "import perdure.client", "perdure.engine.{} -> perdure.client"),
    ("perdure/store/{}.py", "import perdure.agents", "perdure.store.{} -> perdure.agents"),
    ("perdure/client/{}.py", "import perdure.cli", "perdure.client.{} -> perdure.cli"),
    ("perdure/client/{}.py", "def f() -> None:\n    import litellm", "perdure.client.{} -> litellm"),
    ("perdure/{}.py", "", "- perdure.{}\n"),
    ("perdure/{}/__init__.py", "", "- perdure.{}\n"),
    (
        "perdure/gateway/routes/{}.py",
        "from perdure.client.executions import Runs",
        "perdure.gateway.routes.{} -> perdure.client.executions",
    ),
    ("perdure/cli/{}.py", "import perdure.client.waits", "perdure.cli.{} -> perdure.client.waits"),
    ("workflows/{}.py", "def f() -> None:\n    import litellm", "perdure.workflows.{} -> litellm"),
    ("workflows/{}.py", "import perdure.activities", "perdure.workflows.{} -> perdure.activities"),
    ("workflows/{}.py", "import perdure.store", "perdure.workflows.{} -> perdure.store"),
    ("activities/{}.py", "import perdure.worker", "perdure.activities.{} -> perdure.worker"),
    (
        "activities/mcp/{}.py",
        "import perdure.activities.tools",
        "perdure.activities.mcp.{} -> perdure.activities.tools",
    ),
    (
        "activities/models/{}.py",
        "import perdure.activities.generate",
        "perdure.activities.models.{} -> perdure.activities.generate",
    ),
    (
        "activities/telling/{}.py",
        "import perdure.activities.toolbox.claims",
        "perdure.activities.telling.{} -> perdure.activities.toolbox.claims",
    ),
    ("activities/{}.py", "", "- perdure.activities.{}\n"),
    ("activities/toolbox/{}.py", "", "- perdure.activities.toolbox.{}\n"),
    ("worker/{}.py", "import mcp", "perdure.worker.{} -> mcp"),
]

NOW = "from datetime import UTC, datetime\n\nAT = datetime.now(UTC)\n"
FORBIDDEN_CALLS = [
    ("workflows/{}.py", NOW, "workflow.now()"),
    ("perdure/contracts/{}.py", NOW, "workflow.now()"),
    ("perdure/engine/{}.py", "import uuid\n\nID = uuid.uuid4()\n", "workflow.uuid4()"),
    ("perdure/llm/{}.py", "import uuid\n\nID = uuid.uuid4()\n", "workflow.uuid4()"),
    ("perdure/agents/{}.py", "import logging\n\nLOG = logging.getLogger(__name__)\n", "workflow.logger"),
    ("workflows/{}.py", "import asyncio\n\nWAIT = asyncio.wait\n", "workflow.wait"),
    ("workflows/{}.py", "import time\n\nAT = time.monotonic()\n", "workflow.time()"),
    ("workflows/{}.py", "import random\n\nN = random.random()\n", "workflow.random()"),
    ("workflows/{}.py", "import activities\n", "Import perdure.activities"),
    ("activities/{}.py", "from workflows.options import GRACE\n", "Import perdure.workflows"),
    ("perdure/cli/{}.py", "from worker.app import run\n", "Import perdure.worker"),
]
HABITS = [
    ("worker/{}.py", "def f() -> None:\n    try:\n        g()\n    except Exception:\n        return\n", "BLE001"),
    ("worker/{}.py", "print('here')\n", "T201"),
    ("worker/{}.py", "def f() -> None:\n    import json\n", "PLC0415"),
    ("worker/{}.py", "from . import app\n", "TID252"),
]
CLOCK_OF_AN_ACTIVITY = ("activities/{}.py", NOW, "")

Fault = tuple[str, str, str]
"""Where it is planted, its text, and how its guard names it; the braces stand for the module's name."""


def named(faults: list[Fault]) -> dict[str, Fault]:
    """The faults by the names of their modules, no name the beginning of another."""
    return {f"planted_{number:02}": fault for number, fault in enumerate(faults, start=1)}


IMPORTS, LINES = named(FORBIDDEN_IMPORTS), named([*FORBIDDEN_CALLS, *HABITS, CLOCK_OF_AN_ACTIVITY])


def plant(tree: Path, faults: Mapping[str, Fault]) -> list[str]:
    """Write each fault into its module, and return their paths."""
    paths = {fault[0].format(name): fault[1] for name, fault in faults.items()}
    for path, text in paths.items():
        (tree / path).parent.mkdir(exist_ok=True)
        (tree / path).write_text(f'"""A fault."""\n\n{text}\n', encoding="utf-8")
    return list(paths)


def lint_imports(tree: Path) -> tuple[int, str]:
    done = run("-c", LINT_IMPORTS, "--no-logo", "--no-cache", cwd=tree, PYTHONPATH=str(tree), COLUMNS="400")
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def import_findings(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the import rules say of the code with all forbidden imports in it."""
    tree = copy_of_the_code(tmp_path_factory.mktemp("imports"))
    plant(tree, IMPORTS)
    code, output = lint_imports(tree)
    assert code == 1, output
    return output


@pytest.fixture(scope="module")
def line_findings(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[str]]:
    """The lines that ruff prints about each planted module, by its name."""
    tree = copy_of_the_code(tmp_path_factory.mktemp("lines"))
    paths = plant(tree, LINES)
    done = run("-m", "ruff", "check", "--no-cache", "--output-format=concise", *paths, cwd=tree)
    found: defaultdict[str, list[str]] = defaultdict(list)
    for line in done.stdout.splitlines():
        found[Path(line.partition(":")[0]).stem].append(line)
    assert found, done.stderr
    return found


def test_the_code_keeps_the_import_rules() -> None:
    code, output = lint_imports(ROOT)
    assert code == 0, output


@pytest.mark.parametrize("module", IMPORTS, ids=[what.format("x") for _, _, what in IMPORTS.values()])
def test_a_forbidden_import_is_named(module: str, import_findings: str) -> None:
    assert IMPORTS[module][2].format(module) in import_findings


@pytest.mark.parametrize("module", [name for name, fault in LINES.items() if fault in FORBIDDEN_CALLS])
def test_a_call_that_is_not_replayed_is_refused_with_its_replacement(
    module: str, line_findings: Mapping[str, list[str]]
) -> None:
    findings = [line for line in line_findings[module] if "TID251" in line]
    assert findings
    assert all(LINES[module][2] in line for line in findings)


@pytest.mark.parametrize("module", [name for name, fault in LINES.items() if fault == CLOCK_OF_AN_ACTIVITY])
def test_activities_may_look_at_the_clock(module: str, line_findings: Mapping[str, list[str]]) -> None:
    assert not [line for line in line_findings.get(module, []) if "TID251" in line]


@pytest.mark.parametrize("module", [name for name, fault in LINES.items() if fault in HABITS])
def test_a_habit_of_careless_code_is_refused(module: str, line_findings: Mapping[str, list[str]]) -> None:
    assert any(LINES[module][2] in line for line in line_findings[module])


def calls_without_retry(text: str) -> list[int]:
    """The lines of the calls of Temporal's raw services that do not say whether they are repeated."""
    return [
        call.lineno
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Attribute)
        and call.func.value.attr in {"workflow_service", "operator_service"}
        and "retry" not in {keyword.arg for keyword in call.keywords}
    ]


def test_every_raw_call_of_the_server_says_whether_it_is_repeated() -> None:
    """The SDK does not by default, and a server that closes its connections by their age cancels what runs on them."""
    assert calls_without_retry("await temporal.workflow_service.reset(request)") == [1]
    texts = {str(path): (ROOT / path).read_text("utf-8") for path in sources(*PACKAGES, "tests")}
    found = {path: calls_without_retry(text) for path, text in texts.items() if "_service." in text}
    assert found
    assert not {path: lines for path, lines in found.items() if lines}
