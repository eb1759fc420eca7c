"""A worker whose environment lacks what its tools need does not start, and says so in one line."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from perdure import Agent, Secret, Setting, Toolset, tool, tool_method
from perdure.agents.environment import UnmetNeedError
from perdure.worker.agents import check_needs

pytestmark = pytest.mark.deep


@tool(needs={"token": Secret("VAULT_TOKEN"), "tries": Setting("VAULT_TRIES", default=3)})
def unlock(token: str, tries: int) -> str:
    """Unlock."""
    return ""


class Vault(Toolset):
    @tool_method(needs={"token": Secret("OTHER_TOKEN")})
    def seal(self, token: str) -> str:
        """Seal."""
        return ""


AGENT = Agent(name="clerk", model="openai/x", tools=[unlock, Vault(name="vault")])
MODULE = """
from perdure import Agent, Secret, tool

@tool(needs={"token": Secret("VAULT_TOKEN")})
def unlock(token: str) -> str: ...

agent = Agent(name="clerk", model="openai/x", tools=[unlock])
"""


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        (
            {},
            "tool 'unlock' of agent 'clerk' cannot run here: it needs the variable VAULT_TOKEN, which is not set; "
            "set it where the process is started; tool 'vault__seal' of agent 'clerk' cannot run here: it needs the "
            "variable OTHER_TOKEN, which is not set; set it where the process is started",
        ),
        (
            {"VAULT_TOKEN": "a", "OTHER_TOKEN": "b", "VAULT_TRIES": "x"},
            "tool 'unlock' of agent 'clerk' cannot run here: the variable VAULT_TRIES does not fit its parameter "
            "'tries' (Input should be a valid integer, unable to parse string as an integer, got 'x'); correct it",
        ),
    ],
)
def test_every_tool_and_variable_is_named(environment: Mapping[str, str], problem: str) -> None:
    with pytest.raises(UnmetNeedError) as refusal:
        check_needs([AGENT], "here", environment)
    assert str(refusal.value) == problem


def test_a_tool_of_another_task_queue_is_exempt() -> None:
    agent = Agent(name="clerk", model="openai/x", tools=[unlock.with_(task_queue="there")])
    check_needs([agent], "here", {})
    with pytest.raises(UnmetNeedError, match="VAULT_TOKEN"):
        check_needs([agent], "there", {})
    check_needs([AGENT], "here", {"VAULT_TOKEN": "a", "OTHER_TOKEN": "b"})


def started(folder: Path, *modes: tuple[str, str]) -> tuple[int, str]:
    """A worker that would not reach any server: its exit code, and what it says."""
    module = folder / "clerks.py"
    module.write_text(MODULE)
    ended = subprocess.run(
        [sys.executable, "-m", "perdure.worker", "--agents", str(module)],
        env={"PATH": "/usr/bin:/bin", "PERDURE_METRICS_ADDRESS": "", "TEMPORAL_ADDRESS": "127.0.0.1:1", **dict(modes)},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return ended.returncode, ended.stderr.strip().splitlines()[-1]


def test_the_worker_ends_with_one_line_before_it_asks_a_server(tmp_path: Path) -> None:
    code, said = started(tmp_path)
    assert code == 2
    assert said.startswith("perdure: tool 'unlock' of agent 'clerk' cannot run here: it needs the variable VAULT_TOKEN")


def test_a_worker_that_replays_runs_no_tool_and_needs_nothing(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    replaying = (("PERDURE_RECORDING_MODE", "replay"), ("PERDURE_RECORDINGS", str(tmp_path / "kept")))
    code, said = started(tmp_path, *replaying)
    assert (code, "no Temporal server answers" in said) == (8, True)
