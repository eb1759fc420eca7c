"""S-83: the unmodified ``openai`` client from npm at the door of OpenAI's Responses API."""

import json
import shutil
from pathlib import Path

import pytest

from perdure import Agent, tool
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, faults, say
from tests import npm_servers
from tests.gateway import gateway, token_lines
from tests.house import House
from tests.workflow.test_gateway_clients import run

pytestmark = [
    pytest.mark.deep,
    pytest.mark.judged("OpenAI Responses", f"{npm_servers.OPENAI[0].replace('@', ' ')} (npm)"),
]

TEXT = "The quick brown fox jumps over the lazy dog"


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def answer(request: ChatRequest) -> Reply:
    """What the prompt asks for, and at last what the tool has said."""
    last = request.messages[-1]
    if last["role"] == "tool":
        return say(f"It says: {last['content']}")
    replies = {
        "write": say(TEXT),
        "hang": say("never").after(faults.hang()),
        "look": call(("look", {"id": 7})),
        "pay": call(("pay", {"amount": 7})),
    }
    return replies[str(last["content"])]


@npm_servers.openai_installed
async def test_the_client_from_npm_starts_streams_resumes_cancels_and_replies(house: House, tmp_path: Path) -> None:
    """S-83: a stream that is cut goes on behind the event that was seen last."""
    (tmp_path / "node_modules").symlink_to(npm_servers.FOLDER / "node_modules")
    shutil.copy(Path(__file__).parent / "openai_client.mjs", tmp_path / "main.mjs")
    lines, tokens = token_lines(bot=("acme", "run,read,approve"))
    agent = Agent(name="tester", model="openai/scripted", tools=[pay], stream="always")
    async with (
        ScriptedProvider(answer) as provider,
        house.worker(agent),
        gateway(house, doors=("responses",), gateway_tokens=lines) as door,
    ):
        house.use(provider)
        told = await run("node", "main.mjs", cwd=tmp_path, PERDURE_URL=door.url, PERDURE_TOKEN=tokens["bot"])
    assert json.loads(told) == {
        "whole": ["completed", TEXT, "finished"],
        "models": ["tester"],
        "cut": [TEXT, True, "response.completed", True],
        "cancelled": "cancelled",
        "tool": ["look", "It says: customer 7"],
        "approved": ["paid 7", "It says: paid 7"],
        "refused": [True, "request.unknown_turn"],
    }
