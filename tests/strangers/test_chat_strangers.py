"""S-89, S-90: clients that strangers wrote, unmodified, in their newest releases, at the door of Chat Completions."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.testing import ScriptedProvider
from tests.house import House
from tests.strangers import environments
from tests.strangers.test_strangers import TWICE, UNHARMED, Accident, Stranger, Told, agent_of, brain, two_gateways

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1_200)]

ALL = {
    "chat": Told("read effect one | two | three", 1, 3),
    "conversation": Told("read effect one | it is done | two | three", 1, 1),
    "function": Told("read look | look seen | two", 0, 1),
    "stream": Told("read effect look | it is done | look seen | two", 1, 1),
    "structured": Told("Rhine 1233", 1, 1),
    "cut": UNHARMED,
    "restart": UNHARMED,
    "unknown_model": Told("NotFoundError 404", 0, 0),
    "refused": Told("BadRequestError 400", 0, 0),
}
"""Outcome of each case; without ids of calls and without a header, each message is a session of its own."""

EXPECTED: dict[str, dict[str, Told]] = {
    "chat_openai_python.py": ALL,
    "chat_openai_js.mjs": ALL,
    "chat_langchain.py": ALL
    | {
        "unknown_model": Told("OpenAIModelNotFoundError 404", 0, 0),
        "refused": Told("OpenAIInvalidRequestError 400", 0, 0),
    },
    "chat_litellm.py": ALL,
    # It does not count its tries: a cut begins a second job.
    "chat_ai_sdk.mjs": ALL
    | {
        "cut": TWICE,
        "unknown_model": Told("AI_APICallError 404", 0, 0),
        "refused": Told("AI_APICallError 400", 0, 0),
    },
    "chat_curl.sh": {
        "chat": Told("read effect one | it is done", 1, 1),
        "stream": Told("read effect one | it is done", 1, 1),
        "unknown_model": Told("request.unknown_agent", 0, 0),
        "refused": Told("n: this door cannot do that", 0, 0),
    },
}


@pytest.fixture(
    params=[pytest.param(name, marks=[environments.needs_node] if name.endswith(".mjs") else []) for name in EXPECTED]
)
def client(request: pytest.FixtureRequest) -> Iterator[Stranger]:
    """Each program in turn, in an environment that is gone after its test."""
    with tempfile.TemporaryDirectory(prefix="perdure-strangers-") as name:
        program, folder = str(request.param), Path(name)
        if program.endswith(".sh"):
            shutil.copy(environments.PROGRAMS / program, folder)
            yield Stranger(program, ["sh", program], folder)
        else:
            yield Stranger(program, environments.make(program, folder), folder)


async def test_a_client_does_nothing_twice(client: Stranger, house: House) -> None:
    """S-89, S-90: each case is told as expected, with its effects and its sessions."""
    expected, effects, accidents = EXPECTED[client.program], Counter[str](), dict[str, Accident]()
    agents = [agent_of(case, effects, accidents) for case in expected if case != "unknown_model"]
    settings = {"doors": ("chat",), "chat_conversation_header": "X-Chat"}
    async with (
        ScriptedProvider(brain) as provider,
        house.worker(*agents),
        two_gateways(house, **settings) as (proxy, cut, restart),
    ):
        house.use(provider)
        if "cut" in expected:
            accidents |= {"cut": cut, "restart": restart}
        said, errors = await client.run(proxy.url)
        sessions = Counter(session.agent for session, _ in await house.client.sessions(limit=200))
    assert not accidents, errors
    told = {case: Told(text, effects[case], sessions[case]) for case, text in said.items()}
    assert told == expected, f"{errors}\n{environments.releases(client.command, client.folder)}"
