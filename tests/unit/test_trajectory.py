"""Trajectories: messages in chat order, usage counted once, and the formats in which they leave and come back."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from perdure import Trajectory
from perdure.contracts.budgets import Usage
from perdure.contracts.events import AgentStart, Envelope, UnknownEvent
from perdure.contracts.messages import AssistantMessage, ConversationError, ToolCall, ToolMessage, UserMessage
from perdure.trajectory import TrajectoryStep, rows
from tests.unit.engine.conversations import conversations

GOLDEN = Path(__file__).parent / "golden"


def golden(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


def step(number: int, *messages: Any, usage: int = 0) -> TrajectoryStep:
    used = Usage(input_tokens=usage, output_tokens=1 if usage else 0)
    cost = Decimal("0.01") if usage else None
    return TrajectoryStep(step=number, messages=messages, usage=used, cost_usd=cost)


def asks(*ids: str) -> AssistantMessage:
    return AssistantMessage(
        tool_calls=tuple(ToolCall(id=call_id, name="look", arguments='{"place": "x"}') for call_id in ids)
    )


def result(call_id: str) -> ToolMessage:
    return ToolMessage(call_id=call_id, name="look", content=f"result of {call_id}")


AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

WHOLE = Trajectory(
    session="job-1",
    agent="scout",
    model="openai/x",
    system_prompt="Be brief.",
    tools=({"type": "function", "function": {"name": "look", "description": "", "parameters": {"type": "object"}}},),
    steps=(
        step(0, UserMessage(content="look around")),
        step(1, asks("c1", "c2"), usage=10),
        step(2, result("c2"), UserMessage(content="hurry"), result("c1"), AssistantMessage(content="done"), usage=20),
        step(2, usage=5),
    ),
    events=(
        Envelope(
            seq=1,
            session="job-1",
            turn=1,
            step=0,
            at=AT,
            event=AgentStart(agent="scout", model="openai/x", prompt="look around", definition="d"),
        ),
        Envelope(
            seq=2, session="job-1", turn=1, step=0, at=AT, event=UnknownEvent(name="new", body={"type": "new", "x": 1})
        ),
    ),
    metadata={"stop_reason": "finished"},
)


def test_messages_are_in_chat_order_with_each_result_behind_its_call() -> None:
    """S-54."""
    said = [getattr(message, "call_id", message.role) for message in WHOLE.messages]
    assert said == ["user", "assistant", "c1", "c2", "user", "assistant"]


def test_usage_is_what_the_providers_reported_each_call_once() -> None:
    """S-54: a step of a compaction adds no message, but its call was made."""
    assert WHOLE.usage == Usage(input_tokens=35, output_tokens=3)
    assert WHOLE.cost_usd == Decimal("0.03")


def test_a_trajectory_goes_through_a_dict_and_json_and_back() -> None:
    """S-45: also an event of a type that this release does not know, as it was."""
    assert Trajectory.from_dict(json.loads(json.dumps(WHOLE.to_dict()))) == WHOLE
    assert Trajectory.from_dict(golden("trajectory.json")) == WHOLE


def test_its_openai_format_and_its_record_are_what_other_programs_read() -> None:
    """S-55: the record has the system prompt once."""
    assert WHOLE.to_openai() == golden("openai.json")
    record = WHOLE.to_record({"task": "scouting"})
    assert record == golden("record.json")
    assert str(record).count("Be brief.") == 1


@pytest.mark.parametrize("form", ["messages", "chat", "turns"])
def test_the_three_formats_of_a_dataset(form: str) -> None:
    """S-55."""
    assert list(rows([WHOLE.to_record()], form)) == golden(f"{form}.json")


def test_a_fourth_format_is_an_error() -> None:
    """S-55."""
    with pytest.raises(ValueError, match="there is no dataset format 'csv'; the formats are messages, chat, turns"):
        rows([WHOLE.to_record()], "csv")


def test_a_conversation_from_elsewhere_is_a_step_for_each_answer() -> None:
    """S-55."""
    read = Trajectory.from_openai(golden("openai.json"), agent="scout")
    assert [[message.role for message in record.messages] for record in read.steps] == [
        ["user", "assistant"],
        ["tool", "tool", "user", "assistant"],
    ]
    assert (read.agent, read.system_prompt) == ("scout", "Be brief.")
    assert read.to_openai() == golden("openai.json")


@given(conversations())
def test_openai_export_and_import_are_each_others_reverse(messages: list[dict[str, Any]]) -> None:
    """S-55: for whatever conversation."""
    read = Trajectory.from_openai(messages)
    assert read.to_openai() == messages
    assert Trajectory.from_openai(read.to_openai()) == read
    assert Trajectory.from_dict(json.loads(json.dumps(read.to_dict()))) == read


USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
ASKS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "x"}


@pytest.mark.parametrize(
    ("messages", "cause"),
    [
        ([USER, RESULT], "message 2: it is the result of call 'c1', which no message before it asks for"),
        ([USER, ASKS], "the conversation ends before call 'c1' has its result"),
        ([USER, ASKS, USER, RESULT], "message 3: call 'c1' has no result yet"),
        ([USER, ASKS, RESULT, RESULT], "message 4: it is the result of call 'c1'"),
        ([USER, ASKS, RESULT, ASKS, RESULT], "message 4: the id 'c1' of a call is empty, too long or there twice"),
        ([USER, {"role": "system", "content": "x"}], "message 2: a system prompt stands behind other messages"),
        ([{"role": "function", "content": "x"}], "message 1: its role 'function' is none of system, user"),
        (["hi"], "message 1: it is no object with role and content"),
        ([{"role": "user"}], "message 1: it has no content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "message 1: its content has parts that are no text"),
        ([{"role": "tool", "content": "x"}], "message 1: a tool message needs its tool_call_id"),
        ([{**ASKS, "tool_calls": [{"id": "c1"}]}], "message 1: a tool call is an object with id and function"),
        ([{**ASKS, "tool_calls": [{**CALL, "id": 1}]}], "message 1: a tool call: id: Input should be a valid string"),
        ([{**ASKS, "tool_calls": "c1"}], "message 1: tool_calls is no list"),
    ],
)
def test_what_is_no_conversation_is_refused_with_the_message_that_is_wrong(messages: list[Any], cause: str) -> None:
    with pytest.raises(ConversationError) as refusal:
        Trajectory.from_openai(messages)
    assert str(refusal.value).startswith(cause)


def test_parts_that_are_texts_are_one_text() -> None:
    parts: list[Any] = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    read = Trajectory.from_openai([{"role": "developer", "content": parts}, {"role": "user", "content": parts}])
    assert (read.system_prompt, read.messages[0].content) == ("ab", "ab")
