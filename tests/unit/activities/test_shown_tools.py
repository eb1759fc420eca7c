"""Tools whose schemas or names a provider refuses, in a model call: what is sent, and what comes back."""

import json
from typing import Any

from perdure.activities.models import model_call
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.tools import ToolDeclaration
from perdure.testing import Script, ScriptedProvider, call
from tests.unit.activities.calls import Way

ODD = ToolDeclaration(
    name="web__search",
    description="Search.",
    parameters={
        "type": "object",
        "properties": {"filter[name]": {"type": "string"}},
        "anyOf": [{"required": ["filter[name]"]}, {"properties": {"id": {"type": "integer"}}, "required": ["id"]}],
    },
    reference="mcp:web/search",
)


async def test_a_schema_is_sent_in_a_form_that_is_taken_and_arguments_come_back_in_their_own_names(way: Way) -> None:
    """S-75: on each way that a call can take, and the calls of the past in the same names."""
    name = "anthropic/scripted" if way.speaks_anthropic else "openai/scripted"
    past: dict[str, Any] = {
        "id": "call_1",
        "type": "function",
        "function": {"name": ODD.name, "arguments": '{"filter[name]": "Ada"}'},
    }
    async with ScriptedProvider(Script(replies=(call((ODD.name, {"filter_name_": "Bob"})),), repeat=True)) as provider:
        base = provider.anthropic_url if way.speaks_anthropic else provider.url
        definition = AgentDefinition(name="tester", model=name, generate_params={"api_base": base}, tools=(ODD,))
        answer = await model_call.complete(
            definition,
            [
                {"role": "user", "content": "hello"},
                {"role": "assistant", "content": None, "tool_calls": [past]},
                {"role": "tool", "tool_call_id": "call_1", "content": "nobody"},
            ],
        )
        (request,) = provider.requests
    assert [json.loads(made.arguments) for made in answer.calls] == [{"filter[name]": "Bob"}]
    sent = json.dumps(request.body)
    assert "filter[name]" not in sent
    assert "filter_name_" in sent
