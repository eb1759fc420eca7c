"""One model call on each way to a provider: directly and through litellm, in OpenAI's format and in Anthropic's."""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Collection, Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pytest

from perdure.activities.models import litellm_call, providers
from perdure.activities.models.failures import facts_of
from perdure.activities.models.litellm_call import Answer
from perdure.contracts.agents import AgentDefinition
from perdure.llm.failures import FailureFacts
from perdure.testing import Fault, Script, ScriptedProvider, say

KEY = "sk-scripted-0123456789"
NOW = datetime(2026, 11, 21, tzinfo=UTC)

LONG_SILENCE = 30.0
SHORT_SILENCE = 0.5
"""Of calls that meet silence: it must be longer than a warm client needs to send its request."""

NOWHERE = "http://127.0.0.1:9"
"""The discard port of this machine: nothing listens there."""


class Way(StrEnum):
    """How a call gets to its provider."""

    OPENAI = "openai, directly"
    HANDLER = "openai, by litellm's own handler"
    SDK = "openai, by its SDK"
    ANTHROPIC = "anthropic, directly"
    CLAUDE = "anthropic, by litellm"

    @property
    def speaks_anthropic(self) -> bool:
        """Whether it is Anthropic's format."""
        return self in {Way.ANTHROPIC, Way.CLAUDE}

    @property
    def is_direct(self) -> bool:
        """Whether the call does not go through litellm's ``acompletion``."""
        return self in {Way.OPENAI, Way.ANTHROPIC}


def on_each_way(names: Iterable[str], *, waits: Collection[str]) -> list[Any]:
    """Parameters of a test: each name on each way. What waits for a silence is of the deep lane, but on direct ways."""
    return [
        pytest.param(
            way,
            name,
            marks=[pytest.mark.deep] if name in waits and not way.is_direct else [],
            id=f"{way}-{name}",
        )
        for way, name in itertools.product(Way, names)
    ]


_WARM: set[tuple[Way, float]] = set()


def take(way: Way, environment: pytest.MonkeyPatch) -> None:
    """Let calls go this way, with a key, and wait out any silence that a busy machine makes."""
    environment.setenv("EXPERIMENTAL_OPENAI_BASE_LLM_HTTP_HANDLER", str(way is not Way.SDK).lower())
    if not way.is_direct:
        environment.setattr(providers, "PROVIDERS", {})
    environment.setenv("OPENAI_API_KEY", KEY)
    environment.setenv("ANTHROPIC_API_KEY", KEY)
    environment.setattr(litellm_call, "SILENCE_SECONDS", LONG_SILENCE)


async def warm_up(way: Way) -> None:
    """Pay for the first call of a way with a time-out: litellm loads modules and builds clients within the time-out."""
    if (way, litellm_call.SILENCE_SECONDS) not in _WARM:
        _WARM.add((way, litellm_call.SILENCE_SECONDS))
        with contextlib.suppress(Exception):
            await litellm_call.complete(agent_of(way, NOWHERE), [{"role": "user", "content": "hello"}])


def agent_of(way: Way, address: str) -> AgentDefinition:
    """An agent whose calls go this way, to this address."""
    anthropic = way.speaks_anthropic
    return AgentDefinition(
        name="tester",
        model=f"{'anthropic' if anthropic else 'openai'}/scripted",
        generate_params={"api_base": address if anthropic else f"{address}/v1"},
    )


async def answer(way: Way, provider: ScriptedProvider, text: str = "hello") -> Answer:
    """The answer to a prompt."""
    await warm_up(way)
    async with asyncio.timeout(60):
        return await litellm_call.complete(agent_of(way, provider.anthropic_url), [{"role": "user", "content": text}])


async def met(way: Way, fault: Fault) -> tuple[FailureFacts, int]:
    """The facts of a call that meets this fault, and the number of its requests. Silence is not waited for long."""
    with pytest.MonkeyPatch.context() as environment:
        if fault.kind in {"hang", "hang_in_body"}:
            environment.setattr(litellm_call, "SILENCE_SECONDS", SHORT_SILENCE)
        async with ScriptedProvider(Script(replies=(say("unused"),)), always=fault) as provider:
            return await failure(way, provider), provider.request_count


async def failure(way: Way, provider: ScriptedProvider, text: str = "hello") -> FailureFacts:
    """The facts of a call that must fail."""
    return await _failure_of(answer(way, provider, text))


async def failed_at(way: Way, address: str) -> FailureFacts:
    """The facts of a call to an address that does not answer."""
    return await _failure_of(litellm_call.complete(agent_of(way, address), [{"role": "user", "content": "hello"}]))


async def _failure_of(call: Awaitable[Answer]) -> FailureFacts:
    """The facts of this call, which must fail."""
    try:
        got = await call
    except Exception as error:  # noqa: BLE001 - whatever litellm raises is what is tested
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
