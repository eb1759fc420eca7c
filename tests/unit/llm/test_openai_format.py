"""OpenAI's chat format: what models are sent, and what other programs are given."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.errors import ErrorDetail
from perdure.contracts.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from perdure.contracts.tools import ToolDeclaration
from perdure.llm.openai_format import MAX_ARGUMENTS_SHOWN, openai_messages, openai_tools, wire

ASKED = UserMessage(content="count the words")
FAILURE = ErrorDetail(code="tool.execution_error", title="count", message="it broke")


def calling(*ids: str, arguments: str = "{}") -> AssistantMessage:
    return AssistantMessage(tool_calls=tuple(ToolCall(id=name, name="count", arguments=arguments) for name in ids))


def result(call_id: str, error: ErrorDetail | None = None) -> ToolMessage:
    return ToolMessage(call_id=call_id, name="count", content=f"result of {call_id}", error=error)


def test_a_whole_turn_reads_as_openai_documents_it() -> None:
    messages: list[Message] = [
        ASKED,
        calling("c1", arguments='{"text": "a b"}'),
        result("c1"),
        AssistantMessage(content="two"),
    ]
    assert openai_messages(messages, "Be brief.") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "count the words"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "count", "arguments": '{"text": "a b"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "result of c1"},
        {"role": "assistant", "content": "two"},
    ]


def test_without_instructions_there_is_no_system_prompt() -> None:
    assert openai_messages([ASKED]) == [{"role": "user", "content": "count the words"}]
    assert openai_messages([]) == []


def test_every_result_stands_right_after_its_call_in_the_order_of_the_calls() -> None:
    late: list[Message] = [calling("c1", "c2"), ASKED, result("c2"), result("c1")]
    assert [str(message.get("tool_call_id", message["role"])) for message in openai_messages(late)] == [
        "assistant",
        "c1",
        "c2",
        "user",
    ]


def test_a_call_that_still_runs_has_no_result_and_a_result_without_its_call_is_left_out() -> None:
    assert [message["role"] for message in openai_messages([result("c0"), calling("c1")])] == ["assistant"]


def test_a_failed_call_is_a_result_like_any_other() -> None:
    assert wire(result("c1", FAILURE)) == wire(result("c1"))


def test_an_empty_answer_keeps_a_text_and_an_answer_of_calls_has_none() -> None:
    assert wire(AssistantMessage()) == {"role": "assistant", "content": ""}
    assert wire(calling("c1"))["content"] is None


def test_blocks_of_one_provider_go_to_models_but_not_to_other_programs() -> None:
    message = AssistantMessage(content="hm", thinking=({"type": "thinking", "signature": "s"},))
    assert wire(message)["reasoning"] == [{"type": "thinking", "signature": "s"}]
    assert openai_messages([message]) == [{"role": "assistant", "content": "hm"}]


@pytest.mark.parametrize("broken", ['{"text": ', "[1]", "x" * (MAX_ARGUMENTS_SHOWN + 1)])
def test_broken_arguments_are_shown_inside_an_object_and_cut(broken: str) -> None:
    sent = json.loads(json.dumps(wire(calling("c1", arguments=broken))))["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"invalid_arguments": broken[:MAX_ARGUMENTS_SHOWN]}


def test_arguments_that_are_missing_are_an_empty_object() -> None:
    assert wire(calling("c1", arguments="")) == wire(calling("c1"))


def test_tools_are_declared_by_name_description_and_parameters() -> None:
    tool = ToolDeclaration(name="count", description="counts", parameters={"type": "object"}, reference="m:count")
    assert openai_tools([tool]) == [
        {
            "type": "function",
            "function": {"name": "count", "description": "counts", "parameters": {"type": "object"}},
        }
    ]


CALLS = st.integers(min_value=0, max_value=9).map(lambda number: f"c{number}")
MESSAGES = st.one_of(
    st.just(ASKED), CALLS.map(result), st.lists(CALLS, max_size=3, unique=True).map(lambda ids: calling(*ids))
)


@given(st.lists(MESSAGES, max_size=20))
def test_no_result_stands_anywhere_but_behind_its_call(messages: list[Message]) -> None:
    exported: list[Any] = [{"role": "system"}, *openai_messages(messages)]
    asked: set[str] = set()
    for before, message in pairwise(exported):
        if message["role"] == "assistant":
            asked = {call["id"] for call in message.get("tool_calls", ())}
        if message["role"] == "tool":
            assert before["role"] in {"assistant", "tool"}
            assert message["tool_call_id"] in asked
    kept = [message for message in messages if not isinstance(message, ToolMessage)]
    assert [message["role"] for message in exported[1:] if message["role"] != "tool"] == [entry.role for entry in kept]
