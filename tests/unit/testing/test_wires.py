"""One script, two wire formats: what goes out and what a script sees, over real HTTP."""

from typing import Any

import pytest

from perdure.testing import ChatRequest, Reply, Script, ScriptedProvider, call, faults, say
from tests.unit.testing.wires import post

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = {
    "openai": [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": SCHEMA}}],
    "anthropic": [{"name": "add", "description": "Add.", "input_schema": SCHEMA}],
}
CONVERSATION: dict[str, dict[str, Any]] = {
    "openai": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "go"},
            {
                "role": "assistant",
                "content": "adding",
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
                    {"id": "b", "type": "function", "function": {"name": "add", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "tool_call_id": "a", "content": "1"},
            {"role": "tool", "tool_call_id": "b", "content": "2"},
            {"role": "user", "content": "and now?"},
        ]
    },
    "anthropic": {
        "system": "Be brief.",
        "messages": [
            {"role": "user", "content": "go"},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "adding"},
                    {"type": "tool_use", "id": "a", "name": "add", "input": {"a": 1}},
                    {"type": "tool_use", "id": "b", "name": "add", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": "1"},
                    {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "2"}]},
                    {"type": "text", "text": "and now?"},
                ],
            },
        ],
    },
}
"""The same conversation on each wire."""


async def answered(wire: str, reply: Reply) -> Any:
    async with ScriptedProvider(Script(replies=(reply,))) as provider:
        response = await post(provider, wire)
    assert response.status_code == 200
    return response.json()


async def seen(wire: str, **body: Any) -> ChatRequest:
    """What a script sees of a request."""
    async with ScriptedProvider(lambda _: say("fine")) as provider:
        response = await post(provider, wire, **body)
        assert response.status_code == 200, response.text
        return provider.requests[0].request


async def test_a_script_sees_the_same_request_on_both_wires() -> None:
    openai, anthropic = [await seen(wire, tools=TOOLS[wire], **CONVERSATION[wire]) for wire in TOOLS]
    assert openai == anthropic
    assert (openai.index, openai.tokens) == (1, 7)
    assert openai.messages == tuple(CONVERSATION["openai"]["messages"])


async def test_what_the_user_says_in_a_row_is_seen_as_it_was_said() -> None:
    """litellm makes one message of it; the first one tells sessions apart."""
    said: list[dict[str, Any]] = [{"type": "text", "text": "go"}, {"type": "text", "text": "faster"}]
    request = await seen("anthropic", messages=[{"role": "user", "content": said}])
    assert [message["content"] for message in request.messages] == ["go", "faster"]


async def test_blocks_that_are_neither_text_nor_tool_are_kept() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "http://localhost/x.png"}}
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    request = await seen(
        "anthropic",
        system=[{"type": "text", "text": "Be brief."}],
        messages=[
            {"role": "user", "content": [image]},
            {"role": "assistant", "content": [thought, {"type": "text", "text": "a dog"}]},
            {"role": "user", "content": "sure?"},
        ],
    )
    assert request.messages[0] == {"role": "system", "content": "Be brief."}
    assert request.messages[1] == {"role": "user", "content": [image]}
    assert request.messages[2] == {"role": "assistant", "content": "a dog", "thinking_blocks": [thought]}


async def test_a_text_and_calls_are_blocks_of_anthropics_message() -> None:
    message = await answered("anthropic", call(("add", {"a": 1}), ("see", '{"b": 2}'), text="both"))
    text, first, second = message["content"]
    assert text == {"type": "text", "text": "both"}
    assert (first["type"], first["name"], first["input"]) == ("tool_use", "add", {"a": 1})
    assert (second["name"], second["input"]) == ("see", {"b": 2})
    assert first["id"] != second["id"]
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "m")
    assert (message["stop_reason"], message["usage"]) == ("tool_use", {"input_tokens": 2, "output_tokens": 7})
    assert message["id"].startswith("msg_")


async def test_the_same_request_gets_the_same_answer_on_anthropics_wire() -> None:
    reply = call(("add", {"a": 1}))
    assert await answered("anthropic", reply) == await answered("anthropic", reply)


