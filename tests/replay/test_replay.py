"""Every stored history replays against today's code, also those of earlier releases; a changed workflow does not."""

import base64
import gc
import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner
from temporalio.workflow import NondeterminismError

from perdure.client.connect import DATA_CONVERTER
from perdure.workflows.agent_turn import AgentTurn
from perdure.workflows.errands import KnockAtSession, NotifyWebhook
from tests.releases import RELEASES
from tests.replay.changed import CallsToolsOneByOne, GeneratesByAnotherName, WaitsBeforeItCommits
from tests.replay.record import HISTORIES
from tests.replay.scenarios import SCENARIOS
from tests.sandbox import fresh_runner

STORED = sorted([*HISTORIES.rglob("*.json"), *RELEASES.glob("*/histories/*.json")])
CURRENT = HISTORIES / version("perdure")

RUNNERS = {"production": UnsandboxedWorkflowRunner, "strict": fresh_runner}


@pytest.fixture(scope="module", autouse=True)
def _no_rubbish_of_other_tests() -> None:
    """What earlier tests of this process left is collected here: inside a sandbox, to log of it would be refused."""
    gc.collect()


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def history_of(path: Path) -> WorkflowHistory:
    session = re.sub(r"-\d+$", "", path.stem)
    return WorkflowHistory.from_json(session, path.read_text(encoding="utf-8"))


async def replay(path: Path, workflow: type[AgentTurn], runner: str) -> None:
    replayer = Replayer(
        workflows=[workflow, NotifyWebhook, KnockAtSession],
        data_converter=DATA_CONVERTER,
        workflow_runner=RUNNERS[runner](),
    )
    await replayer.replay_workflow(history_of(path))


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("path", STORED, ids=name_of)
async def test_a_stored_history_replays(path: Path, runner: str) -> None:
    """S-80: a turn that began under any recorded version goes on under this one."""
    await replay(path, AgentTurn, runner)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        *((name, GeneratesByAnotherName) for name in ("parallel-tools", "cancelled-in-tool", "rotated-2")),
        *((name, WaitsBeforeItCommits) for name in ("parallel-tools", "cancelled-in-tool", "rotated-2")),
        *((name, CallsToolsOneByOne) for name in ("parallel-tools", "cancelled-in-tool")),
    ],
)
async def test_a_history_does_not_replay_against_a_workflow_that_does_something_else(
    name: str, changed: type[AgentTurn]
) -> None:
    """Proves that the test above can fail."""
    with pytest.raises(NondeterminismError):
        await replay(CURRENT / f"{name}.json", changed, "production")


def test_each_scenario_has_its_histories_of_this_version() -> None:
    assert {re.sub(r"-\d+$", "", path.stem) for path in CURRENT.glob("*.json")} == {
        scenario.name for scenario in SCENARIOS
    }


@pytest.mark.parametrize("path", STORED, ids=name_of)
def test_a_stored_history_names_no_machine_and_holds_no_key(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    everything = text + "".join(payloads(json.loads(text)))
    process = re.findall(r"\b[0-9]+@[\w.-]+", everything)
    paths = re.findall(r"/(?:home|Users|root|tmp|var|usr|opt|srv)/[\w./-]*|[\w./-]+\.py\b|Traceback", everything)
    keys = re.findall(r"sk-[\w-]+", everything)
    assert (process, paths, keys) == ([], [], [])


@pytest.mark.parametrize("path", STORED, ids=name_of)
def test_a_stored_history_is_small(path: Path) -> None:
    assert path.stat().st_size < 100_000


def payloads(value: Any) -> list[str]:
    """The texts of all payloads, which stand in the file as base64."""
    if isinstance(value, list):
        return [text for item in value for text in payloads(item)]
    if not isinstance(value, dict):
        return []
    own = [base64.b64decode(value["data"]).decode()] if isinstance(value.get("data"), str) else []
    return own + [text for item in value.values() for text in payloads(item)]
