"""Thinking models behind OpenAI-shaped addresses, which refuse the second step of a job without their reasoning.

Seen in the public trackers of vLLM, LiteLLM, and agents that drive DeepSeek, Kimi and GLM through gateways: "thinking
is enabled but reasoning_content is missing in assistant tool call message". And Anthropic's interleaved thinking,
which a client brought back in another order than it came.
"""

from typing import Any

import pytest
from aiohttp import web

from perdure.activities.models import model_call
from perdure.activities.models.model_call import Answer
from perdure.activities.models.reasoning import PLACES, address_of, kept_reasoning, with_reasoning
from perdure.activities.models.record_answer import step_of
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.generations import Generate
from perdure.contracts.messages import ToolMessage, UserMessage
from perdure.contracts.tools import ToolDeclaration
from perdure.llm.openai_format import wire
from perdure.testing import Reply, Script, ScriptedProvider, say

LOOK = ToolDeclaration(name="look", reference="t:look", description="", parameters={"type": "object", "properties": {}})
SIGNED = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
DETAILS: list[Any] = [{"type": "reasoning.text", "text": "hm", "signature": "s", "index": 0}]
KEY = "sk-scripted-thinking-01"


def agent(model: str, address: str) -> AgentDefinition:
    params: dict[str, Any] = {"api_base": address, "api_key": KEY}
    return AgentDefinition(name="a", model=model, tools=(LOOK,), generate_params=params, tool_mode="api")


def conversation(using: AgentDefinition, answer: Answer) -> list[Any]:
    """The answer as it is stored, and the results of its calls."""
    request = Generate(session="s", turn=1, step=1, parent="p", definition=using.digest())
    step, _ = step_of(request, using, (UserMessage(content="go"),), answer, ())
    results = (ToolMessage(call_id=call.call_id, name="look", content="seen") for call in step.calls)
    return [wire(message) for message in (*step.messages, *results)]


async def second_request(
    first: str, thought: dict[str, Any], *, second: str | None = None, other_address: bool = False
) -> dict[str, Any]:
    """The answer as the second model gets it back."""
    script = Script(replies=(Reply(calls=(("look", {}),), message=thought), say("done")))
    async with ScriptedProvider(script) as provider, ScriptedProvider(script) as elsewhere:
        asked = agent(first, provider.url)
        answer = await model_call.complete(asked, [{"role": "user", "content": "go"}])
        target = elsewhere if other_address else provider
        await model_call.complete(agent(second or first, target.url), conversation(asked, answer))
        sent = target.requests[-1].request.messages
    return next(message for message in sent if message["role"] == "assistant")


FIELDS = ("reasoning_content", "reasoning", "thinking", "reasoning_details", "thinking_blocks")
PREFIXES = ("openai", "hosted_vllm", "litellm_proxy", "custom_openai", "lm_studio")


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(
    "thought",
    [
        {"reasoning_content": "I look first."},
        {"reasoning": "I look first."},
        {"reasoning_details": DETAILS},
        {"thinking_blocks": [SIGNED]},
    ],
    ids=lambda thought: next(iter(thought)),
)
async def test_reasoning_goes_back_to_the_address_it_came_from(prefix: str, thought: dict[str, Any]) -> None:
    """In the field that it came in, whatever that is."""
    message = await second_request(f"{prefix}/some/model", thought)
    assert {name: message[name] for name in FIELDS if name in message} == thought
    assert message["tool_calls"]


@pytest.mark.parametrize(
    ("second", "other_address"),
    [("openai/another", False), ("openai/some/model", True), ("deepseek/some/model", True), ("mistral/m", True)],
)
async def test_no_other_model_and_no_other_address_gets_it(second: str, other_address: bool) -> None:
    thought = {"reasoning_content": "I look first.", "thinking_blocks": [SIGNED], "reasoning_details": DETAILS}
    message = await second_request("openai/some/model", thought, second=second, other_address=other_address)
    assert not message.keys() & {*FIELDS, PLACES}


