"""The door to providers that perdure does not know: litellm as it is, for whole answers."""

import asyncio

import httpx
import httpx2
import pytest

from perdure.activities.models import model_call, provider_requests
from perdure.activities.models.failures import facts_of
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import ReasonCode
from perdure.contracts.tools import ToolDeclaration
from perdure.contracts.values import JsonValue
from perdure.llm.failures import classify
from perdure.testing import Fault, Reply, Script, ScriptedProvider, call, faults, say
from tests.unit.activities.calls import NOW, Sink

LOOK = ToolDeclaration(
    name="look", description="Look.", reference="t:look", parameters={"type": "object", "properties": {}}
)


def agent(provider: ScriptedProvider) -> AgentDefinition:
    """An agent of a provider without a row, which speaks like OpenAI."""
    params: dict[str, JsonValue] = {"api_base": provider.url, "api_key": "sk-scripted-0123456789"}
    return AgentDefinition(
        name="t", model="friendliai/scripted", tools=(LOOK,), tool_mode="api", generate_params=params
    )


async def ask(provider: ScriptedProvider, shown: Sink | None = None) -> model_call.Answer:
    async with asyncio.timeout(60):
        return await model_call.complete(agent(provider), [{"role": "user", "content": "hello"}], shown=shown)


@pytest.mark.parametrize("reply", [say("hello"), call(("look", {}), text="I look.")], ids=["text", "call"])
async def test_an_answer_comes_whole_and_is_shown_in_one_piece(reply: Reply) -> None:
    async with ScriptedProvider(Script(replies=(reply, reply))) as provider:
        shown = Sink()
        whole, watched = await ask(provider), await ask(provider, shown)
        assert [request.request.stream for request in provider.requests] == [False, False]
    assert (whole.text, len(whole.calls), whole.usage) == (watched.text, len(watched.calls), watched.usage)
    assert whole.usage.input_tokens > 0
    assert shown.texts == [whole.text]
    assert [name for name, _ in shown.calls.values()] == [made.name for made in whole.calls]


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (faults.status(400), ReasonCode.LLM_REQUEST_ERROR),
        (faults.status(401), ReasonCode.LLM_AUTH_ERROR),
        (faults.status(404), ReasonCode.LLM_REQUEST_ERROR),
        (faults.status(429), ReasonCode.LLM_RATE_LIMITED),
        (faults.status(500), ReasonCode.LLM_NETWORK_ERROR),
        (faults.close_before_reply(), ReasonCode.LLM_NETWORK_ERROR),
    ],
    ids=lambda value: str(getattr(value, "status", value)),
)
async def test_a_failure_is_told_by_its_status_after_one_request(fault: Fault, code: ReasonCode) -> None:
    """S-68: litellm is told to try once."""
    async with ScriptedProvider(always=fault) as provider:
        with pytest.raises(Exception, match=r".") as raised:
            await ask(provider)
        assert provider.request_count == 1
    assert classify(facts_of(raised.value, NOW)) == code


async def test_nothing_of_a_library_is_replaced() -> None:
    """Clients of an agent's own code are what they were."""
    await model_call.load_litellm()
    for send in (httpx.AsyncClient.send, httpx.Client.send, httpx2.AsyncClient.send, httpx2.Client.send):
        assert "/perdure/" not in send.__code__.co_filename


@pytest.mark.parametrize("name", ["mock_response", "drop_params", "api_version", "headers", "fallbacks"])
def test_a_setting_of_litellms_is_refused_where_it_is_not_asked(name: str) -> None:
    """It would mean nothing, and nobody would say so."""
    with pytest.raises(provider_requests.UnknownSettingError, match=f"^{name}: a setting of litellm's"):
        provider_requests.prepare({"model": "openai/x", "messages": [], name: True}, streams=False)


def test_a_setting_that_no_wire_renames_goes_as_it_is() -> None:
    asked = {"model": "openai/x", "messages": [], "logprobs": True, "store": False, "organization": "org-1"}
    request = provider_requests.prepare(asked, streams=False)
    assert request is not None
    assert (request.body["logprobs"], request.body["store"], "organization" in request.body) == (True, False, False)
    assert request.headers["openai-organization"] == "org-1"
