"""S-85: frameworks that strangers wrote, unmodified, in their newest releases, at the door of OpenAI's Responses API.

Each case of a program talks to an agent of its own, named as the case: so its effects and sessions can be counted.
"""

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from perdure import Agent, tool
from perdure.contracts.values import JsonValue
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, say
from tests.gateway import gateway
from tests.house import WAIT_SECONDS, House
from tests.strangers import environments, pages
from tests.strangers.hearing import hear, obey
from tests.strangers.proxy import Proxy

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
STRUCTURED = Told("Rhine 1233", 1, 1)
UNHARMED = Told("read effect | it is done", 1, 1)
TWICE = Told("read effect | it is done", 2, 2)

ALL = {
    "chat": CHAT,
    "function": FUNCTION,
    "two_functions": Told("read look seek | look seen | seek seen | bye", 0, 1),
    "approval": APPROVAL,
    "stream": STREAM,
    "edited": Told("read effect one | it is done | edited", 1, 2),
    "rewritten": Told("read rewritten | it is done | two | three | end", 1, 2),
    "structured": STRUCTURED,
    "cut": UNHARMED,
    "restart": UNHARMED,
    "unknown_model": Told("NotFoundError 404", 0, 0),
}
"""Outcome of each case with a framework that sends the ids of items; behind a rewritten message all is kept."""