@pytest.mark.parametrize(
    ("reply", "stop_reason", "content"),
    [
        (say("fine"), "end_turn", [{"type": "text", "text": "fine"}]),
        (Reply(), "end_turn", []),
        (Reply(text="half", finish_reason="length"), "max_tokens", [{"type": "text", "text": "half"}]),
        (Reply(text="", finish_reason="content_filter"), "refusal", []),
        (Reply(message={"refusal": "I will not"}), "refusal", [{"type": "text", "text": "I will not"}]),
        (Reply(text="x", finish_reason="pause_turn"), "pause_turn", [{"type": "text", "text": "x"}]),
        (
            Reply(text="x", message={"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}),
            "end_turn",
            [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "x"}],
        ),
        (
            Reply(calls=(("a", '{"broken'), ("b", "[1]")), call_ids=("", "")),
            "tool_use",
            [
                {"type": "tool_use", "id": "", "name": "a", "input": '{"broken'},
                {"type": "tool_use", "id": "", "name": "b", "input": [1]},
            ],
        ),
    ],
)
async def test_each_answer_has_anthropics_words(reply: Reply, stop_reason: str, content: Any) -> None:
    message = await answered("anthropic", reply)
    assert (message["stop_reason"], message["content"]) == (stop_reason, content)


KNOWN = {
    "rate limited": (faults.rate_limited(), (429, "tokens", "Rate limit"), (429, "rate_limit_error", "rate limit")),
    "overloaded": (faults.overloaded(), (503, "server_error", "overloaded"), (529, "overloaded_error", "Overloaded")),
    "quota": (
        faults.quota_exhausted(),
        (429, "insufficient_quota", "exceeded your current quota"),
        (400, "invalid_request_error", "credit balance is too low"),
    ),
    "context": (
        faults.context_overflow(),
        (400, "invalid_request_error", "maximum context length is 128000 tokens"),
        (400, "invalid_request_error", "tokens > 128000 maximum"),
    ),
    "policy": (
        faults.policy_violation(),
        (400, "invalid_request_error", "safety system"),
        (400, "invalid_request_error", "content filtering policy"),
    ),
    "key": (
        faults.bad_key(),
        (401, "invalid_request_error", "API key provided: sk-scrip**********6789."),
        (401, "authentication_error", "invalid x-api-key"),
    ),
    "model": (faults.unknown_model(), (404, "invalid_request_error", "`m`"), (404, "not_found_error", "model: m")),
    "a plain status": (faults.status(504), (504, "scripted", "504"), (504, "timeout_error", "504")),
    "a refusal": (faults.status(418), (418, "scripted", "418"), (418, "invalid_request_error", "418")),
    "a failure": (faults.status(599), (599, "scripted", "599"), (599, "api_error", "599")),
    "words of one's own": (faults.error(403, "no", "t", "c"), (403, "t", "no"), (403, "permission_error", "no")),
    "in a 200": (
        faults.in_a_200(faults.overloaded()),
        (200, "server_error", "overloaded"),
        (200, "overloaded_error", "Overloaded"),
    ),
    "one's own in a 200": (
        faults.in_a_200(faults.error(429, "slow down", "requests")),
        (200, "requests", "slow down"),
        (200, "rate_limit_error", "slow down"),
    ),
}
"""For each fault what OpenAI and what Anthropic says: status, type, and part of the message."""


@pytest.mark.parametrize("name", KNOWN)
async def test_an_error_has_the_status_the_form_and_the_words_of_its_wire(name: str) -> None:
    fault, *expected = KNOWN[name]
    async with ScriptedProvider(always=fault) as provider:
        for wire, (status, kind, words) in zip(("openai", "anthropic"), expected, strict=True):
            response = await post(provider, wire)
            body = response.json()
            assert (response.status_code, body["error"]["type"]) == (status, kind)
            assert words in body["error"]["message"]
            assert body.get("type") == ("error" if wire == "anthropic" else None)
            assert set(body["error"]) == ({"type", "message"} if wire == "anthropic" else {*OPENAI_ERROR})


OPENAI_ERROR = ("message", "type", "param", "code")


async def test_headers_go_with_a_known_error() -> None:
    async with ScriptedProvider(always=faults.rate_limited(headers={"retry-after": "2"})) as provider:
        assert (await post(provider, "anthropic")).headers["retry-after"] == "2"


@pytest.mark.parametrize(
    ("fault", "text", "ended"),
    [
        (faults.empty_answer(), None, "stop"),
        (faults.truncated("half"), "half", "length"),
        (faults.filtered("so far"), "so far", "content_filter"),
        (faults.refusal("I will not"), None, "stop"),
        (faults.instead(say("another")), "another", "stop"),
    ],
)
async def test_another_answer_may_come_before_the_scripts(fault: Any, text: str | None, ended: str) -> None:
    async with ScriptedProvider(Script(replies=(say("fine").after(fault),))) as provider:
        choices = [(await post(provider, "openai")).json()["choices"][0] for _ in range(2)]
        assert [request.fault for request in provider.requests] == ["answer", None]
    assert (choices[0]["message"]["content"], choices[0]["finish_reason"]) == (text, ended)
    assert choices[1]["message"]["content"] == "fine"


async def test_an_empty_reply_and_garbage_are_what_they_are_on_anthropics_wire() -> None:
    reply = say("fine").after(faults.empty_choices(), faults.garbage())
    async with ScriptedProvider(Script(replies=(reply,))) as provider:
        assert (await post(provider, "anthropic")).json()["content"] == []
        assert (await post(provider, "anthropic")).text == "this is no JSON"


async def test_a_body_that_is_no_request_is_refused_in_the_form_of_its_wire() -> None:
    async with ScriptedProvider(Script(replies=(say("fine"),))) as provider:
        refused = await post(provider, "anthropic", max_tokens=None)
        assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
        assert "max_tokens" in refused.json()["error"]["message"]
        assert provider.request_count == 0