async def test_thoughts_inside_a_content_do_not_come_back_as_a_field() -> None:
    """Mistral's servers and parsers of ``<think>`` never had that field, and some refuse it."""
    message = await second_request("openai/some/model", {"content": "<think>hm</think>ok"})
    assert not message.keys() & {*FIELDS}


@pytest.mark.parametrize(
    ("model", "params", "environment", "is_own"),
    [
        ("openai/gpt-5", {}, {}, False),
        ("openai/gpt-5", {"api_base": "https://api.openai.com/v1"}, {}, False),
        ("openai/gpt-5", {"api_base": "https://mine.openai.azure.com/v1"}, {}, False),
        ("openai/llama", {"api_base": "https://api.groq.com/openai/v1"}, {}, False),
        ("openai/m", {"base_url": "http://vllm:8000/v1"}, {}, True),
        ("openai/m", {}, {"OPENAI_BASE_URL": "http://vllm:8000/v1"}, True),
        ("openai/m", {}, {"OPENAI_API_BASE": "http://vllm:8000/v1"}, True),
        ("hosted_vllm/m", {}, {}, True),
        ("litellm_proxy/m", {}, {"LITELLM_PROXY_API_BASE": "http://proxy"}, True),
        ("deepseek/m", {"api_base": "http://mine"}, {}, False),
    ],
)
def test_an_address_of_the_authors_own(
    model: str, params: dict[str, Any], environment: dict[str, str], is_own: bool
) -> None:
    found = address_of(model, params, environment)
    assert bool(found) is is_own
    assert not any(part in found for part in ("vllm", "proxy", "http"))


def test_two_addresses_differ_and_blocks_of_older_releases_go_to_no_own_address() -> None:
    first, second = (address_of("openai/m", {"api_base": at}, {}) for at in ("http://a", "http://b"))
    assert first != second
    old: Any = {"role": "assistant", "content": "x", "reasoning": [{**SIGNED, "model": "openai/m"}]}
    assert with_reasoning("openai/m", [old], first) == [{"role": "assistant", "content": "x"}]
    assert kept_reasoning("openai/m", [SIGNED], "") == ()


THINKS: list[Any] = [
    {"type": "thinking", "thinking": "first", "signature": "MQ=="},
    {"type": "text", "text": "Let me look."},
    {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}},
    {"type": "thinking", "thinking": "then", "signature": "Mg=="},
    {"type": "redacted_thinking", "data": "Mw=="},
    {"type": "tool_use", "id": "toolu_2", "name": "look", "input": {}},
]


async def test_thinking_between_calls_goes_back_in_its_order() -> None:
    bodies: list[Any] = []

    async def serve(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        content = THINKS if len(bodies) == 1 else [{"type": "text", "text": "done"}]
        reason = "tool_use" if len(bodies) == 1 else "end_turn"
        usage = {"input_tokens": 1, "output_tokens": 1}
        return web.json_response(
            {"id": "m", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "content": content}
            | {"stop_reason": reason, "usage": usage}
        )

    app = web.Application()
    app.router.add_post("/{path:.*}", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await (site := web.TCPSite(runner, "127.0.0.1", 0)).start()
        server: Any = site._server
        using = agent("anthropic/claude-sonnet-4-5", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        answer = await model_call.complete(using, [{"role": "user", "content": "go"}])
        await model_call.complete(using, conversation(using, answer))
    finally:
        await runner.cleanup()
    sent = next(message for message in bodies[1]["messages"] if message["role"] == "assistant")
    kinds = [block["type"] for block in sent["content"]]
    assert kinds == ["thinking", "text", "tool_use", "thinking", "redacted_thinking", "tool_use"]
    assert [block.get("signature") for block in sent["content"] if block["type"] == "thinking"] == ["MQ==", "Mg=="]
    assert not any(name in str(bodies[1]) for name in (PLACES, "'calls'"))
