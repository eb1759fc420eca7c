"""One model call on each wire that the scripted provider speaks: OpenAI's and Anthropic's."""

import asyncio
import itertools
from collections.abc import Awaitable, Iterable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import pytest

from perdure.activities.models import model_call
from perdure.activities.models.failures import facts_of
from perdure.activities.models.model_call import Answer
from perdure.contracts.agents import DEFAULT_IDLE_TIMEOUT, AgentDefinition
from perdure.llm.failures import FailureFacts
from perdure.testing import Fault, Script, ScriptedProvider, say

KEY = "sk-scripted-0123456789"
NOW = datetime(2026, 11, 21, tzinfo=UTC)

SHORT_SILENCE = timedelta(seconds=0.5)
"""Of calls that meet silence: it must be longer than a warm client needs to send its request."""

NOWHERE = "http://127.0.0.1:9"
"""The discard port of this machine: nothing listens there."""


class Way(StrEnum):
    """The wire of a call."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"

    @property
    def speaks_anthropic(self) -> bool:
        """Whether it is Anthropic's format."""
        return self is Way.ANTHROPIC


def on_each_way(names: Iterable[str]) -> list[Any]:
    """Parameters of a test: each name on each wire."""
    return [pytest.param(way, name, id=f"{way}-{name}") for way, name in itertools.product(Way, names)]


def take(way: Way, environment: pytest.MonkeyPatch) -> None:
    """Let calls have a key."""
    environment.setenv(f"{way.upper()}_API_KEY", KEY)


def agent_of(way: Way, address: str, idle: timedelta = DEFAULT_IDLE_TIMEOUT) -> AgentDefinition:
    """An agent whose calls go this way, to this address. It sets the bound of an answer itself: no other is tried."""
    anthropic = way.speaks_anthropic
    return AgentDefinition(
        name="tester",
        model=f"{'anthropic' if anthropic else 'openai'}/scripted",
        generate_params={"api_base": address if anthropic else f"{address}/v1", "max_tokens": 1_000},
        idle_timeout=idle,
    )


async def answer(way: Way, provider: ScriptedProvider, text: str = "hello") -> Answer:
    """The answer to a prompt."""
    async with asyncio.timeout(60):
        return await model_call.complete(agent_of(way, provider.anthropic_url), [{"role": "user", "content": text}])


async def met(way: Way, fault: Fault) -> tuple[FailureFacts, int]:
    """The facts of a call that meets this fault, and the number of its requests. Silence is not waited for long."""
    idle = SHORT_SILENCE if fault.kind in {"hang", "hang_in_body"} else DEFAULT_IDLE_TIMEOUT
    async with ScriptedProvider(Script(replies=(say("unused"),)), always=fault) as provider:
        return await failed_at(way, provider.anthropic_url, idle), provider.request_count


async def failure(way: Way, provider: ScriptedProvider, text: str = "hello") -> FailureFacts:
    """The facts of a call that must fail."""
    return await _failure_of(answer(way, provider, text))


async def failed_at(way: Way, address: str, idle: timedelta = DEFAULT_IDLE_TIMEOUT) -> FailureFacts:
    """The facts of a call to an address that does not answer."""
    agent = agent_of(way, address, idle)
    return await _failure_of(model_call.complete(agent, [{"role": "user", "content": "hello"}]))


async def _failure_of(call: Awaitable[Answer]) -> FailureFacts:
    """The facts of this call, which must fail."""
    try:
        got = await call
    except Exception as error:  # noqa: BLE001 - whatever is raised is what is tested
        return facts_of(error, NOW, {KEY})
    pytest.fail(f"the call succeeded: {got}")


class Sink:
    """Keeps what it is shown."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.calls: dict[int, tuple[str, int]] = {}
        self.begun: list[bool] = []
        self.came = asyncio.Event()

    def begin(self, *, has_calls_in_text: bool) -> None:
        self.begun.append(has_calls_in_text)

    def text(self, piece: str) -> None:
        self.texts.append(piece)
        self.came.set()

    def thinking(self, piece: str) -> None:
        self.thoughts.append(piece)

    def tool_call(self, index: int, name: str, characters: int) -> None:
        before = self.calls.get(index, ("", 0))
        self.calls[index] = (before[0] or name, before[1] + characters)
