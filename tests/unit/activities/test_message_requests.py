"""Requests of chat completions and of Anthropic's messages, judged by OpenAI's types and by what litellm would send."""

import copy
import json
from typing import Any

import litellm
import pytest
from litellm import utils
from litellm.types.utils import LlmProviders
from openai.types.chat.completion_create_params import CompletionCreateParams
from pydantic import TypeAdapter

from perdure.activities.models import provider_requests
from perdure.activities.models.encoders import Asked, messages
from perdure.llm.openai_format import WireMessage
from perdure.testing.rules import rulebook

Json = Any

PARAMS: TypeAdapter[Any] = TypeAdapter(CompletionCreateParams)

MARK = {"cache_control": {"type": "ephemeral"}}
PICTURE: Json = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


def text(words: str, **more: Json) -> Json:
    return {"type": "text", "text": words, **more}


def calls(*numbers: int) -> Json:
    function = {"name": "look", "arguments": '{"a": "x"}'}
    return [{"id": f"toolu_{number}", "type": "function", "function": function} for number in numbers]


def result(number: int, content: Json = "seen", **more: Json) -> Json:
    return {"role": "tool", "tool_call_id": f"toolu_{number}", "content": content, **more}


HI: WireMessage = {"role": "user", "content": "Hi"}

CONVERSATIONS: dict[str, list[WireMessage]] = {
    "a system prompt": [{"role": "system", "content": "Be brief."}, HI],
    "marks": [
        {"role": "system", "content": [text("Be brief.", **MARK)]},
        HI,
        {"role": "assistant", "content": None, "tool_calls": calls(1)},
        result(1, **MARK),
        {"role": "user", "content": [text("More", **MARK)]},
    ],
    "two calls and a message": [
        HI,
        {"role": "assistant", "content": "I look.", "tool_calls": calls(1, 2)},
        result(1),
        result(2),
        {"role": "user", "content": "More"},
    ],
    "thinking between calls": [
        HI,
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": calls(1, 2),
            "thinking_blocks": [
                {"type": "thinking", "thinking": "One.", "signature": "sig-1"},
                {"type": "redacted_thinking", "data": "sealed"},
                {"type": "thinking", "thinking": "Two.", "signature": "sig-2"},
            ],
            "thinking_places": [0, 0, 1],
        },
        result(1),
        result(2),
    ],
    "pictures": [
        {
            "role": "user",
            "content": [text("What?"), PICTURE, {"type": "image_url", "image_url": {"url": "https://x.y/z"}}],
        }
    ],
    "a picture in a result": [
        HI,
        {"role": "assistant", "content": None, "tool_calls": calls(1)},
        result(1, [text("seen"), PICTURE]),
    ],
    "a file": [
        {
            "role": "user",
            "content": [
                {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}},
                text("Read it."),
            ],
        }
    ],
    "several of one side": [HI, HI, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}, HI],
}

TOOLS: list[Json] = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look it up.",
            "parameters": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        },
    }
]

SETTINGS: dict[str, dict[str, Json]] = {
    "none": {},
    "sampling": {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "stop": ["x"], "max_tokens": 99},
    "one stop": {"stop": "x"},
    "an effort": {"reasoning_effort": "low"},
    "a high effort": {"reasoning_effort": "high"},
    "no effort": {"reasoning_effort": "none"},
    "thinking": {"thinking": {"type": "enabled", "budget_tokens": 2_000}},
    "a tool at least": {"tool_choice": "required"},
    "one tool": {"tool_choice": {"type": "function", "function": {"name": "look"}}},
    "no tool": {"tool_choice": "none"},
    "one call at a time": {"parallel_tool_calls": False},
    "one call of this tool": {
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "parallel_tool_calls": False,
    },
    "a user": {"user": "u-1"},
}


def by_litellm(model: str, conversation: list[WireMessage], settings: dict[str, Json]) -> Json:
    """The body that litellm makes for Anthropic."""
    config: Json = utils.ProviderConfigManager.get_provider_chat_config(model=model, provider=LlmProviders.ANTHROPIC)
    given: Json = [{name: part for name, part in message.items() if part is not None} for message in conversation]
    options: Json = utils.get_optional_params(
        model=model, custom_llm_provider="anthropic", messages=given, tools=copy.deepcopy(TOOLS), **settings
    )
    return config.transform_request(model=model, messages=given, headers={}, optional_params=options, litellm_params={})


def plain(body: Json) -> Json:
    """A body without what means the same either way, and without the place of thinking, which litellm puts first."""
    body = json.loads(json.dumps(body))
    for tool in body["tools"]:
        tool.pop("type", None)
    if "thinking" in body:
        body.pop("max_tokens")  # litellm makes the answer as long as its thinking and 4,096 tokens
    for message in body["messages"]:
        for block in message["content"]:
            block.pop("title", None)
            if block["type"] == "tool_result" and isinstance(block["content"], str):
                block["content"] = [text(block["content"])]
        message["content"].sort(key=lambda block: "thinking" not in block["type"])
    return body


