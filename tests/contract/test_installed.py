"""``pip install 'perdure[worker]'`` gives a worker in a project of one's own, with no checkout beside it."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from perdure.local_ports import find_free_port
from perdure.testing.provider import ScriptedProvider
from perdure.testing.script import Script, call, say
from tests.contract.repository import PACKAGES, ROOT, run, sources

pytestmark = [pytest.mark.deep, pytest.mark.timeout(900)]

WAIT_SECONDS = 120

OF_THE_DEVELOPER = ("PERDURE_", "TEMPORAL_", "OPENAI_", "ANTHROPIC_", "PYTHON")

AGENT = """
from activities.words import count
from perdure import Agent

agent = Agent(name="writer", model="openai/gpt-5-mini", tools=[count])
"""

TOOL = '''
from perdure import tool


@tool
def count(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())
'''


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that is made from it."""
    folder = tmp_path_factory.mktemp("built")
    done = run("-m", "hatchling", "build", "-t", "sdist", "-d", str(folder), cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    done = run("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=source)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment that has the wheel and what it asks for, in the locked versions."""
    folder = tmp_path_factory.mktemp("installed")
    (wheel,) = built.glob("*.whl")
    lock = (ROOT / "requirements/dev.txt").read_text(encoding="utf-8")
    locked = re.findall(r"^([a-zA-Z0-9_.\-]+==[^\s;\\]+(?: ; [^\\\n]+)?)", lock, re.MULTILINE)
    (folder / "constraints.txt").write_text("\n".join(locked), encoding="utf-8")
    python = str(folder / "venv/bin/python")
    # Our own pip installs from outside, and compiles nothing: of 450 MB, a worker imports a part.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True, timeout=120)
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile"]
    done = subprocess.run(
        [*pip, "-c", str(folder / "constraints.txt"), f"{wheel}[worker]"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    if done.returncode and "No matching distribution" not in done.stderr and "ConnectionError" in done.stderr:
        pytest.skip("no package index can be reached, so nothing can be installed")
    assert done.returncode == 0, done.stderr
    return folder / "venv/bin"


def test_the_sdist_holds_each_module_once(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = [member.name.partition("/")[2] for member in archive if member.isfile()]
    for path in sources(*PACKAGES):
        held = [name for name in names if name.removeprefix("perdure/") == path.as_posix().removeprefix("perdure/")]
        assert len(held) == 1, (path, held)


def test_the_wheel_made_from_the_sdist_has_the_worker(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"perdure/worker/__main__.py", "perdure/workflows/agent_turn.py", "perdure/activities/generate.py"} <= names
    assert {"perdure/activities/models/wires/chat.py", "perdure/store/keys/vault.py"} <= names
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {"perdure"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a package ``activities`` of its own, as many Temporal projects have one."""
    (tmp_path / "activities").mkdir()
    (tmp_path / "activities/__init__.py").touch()
    (tmp_path / "activities/words.py").write_text(TOOL, encoding="utf-8")
    (tmp_path / "my_agent.py").write_text(AGENT, encoding="utf-8")
    return tmp_path


@asynccontextmanager
async def developing(installed: Path, project: Path, environment: dict[str, str]) -> AsyncIterator[str]:
    """``perdure dev`` in the project, until the block ends; the address of its server."""
    port = find_free_port()
    command = [str(installed / "perdure"), "dev", "--agents", "my_agent.py", "--headless", "--port", str(port)]
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        assert process.stdout is not None
        said = b""
        while b"Ctrl+C" not in said:
            line = await asyncio.wait_for(process.stdout.readline(), WAIT_SECONDS)
            assert line, said.decode()
            said += line
        yield f"127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), WAIT_SECONDS)


async def test_a_job_runs_in_a_project_with_a_package_named_activities(installed: Path, project: Path) -> None:
    """Nothing of perdure takes a top-level name, so nothing of the user's is shadowed."""
    script = Script(replies=(call(("count", {"text": "a b c"})), say("Three words.")))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OF_THE_DEVELOPER)}
    async with ScriptedProvider(script) as provider:
        environment = {
            **kept,
            "OPENAI_API_KEY": "sk-scripted-0123456789",
            "OPENAI_BASE_URL": provider.url,
            "OPENAI_API_BASE": provider.url,
            "PERDURE_METRICS_ADDRESS": f"127.0.0.1:{find_free_port()}",
        }
        async with developing(installed, project, environment) as address:
            job = await asyncio.create_subprocess_exec(
                *(str(installed / "perdure"), "run", "writer", "Count these words.", "--json"),
                env={**environment, "TEMPORAL_ADDRESS": address},
                cwd=project,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            said, complaints = await asyncio.wait_for(job.communicate(), WAIT_SECONDS)
    events = [json.loads(line) for line in said.splitlines()]
    assert (job.returncode, complaints) == (0, b"")
    assert [event["result"] for event in events if event["type"] == "tool_end"] == ["3"]
    assert (events[-1]["type"], events[-1]["stop_reason"]) == ("agent_end", "finished")
