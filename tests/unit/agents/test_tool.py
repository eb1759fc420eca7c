"""A function becomes a tool: its schema, its settings, and clear refusals."""

from datetime import timedelta
from typing import Annotated

import pytest
from pydantic import ValidationError

from perdure import Tool, ToolContext, ToolDefinitionError, tool


def search(query: Annotated[str, "What to look for"], limit: int = 10, *, context: ToolContext) -> list[str]:
    """Search the notes."""
    del context
    return [query] * limit


def test_the_schema_comes_from_the_annotations_and_leaves_the_context_out() -> None:
    declared = tool(search).declaration
    assert declared.name == "search"
    assert declared.description == "Search the notes."
    assert declared.parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What to look for"},
            "limit": {"type": "integer", "default": 10},
        },
        "required": ["query"],
        "additionalProperties": False,
    }


def test_arguments_are_checked_and_defaults_left_to_the_function() -> None:
    made = tool(search)
    assert made.arguments({"query": "x"}) == {"query": "x"}
    with pytest.raises(ValidationError):
        made.arguments({"query": "x", "limit": "many"})
    with pytest.raises(ValidationError):
        made.arguments({"query": "x", "colour": "red"})


@pytest.mark.parametrize("name", ["copy", "json", "title", "_private", "model_config", "self_"])
def test_a_parameter_may_have_any_name(name: str) -> None:
    scope: dict[str, Tool[..., object]] = {"tool": tool}  # type: ignore[dict-item]
    exec(f"@tool\ndef named({name}: str) -> str:\n    'Named.'\n    return {name}", scope)
    made = scope["named"]
    properties = made.declaration.parameters["properties"]
    assert isinstance(properties, dict)
    assert list(properties) == [name]
    assert made.arguments({name: "x"}) == {name: "x"}


def test_a_decorated_function_is_called_as_before() -> None:
    @tool(name="doubled", timeout=timedelta(seconds=5))
    def double(number: int) -> int:
        """Double."""
        return 2 * number

    assert double(21) == 42
    assert (double.name, double.declaration.timeout) == ("doubled", timedelta(seconds=5))
    assert double.with_(name="twice").name == "twice"


def test_catch_is_the_default_set_or_all_or_none_or_more() -> None:
    """S-21: classes are frozen by name."""

    def declared(catch: object) -> object:
        return tool(catch=catch)(search).declaration.catch  # type: ignore[call-overload]

    assert declared(None) == ("JSONDecodeError", "ValidationError")
    assert declared(True) == "all"
    assert declared(False) == "none"
    assert declared([KeyError]) == ("JSONDecodeError", "ValidationError", "KeyError")
    assert declared(error for error in [KeyError]) == ("JSONDecodeError", "ValidationError", "KeyError")


def no_annotation(text) -> str:  # type: ignore[no-untyped-def]
    return str(text)


def any_number(*texts: str) -> str:
    return "".join(texts)


def no_schema(thing: pytest.MonkeyPatch) -> str:
    return str(thing)


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        (no_annotation, "tool 'no_annotation': parameter 'text' has no annotation; write for example 'text: str'"),
        (any_number, "cannot be described to a model; use named parameters only"),
        (no_schema, "an annotation has no JSON schema"),
        (lambda: "x", "tool '<lambda>': a lambda has no name; write a function with def"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused_in_one_line_with_the_fix(function: object, cause: str) -> None:
    with pytest.raises(ToolDefinitionError) as refusal:
        tool(function)  # type: ignore[call-overload]
    assert cause in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_time_out_of_nothing_is_refused() -> None:
    with pytest.raises(ToolDefinitionError, match="timeout"):
        tool(timeout=timedelta(0))(search)
