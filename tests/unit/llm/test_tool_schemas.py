"""Tools as providers take them: the rules of the strictest ones, and the way back to the tools' own names."""

import json
import re
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from perdure.contracts.tools import RawCall, ToolDeclaration
from perdure.llm.schema_forms import root_form
from perdure.llm.tool_schemas import ShownTools
from perdure.schema_checks import problem

Json = dict[str, Any]

ROOT_RULES = ("anyOf", "oneOf", "allOf", "enum", "not", "const", "if", "then", "else", "$ref")
"""What OpenAI or Anthropic refuse at the root of a tool's schema."""

PLAIN = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
NAMES = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")


def tool(parameters: Any, name: str = "web__search") -> ToolDeclaration:
    return ToolDeclaration(name=name, description="Search.", parameters=parameters, reference="mcp:web/search")


def function(declared: ToolDeclaration) -> Json:
    """What a request says of the tool."""
    (sent,) = cast("list[Any]", ShownTools([declared]).declarations())
    return cast("Json", sent["function"])


def shown(parameters: Any) -> Json:
    return cast("Json", function(tool(parameters))["parameters"])


def parts_of(schema: Json) -> Iterator[Json]:
    """The schema and all schemas within it."""
    unread: list[Any] = [schema]
    while unread:
        part = unread.pop()
        if not isinstance(part, dict):
            continue
        yield part
        for word in ("properties", "patternProperties", "$defs", "definitions"):
            unread += part.get(word, {}).values()
        for word in ("anyOf", "oneOf", "allOf", "prefixItems"):
            unread += part.get(word, [])
        unread += [part.get(word) for word in ("items", "not", "contains", "additionalProperties", "propertyNames")]


def assert_is_taken(schema: Json) -> None:
    """As the providers' own documentation and refusals have it."""
    Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert not set(ROOT_RULES) & schema.keys()
    assert all(PLAIN.fullmatch(name) for name in schema["properties"])
    assert set(schema.get("required", ())) <= schema["properties"].keys()
    for part in parts_of(schema):
        if part.get("type") == "array":
            assert isinstance(part.get("items"), dict)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)

WORDS = st.sampled_from(
    [
        *("type", "properties", "required", "items", "anyOf", "oneOf", "allOf", "not", "if", "then", "else", "enum"),
        *("const", "$ref", "$defs", "definitions", "minimum", "exclusiveMinimum", "pattern", "additionalProperties"),
        *("description", "default", "format", "minLength", "patternProperties", "prefixItems", "multipleOf", "$id"),
        *("dependencies", "dependentRequired", "uniqueItems", "propertyNames", "contains", "examples", "nullable"),
    ]
)

PROPERTY = st.sampled_from(["a", "b", "filter[name]", "filter[id]", "filter_name_", "größe", "x" * 70, "@type", ""])

