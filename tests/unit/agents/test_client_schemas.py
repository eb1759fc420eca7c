"""Schemas of callers' tools as the libraries of OpenAI clients write them: each is taken, and held to where it can be.

Sources: ``openai.pydantic_function_tool`` itself; what zod-to-json-schema 3.24, which the Vercel AI SDK has, and the
``toJSONSchema`` of zod 4 print, by their documentation and code.
"""

import time
from enum import Enum
from typing import Annotated, Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field

from perdure import ToolDefinitionError, caller_tool, stop
from perdure.agents.caller_tools import declare_caller_tools
from perdure.agents.data import AgentDataError, InlineAgents, Registered
from perdure.agents.schemas import GivenUpError
from perdure.contracts.caller_tools import RequestTool
from perdure.contracts.tools import ToolDeclaration
from perdure.llm.tool_schemas import ShownTools
from perdure.schema_checks import problem

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"
ZOD_EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
ZOD_EMOJI = r"^(\p{Extended_Pictographic}|\p{Emoji_Component})+$"


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Node(BaseModel):
    """A tree, which refers to itself."""

    name: Annotated[str, Field(pattern=r"^[a-z]+$", min_length=1, max_length=20)]
    children: list["Node"] = []


class Order(BaseModel):
    """An order."""

    id: Annotated[str, Field(pattern=r"^ord_[0-9a-f]{8}$")]
    colour: Colour
    kind: Literal["new", "old"]
    note: str | None
    tree: Node
    labels: dict[Annotated[str, Field(pattern="^x-")], int]
    pair: tuple[int, str]


def openai_schema(model: type[BaseModel]) -> dict[str, Any]:
    return dict(openai.pydantic_function_tool(model)["function"]["parameters"])


GOOD_ORDER: dict[str, Any] = {
    "id": "ord_0123abcd",
    "colour": "red",
    "kind": "new",
    "note": None,
    "tree": {"name": "a", "children": [{"name": "b", "children": []}]},
    "labels": {},
    "pair": [1, "a"],
}

