"""Answers as JSON: found wherever models put it, and no JSON told apart from JSON of another shape."""

import pytest

from perdure.contracts.errors import ReasonCode
from perdure.contracts.values import JsonValue
from perdure.llm.structured_output import MAX_PROBLEM, AnswerError, check_answer

SCHEMA: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"total": {"type": "number"}, "items": {"type": "array", "items": {"type": "string"}}},
    "required": ["total"],
}
FITS = '{"total": 3, "items": ["a"]}'


@pytest.mark.parametrize(
    "text",
    [
        FITS,
        f"\n {FITS}\n",
        f"Here it is:\n```json\n{FITS}\n```\nAnything else?",
        f"```\n{FITS}\n```",
        f"The answer is {FITS}, I think.",
        f"```python\nprint(1)\n```\n```json\n{FITS}\n```",
    ],
)
def test_json_is_found_as_it_is_in_a_fence_or_between_the_outermost_brackets(text: str) -> None:
    """S-72: the three texts."""
    assert check_answer(text, SCHEMA) == {"total": 3, "items": ["a"]}


def test_an_array_or_a_bare_value_may_be_what_is_asked_for() -> None:
    assert check_answer("Sure: [1, 2]", {"type": "array"}) == [1, 2]
    assert check_answer('"yes"', {"enum": ["yes", "no"]}) == "yes"


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "",
        "{'total': 3}",
        '{"total": NaN}',
        '{"total": 1e999}',
        '{"total": 3',
        "```json\n{]\n```",
        '{"total": 3, "items": ["\\ud83d"]}',
        "[" * 100 + "]" * 100,
        "[" * 5_000,
    ],
)
def test_no_json_is_a_parse_error(text: str) -> None:
    """S-72"""
    with pytest.raises(AnswerError) as raised:
        check_answer(text, SCHEMA)
    assert raised.value.code is ReasonCode.LLM_PARSE_ERROR


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"total": "three"}', "$.total"),
        ("{}", "'total' is a required property"),
        ('{"total": 1, "items": [1]}', "[0]"),
    ],
)
def test_json_of_another_shape_is_a_schema_violation_and_says_where(text: str, place: str) -> None:
    """S-72"""
    with pytest.raises(AnswerError) as raised:
        check_answer(text, SCHEMA)
    assert raised.value.code is ReasonCode.LLM_SCHEMA_VIOLATION
    assert place in str(raised.value)


def test_what_is_wrong_is_told_briefly() -> None:
    with pytest.raises(AnswerError) as raised:
        check_answer('{"total": "' + "x" * 100_000 + '"}', SCHEMA)
    assert len(str(raised.value)) < MAX_PROBLEM + 200


def test_a_schema_that_leads_round_in_circles_is_no_trap() -> None:
    """What jsonschema cannot follow is an answer that does not fit, and no bug of the activity."""
    schema: dict[str, JsonValue] = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    with pytest.raises(AnswerError) as raised:
        check_answer("1", schema)
    assert raised.value.code is ReasonCode.LLM_SCHEMA_VIOLATION


@pytest.mark.parametrize(
    "schema",
    [
        {"$dynamicRef": "#node"},
        {"$defs": {"a": {"$id": "urn:a", "$ref": "#/$defs/b"}, "b": {}}, "$ref": "#/$defs/a"},
        {"type": "objekt"},
        {"pattern": "("},
    ],
)
def test_a_schema_that_cannot_be_applied_ends_the_paid_call_for_good(schema: dict[str, JsonValue]) -> None:
    """Whatever it is that the validator raises: an activity that failed with it would pay for the answer again."""
    with pytest.raises(AnswerError, match="the schema cannot be applied") as raised:
        check_answer('"x"', schema)
    assert raised.value.code is ReasonCode.LLM_SCHEMA_VIOLATION
