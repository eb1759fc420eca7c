"""Each guard of the code is shown to bite: a fault is planted in a copy, and the guard names it."""

from pathlib import Path

import pytest

from tests.contract.repository import ROOT, copy_of_the_code, run

LINT_IMPORTS = "from importlinter.cli import lint_imports_command as main; main()"

FORBIDDEN_IMPORTS = [
    ("perdure/engine/planted.py", "import random", "perdure.engine.planted -> random"),
    ("perdure/contracts/planted.py", "import temporalio", "perdure.contracts.planted -> temporalio"),
    ("perdure/agents/planted.py", "def f() -> None:\n    import time", "perdure.agents.planted -> time"),
    ("perdure/engine/planted.py", "import perdure.client", "perdure.engine.planted -> perdure.client"),
    ("perdure/store/planted.py", "import perdure.agents", "perdure.store.planted -> perdure.agents"),
    ("perdure/client/planted.py", "import perdure.cli", "perdure.client.planted -> perdure.cli"),
    ("perdure/client/planted.py", "def f() -> None:\n    import litellm", "perdure.client.planted -> litellm"),
    ("perdure/planted.py", "", "planted"),
    ("perdure/utils/__init__.py", "", "utils"),
    ("workflows/planted.py", "def f() -> None:\n    import litellm", "perdure.workflows.planted -> litellm"),
    ("workflows/planted.py", "import perdure.activities", "perdure.workflows.planted -> perdure.activities"),
    ("workflows/planted.py", "import perdure.store", "perdure.workflows.planted -> perdure.store"),
    ("activities/planted.py", "import perdure.worker", "perdure.activities.planted -> perdure.worker"),
    ("worker/planted.py", "import mcp", "perdure.worker.planted -> mcp"),
]

NOW = "from datetime import UTC, datetime\n\nAT = datetime.now(UTC)\n"
FORBIDDEN_CALLS = [
    ("workflows/planted.py", NOW, "workflow.now()"),
    ("perdure/contracts/planted.py", NOW, "workflow.now()"),
    ("perdure/engine/planted.py", "import uuid\n\nID = uuid.uuid4()\n", "workflow.uuid4()"),
    ("perdure/agents/planted.py", "import logging\n\nLOG = logging.getLogger(__name__)\n", "workflow.logger"),
    ("workflows/planted.py", "import asyncio\n\nWAIT = asyncio.wait\n", "workflow.wait"),
    ("workflows/planted.py", "import time\n\nAT = time.monotonic()\n", "workflow.time()"),
    ("workflows/planted.py", "import random\n\nN = random.random()\n", "workflow.random()"),
    ("workflows/planted.py", "import activities\n", "Import perdure.activities"),
    ("activities/planted.py", "from workflows.options import GRACE\n", "Import perdure.workflows"),
    ("perdure/cli/planted.py", "from worker.app import run\n", "Import perdure.worker"),
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return copy_of_the_code(tmp_path)


def plant(tree: Path, path: str, text: str) -> None:
    file = tree / path
    file.parent.mkdir(exist_ok=True)
    file.write_text(f'"""A fault."""\n\n{text}\n', encoding="utf-8")


def lint_imports(tree: Path) -> tuple[int, str]:
    done = run("-c", LINT_IMPORTS, "--no-logo", "--no-cache", cwd=tree, PYTHONPATH=str(tree), COLUMNS="400")
    return done.returncode, done.stdout + done.stderr


def ruff(path: Path) -> str:
    done = run("-m", "ruff", "check", "--no-cache", "--output-format=concise", str(path), cwd=path.parent)
    return done.stdout + done.stderr


def test_the_code_keeps_the_import_rules() -> None:
    code, output = lint_imports(ROOT)
    assert code == 0, output


@pytest.mark.parametrize(("path", "text", "named"), FORBIDDEN_IMPORTS)
def test_a_forbidden_import_is_named(tree: Path, path: str, text: str, named: str) -> None:
    plant(tree, path, text)
    code, output = lint_imports(tree)
    assert code == 1, output
    assert named in output


@pytest.mark.parametrize(("path", "text", "instead"), FORBIDDEN_CALLS)
def test_a_call_that_is_not_replayed_is_refused_with_its_replacement(
    tree: Path, path: str, text: str, instead: str
) -> None:
    plant(tree, path, text)
    findings = [line for line in ruff(tree / path).splitlines() if "TID251" in line]
    assert findings
    assert all(instead in line for line in findings)


def test_activities_may_look_at_the_clock(tree: Path) -> None:
    plant(tree, "activities/planted.py", NOW)
    assert "TID251" not in ruff(tree / "activities/planted.py")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("def f() -> None:\n    try:\n        g()\n    except Exception:\n        return\n", "BLE001"),
        ("print('here')\n", "T201"),
        ("def f() -> None:\n    import json\n", "PLC0415"),
        ("from . import app\n", "TID252"),
    ],
)
def test_a_habit_of_careless_code_is_refused(tree: Path, text: str, rule: str) -> None:
    plant(tree, "worker/planted.py", text)
    assert rule in ruff(tree / "worker/planted.py")
