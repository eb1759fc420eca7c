"""One model call on each way litellm has to a provider: two to OpenAI's format, one to Anthropic's."""

import asyncio
from datetime import UTC, datetime
from enum import StrEnum

import pytest

from activities import model
from activities.failures import facts_of
from activities.model import Answer
from perdure.contracts.agents import AgentDefinition
from perdure.engine.failures import FailureFacts
from perdure.testing import ScriptedProvider

KEY = "sk-scripted-0123456789"
NOW = datetime(2026, 11, 21, tzinfo=UTC)


class Way(StrEnum):
    """How a call gets to its provider."""

    HANDLER = "openai, by litellm's own handler"
    SDK = "openai, by its SDK"
    ANTHROPIC = "anthropic"


def take(way: Way, environment: pytest.MonkeyPatch) -> None:
    """Let calls go this way, with a key, and wait for no more than half a second of silence."""
    environment.setenv("EXPERIMENTAL_OPENAI_BASE_LLM_HTTP_HANDLER", str(way is not Way.SDK).lower())
    environment.setenv("OPENAI_API_KEY", KEY)
    environment.setenv("ANTHROPIC_API_KEY", KEY)
    environment.setattr(model, "SILENCE_SECONDS", 0.5)


async def answer(way: Way, provider: ScriptedProvider, text: str = "hello") -> Answer:
    """The answer to a prompt."""
    anthropic = way is Way.ANTHROPIC
    agent = AgentDefinition(
        name="tester",
        model=f"{'anthropic' if anthropic else 'openai'}/scripted",
        generate_params={"api_base": provider.anthropic_url if anthropic else provider.url},
    )
    async with asyncio.timeout(30):
        return await model.complete(agent, [{"role": "user", "content": text}])


async def failure(way: Way, provider: ScriptedProvider, text: str = "hello") -> FailureFacts:
    """The facts of a call that must fail."""
    try:
        got = await answer(way, provider, text)
    except Exception as error:  # noqa: BLE001 - whatever litellm raises is what is tested
        return facts_of(error, NOW, {KEY})
    pytest.fail(f"the call succeeded: {got}")