@pytest.mark.parametrize("model", ["claude-sonnet-4-5", "claude-opus-4-6", "claude-haiku-4-5"])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_anthropic_is_sent_what_litellm_would_send(model: str, name: str) -> None:
    for settings in SETTINGS.values():
        asked = {"model": f"anthropic/{model}", "messages": CONVERSATIONS[name], "tools": TOOLS, **settings}
        request = provider_requests.prepare({**asked, "api_key": "sk-x"}, streams=False)
        assert request is not None
        assert request.url == "https://api.anthropic.com/v1/messages"
        expected = by_litellm(model, copy.deepcopy(CONVERSATIONS[name]), copy.deepcopy(settings))
        ours, theirs = plain(json.loads(json.dumps(request.body))), plain(expected)
        refusal = rulebook("anthropic").refuse(json.loads(json.dumps(expected)))
        if refusal is not None and refusal.rule == "an.thinking.first":
            del theirs["thinking"], ours["max_tokens"]
        assert ours == theirs, settings


def test_thinking_stands_where_it_stood() -> None:
    """Anthropic refuses a conversation whose thinking has moved."""
    body = messages.encode(Asked("claude-x", CONVERSATIONS["thinking between calls"], TOOLS))
    kinds = [block["type"] for block in json.loads(json.dumps(body))["messages"][1]["content"]]
    assert kinds == ["thinking", "redacted_thinking", "text", "tool_use", "thinking", "tool_use"]


@pytest.mark.parametrize(
    ("effort", "most", "thinking"),
    [
        ("high", 2_000, {"type": "enabled", "budget_tokens": 1_999}),
        ("low", 1_024, None),
        ("low", 1_025, {"type": "enabled", "budget_tokens": 1_024}),
        ("odd", 9_000, {"type": "enabled", "budget_tokens": 2_048}),
    ],
)
def test_thinking_fits_into_the_answer(effort: str, most: int, thinking: Json) -> None:
    """Anthropic refuses a budget of thinking that is as large as the answer, or below 1,024 tokens."""
    asked = Asked("claude-x", [HI], settings={"reasoning_effort": effort, "max_tokens": most})
    assert messages.encode(asked).get("thinking") == thinking


def test_the_schema_of_an_answer_stands_beside_the_effort() -> None:
    form: Json = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}
    asked = Asked("claude-x", [HI], output=form, settings={"reasoning_effort": "low"}, thinks_as_needed=True)
    told = {"format": {"type": "json_schema", "schema": {"type": "object"}}, "effort": "low"}
    assert messages.encode(asked)["output_config"] == told
    assert messages.encode(Asked("claude-x", [HI], output=form))["output_config"] == {"format": told["format"]}


THOUGHT: Json = {"thinking_blocks": [{"type": "thinking", "thinking": "One.", "signature": "sig-1"}]}


@pytest.mark.parametrize(
    ("model", "own", "behind", "thinking"),
    [
        ("claude-sonnet-4-5", {}, [], None),
        ("claude-sonnet-4-5", {}, [HI], None),
        ("claude-sonnet-4-5", {}, [{"role": "assistant", "content": "So."}, HI], "enabled"),
        ("claude-sonnet-4-5", THOUGHT, [], "enabled"),
        ("claude-opus-4-6", {}, [], "adaptive"),
    ],
)
def test_thinking_is_not_enabled_behind_calls_that_came_without_it(
    model: str, own: Json, behind: Json, thinking: str | None
) -> None:
    """They may be another model's, which answered before as a fallback or by the author's choice."""
    answer = {"role": "assistant", "content": None, "tool_calls": calls(1), **own}
    asked = {"model": f"anthropic/{model}", "messages": [HI, answer, result(1), *behind], "tools": TOOLS}
    request = provider_requests.prepare({**asked, "reasoning_effort": "low", "api_key": "sk-x"}, streams=False)
    assert request is not None
    body = json.loads(json.dumps(request.body))
    assert body.get("thinking", {}).get("type") == thinking
    assert rulebook("anthropic").refuse(body) is None


def test_calls_of_tools_that_are_gone_are_sent_with_their_names() -> None:
    """Anthropic refuses calls without tools."""
    body = messages.encode(Asked("claude-x", CONVERSATIONS["two calls and a message"]))
    assert [tool["name"] for tool in json.loads(json.dumps(body["tools"]))] == ["look"]
    assert body["tool_choice"] == {"type": "none"}


def test_a_conversation_begins_with_the_user() -> None:
    body = messages.encode(Asked("claude-x", [{"role": "assistant", "content": "Yes?"}, HI]))
    assert [message["role"] for message in json.loads(json.dumps(body["messages"]))] == ["user", "assistant", "user"]


