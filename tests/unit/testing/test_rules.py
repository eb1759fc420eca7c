"""What the real providers refuse, the scripted one refuses too, in the words of its wire."""

from typing import Any

import httpx
import pytest

from perdure.testing import Script, ScriptedProvider, say
from tests.unit.testing.wires import post

ANY = Script(replies=(say("fine"),), repeat=True)
TOOLS = {
    "openai": {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}},
    "anthropic": {"name": "add", "input_schema": {"type": "object", "properties": {}}},
}
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
    "an id twice": ([GO, calls("a"), result("a"), calls("a"), result("a")], "in messages[3].tool_calls[0].id: a"),
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
        assert (await post(provider, wire, messages=messages, tools=[TOOLS[wire]])).status_code == 200
        assert provider.refusals == []


async def test_a_refusal_says_who_refuses_by_which_rule_and_why(caplog: pytest.LogCaptureFixture) -> None:
    """In the reply, which the agent's author reads, in the record of the request, and in the log of a failed test."""
    rule = "A conversation with tool_use or tool_result has tools."
    sentence = f"Anthropic refuses this request by rule an.tools.required: {rule}"
    async with ScriptedProvider(ANY) as provider:
        response = await post(provider, "anthropic", messages=[GO, uses("a"), results("a")])
        assert provider.refusals == [sentence]
        assert [(request.fault, request.refusal) for request in provider.requests] == [("refused", sentence)]
    assert response.json()["error"]["message"].endswith(f"({sentence})")
    assert caplog.messages == [sentence]


@pytest.mark.parametrize(
    ("plays", "base", "refused"),
    [
        ("auto", "", None),
        ("auto", "mistral", "mi.call.id"),
        ("mistral", "", "mi.call.id"),
        ("mistral", "groq", "mi.call.id"),
        ("groq", "mistral", None),
        ("anthropic", "", None),  # which nobody asks on this wire
        (None, "mistral", None),
    ],
)
async def test_a_test_says_which_provider_is_played(plays: str | None, base: str, refused: str | None) -> None:
    messages = [GO, calls("call_1"), result("call_1")]
    async with ScriptedProvider(ANY, plays=plays) as provider, httpx.AsyncClient() as http:
        url = provider.url_of(base) if base else provider.url
        response = await http.post(f"{url}/chat/completions", json={"model": "m", "messages": messages})
        told = [sentence.split("by rule ")[1].partition(":")[0] for sentence in provider.refusals]
    assert told == ([] if refused is None else [refused])
    assert response.status_code == (200 if refused is None else 400)


async def test_without_rules_any_request_is_answered() -> None:
    async with ScriptedProvider(ANY, plays=None) as provider:
        for messages, _ in OPENAI.values():
            assert (await post(provider, "openai", messages=messages)).status_code == 200


def test_a_provider_without_rules_cannot_be_played() -> None:
    with pytest.raises(ValueError, match="there are no rules of 'nobody'"):
        ScriptedProvider(plays="nobody")
    with pytest.raises(ValueError, match="there are no rules of 'nobody'"):
        ScriptedProvider().url_of("nobody")


async def test_a_request_that_is_none_of_the_wire_is_refused_in_the_words_of_the_provider() -> None:
    async with ScriptedProvider(ANY) as provider:
        response = await post(provider, "anthropic", messages=[{"role": "system", "content": "x"}, GO])
        assert [request.request.messages for request in provider.requests] == [()]
    assert response.json()["error"]["message"].startswith('messages: Unexpected role "system".')


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
