"""The page on A2A: its command runs as it stands there, and its tables name the states and needs that there are."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from perdure import Agent
from perdure.contracts.a2a import TaskState
from perdure.testing import Script, ScriptedProvider, say
from tests.gateway import gateway
from tests.house import House

PAGE = (Path(__file__).parents[2] / "docs" / "a2a.md").read_text(encoding="utf-8")
(COMMAND,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.deep
async def test_the_command_of_the_page_runs(house: House) -> None:
    """S-83."""
    writer = Agent(name="writer", model="openai/scripted")
    async with (
        ScriptedProvider(Script(replies=(say("The Rhine"),))) as provider,
        house.worker(writer),
        gateway(house, doors=("a2a",)) as door,
    ):
        house.use(provider)
        ran = await asyncio.create_subprocess_exec(
            *("sh", "-c", COMMAND),
            env={"PATH": "/usr/bin:/bin", "PERDURE_URL": door.url, "PERDURE_TOKEN": "x"},
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await ran.communicate()
    task = json.loads(said)["task"]
    assert task["status"]["state"] == TaskState.COMPLETED
    assert [artifact["parts"][0]["text"] for artifact in task["artifacts"]] == ["The Rhine"]


def test_the_page_names_every_state() -> None:
    assert not {state.name for state in TaskState if f"`{state.name}`" not in PAGE}
