"""S-87: what a request of the Responses door wants of its answers: applied, left alone and told, or refused."""

from typing import Any

import pytest

from perdure.client import RequestRefusedError
from perdure.contracts.tool_choice import NamedTool
from perdure.gateway.doors.responses.requests import ResponseBody, read_request
from perdure.gateway.doors.responses.settings import ANY_OBJECT, Settings

SCHEMA: Any = {"type": "object", "properties": {"name": {"type": "string", "pattern": "^\\\\p{L}+$"}}}
FORM: Any = {"type": "json_schema", "name": "river", "schema": SCHEMA, "strict": True}


def read(*, tunes: bool = False, **fields: Any) -> Settings:
    return read_request(ResponseBody.model_validate({"input": "x", "model": "m", **fields}), tunes=tunes).settings


@pytest.mark.parametrize(
    "idle",
    [
        {"store": True, "parallel_tool_calls": True, "tool_choice": "auto", "truncation": "disabled"},
        {"include": ["reasoning.encrypted_content"], "user": "u", "service_tier": "auto", "top_logprobs": 0},
        {"text": {"format": {"type": "text"}}, "reasoning": {"summary": "auto"}, "context_management": []},
        {"temperature": None, "max_output_tokens": None, "tools": [], "metadata": {}, "store": None},
    ],
)
def test_what_asks_for_nothing_is_nothing(idle: dict[str, Any]) -> None:
    assert read(**idle) == read(tunes=True, **idle) == Settings()


@pytest.mark.parametrize(
    ("form", "schema"), [(FORM, SCHEMA), ({"type": "json_object"}, ANY_OBJECT), ({"type": "text"}, None), (None, None)]
)
def test_the_form_of_the_answer_is_the_callers(form: Any, schema: Any) -> None:
    echoed = {} if schema is None else {"text": {"format": form}}
    assert read(text={"format": form}) == Settings(output_schema=schema, echoed=echoed)


@pytest.mark.parametrize(
    ("choice", "read_as"),
    [
        ("required", "required"),
        ("none", "none"),
        ({"type": "function", "name": "look"}, NamedTool(name="look")),
        ({"type": "mcp", "server_label": "perdure", "name": "effect"}, NamedTool(name="effect")),
    ],
)
def test_the_choice_of_tools_is_the_callers(choice: Any, read_as: Any) -> None:
    assert read(tool_choice=choice) == Settings(tool_choice=read_as, echoed={"tool_choice": choice})


TUNED: Any = {"temperature": 0, "top_p": 0.5, "reasoning": {"effort": "low"}}


def test_parameters_of_the_model_are_left_alone_or_applied_as_the_token_says() -> None:
    assert read(**TUNED) == Settings(left_alone=("reasoning.effort", "temperature", "top_p"))
    params: Any = {"temperature": 0, "top_p": 0.5, "reasoning_effort": "low"}
    assert read(tunes=True, **TUNED) == Settings(params=params)
    assert read(parallel_tool_calls=False).params == {"parallel_tool_calls": False}


@pytest.mark.parametrize("tunes", [True, False])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("store", False),
        ("max_output_tokens", 9),
        ("truncation", "auto"),
        ("service_tier", "flex"),
        ("text", {"verbosity": "low"}),
    ],
)
def test_what_changes_nothing_is_told(field: str, value: Any, *, tunes: bool) -> None:
    name = f"{field}.{next(iter(value))}" if isinstance(value, dict) else field
    assert read(tunes=tunes, **{field: value}) == Settings(left_alone=(name,))


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"temperature": True}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": []}, "top_p"),
        ({"reasoning": {"effort": 7}}, "reasoning.effort"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {"type": 7}}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {"title": "x" * 70_000}}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {"anyOf": [{}] * 2_000}}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {"$ref": "http://x/y"}}}}, "text.format.schema"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format"),
        ({"text": {"format": {"type": []}}}, "text.format"),
        ({"text": {"format": "json_object"}}, "text.format"),
        ({"tool_choice": {"type": []}}, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tool_choice": {"type": "mcp", "server_label": "other"}}, "tool_choice"),
        ({"tool_choice": {"type": "mcp", "server_label": "perdure"}}, "tool_choice"),
        ({"temperature": 2.5}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"reasoning": {"effort": "enormous"}}, "reasoning.effort"),
        ({"reasoning": "high"}, "reasoning"),
        ({"text": "json"}, "text"),
        ({"parallel_tool_calls": "false"}, "parallel_tool_calls"),
        ({"text": {"format": {"type": "json_object", "schema": {}}}}, "text.format"),
        ({"text": {"format": {**FORM, "foo": 1}}}, "text.format"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": 7}, "tool_choice"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"context_management": [{}]}, "context_management"),
    ],
)
def test_what_nobody_could_use_is_refused_with_its_field(body: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        read(tunes=True, **body)
    assert str(refused.value).partition(":")[0] == field
