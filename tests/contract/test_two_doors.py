"""A call is the same request through either door: perdure's own, and litellm's."""

import json
from typing import Any

import pytest

from perdure.activities.models import litellm_call
from perdure.activities.models.wires.reply import Silent
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.tools import ToolDeclaration
from perdure.testing import Script, ScriptedProvider, say
from tests.unit.activities.calls import Way, take

PARAMETERS: Any = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}
SCHEMA: Any = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOLS = (ToolDeclaration(name="pay", description="Pay.", reference="t:pay", parameters=PARAMETERS),)
PIXEL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "pay", "arguments": '{"amount": 1}'}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "ok"},
    {"role": "user", "content": [{"type": "text", "text": "look"}, PIXEL]},
    {"role": "assistant", "content": "a pixel"},
    {"role": "user", "content": "and now?"},
]
OF_THE_CLIENT = {"host", "user-agent", "content-length", "accept", "accept-encoding", "connection"}
"""Headers that each HTTP client sends in its own way."""

MODELS = [
    *("openai/gpt-4o", "openai/gpt-5-mini", "openai/gpt-5.4", "openai/o3", "openai/scripted"),
    *(
        "anthropic/claude-sonnet-4-5",
        "anthropic/claude-opus-4-6",
        "anthropic/claude-3-5-haiku-latest",
        "anthropic/scripted",
    ),
]
SETTINGS: dict[str, dict[str, Any]] = {
    "none": {},
    "usual": {"temperature": 1, "max_tokens": 100, "top_p": 0.9},
    "effort": {"reasoning_effort": "low"},
    "headers": {"extra_headers": {"x-a": "b"}},
    "calls": {"stop": ["x"], "user": "u", "tool_choice": "auto", "parallel_tool_calls": False},
    "tier": {"service_tier": "auto"},
    "seed": {"seed": 1},
    "thinking": {"thinking": {"type": "enabled", "budget_tokens": 1024}},
}


async def sent(way: Way, model: str, name: str, schema: Any, *, streams: bool) -> tuple[object, ...]:
    """The body and the headers that arrive, how many requests, and what becomes of the call."""
    with pytest.MonkeyPatch.context() as environment:
        take(way, environment)
        async with ScriptedProvider(Script(replies=(say("hello"),))) as provider:
            base = provider.anthropic_url if model.startswith("anthropic") else provider.url
            params = {**SETTINGS[name], "api_base": base}
            agent = AgentDefinition(name="t", model=model, tools=TOOLS, output_schema=schema, generate_params=params)
            messages = json.loads(json.dumps(CONVERSATION))
            try:
                got: object = await litellm_call.complete(agent, messages, shown=Silent() if streams else None)
            except Exception as error:  # noqa: BLE001 - compared with that of the other door
                got = type(error), str(error)
            (request,) = provider.requests or (None,)
            if request is None:
                return (got,)
            headers = {key: value for key, value in request.headers.items() if key not in OF_THE_CLIENT}
            return request.body, headers, provider.request_count, got


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("model", MODELS)
async def test_both_doors_send_the_same_request(model: str, name: str) -> None:
    """Whole and streamed, with and without an output schema; what litellm refuses is refused before it is sent."""
    for schema in (None, SCHEMA):
        for streams in (False, True):
            ours = await sent(Way.OPENAI, model, name, schema, streams=streams)
            assert ours == await sent(Way.HANDLER, model, name, schema, streams=streams)
