"""Requests of the AG-UI door: what each field comes to, and what is refused before anything is done."""

import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from perdure.client import RequestRefusedError
from perdure.gateway.doors.agui.conversations import results_for
from perdure.gateway.doors.agui.requests import Asked, RunBody, read_run
from perdure.gateway.doors.responses.requests import Said
from perdure.gateway.problems import ProblemError

USER = {"id": "m1", "role": "user", "content": "go"}
BY_URL = {"type": "image", "source": {"type": "url", "value": "x"}}
LOOK = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}


def read(**body: Any) -> Asked:
    return read_run(RunBody.model_validate({"threadId": "t", "runId": "r", "messages": [USER], **body}))


def test_a_new_thread_has_the_system_and_the_history_and_another_one_the_last_message() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"id": "1", "role": "system", "content": "Be kind."},
        {"id": "2", "role": "user", "content": "one"},
        {"id": "3", "role": "assistant", "content": "two"},
        {"id": "4", "role": "assistant", "toolCalls": [call]},
        {"id": "5", "role": "tool", "toolCallId": "c1", "content": "7"},
        {"id": "6", "role": "activity", "activityType": "PROGRESS", "content": {}},
        {"id": "7", "role": "user", "content": [{"type": "text", "text": "three"}]},
    ]
    asked = read(messages=messages, context=[{"description": "where", "value": "here"}])
    assert asked.begin() == ("<instructions>\nBe kind.\n</instructions>\n\n<context>\nwhere: here\n</context>\n\nthree")
    assert asked.say(asked.message) == "<context>\nwhere: here\n</context>\n\nthree"
    assert asked.history == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "7"},
    ]
    assert [line.role for line in asked.lines] == ["user", "assistant", "assistant", "tool", "user"]


def test_a_greeting_of_the_front_end_is_no_history() -> None:
    asked = read(
        messages=[{"id": "0", "role": "assistant", "content": "Hi!"}, USER, {"id": "1", "role": "assistant"}, USER]
    )
    assert [message["role"] for message in asked.history] == ["user", "assistant"]
    assert read(messages=[{"id": "0", "role": "assistant", "content": "Hi!"}, USER]).history == []


def test_images_and_documents_are_parts_of_the_prompt() -> None:
    source = {"type": "data", "value": "AA==", "mimeType": "image/png"}
    parts = [{"type": "text", "text": "look"}, {"type": "image", "source": source}]
    prompt = read(messages=[{**USER, "content": parts}]).begin()
    assert [part["type"] for part in prompt if isinstance(part, dict)] == ["text", "image_url"]


def test_messages_of_tools_are_results_wherever_they_stand() -> None:
    result = {"id": "5", "role": "tool", "toolCallId": "c1", "content": "7"}
    failed = {**result, "toolCallId": "c2", "error": "it broke"}
    asked = read(messages=[result, USER, {**result, "content": "8"}, failed])
    assert [line.said for line in results_for(asked.lines, {"c1", "c2", "c3"})] == [
        Said(call_id="c1", output="8"),
        Said(call_id="c2", error="it broke"),
    ]
    assert [*results_for(asked.lines, {"c3"})] == []
    with pytest.raises(RequestRefusedError, match="the last one is not the user's"):
        asked.begin()


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"payload": {"approved": True}}, Said(call_id="c", approve=True)),
        ({"payload": {"approved": False, "reason": "no"}}, Said(call_id="c", reason="no")),
        ({"payload": {"answer": {"a": 1}}}, Said(call_id="c", output={"a": 1})),
        ({"status": "cancelled"}, Said(call_id="c", declines=True)),
    ],
)
def test_an_entry_of_resume_is_a_reply(entry: dict[str, Any], said: Said) -> None:
    assert read(resume=[{"interruptId": "c", "status": "resolved", **entry}]).resumed == [said]


def test_fields_of_later_versions_are_left_out() -> None:
    assert read(later={"x": 1}, forwardedProps={"steer": True}, state={"a": 1}).steers


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"messages": [{"role": "robot"}]}, "its role is"),
        ({"messages": [{"role": ["user"]}]}, "its role is"),
        ({"messages": [{**USER, "content": ""}]}, "is empty"),
        ({"messages": [{**USER, "content": [BY_URL]}]}, "fetches"),
        ({"messages": [USER, {"role": "tool", "content": "x"}]}, "toolCallId is a text"),
        ({"messages": [{"role": "assistant", "toolCalls": [7]}]}, "a call has an id"),
        ({"resume": [{"interruptId": "c", "status": "resolved", "payload": True}]}, "its payload is"),
        ({"resume": [{"interruptId": "c", "status": "later"}]}, "its status is"),
        ({"resume": [{"status": "cancelled"}]}, "interruptId is a text"),
        ({"context": [{"value": 7}]}, "context\\[0\\]"),
        ({"tools": [{**LOOK, "name": f"t{n}"} for n in range(500)]}, "the limit is 64"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_place(body: dict[str, Any], why: str) -> None:
    with pytest.raises(RequestRefusedError, match=why):
        read(**body)


@pytest.mark.parametrize("tool", [{**LOOK, "parameters": {"type": "array"}}, {**LOOK, "name": "a b"}, {}])
def test_a_tool_that_is_none_is_refused(tool: dict[str, Any]) -> None:
    with pytest.raises(ProblemError, match="tools"):
        read(tools=[tool])


@pytest.mark.parametrize("bad", [{"threadId": "a b"}, {"runId": ""}, {"runId": "x" * 300}, {"messages": None}])
def test_ids_are_those_that_a_session_and_a_request_may_have(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        read(**bad)


@pytest.mark.deep
def test_the_door_needs_no_package_of_the_protocol() -> None:
    code = (
        "import sys, perdure.gateway.app as app; app.open_doors(['agui']);"
        "assert not {'ag_ui', 'ag_ui_validate', 'openai'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
