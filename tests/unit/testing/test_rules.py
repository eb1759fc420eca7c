"""What the real providers refuse, the scripted one refuses too, in the words of its wire."""

from typing import Any

import pytest

from perdure.testing import Script, ScriptedProvider, say
from tests.unit.testing.wires import post

ANY = Script(replies=(say("fine"),), repeat=True)
GO = {"role": "user", "content": "go"}


def calls(*ids: str, name: str = "add") -> dict[str, Any]:
    made = [{"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}} for call_id in ids]
    return {"role": "assistant", "content": None, "tool_calls": made}


def result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "1"}


def uses(*ids: str, name: str = "add") -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": call_id, "name": name, "input": {}} for call_id in ids],
    }


def results(*ids: str, after: str = "") -> dict[str, Any]:
    said = [{"type": "text", "text": after}] if after else []
    return {
        "role": "user",
        "content": [*said, *({"type": "tool_result", "tool_use_id": call_id, "content": "1"} for call_id in ids)],
    }


OPENAI = {
    "a call without its result": ([GO, calls("a", "b"), result("a"), GO], "did not have response messages: b"),
    "a call at the end": ([GO, calls("a")], "did not have response messages: a"),
    "a result elsewhere": ([GO, calls("a"), GO, result("a")], "did not have response messages: a"),
    "a result without its call": ([GO, result("a")], "must be a response to a preceding message"),
    "a result of another call": ([GO, calls("a"), result("b")], "must be a response to a preceding message"),
    "two results of a call": ([GO, calls("a"), result("a"), result("a")], "must be a response to a preceding"),
    "an id twice in a message": ([GO, calls("a", "a"), result("a"), result("a")], "duplicate value for the id"),
    "an id twice": ([GO, calls("a"), result("a"), calls("a"), result("a")], "in messages[3]: a"),
    "a name that is none": ([GO, calls("a", name="a b"), result("a")], "string does not match pattern"),
    "an empty name": ([GO, calls("a", name=""), result("a")], "string does not match pattern"),
    "an answer without content": ([GO, {"role": "assistant", "content": None}, GO], "expected a string, got null"),
}
ANTHROPIC = {
    "a call without its result": ([GO, uses("a", "b"), results("a")], "blocks immediately after: b."),
    "a call at the end": ([GO, uses("a")], "blocks immediately after: a."),
    "a text before the result": ([GO, uses("a"), results("a", after="so")], "blocks immediately after: a."),
    "a result without its call": ([GO, results("a")], "unexpected `tool_use_id`"),
    "an id twice": ([GO, uses("a"), results("a"), uses("a"), results("a")], "`tool_use` ids must be unique: a"),
    "a name that is none": ([GO, uses("a", name="é"), results("a")], "String should match pattern"),
    "an empty text": ([{"role": "user", "content": ""}], "text content blocks must be non-empty"),
}


@pytest.mark.parametrize(
    ("wire", "name"), [("openai", name) for name in OPENAI] + [("anthropic", name) for name in ANTHROPIC]
)
async def test_a_conversation_that_breaks_a_rule_is_refused(wire: str, name: str) -> None:
    messages, words = (OPENAI if wire == "openai" else ANTHROPIC)[name]
    async with ScriptedProvider(ANY) as provider:
        response = await post(provider, wire, messages=messages)
        assert [request.fault for request in provider.requests] == ["refused"]
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
    assert words in response.json()["error"]["message"]


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_a_tool_that_is_declared_with_a_name_that_is_none_is_refused(wire: str) -> None:
    function = {"name": "no name", "description": "", "parameters": {}}
    tool = {"type": "function", "function": function} if wire == "openai" else {"name": "no name", "input_schema": {}}
    async with ScriptedProvider(ANY) as provider:
        response = await post(provider, wire, tools=[tool])
    assert response.status_code == 400
    assert "'no name'" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("wire", "messages"),
    [
        ("openai", [GO, calls("a", "b"), result("b"), result("a"), calls("c"), result("c"), GO]),
        ("anthropic", [GO, uses("a", "b"), results("b", "a"), uses("c"), results("c")]),
    ],
)
async def test_a_conversation_in_order_is_answered(wire: str, messages: list[Any]) -> None:
    async with ScriptedProvider(ANY) as provider:
        assert (await post(provider, wire, messages=messages)).status_code == 200


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        ("openai", "maximum context length is 10 tokens. However, your messages resulted in 11 tokens."),
        ("anthropic", "prompt is too long: 11 tokens > 10 maximum"),
    ],
)
async def test_a_prompt_over_the_window_is_refused_and_one_that_fills_it_is_answered(wire: str, words: str) -> None:
    async with ScriptedProvider(ANY, window=10) as provider:
        fits = await post(provider, wire, messages=[{"role": "user", "content": "x" * 39}])
        over = await post(provider, wire, messages=[{"role": "user", "content": "x" * 40}])
        assert [request.fault for request in provider.requests] == [None, "refused"]
    assert (fits.status_code, over.status_code) == (200, 400)
    assert words in over.json()["error"]["message"]