EXPECTED: dict[str, dict[str, Told]] = {
    "openai_python.py": ALL | {"resumed": UNHARMED},
    "openai_js.mjs": ALL | {"resumed": UNHARMED},
    "openai_agents.py": ALL
    | {"interruption": APPROVAL, "handoff": Told('read transfer | {"assistant": "helper"}', 0, 1)},
    "openai_agents_js.mjs": ALL
    | {"interruption": APPROVAL, "handoff": Told('read transfer | {"assistant":"helper"}', 0, 1)},
    "langchain_responses.py": ALL
    | {"structured_agent": STRUCTURED, "unknown_model": Told("OpenAIModelNotFoundError 404", 0, 0)},
    # Its agent writes an answer of its own behind the call of the function, which is no conversation that the session
    # has. It tries again around OpenAI's client, which counts each try as the first: a cut begins a second job.
    "langchain_js.mjs": ALL | {"structured_agent": Told("Rhine 1233", 1, 2), "cut": TWICE},
    # It does not count its tries: a cut begins a second job.
    "ai_sdk.mjs": ALL | {"cut": TWICE, "unknown_model": Told("AI_APICallError 404", 0, 0)},
    # It does not try again; the job goes on.
    "litellm_responses.py": ALL
    | {
        "bridge": STREAM,
        "cut": Told("InternalServerError 500", 1, 1),
        "restart": Told("ServiceUnavailableError 503", 1, 1),
    },
    # It sends ids of calls only: a chat without functions is a new session with each message, which knows no tools.
    "pydantic_ai_responses.py": ALL
    | {
        "chat": Told("read effect one | two | three | four | five", 1, 5),
        "chat_with_ids": CHAT,
        "approval": Told('pay waits for an approval: {"amount": 7}', 0, 1),
        "edited": Told("read effect one | edited", 1, 4),
        "rewritten": Told("read rewritten | two | three | end", 1, 4),
        "structured_native": Told("Rhine 1233", 1, 2),
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

RIVER: JsonValue = {"name": "Rhine", "length": 1_233}


def brain(request: ChatRequest) -> Reply:
    """Calls what the last message of the user names, and then says what it has read, or a river if it names that."""
    if calls := obey(request, CALLS):
        return calls
    said, last = hear(request)
    return answer_with_a_river(request) if "river" in said[last].split() else say("read " + " | ".join(said))


def answer_with_a_river(request: ChatRequest) -> Reply:
    """By the function that is there for it; or as JSON, in the way of models that do not say it alone; or in words."""
    offered: list[Any] = [tool["function"] for tool in request.tools]
    own = {name for name, _ in CALLS.values()}
    for function in offered:
        if function["name"] not in own:
            return call((function["name"], RIVER))
    if request.response_format is not None or "JSON schema" in request.system:
        return say(f"Here it is:\n```json\n{json.dumps(RIVER)}\n```")
    return say("the Rhine")


Accident = Callable[[], Coroutine[Any, Any, None]]
"""What happens to the connections of a program while a tool of perdure's runs."""


def agent_of(name: str, effects: Counter[str], accidents: dict[str, Accident]) -> Agent:
    """The agent of a case; its tools count their effects under its name, and the first one brings on its accident."""
    loop = asyncio.get_running_loop()

    @tool
    def effect(name: str) -> str:
        """Do something that cannot be undone."""
        effects[agent.name] += 1
        if (accident := accidents.pop(agent.name, None)) is not None:
            # Tools run in threads of their own; the connections are of the test's loop.
            asyncio.run_coroutine_threadsafe(accident(), loop).result(WAIT_SECONDS)
        return f"{name} is done"

    @tool(requires_approval=True)
    def pay(amount: int) -> str:
        """Pay an amount."""
        effects[agent.name] += 1
        return f"paid {amount}"

    agent = Agent(name=name, model="openai/scripted", tools=[effect, pay])
    return agent


@asynccontextmanager
async def two_gateways(house: House, **settings: Any) -> AsyncIterator[tuple[Proxy, Accident, Accident]]:
    """A way to the first of two gateways, what cuts it, and a rolling restart."""
    async with gateway(house, **settings) as other, AsyncExitStack() as first:
        door = await first.enter_async_context(gateway(house, **settings))
        async with Proxy(door.url).opened() as proxy:

            async def cut() -> None:
                assert await proxy.cut()

            async def restart() -> None:
                """New connections are led to the other gateway, and then the first one stops."""
                proxy.target = other.url
                await first.aclose()

            yield proxy, cut, restart


class Stranger(NamedTuple):
    """A program that is installed with its framework."""

    program: str
    command: list[str]
    folder: Path

    async def run(self, url: str) -> tuple[dict[str, str], str]:
        """Run it at the gateway of this URL; what it printed of each case, and its errors."""
        out, told = await self._run(url, self.program)
        said: dict[str, str] = json.loads(out.splitlines()[-1])
        return said, told

    async def run_page(self, url: str) -> str:
        """Run the lines of the page for its framework, which say the URL themselves; what they printed."""
        name = f"page{Path(self.program).suffix}"
        lines = pages.lines_for(self.program).replace("http://127.0.0.1:8234", url)
        (self.folder / name).write_text(lines, encoding="utf-8")
        return (await self._run(url, name))[0].strip()

    async def _run(self, url: str, program: str) -> tuple[str, str]:
        process = await asyncio.create_subprocess_exec(
            *self.command[:-1],
            program,
            cwd=self.folder,
            env=environments.variables(OPENAI_BASE_URL=f"{url}/openai/v1", OPENAI_API_KEY="anything"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, errors = await process.communicate()
        told = errors.decode(errors="replace")[-12_000:]
        assert process.returncode == 0, told
        return out.decode(), told


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
    expected, effects, accidents = EXPECTED[stranger.program], Counter[str](), dict[str, Accident]()
    agents = [agent_of(case, effects, accidents) for case in ("writer", *expected) if case != "unknown_model"]
    async with (
        ScriptedProvider(brain) as provider,
        house.worker(*agents),
        two_gateways(house, doors=("responses",)) as (proxy, cut, restart),
    ):
        house.use(provider)
        accidents |= {"cut": cut, "restart": restart}
        if "resumed" in expected:
            accidents["resumed"] = cut
        said, errors = await stranger.run(proxy.url)
        assert await stranger.run_page(proxy.url) == "read Name a river."
        sessions = Counter(session.agent for session, _ in await house.client.sessions(limit=200))
    assert not accidents, errors
    told = {case: Told(text, effects[case], sessions[case]) for case, text in said.items()}
    assert told == expected, f"{errors}\n{environments.releases(stranger.command, stranger.folder)}"
