"""Strict is only what OpenAI takes as strict: any other schema would be refused at each turn."""

import copy
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field, HttpUrl

from perdure.contracts.values import JsonValue
from perdure.llm.strict_schemas import fit, is_strict


def closed(**properties: JsonValue) -> dict[str, JsonValue]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


TEXT: JsonValue = {"type": "string"}


@pytest.mark.parametrize(
    "node",
    [
        TEXT,
        {"type": ["string", "null"]},
        {"type": "array", "items": TEXT, "minItems": 1},
        {"anyOf": [TEXT, {"type": "null"}], "description": "Words."},
        {"enum": ["a", "b"]},
        {"const": 3},
        {"type": "string", "format": "date-time"},
        {"type": "number", "minimum": 0, "multipleOf": 0.5},
        closed(inner=TEXT),
    ],
)
def test_what_the_subset_has_is_strict(node: JsonValue) -> None:
    assert is_strict(closed(a=node))
    assert is_strict({**closed(a={"$ref": "#/$defs/A"}), "$defs": {"A": node}})


@pytest.mark.parametrize(
    "node",
    [
        {"oneOf": [TEXT, {"type": "null"}]},
        {"allOf": [TEXT]},
        {"not": TEXT},
        {"type": "string", "default": "a"},
        {"type": "string", "minLength": 1},
        {"type": "string", "format": "uri"},
        {"type": "array"},
        {"type": "array", "items": TEXT, "uniqueItems": True},
        {"type": "array", "prefixItems": [TEXT], "items": TEXT},
        {"type": "object", "additionalProperties": TEXT},
        {"type": "object", "additionalProperties": False, "properties": {"b": TEXT}},
        {"$ref": "#/$defs/A", "description": "Words."},
        {"discriminator": {"propertyName": "kind"}, "anyOf": [TEXT]},
        {"description": "Anything."},
        {},
        True,
    ],
)
def test_one_place_that_it_does_not_have_is_enough(node: JsonValue) -> None:
    assert not is_strict(closed(a=node))
    assert not is_strict(closed(a={"type": "array", "items": node}))
    assert not is_strict(closed(a={"anyOf": [{"type": "null"}, node]}))
    assert not is_strict({**closed(a={"$ref": "#/$defs/A"}), "$defs": {"A": node}})


@pytest.mark.parametrize(
    "root", [TEXT, {"anyOf": [closed()]}, {**closed(), "anyOf": [closed()]}, {"$ref": "#/$defs/A"}]
)
def test_the_root_is_an_object(root: JsonValue) -> None:
    assert not is_strict(root)


def deep(levels: int) -> JsonValue:
    return closed(a=deep(levels - 1)) if levels else TEXT


@pytest.mark.parametrize(
    ("schema", "openai", "azure"),
    [
        (deep(4), True, True),
        (deep(5), True, False),
        (deep(10), False, False),
        (closed(**{f"p{number}": TEXT for number in range(101)}), True, False),
        (closed(a={"enum": [*range(501)]}), True, False),
        (closed(a={"enum": [*range(1001)]}), False, False),
        (closed(a={"const": "x" * 120_000}), False, False),
        (closed(a={"type": "string", "pattern": "^a"}), True, False),
    ],
    ids=["4 levels", "5 levels", "10 levels", "101 properties", "501 values", "1001 values", "a long text", "pattern"],
)
def test_each_provider_has_bounds_of_its_own(schema: JsonValue, *, openai: bool, azure: bool) -> None:
    assert (is_strict(schema, "openai"), is_strict(schema, "azure")) == (openai, azure)


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Cat(Closed):
    kind: Literal["cat"]
    lives: int


class Dog(Closed):
    kind: Literal["dog"]


class Colour(Enum):
    RED = "red"


class Taken(Closed):
    name: str
    age: int | None
    colour: Colour
    pets: list[Cat]


class Union(Closed):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


class Described(Closed):
    pet: Cat = Field(description="The one that you like most.")


class Address(Closed):
    home: HttpUrl


class Defaulted(Closed):
    age: int = 3


class Open(BaseModel):
    age: int


@pytest.mark.parametrize(
    ("model", "strict"),
    [(Taken, True), (Union, False), (Described, False), (Address, False), (Defaulted, False), (Open, False)],
)
def test_output_types_of_pydantic(model: type[BaseModel], *, strict: bool) -> None:
    schema: dict[str, Any] = model.model_json_schema()
    assert is_strict(schema) == strict


class Bounded(BaseModel):
    name: str = Field(min_length=1, max_length=20)
    age: int = Field(ge=0, description="In years.")
    colour: Literal["red"]
    home: HttpUrl | None = None


class Free(BaseModel):
    counts: dict[str, int]


class Tree(BaseModel):
    left: "Tree | None"


class Wide(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


@pytest.mark.parametrize(
    ("model", "openai", "anthropic", "gemini"),
    [
        (Taken, True, True, True),
        (Union, True, True, True),
        (Described, True, True, True),
        (Open, False, True, True),
        (Bounded, False, True, True),
        (Free, False, False, False),  # Claude could write an empty object only
        (Tree, False, False, False),
        (Wide, False, False, False),
        (Defaulted, False, True, True),
    ],
)
def test_a_schema_is_fitted_where_it_takes_no_less_then(
    model: type[BaseModel], *, openai: bool, anthropic: bool, gemini: bool
) -> None:
    schema: dict[str, Any] = model.model_json_schema()
    before = copy.deepcopy(schema)
    for provider, fits in (("openai", openai), ("anthropic", anthropic), ("bedrock", anthropic), ("gemini", gemini)):
        fitted = fit(schema, provider)
        assert (fitted is not None) == fits, provider
        assert fitted is None or is_strict(fitted, provider)
    assert schema == before


@pytest.mark.parametrize("provider", ["openai", "anthropic", "gemini", "azure"])
@given(
    value=st.recursive(st.none() | st.booleans() | st.integers(-3, 30) | st.text(max_size=3), st.lists, max_leaves=3)
)
def test_what_a_schema_takes_its_fitted_one_takes(provider: str, value: Any) -> None:
    """But for properties that the author has not named, over which pydantic passes."""
    inner: dict[str, Any] = {
        "oneOf": [
            {"type": "integer", "minimum": 3, "multipleOf": 2},
            {"type": "string", "minLength": 2, "pattern": "^a"},
            {"type": "array", "items": {"$ref": "#/$defs/A", "description": "One."}, "uniqueItems": True},
            {"const": None, "type": "null"},
        ]
    }
    schema: Any = {**closed(a=inner), "$defs": {"A": {"type": "string", "maxLength": 2}}}
    fitted = fit(schema, provider)
    assert fitted is not None
    if Draft202012Validator(schema).is_valid({"a": value}):
        assert Draft202012Validator(fitted).is_valid({"a": value})


def test_a_bound_that_a_provider_has_no_word_for_is_told() -> None:
    fitted: Any = fit(Bounded.model_json_schema(), "anthropic")
    assert fitted["properties"]["name"]["description"] == "(maxLength: 20, minLength: 1)"
    assert fitted["properties"]["age"]["description"] == "In years. (minimum: 0)"
    assert "minimum" not in fitted["properties"]["age"]
