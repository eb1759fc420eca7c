"""The table of providers: each row is called, with the address, the key and the request that litellm would have."""

import itertools
import json
from typing import Any

import litellm
import pytest

from perdure.activities.models import model_call, provider_requests, providers
from perdure.activities.models.providers import PROVIDERS
from perdure.activities.models.wires.reply import Silent
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.tools import ToolDeclaration
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, say

Json = Any

OWN_WIRE = {"openai", "anthropic", "azure", "bedrock", "gemini", "ollama", "ollama_chat", "vertex_ai"}
OTHERS = [name for name in PROVIDERS if name not in OWN_WIRE]

TOOL = ToolDeclaration(
    name="pay",
    description="Pay.",
    reference="t:pay",
    parameters={"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]},
)
CALL = {"id": "call1ab2c", "type": "function", "function": {"name": "pay", "arguments": '{"amount": 1}'}}
CONVERSATION: Json = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call1ab2c", "content": "ok"},
    {"role": "assistant", "content": "paid"},
    {"role": "user", "content": "and now?"},
]
SETTINGS: dict[str, dict[str, Json]] = {
    "none": {},
    "usual": {"temperature": 1, "max_tokens": 100, "top_p": 0.9},
    "any tool": {"tool_choice": "required"},
    "one tool": {"tool_choice": {"type": "function", "function": {"name": "pay"}}},
    "a body": {"extra_body": {"own": 1}},
    "an effort": {"reasoning_effort": "high"},
    "a schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": {}}}},
}


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of a provider is set."""
    for row in PROVIDERS.values():
        for name in (*row.keys, *row.addresses):
            monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", OTHERS)
def test_a_row_has_the_address_and_the_key_of_litellms(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-14: who knows litellm's variables sets the same ones."""
    row = PROVIDERS[name]
    _, _, _, address = litellm.get_llm_provider(f"{name}/some-model")
    assert row.address_of({}) == (address or row.address).rstrip("/")
    for variable in row.keys:
        with monkeypatch.context() as environment:
            environment.setenv(variable, "sk-own")
            _, _, key, _ = litellm.get_llm_provider(f"{name}/some-model")
            assert row.key_of({}) == "sk-own"
            assert key in {"sk-own", None}  # None: litellm finds it later
    for variable in row.addresses:
        with monkeypatch.context() as environment:
            environment.setenv(variable, "https://own.example/v1/")
            assert row.address_of({}) == "https://own.example/v1"


def pay_first(request: ChatRequest) -> Reply:
    return call(("pay", {"amount": 2})) if len(request.messages) == 2 else say("done")


@pytest.mark.parametrize("name", ["openai", "anthropic", *OTHERS])
@pytest.mark.parametrize("streams", [False, True])
async def test_every_row_is_called_directly(name: str, streams: bool) -> None:
    """S-15: calls and texts come back from each, whole and streamed, and litellm is not asked."""
    async with ScriptedProvider(pay_first) as provider:
        base = provider.anthropic_url if name == "anthropic" else provider.url
        params: Json = {"api_base": base, "api_key": "sk-scripted-0123456789"}
        agent = AgentDefinition(
            name="t", model=f"{name}/some-model", tools=(TOOL,), tool_mode="api", generate_params=params
        )
        arguments: Json = {"model": agent.model, "messages": CONVERSATION, **params}
        assert provider_requests.prepare(arguments, streams=streams) is not None
        shown = Silent() if streams else None
        first = await model_call.complete(agent, [CONVERSATION[0], CONVERSATION[1]], shown=shown)
        second = await model_call.complete(agent, CONVERSATION, shown=shown)
        assert [(one.name, json.loads(one.arguments)) for one in first.calls] == [("pay", {"amount": 2})]
        assert second.text == "done"
        assert [request.request.stream for request in provider.requests] == [streams, streams]


WITHOUT_TOOLS = {"perplexity", "sambanova"}
"""Providers for which litellm takes no tools, of a model that it does not know."""

TAKE_EFFORT = {"dashscope", "deepseek", "hosted_vllm", "litellm_proxy", "openrouter"}
"""Providers whose models litellm lets have an effort, whatever their names are."""

UNSAID = {"max_retries"}
"""Fields that litellm sends by mistake."""


async def sent(name: str, settings: dict[str, Json], *, streams: bool) -> Json:
    """The body that arrives."""
    tools = () if name in WITHOUT_TOOLS else (TOOL,)
    async with ScriptedProvider(lambda _: say("hello")) as provider:
        params = {**settings, "api_base": provider.url, "api_key": "sk-scripted-0123456789"}
        agent = AgentDefinition(
            name="t", model=f"{name}/some-model", tools=tools, tool_mode="api", generate_params=params
        )
        await model_call.complete(agent, json.loads(json.dumps(CONVERSATION)), shown=Silent() if streams else None)
        (request,) = provider.requests
        body: Json = request.body
        return {field: value for field, value in body.items() if field not in UNSAID}


def pairs() -> list[Json]:
    """Rows and settings that litellm sends as well; the fast lane has each row with one of them."""
    return [
        pytest.param(name, settings, marks=[] if settings == "usual" else [pytest.mark.deep])
        for name, settings in itertools.product(OTHERS, SETTINGS)
        if name != "groq"  # at whose answers litellm fails
        if "tool" not in settings or name not in {*WITHOUT_TOOLS, "deepinfra", "fireworks_ai"}
        if settings != "an effort" or name in TAKE_EFFORT
        if (name, settings) != ("moonshot", "any tool")  # which litellm asks for in a message
        if settings != "a schema" or name not in {"fireworks_ai", "groq", "zai"}  # which litellm sends less, or more
    ]


@pytest.mark.parametrize(("name", "settings"), pairs())
async def test_a_row_is_sent_what_litellm_would_send(name: str, settings: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What litellm refuses by its own list is left to the provider."""
    ours = await sent(name, SETTINGS[settings], streams=False)
    streamed = await sent(name, SETTINGS[settings], streams=True)
    told = {"stream_options": {"include_usage": True}} if PROVIDERS[name].asks_for_usage else {}
    assert streamed == {**ours, "stream": True, **told}
    monkeypatch.setattr(providers, "PROVIDERS", {})
    assert ours == await sent(name, SETTINGS[settings], streams=False)