SCHEMAS: st.SearchStrategy[Any] = st.deferred(
    lambda: st.one_of(
        st.sampled_from(
            [{"type": kind} for kind in ("string", "integer", "array", "object", "null", "any", 7)]
            + [{"$ref": place} for place in ("#", "#/$defs/a", "#/definitions/b", "#/properties/a", "http://x", 1)]
            + [True, False, None, [], "string"]
        ),
        st.dictionaries(WORDS, ANY_JSON | SCHEMAS, max_size=4),
        st.builds(
            lambda properties, required, more: {
                "type": "object",
                "properties": properties,
                "required": required,
                **more,
            },
            st.dictionaries(PROPERTY, SCHEMAS, max_size=4),
            st.lists(PROPERTY, max_size=3),
            st.dictionaries(st.sampled_from(["anyOf", "oneOf", "allOf"]), st.lists(SCHEMAS, max_size=3), max_size=2),
        ),
        st.builds(
            lambda word, inner: {word: inner},
            st.sampled_from(["$defs", "definitions"]),
            st.dictionaries(st.sampled_from(["a", "b"]), SCHEMAS, max_size=2),
        ),
    )
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    schema=st.dictionaries(WORDS, ANY_JSON | SCHEMAS, max_size=5) | SCHEMAS.filter(lambda made: isinstance(made, dict))
)
def test_whatever_a_schema_says_it_is_shown_in_a_form_that_providers_take(schema: Json) -> None:
    """S-75."""
    assert_is_taken(root_form(schema)[0])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    names=st.lists(st.text(min_size=1, max_size=80), min_size=1, max_size=6, unique=True),
    nested=st.sampled_from(["plain", "object", "list", "anyOf", "reference", "others"]),
)
def test_arguments_under_the_shown_names_come_back_under_their_own(names: list[str], nested: str) -> None:
    """S-75: at the root, and in each place where an object can stand."""
    inner: Json = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
    value = dict.fromkeys(names, 1)
    schema, own = {
        "plain": (inner, value),
        "object": ({"type": "object", "properties": {"in ner": inner}}, {"in ner": value}),
        "list": (
            {"type": "object", "properties": {"of[]": {"type": "array", "items": inner}}},
            {"of[]": [value, value]},
        ),
        "anyOf": ({"type": "object", "anyOf": [{"properties": {"a": {}}}, inner]}, value),
        "reference": (
            {"type": "object", "properties": {"a": {"$ref": "#/$defs/part"}}, "$defs": {"part": inner}},
            {"a": value},
        ),
        "others": ({"type": "object", "additionalProperties": inner}, {"anything": value}),
    }[nested]
    declared = tool(schema)
    message: Any = {
        "role": "assistant",
        "tool_calls": [{"function": {"name": declared.name, "arguments": json.dumps(own)}}],
    }
    (sent,) = cast("list[Any]", ShownTools([declared]).show_calls([message]))
    arguments = sent["tool_calls"][0]["function"]["arguments"]
    (read,) = ShownTools([declared]).read_calls([RawCall(declared.name, str(arguments))])
    assert json.loads(read.arguments) == own
    assert problem(schema, json.loads(read.arguments)) is None
    assert Draft202012Validator(shown(schema)).is_valid(json.loads(str(arguments)))


def test_a_schema_that_providers_take_is_shown_as_it_is() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "kind": {"enum": ["a", "b"], "description": "Kind.", "default": "a"},
            "sizes": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "minItems": 1},
            "part": {"$ref": "#/$defs/part"},
            "note": {"anyOf": [{"type": "string"}, {"const": None}], "default": None},
        },
        "required": ["kind"],
        "additionalProperties": False,
        "$defs": {"part": {"type": "object", "properties": {"x.y-z": {"const": 1}}, "patternProperties": {"^a": {}}}},
    }
    assert shown(schema) == schema


@pytest.mark.parametrize("word", ["anyOf", "oneOf"])
def test_branches_at_the_root_become_one_object_and_the_description_says_the_rest(word: str) -> None:
    """S-75: what each branch demands is demanded."""
    schema = {
        "type": "object",
        "properties": {"note": {"type": "string"}},
        "additionalProperties": False,
        word: [
            {"properties": {"to": {"type": "string"}, "id": {"type": "integer"}}, "required": ["to", "id"]},
            {"properties": {"to": {"type": "string"}, "id": {"type": "string"}}, "required": ["to"]},
        ],
    }
    said = function(tool(schema))
    assert said["parameters"] == {
        "type": "object",
        "properties": {
            "note": {"type": "string"},
            "to": {"type": "string"},
            "id": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        },
        "required": ["to"],
    }
    assert said["description"].startswith("Search.\n\nThe arguments also have to fit: ")
    assert '"required": ["to", "id"]' in said["description"]


def test_all_branches_together_demand_what_each_demands() -> None:
    schema = {
        "allOf": [
            {"$ref": "#/$defs/page"},
            {"properties": {"query": {"type": "string"}}, "required": ["query"]},
            {"if": {"properties": {"deep": {"const": True}}}, "then": {"required": ["page"]}},
        ],
        "$defs": {"page": {"type": "object", "properties": {"page": {"type": "integer"}}}},
    }
    form = shown(schema)
    assert (list(form["properties"]), form["required"]) == (["page", "query", "deep"], ["query"])