@pytest.mark.parametrize("name", [name for name in CONVERSATIONS if name not in {"marks", "thinking between calls"}])
@pytest.mark.parametrize("model", ["gpt-4o", "gpt-5", "o3", "somebodys-own"])
def test_chat_completions_are_of_openais_types(model: str, name: str) -> None:
    for settings in SETTINGS.values():
        asked = {"model": f"openai/{model}", "messages": CONVERSATIONS[name], "tools": TOOLS, **settings}
        request = provider_requests.prepare({**asked, "api_key": "sk-x"}, streams=True)
        assert request is not None
        body = json.loads(json.dumps(request.body))
        for message in PARAMS.validate_python(body)["messages"]:
            assert message
        assert (request.url, request.headers["authorization"]) == (
            "https://api.openai.com/v1/chat/completions",
            "Bearer sk-x",
        )
        assert body["stream_options"] == {"include_usage": True}
        assert ("max_tokens" in body) is ("max_tokens" in settings and model in {"gpt-4o", "somebodys-own"})


@pytest.mark.parametrize(
    ("model", "settings", "address", "wire"),
    [
        ("gpt-5", {}, None, "chat/completions"),
        ("gpt-5.3", {}, None, "chat/completions"),
        ("gpt-5.4", {}, None, "responses"),
        ("gpt-5.4", {"reasoning_effort": "none"}, None, "chat/completions"),
        ("gpt-5.4", {"reasoning_effort": {"effort": "none"}}, None, "chat/completions"),
        ("gpt-5.4", {}, "https://eu.api.openai.com/v1", "responses"),
        ("gpt-5.4", {}, "https://models.example/v1", "chat/completions"),
        ("gpt-5.4", {"reasoning_effort": "low"}, "https://models.example/v1/", "responses"),
        ("gpt-6", {}, None, "responses"),
        ("gpt-6.1-mini", {}, None, "responses"),
        ("gpt-5.4-chat-latest", {}, None, "chat/completions"),
        ("gpt-5.4-search-api", {}, None, "chat/completions"),
        ("gpt-5-pro", {}, None, "responses"),
        ("responses/gpt-4.1", {}, None, "responses"),
        ("gpt-oss-120b", {}, None, "chat/completions"),
    ],
)
def test_a_model_is_asked_where_it_takes_tools(
    model: str, settings: dict[str, Json], address: str | None, wire: str
) -> None:
    """OpenAI's newer models refuse functions in a chat completion while they reason, and some have no other API."""
    place = {"api_base": address} if address else {}
    asked = {"model": f"openai/{model}", "messages": [HI], "tools": TOOLS, **settings, **place, "api_key": "sk-x"}
    request = provider_requests.prepare(asked, streams=False)
    assert request is not None
    assert request.url == f"{(address or 'https://api.openai.com/v1').rstrip('/')}/{wire}"
    if wire == "responses" and not model.startswith("gpt-6"):  # which litellm asks in the same way
        mode = litellm.main.responses_api_bridge_check(
            model=model, custom_llm_provider="openai", tools=TOOLS, api_base=address, **settings
        )[0].get("mode")
        assert mode == "responses"


@pytest.mark.parametrize(
    ("key", "variables", "headers"),
    [
        ("sk-ant-api-x", {}, {"x-api-key": "sk-ant-api-x"}),
        ("", {"ANTHROPIC_API_KEY": "sk-ant-api-y"}, {"x-api-key": "sk-ant-api-y"}),
        ("", {"ANTHROPIC_AUTH_TOKEN": "t"}, {"authorization": "Bearer t"}),
        ("sk-ant-oat01-x", {}, {"authorization": "Bearer sk-ant-oat01-x", "anthropic-beta": "oauth-2025-04-20"}),
    ],
)
def test_anthropic_is_shown_a_key_or_a_token(
    key: str, variables: dict[str, str], headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    given = {"api_key": key} if key else {}
    request = provider_requests.prepare({"model": "anthropic/claude-x", "messages": [HI], **given}, streams=False)
    assert request is not None
    shown = {"x-api-key", "authorization", "anthropic-beta"} & request.headers.keys()
    assert {name: request.headers[name] for name in shown} == headers
    assert request.headers["anthropic-version"] == "2023-06-01"


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("https://models.example", "https://models.example/v1/messages"),
        ("https://models.example/", "https://models.example/v1/messages"),
        ("https://models.example/v1", "https://models.example/v1/messages"),
        ("https://models.example/claude/v1/messages", "https://models.example/claude/v1/messages"),
    ],
)
def test_an_address_of_messages_is_completed(address: str, url: str) -> None:
    asked = {"model": "anthropic/claude-x", "messages": [HI], "api_base": address, "api_key": "sk-x"}
    request = provider_requests.prepare(asked, streams=False)
    assert request is not None
    assert request.url == url
