"""S-85: frameworks that strangers wrote, unmodified, in their newest releases, at the door of OpenAI's Responses API.

Each case of a program talks to an agent of its own, named as the case: so its effects and sessions can be counted.
"""

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from perdure import Agent, tool
from perdure.contracts.values import JsonValue
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, say
from tests.gateway import gateway
from tests.house import House
from tests.strangers import environments

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1_200)]


class Told(NamedTuple):
    """A case as it went: what the program printed of it, and how many effects and sessions it had."""

    said: str
    effects: int
    sessions: int


CHAT = Told("read effect one | it is done | two | three | four | five", 1, 1)
FUNCTION = Told("read look | look seen | two | three", 0, 1)
APPROVAL = Told("read pay | paid 7 | bye", 1, 1)
STREAM = Told("read effect look | it is done | look seen | two | three", 1, 1)

ALL = {
    "chat": CHAT,
    "function": FUNCTION,
    "two_functions": Told("read look seek | look seen | seek seen | bye", 0, 1),
    "approval": APPROVAL,
    "stream": STREAM,
    "edited": Told("read effect one | it is done | edited", 1, 2),
    "rewritten": Told("read rewritten | it is done | two | three | end", 1, 2),
    "unknown_model": Told("NotFoundError 404", 0, 0),
}
"""Outcome of each case with a framework that sends the ids of items; behind a rewritten message all is kept."""

EXPECTED: dict[str, dict[str, Told]] = {
    "openai_python.py": ALL,
    "openai_js.mjs": ALL,
    "openai_agents.py": ALL | {"interruption": APPROVAL, "handoff": Told("BadRequestError 400", 0, 1)},
    "openai_agents_js.mjs": ALL | {"interruption": APPROVAL, "handoff": Told("BadRequestError 400", 0, 1)},
    "langchain_responses.py": ALL | {"unknown_model": Told("OpenAIModelNotFoundError 404", 0, 0)},
    "langchain_js.mjs": ALL,
    "ai_sdk.mjs": ALL | {"unknown_model": Told("AI_APICallError 404", 0, 0)},
    "litellm_responses.py": ALL | {"bridge": STREAM},
    # It sends ids of calls only: a chat without functions is a new session with each message, which knows no tools.
    "pydantic_ai_responses.py": ALL
    | {
        "chat": Told("read effect one | two | three | four | five", 1, 5),
        "chat_with_ids": CHAT,
        "approval": Told("UnexpectedModelBehavior", 0, 2),
        "edited": Told("read effect one | edited", 1, 4),
        "rewritten": Told("read rewritten | two | three | end", 1, 4),
        "unknown_model": Told("ModelNotFoundError 404", 0, 0),
    },
}

CALLS: dict[str, tuple[str, JsonValue]] = {
    "effect": ("effect", {"name": "it"}),
    "look": ("look", {}),
    "seek": ("seek", {}),
    "pay": ("pay", {"amount": 7}),
    "transfer": ("transfer_to_helper", {}),
}


def brain(request: ChatRequest) -> Reply:
    """Calls what the last message of the user names, and says what it has read otherwise."""
    last = request.messages[-1]
    asked = [CALLS[word] for word in str(last["content"]).split() if word in CALLS]
    if last["role"] == "user" and asked:
        return call(*asked)
    read = [str(message["content"]) for message in request.messages if message["role"] in {"user", "tool"}]
    return say("read " + " | ".join(read))


def agent_of(name: str, effects: Counter[str]) -> Agent:
    """The agent of a case; its tools count their effects under its name."""

    @tool
    def effect(name: str) -> str:
        """Do something that cannot be undone."""
        effects[agent.name] += 1
        return f"{name} is done"

    @tool(requires_approval=True)
    def pay(amount: int) -> str:
        """Pay an amount."""
        effects[agent.name] += 1
        return f"paid {amount}"

    agent = Agent(name=name, model="openai/scripted", tools=[effect, pay])
    return agent


class Stranger(NamedTuple):
    """A program that is installed with its framework."""

    program: str
    command: list[str]
    folder: Path

    async def run(self, url: str) -> tuple[dict[str, str], str]:
        """Run it at the gateway of this URL; what it printed of each case, and its errors."""
        process = await asyncio.create_subprocess_exec(
            *self.command,
            cwd=self.folder,
            env=environments.variables(OPENAI_BASE_URL=f"{url}/openai/v1", OPENAI_API_KEY="anything"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, errors = await process.communicate()
        told = errors.decode(errors="replace")[-12_000:]
        assert process.returncode == 0, told
        said: dict[str, str] = json.loads(out.decode().splitlines()[-1])
        return said, told


@pytest.fixture(
    params=[pytest.param(name, marks=[environments.needs_node] if name.endswith(".mjs") else []) for name in EXPECTED]
)
def stranger(request: pytest.FixtureRequest) -> Iterator[Stranger]:
    """Each program in turn, in an environment that is gone after its test."""
    with tempfile.TemporaryDirectory(prefix="perdure-strangers-") as name:
        program, folder = str(request.param), Path(name)
        yield Stranger(program, environments.make(program, folder), folder)


async def test_a_framework_does_nothing_twice(stranger: Stranger, house: House) -> None:
    """S-85: each case is told as expected, with its effects and its sessions."""
    expected, effects = EXPECTED[stranger.program], Counter[str]()
    agents = [agent_of(case, effects) for case in expected if case != "unknown_model"]
    async with (
        ScriptedProvider(brain) as provider,
        house.worker(*agents),
        gateway(house, doors=("responses",)) as door,
    ):
        house.use(provider)
        said, errors = await stranger.run(door.url)
        sessions = Counter(session.agent for session, _ in await house.client.sessions(limit=200))
    told = {case: Told(text, effects[case], sessions[case]) for case, text in said.items()}
    assert told == expected, f"{errors}\n{environments.releases(stranger.command, stranger.folder)}"
