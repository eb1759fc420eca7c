"""Which way a model call takes, as a worker process makes it, and how long it may take."""

import asyncio
import os
import sys
from datetime import timedelta
from typing import Any

import pytest

from perdure.activities.models import litellm_patches
from perdure.activities.models.attempt import DeadlineExceededError, _wait_within
from perdure.activities.models.keys import MissingKeyError, require_key
from perdure.activities.models.litellm_call import Answer, complete
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.values import JsonValue
from perdure.testing import Script, ScriptedProvider, faults, say
from tests.unit.activities.calls import Way, warm_up

SWITCH = "EXPERIMENTAL_OPENAI_BASE_LLM_HTTP_HANDLER"

ONE_CALL = """
import asyncio
from perdure.activities.models import providers
from perdure.activities.models.litellm_call import complete
from perdure.contracts.agents import AgentDefinition
providers.PROVIDERS = {}  # as for a provider that is called through litellm
agent = AgentDefinition(name="a", model="openai/scripted")
print(asyncio.run(complete(agent, [{"role": "user", "content": "hi"}])).text)
"""

TWO_CALLS = """
import asyncio, litellm
from litellm.integrations.custom_logger import CustomLogger
from litellm.litellm_core_utils.litellm_logging import Logging
from perdure.activities.models.litellm_call import complete
from perdure.contracts.agents import AgentDefinition

agent = AgentDefinition(name="a", model="openai/scripted")
written = Logging.async_success_handler

async def record(self, *args, **kwargs):
    print("record")
    return await written(self, *args, **kwargs)

Logging.async_success_handler = record

class Tracer(CustomLogger):
    async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
        print("traced")
        seen.set()

async def main():
    global seen
    seen = asyncio.Event()
    await complete(agent, [{"role": "user", "content": "hi"}])
    await asyncio.create_task(asyncio.sleep(0))
    print("unheard")
    litellm.callbacks.append(Tracer())
    await complete(agent, [{"role": "user", "content": "hi"}])
    await asyncio.wait_for(seen.wait(), 30)

asyncio.run(main())
"""


@pytest.mark.deep
async def test_a_log_record_of_a_call_is_made_for_a_tracer_only() -> None:
    async with ScriptedProvider(Script(replies=(say("one"), say("two")))) as provider, asyncio.timeout(60):
        environment = {**os.environ, "OPENAI_API_KEY": "sk-scripted-0123456789", "OPENAI_BASE_URL": provider.url}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "ignore", "-c", TWO_CALLS, env=environment, stdout=asyncio.subprocess.PIPE
        )
        written, _ = await process.communicate()
    assert written.decode().split("\n")[:3] == ["unheard", "record", "traced"]


@pytest.mark.deep
@pytest.mark.parametrize(("switch", "with_sdk"), [(None, False), ("false", True)])
async def test_a_call_through_litellm_goes_past_the_openai_sdk_unless_an_operator_says_otherwise(
    switch: str | None, with_sdk: bool
) -> None:
    """The SDK walks every message through its types; its headers tell that it was used."""
    environment = {name: value for name, value in os.environ.items() if name != SWITCH}
    environment |= {} if switch is None else {SWITCH: switch}
    async with ScriptedProvider(Script(replies=(say("hello"),))) as provider, asyncio.timeout(60):
        environment |= {"OPENAI_API_KEY": "sk-scripted-0123456789", "OPENAI_BASE_URL": provider.url}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "ignore", "-c", ONE_CALL, env=environment, stdout=asyncio.subprocess.PIPE
        )
        written, _ = await process.communicate()
        (request,) = provider.requests
    assert written.decode().strip() == "hello"
    assert ("x-stainless-lang" in request.headers) is with_sdk
    assert ("openai" in request.headers["user-agent"].lower()) is with_sdk


async def test_a_call_over_its_deadline_is_given_up_and_its_connection_closed() -> None:
    """The reply comes a byte at a time: no silence is ever long enough for litellm's own time-out."""
    await warm_up(Way.HANDLER)
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


async def test_a_call_of_gemini_does_not_send_the_others_through_litellm(monkeypatch: pytest.MonkeyPatch) -> None:
    """There litellm adds a callback of its own for good, which listens to nothing."""
    for name in ("input_callback", "success_callback", "_async_success_callback"):
        monkeypatch.setattr(f"litellm.{name}", ["cache"])
    monkeypatch.setenv("OPENAI_API_KEY", "sk-scripted-0123456789")
    async with ScriptedProvider(Script(replies=(say("hello"),))) as provider:
        monkeypatch.setenv("OPENAI_BASE_URL", provider.url)
        await complete(AgentDefinition(name="a", model="openai/scripted"), [{"role": "user", "content": "hi"}])
        (request,) = provider.requests
    assert request.headers["user-agent"] == "perdure"


def test_what_an_early_import_of_litellm_has_read_is_set_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent's module may import litellm before perdure sets its environment; the 501st call then waited."""
    found: Any = vars(litellm_patches)["http_handler"]
    for name, read in (("AIOHTTP_CONNECTOR_LIMIT", 1_000), ("AIOHTTP_CONNECTOR_LIMIT_PER_HOST", 500)):
        monkeypatch.setattr(found, name, read)
    litellm_patches.quiet()
    assert (found.AIOHTTP_CONNECTOR_LIMIT, found.AIOHTTP_CONNECTOR_LIMIT_PER_HOST) == (100_000, 0)  # 0 is no bound
