"""Tools that strangers describe: agents as data, and the tools of a start request."""

from typing import Any

import pytest

from perdure.agents.caller_tools import declare_caller_tools
from perdure.agents.context import ToolDefinitionError
from perdure.agents.data import AgentDataError, InlineAgents, Registered
from perdure.client import RequestRefusedError
from perdure.client.requests import turn_request
from perdure.contracts.caller_tools import RequestTool

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"id": {"type": "integer"}}}
GIVEN: dict[str, Any] = {"name": "lookup", "description": "Look a customer up.", "parameters": SCHEMA}
WORKER = InlineAgents(Registered(()), ())


def inline(*tools: Any) -> Any:
    return WORKER.agent({"name": "inline", "model": "openai/scripted", "tools": [*tools]})


def test_an_agent_that_is_data_describes_tools_that_its_caller_runs() -> None:
    (declared,) = inline({**GIVEN, "timeout": 60}).definition.tools
    assert (declared.name, declared.runs, declared.interactive, declared.timeout.total_seconds()) == (
        "lookup",
        "caller",
        True,
        60,
    )


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"name": "no spaces"}, "tools.0: tool 'no spaces': name"),
        ({"body": "import os"}, "there is no such field; the fields are name, description, parameters"),
        ({"parameters": {"type": "object", "properties": {"a": {"type": "int"}}}}, "this is no JSON schema"),
        ({"parameters": {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}}, "'#/$defs/b' leads nowhere"),
        ({"parameters": {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array"}}}}, "schema of an object"),
        ({"parameters": {"$ref": "#/$defs/a", "$defs": {"a": True}}}, "schema of an object"),
        ({"parameters": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}}, "schema of an object"),
        ({"parameters": {"$ref": "#"}}, "schema of an object"),
        ({"parameters": {"type": "object", "properties": {f"a{n}": {} for n in range(1_001)}}}, "1,000 parts"),
    ],
)
def test_a_description_that_cannot_be_used_is_refused_with_its_place(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(AgentDataError) as refused:
        inline({**GIVEN, **fields})
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("tools", "told"),
    [
        ([GIVEN, GIVEN], "two are named"),
        ([{**GIVEN, "name": f"t{number}"} for number in range(65)], "there are 65, the limit is 64"),
        ([{**GIVEN, "parameters": {**SCHEMA, "title": "x" * 70_000}}], "the limit is 65,536"),
        ([{**GIVEN, "name": "generate"}], "a name of perdure's own"),
        ([{**GIVEN, "parameters": {"type": "object", "required": 1}}], "this is no JSON schema"),
    ],
)
def test_tools_that_no_worker_would_take_are_refused_before_anything_is_sent(tools: list[Any], told: str) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        turn_request("job", {"agent": "a", "prompt": "go", "tools": tools})
    assert (told in str(refused.value), str(refused.value).startswith("tools")) == (True, True), refused.value


def test_a_request_without_tools_is_written_as_before() -> None:
    assert "tools" not in turn_request("job", {"agent": "a", "prompt": "go"}).model_dump_json()


def test_a_name_that_the_agent_has_is_refused() -> None:
    with pytest.raises(ToolDefinitionError, match="the agent has a tool of that name"):
        declare_caller_tools([RequestTool(**GIVEN)], {"lookup"})
    giving_way = RequestTool(**GIVEN, gives_way=True)
    assert declare_caller_tools([giving_way], {"lookup"}) == ()
    assert declare_caller_tools([giving_way]) == declare_caller_tools([RequestTool(**GIVEN)])