ZOD_3: dict[str, Any] = {
    "type": "object",
    "properties": {
        "email": {"type": "string", "format": "email"},
        "url": {"type": "string", "format": "uri"},
        "at": {"type": "string", "format": "date-time"},
        "cuid": {"type": "string", "pattern": r"^[cC][^\s-]{8,}$"},
        "mood": {"type": "string", "pattern": ZOD_EMOJI},
        "both": {"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "z$"}]},
        "point": {"type": "array", "minItems": 2, "maxItems": 2, "items": [{"type": "number"}, {"type": "number"}]},
        "again": {"$ref": "#/properties/point"},
        "map": {"type": "object", "additionalProperties": {"type": "number"}, "propertyNames": {"minLength": 1}},
        "more": {"type": ["string", "null"]},
        "any": {},
        "above": {"type": "number", "exclusiveMinimum": 0, "default": 1},
    },
    "required": ["email"],
    "additionalProperties": False,
    "$schema": DRAFT_7,
}

ZOD_3_NAMED: dict[str, Any] = {
    "$ref": "#/definitions/args",
    "definitions": {"args": {"type": "object", "properties": {"both": ZOD_3["properties"]["both"]}}},
    "$schema": DRAFT_7,
}

ZOD_4: dict[str, Any] = {
    "$schema": DRAFT_2020,
    "type": "object",
    "properties": {
        "email": {"type": "string", "format": "email", "pattern": ZOD_EMAIL},
        "count": {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991},
        "point": {"type": "array", "prefixItems": [{"type": "number"}, {"type": "number"}]},
        "choice": {"anyOf": [{"type": "string", "const": "a"}, {"type": "null"}]},
        "kind": {"oneOf": [{"type": "object", "properties": {"kind": {"type": "string", "const": "x"}}}]},
        "map": {"type": "object", "propertyNames": {"type": "string", "pattern": "^k"}, "additionalProperties": {}},
        "never": {"not": {}},
        "next": {"$ref": "#"},
    },
    "required": ["email"],
    "additionalProperties": False,
}

TAKEN: list[Any] = [
    pytest.param(openai_schema(Order), GOOD_ORDER, {**GOOD_ORDER, "id": "ord_1"}, id="openai"),
    pytest.param(openai_schema(Node), {"name": "a", "children": []}, {"name": "A", "children": []}, id="openai-tree"),
    pytest.param(Order.model_json_schema(), GOOD_ORDER, {**GOOD_ORDER, "labels": {"x-a": "b"}}, id="pydantic"),
    pytest.param(
        Node.model_json_schema(), {"name": "a"}, {"name": "a", "children": [{"name": "A"}]}, id="pydantic-tree"
    ),
    pytest.param(ZOD_3, {"email": "a@b.c", "cuid": "c12345678"}, {"email": "a", "cuid": "x"}, id="zod-3"),
    pytest.param(ZOD_3, {"email": "a", "mood": "sad"}, {"mood": "sad"}, id="zod-3-an-expression-of-javascript"),
    pytest.param(ZOD_3, {"email": "a", "point": [1, 2]}, {"email": "a", "point": [1, "2"]}, id="zod-3-tuple"),
    pytest.param(ZOD_3_NAMED, {"both": "az"}, {"both": "a"}, id="zod-3-named"),
    pytest.param(ZOD_4, {"email": "a@b.cd"}, {"email": "a..b@c.de"}, id="zod-4"),
    pytest.param(ZOD_4, {"email": "a@b.cd", "map": {"k": 1}}, {"email": "a@b.cd", "map": {"x": 1}}, id="zod-4-record"),
]


@pytest.mark.parametrize(("schema", "fits", "breaks"), TAKEN)
def test_a_schema_of_a_client_is_taken_shown_and_held_to(
    schema: dict[str, Any], fits: dict[str, Any], breaks: dict[str, Any]
) -> None:
    """S-81."""
    (declared,) = declare_caller_tools([RequestTool(name="order", parameters=schema)])
    assert declared.parameters == schema
    (shown,) = ShownTools([declared]).declarations()
    assert '"type": "object"' in str(shown).replace("'", '"')
    assert problem(declared.parameters, fits) is None
    assert problem(declared.parameters, breaks) is not None


EVIL = "(?:a{1000}){1000}"
EXPENSIVE: list[str] = [EVIL, "^(a|a)*$", "(" * 500 + ")" * 500, "a{4000000000}", "(", "x" * 5_000]


@pytest.mark.parametrize("pattern", EXPENSIVE)
def test_an_expression_that_nobody_can_search_for_costs_nothing_and_refuses_nothing(pattern: str) -> None:
    """S-81: the model is shown it, and the rest of the schema is held to."""
    declared = declare(pattern)
    began = time.thread_time()
    value = "a" * 60 + "!"
    try:
        assert problem(declared.parameters, {"id": 1, "text": value}) is None
        assert str(problem(declared.parameters, {"text": value})).startswith("at $: required")
    except GivenUpError:
        assert pattern == "^(a|a)*$"
    assert time.thread_time() - began < 20  # compiled or searched to the end, each would take minutes


def declare(pattern: str) -> ToolDeclaration:
    schema: dict[str, Any] = {
        "type": "object",
        "required": ["id"],
        "properties": {"id": {}, "text": {"type": "string", "pattern": pattern}},
    }
    (declared,) = declare_caller_tools([RequestTool(name="find", parameters=schema)])
    assert caller_tool("find", "Find.", schema).declaration.parameters == schema
    return declared


WIDE = "[\u0100-\U0010ffff]"
"""Takes ten milliseconds to compile after ``(?i)``, three without."""


def test_sets_of_characters_that_take_long_to_compile_are_counted_over_a_request() -> None:
    """S-81: thousands of them would hold the worker up for minutes."""
    worker = InlineAgents(Registered(()), ())
    many: dict[str, Any] = {f"a{number}": {"type": "string", "pattern": f"(?i){WIDE * 3}"} for number in range(20)}
    schema: dict[str, Any] = {"type": "object", "properties": many}
    one: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string", "pattern": WIDE * 11}}}
    with pytest.raises(ToolDefinitionError, match="may have 50 sets"):
        declare_caller_tools([RequestTool(name="find", parameters=schema)])
    for field, told in ((schema, "may have 50 sets"), (one, "has more than 10 sets")):
        with pytest.raises(AgentDataError, match=told):
            worker.agent({"name": "inline", "model": "openai/scripted", "output_schema": field})
    with pytest.raises(ValueError, match="has more than 10 sets"):
        stop.output(WIDE * 11, regex=True)


@pytest.mark.parametrize("keyword", ["not", "oneOf", "if"])
def test_an_error_that_may_come_of_a_passed_over_expression_refuses_nothing(keyword: str) -> None:
    hidden: dict[str, Any] = {"pattern": r"^\p{L}{2}$"}
    part: Any = [hidden, {"type": "string"}] if keyword == "oneOf" else hidden
    schema: dict[str, Any] = {"type": "object", "properties": {"text": {keyword: part, "then": False}}}
    with pytest.raises(GivenUpError, match="cannot be searched for"):
        problem(schema, {"text": "7"})


@pytest.mark.parametrize("field", ["output_schema", "approvals"])
def test_expressions_elsewhere_in_a_request_have_to_be_such_as_can_be_searched_for(field: str) -> None:
    """There nobody else holds a value to the schema."""
    worker = InlineAgents(Registered(()), ())

    def read(pattern: str) -> object:
        schema: dict[str, Any] = {"type": "object", "properties": {"id": {"type": "string", "pattern": pattern}}}
        rules: dict[str, Any] = {"rules": [{"tool": "find", "arguments": schema, "decision": "deny"}]}
        find: dict[str, Any] = {"name": "find", "parameters": schema}
        given: dict[str, Any] = {"name": "inline", "model": "openai/scripted", "tools": [find]}
        return worker.agent({**given, field: schema if field == "output_schema" else rules})

    read(r"^[0-9]{4}$")
    for pattern, told in (
        (EVIL, "2,000 parts"),
        ("(", "is no regular expression"),
        ("x" * 1_001, "the limit is 1,000"),
    ):
        with pytest.raises(AgentDataError) as refused:
            read(pattern)
        assert (told in str(refused.value), field in str(refused.value)) == (True, True), refused.value
