"""Which way a model call takes, as a worker process makes it, and how long it may take."""

import os
from datetime import timedelta

import pytest

from perdure.activities.models.attempt import DeadlineExceededError, _wait_within
from perdure.activities.models.keys import MissingKeyError, require_key
from perdure.activities.models.model_call import Answer, complete
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.values import JsonValue
from perdure.testing import Script, ScriptedProvider, faults, say


async def test_a_call_over_its_deadline_is_given_up_and_its_connection_closed() -> None:
    """The reply comes a byte at a time: no silence is ever long enough for the one that bounds a silence."""
    async with ScriptedProvider(Script(replies=(say("x"),)), always=faults.drip(0.05)) as provider:
        agent = AgentDefinition(name="a", model="openai/scripted", generate_params={"api_base": provider.url})
        call = complete(agent, [{"role": "user", "content": "hi"}])
        with pytest.raises(DeadlineExceededError, match=r"generation_timeout \(0.4 s\)"):
            await _wait_within(timedelta(seconds=0.4), call)
        await provider.wait_for_disconnect()
    assert provider.request_count == 1


async def test_a_time_out_inside_the_call_is_not_taken_for_the_deadline() -> None:
    async def call() -> Answer:
        msg = "the connection timed out"
        raise TimeoutError(msg)

    with pytest.raises(TimeoutError) as raised:
        await _wait_within(timedelta(seconds=60), call())
    assert type(raised.value) is TimeoutError


@pytest.mark.parametrize(
    ("model", "params"),
    [
        ("bedrock/anthropic.claude-x", {"aws_access_key_id": "${OWN_ID}", "aws_secret_access_key": "${OWN_KEY}"}),
        ("vertex_ai/gemini-x", {"vertex_credentials": "${OWN_KEY}", "vertex_project": "p", "vertex_location": "l"}),
        ("openai/x", {"api_key": "${OWN_KEY}"}),
    ],
)
def test_a_call_with_credentials_of_its_own_needs_no_variable_of_its_provider(
    monkeypatch: pytest.MonkeyPatch, model: str, params: dict[str, JsonValue]
) -> None:
    """But those that it refers to."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "VERTEX", "GOOGLE_", "OPENAI_"))]:
        monkeypatch.delenv(name)
    agent = AgentDefinition(name="a", model=model, generate_params=params)
    with pytest.raises(MissingKeyError, match=r"OWN_KEY$"):
        require_key(agent)
    monkeypatch.setenv("OWN_ID", "an id")
    monkeypatch.setenv("OWN_KEY", "a key")
    require_key(agent)
