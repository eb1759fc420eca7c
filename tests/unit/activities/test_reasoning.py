"""Reasoning goes back, over HTTP, to the providers that want it, in the field where they look for it."""

from typing import Any

import pytest
from aiohttp import web

from perdure.activities.models import model_call
from perdure.activities.models.model_call import Answer
from perdure.activities.models.reasoning import MOST_BYTES
from perdure.activities.models.record_answer import step_of
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.generations import Generate
from perdure.contracts.messages import Message, ToolMessage, UserMessage
from perdure.contracts.tools import ToolDeclaration
from perdure.llm.openai_format import wire
from perdure.testing import Reply, Script, ScriptedProvider, say

LOOK = ToolDeclaration(
    name="look", reference="tests:look", description="", parameters={"type": "object", "properties": {}}
)
DETAILS: list[Any] = [{"type": "reasoning.encrypted", "data": "b64", "format": "x-v1", "index": 0, "id": None}]
SIGNED = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
THOUGHT: dict[str, Any] = {
    "reasoning_content": "I look first.",
    "reasoning_details": DETAILS,
    "thinking_blocks": [SIGNED],
}
OURS = ("reasoning", "reasoning_content", "reasoning_details", "thinking_blocks", "provider_specific_fields")


def definition(name: str, address: str) -> AgentDefinition:
    params: dict[str, Any] = {"api_base": address, "api_key": "sk-scripted-reasoning-01"}
    return AgentDefinition(name="a", model=name, tools=(LOOK,), generate_params=params, tool_mode="api")


def step_messages(using: AgentDefinition, answer: Answer) -> tuple[Message, ...]:
    """The answer as it is stored, and the results of its calls."""
    request = Generate(session="s", turn=1, step=1, parent="p", definition=using.digest())
    step, _ = step_of(request, using, (UserMessage(content="go"),), answer, ())
    results = (ToolMessage(call_id=call.call_id, name="look", content="seen") for call in step.calls)
    return (*step.messages, *results)


async def ask_twice(first: AgentDefinition, second: AgentDefinition) -> None:
    """Ask the first model, and the second one with the first one's answer."""
    answer = await model_call.complete(first, [{"role": "user", "content": "go"}])
    await model_call.complete(second, [wire(message) for message in step_messages(first, answer)])


def replies() -> Script:
    return Script(replies=(Reply(calls=(("look", {}),), message=THOUGHT), say("done")))


async def message_sent(first: str, second: str | None = None) -> dict[str, Any]:
    async with ScriptedProvider(replies()) as provider:
        await ask_twice(*(definition(name, _address(name, provider)) for name in (first, second or first)))
        return next(message for message in provider.requests[1].request.messages if message["role"] == "assistant")


def _address(name: str, provider: ScriptedProvider) -> str:
    return provider.anthropic_url if name.startswith("anthropic/") else provider.url


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("deepseek/deepseek-chat", {"reasoning_content": "I look first."}),
        ("moonshot/kimi-k2-thinking", {"reasoning_content": "I look first."}),
        ("zai/glm-4.7", {"reasoning_content": "I look first."}),
        ("together_ai/some/model", {"reasoning_content": "I look first."}),
        ("openrouter/anthropic/claude-sonnet-4.5", {"reasoning_details": DETAILS}),
        ("anthropic/claude-sonnet-4-5", {"thinking_blocks": [SIGNED]}),
        ("openai/gpt-5", THOUGHT),  # an address of the author's own
        ("mistral/magistral-medium-latest", {}),
        ("xai/grok-4", {}),
    ],
)
async def test_a_provider_gets_back_what_it_wants_and_no_other_field(name: str, wanted: dict[str, Any]) -> None:
    message = await message_sent(name)
    assert {field: message[field] for field in OURS if field in message} == wanted
    assert message["tool_calls"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("deepseek/deepseek-chat", "openai/gpt-5"),
        ("anthropic/claude-sonnet-4-5", "openai/gpt-5"),
        ("openrouter/anthropic/claude-sonnet-4.5", "openrouter/openai/gpt-5"),
        ("together_ai/some/model", "fireworks_ai/accounts/fireworks/models/m"),
        ("anthropic/claude-sonnet-4-5", "anthropic/claude-opus-4-5"),
        ("deepseek/deepseek-chat", "deepseek/deepseek-reasoner"),
        ("openrouter/anthropic/claude-sonnet-4.5", "openrouter/anthropic/claude-opus-4.5"),
    ],
)
async def test_another_model_gets_none_of_it(first: str, second: str) -> None:
    """Also where it speaks the same wire, or is of the same vendor: a switch, a fallback."""
    message = await message_sent(first, second)
    assert not any(message.get(field) for field in OURS)  # DeepSeek refuses an answer without the field


async def test_reasoning_that_is_too_long_is_not_kept_at_all() -> None:
    script = Script(replies=(Reply(text="x", message={"reasoning_content": "y" * MOST_BYTES}),))
    async with ScriptedProvider(script) as provider:
        using = definition("deepseek/deepseek-chat", provider.url)
        assert (await model_call.complete(using, [{"role": "user", "content": "go"}])).thinking == ()


async def test_gemini_gets_the_signature_of_each_part_on_that_part() -> None:
    """On its own wire: without the signature of a call, newer Gemini models refuse the conversation."""
    bodies: list[Any] = []
    parts: list[Any] = [
        {"text": "Let me look.", "thoughtSignature": "dGV4dA=="},
        {"functionCall": {"name": "look", "args": {}}, "thoughtSignature": "Y2FsbA=="},
        {"functionCall": {"name": "look", "args": {}}},
    ]

    async def serve(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        content = {"role": "model", "parts": parts if len(bodies) == 1 else [{"text": "done"}]}
        usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
        return web.json_response(
            {"candidates": [{"content": content, "finishReason": "STOP", "index": 0}], "usageMetadata": usage}
        )

    app = web.Application()
    app.router.add_post("/{path:.*}", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await (site := web.TCPSite(runner, "127.0.0.1", 0)).start()
        server = site._server
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]
        using = definition("gemini/gemini-3-pro-preview", address)
        await ask_twice(using, using)
    finally:
        await runner.cleanup()
    answer = next(message for message in bodies[1]["contents"] if message["role"] == "model")
    assert [part.get("thoughtSignature") for part in answer["parts"]] == ["dGV4dA==", "Y2FsbA==", None]
