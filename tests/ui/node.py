"""Parts of the gateway's page, run by Node alone; without one on the PATH the tests are skipped, and say so."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def run_script(name: str, given: object) -> Any:
    """The JSON that a script of this folder prints for the JSON that it is given."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node on the PATH (for example: apt-get install nodejs)")
    text = json.dumps(given)
    ran = subprocess.run([node, HERE / name], input=text, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def folded(session: str, *batches: Any) -> dict[str, Any]:
    """The state of the page after these batches of events and pieces of answers."""
    state: dict[str, Any] = run_script("fold.mjs", {"session": session, "batches": batches})
    return state


def called(module: str, name: str, *given: Any) -> Any:
    """The result of a function of the page."""
    (result,) = run_script("parts.mjs", [[module, name, given]])
    return result