REFUSED: dict[str, Json] = {
    "a pattern that is none": {"type": "object", "patternProperties": {"?": {"type": "string"}}},
    "a list without items": {"properties": {"a": {"type": "array"}}},
    "items of draft 4": {"properties": {"a": {"type": "array", "items": [{"type": "string"}, {"type": "integer"}]}}},
    "a strict bound of draft 4": {"properties": {"a": {"type": "number", "minimum": 0, "exclusiveMinimum": True}}},
    "required of draft 3": {"properties": {"a": {"type": "string", "required": True}}},
    "an empty choice": {"properties": {"a": {"enum": []}}},
    "a choice that stands there twice": {"properties": {"a": {"enum": ["x", "x", 1, True]}}},
    "a type that is none": {"properties": {"a": {"type": "any"}, "b": {"type": ["string", "date"]}}},
    "nulls": {"properties": {"a": {"type": "string", "description": None, "enum": None}}, "required": None},
    "a flag for a schema": {"properties": {"a": True, "b": False}},
    "a reference that leads nowhere": {"properties": {"a": {"$ref": "#/components/schemas/A"}}},
    "a reference to a page": {"properties": {"a": {"$ref": "https://example.com/a.json"}}},
    "required within properties": {"properties": {"a": {}, "required": ["a"]}},
    "a name that is not there": {"properties": {"a": {}}, "required": ["a", "b"]},
    "several types at the root": {"type": ["object", "null"], "properties": {"a": {}}},
    "a reference at the root": {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {"b": {}}}}},
    "a root that refers to itself": {"allOf": [{"$ref": "#"}]},
    "an expression that is none": {"properties": {"a": {"pattern": "("}}},
}


@pytest.mark.parametrize("schema", REFUSED.values(), ids=REFUSED.keys())
def test_what_providers_are_known_to_refuse_is_shown_in_another_way(schema: Json) -> None:
    """S-75."""
    assert_is_taken(shown(schema))


def test_a_schema_that_doubles_at_each_level_takes_no_time() -> None:
    levels: Json = {f"l{n}": {"allOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 2} for n in range(60)}
    schema = {"$defs": {**levels, "l60": {"properties": {"a[]": {}}}}, "$ref": "#/$defs/l0"}
    assert list(shown(schema)["properties"]) == ["a__"]
    (read,) = ShownTools([tool(schema)]).read_calls([RawCall("web__search", '{"a__": 1}')])
    assert json.loads(read.arguments) == {"a[]": 1}


def test_deep_arguments_and_those_that_are_no_object_are_left_as_they_are() -> None:
    declared = tool({"type": "object", "properties": {"a[]": {"$ref": "#"}}})
    deep = '{"a__":' * 90 + "1" + "}" * 90
    for text in ("", "null", "[1]", "{broken", '"text"'):
        assert ShownTools([declared]).read_calls([RawCall("web__search", text)]) == (RawCall("web__search", text),)
    (read,) = ShownTools([declared]).read_calls([RawCall("web__search", deep)])
    assert read.arguments.startswith('{"a[]": {"a[]": ')


def test_a_property_that_the_model_writes_in_its_own_name_is_taken() -> None:
    """It has read it in a message."""
    declared = tool({"type": "object", "properties": {"filter[name]": {}, "filter_name_": {}}})
    given_names = '{"filter[name]": 1, "filter_name_": 2, "else": 3}'
    (read,) = ShownTools([declared]).read_calls([RawCall("web__search", given_names)])
    assert json.loads(read.arguments) == json.loads(given_names)


def test_a_name_that_begins_with_a_digit_is_shown_with_a_letter_before_it() -> None:
    """Gemini's rule."""
    declared = tool({"type": "object"}, name="7up__list")
    assert NAMES.fullmatch(function(declared)["name"])
    calls = ShownTools([declared]).read_calls([RawCall("_7up__list", "{}"), RawCall("other", "{}")])
    assert [call.name for call in calls] == ["7up__list", "other"]
