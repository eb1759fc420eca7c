"""Requests of Gemini's generateContent, judged by what litellm sends, in the names of Google's reference."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from perdure.activities.models import model_call, providers
from perdure.activities.models.encoders import Asked, gemini
from perdure.activities.models.model_call import Answer
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from perdure.contracts.tools import ToolDeclaration
from perdure.llm.openai_format import wire
from tests.unit.activities.raw_provider import read_request, reply, serving

Json = Any

PAY = ToolDeclaration(
    name="pay",
    description="Pay.",
    reference="t:pay",
    parameters={"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]},
)
SIGNED = {"provider_specific_fields": {"thought_signature": "c2lnLTE="}}


def calls(*amounts: int, **more: Json) -> Json:
    return [
        {
            "id": f"call_{at}",
            "type": "function",
            "function": {"name": "pay", "arguments": json.dumps({"amount": amount})},
            **(more if at == 0 else {}),
        }
        for at, amount in enumerate(amounts)
    ]


def result(number: int, content: str) -> Json:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": content}


HI: Json = {"role": "user", "content": "Hi"}

CONVERSATIONS: Mapping[str, Json] = {
    "a system prompt": [{"role": "system", "content": "Be brief."}, HI],
    "two calls": [
        HI,
        {"role": "assistant", "content": "I pay.", "tool_calls": calls(1, 2, **SIGNED)},
        result(0, "ok"),
        result(1, '{"paid": 2}'),
        {"role": "user", "content": "More"},
    ],
    "a signed text": [
        HI,
        {"role": "assistant", "content": "Yes?", "provider_specific_fields": {"thought_signatures": ["c2lnLTI="]}},
        HI,
    ],
    "a picture and a file": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
                {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}},
            ],
        }
    ],
}

SETTINGS: Mapping[str, Mapping[str, Json]] = {
    "none": {},
    "sampling": {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "stop": ["x"],
        "max_tokens": 99,
        "seed": 1,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.2,
    },
    "any tool": {"tool_choice": "required"},
    "one tool": {"tool_choice": {"type": "function", "function": {"name": "pay"}}},
    "no tool": {"tool_choice": "none"},
    "an effort": {"reasoning_effort": "high"},
    "no effort": {"reasoning_effort": "none"},
    "a number of tokens": {"thinking": {"type": "enabled", "budget_tokens": 2_000}},
    "without a word for it": {"parallel_tool_calls": False, "user": "u-1"},
}


async def sent(conversation: Json, settings: Mapping[str, Json]) -> tuple[str, Json]:
    """The first line of the head, the key's header, and the body that arrives."""
    bodies: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bodies.append(await read_request(reader))
        parts = [{"text": "hi"}]
        counts = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
        candidates = [{"content": {"parts": parts, "role": "model"}, "finishReason": "STOP"}]
        answer = {"candidates": candidates, "usageMetadata": counts}
        writer.write(reply(json.dumps(answer).encode(), "connection: close"))

    async with serving(serve) as address:
        params = {**settings, "api_base": address, "api_key": "sk-scripted-0123456789"}
        agent = AgentDefinition(
            name="t", model="gemini/gemini-2.5-flash", tools=(PAY,), tool_mode="api", generate_params=params
        )
        assert isinstance(await model_call.complete(agent, json.loads(json.dumps(conversation))), Answer)
    head, _, body = bodies[0].partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    (key,) = [line.lower() for line in lines if line.lower().startswith("x-goog-api-key")]
    return f"{lines[0]} {key}", json.loads(body)


def camel(value: Json) -> Json:
    """Names as the reference writes them; litellm mixes them with those of Python's library."""
    if isinstance(value, list):
        return [camel(part) for part in value]
    if not isinstance(value, dict):
        return value
    named = {
        "".join(part.capitalize() if at else part for at, part in enumerate(name.split("_"))): camel(part)
        for name, part in value.items()
    }
    if "functionDeclarations" in named:
        for function in named["functionDeclarations"]:
            function["parametersJsonSchema"] = function.pop("parameters", function.get("parametersJsonSchema"))
    if set(named) == {"content"} and isinstance(named["content"], str):
        return {"output": named["content"]}
    return named


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_gemini_is_sent_what_litellm_would_send(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for settings in SETTINGS.values():
        ours = await sent(CONVERSATIONS[name], settings)
        with monkeypatch.context() as environment:
            environment.setattr(providers, "PROVIDERS", {})
            theirs = await sent(CONVERSATIONS[name], settings)
        assert ours[0] == theirs[0]
        assert ours[1] == camel(theirs[1]), settings


@pytest.mark.parametrize(
    ("model", "own", "signatures"),
    [
        ("gemini-3-pro", {}, [gemini.FOREIGN, None]),
        ("gemini-3-pro", SIGNED, ["c2lnLTE=", None]),
        ("gemini-3.5-flash", {}, [gemini.FOREIGN, None]),
        ("gemini-2.5-flash", {}, [None, None]),
        ("somebodys-own", {}, [None, None]),
    ],
)
def test_a_call_of_another_model_has_the_signature_that_google_documents(
    model: str, own: Json, signatures: list[Json]
) -> None:
    """Gemini 3 refuses a conversation whose first call of an answer has none."""
    answered = {"role": "assistant", "content": None, "tool_calls": calls(1, 2, **own)}
    body: Json = gemini.encode(Asked(model, [HI, answered, result(0, "a"), result(1, "b")]))
    assert [part.get("thoughtSignature") for part in body["contents"][1]["parts"]] == signatures


def test_results_of_one_answer_stand_together_and_name_their_functions() -> None:
    """Gemini counts the results of an answer's calls."""
    asked = ToolCall(id="a", name="pay", arguments='{"amount": 1}'), ToolCall(id="b", name="look", arguments="no json")
    conversation: tuple[Message, ...] = (
        UserMessage(content="Hi"),
        AssistantMessage(content="", tool_calls=asked),
        ToolMessage(call_id="b", name="look", content="seen"),
        ToolMessage(call_id="a", name="pay", content="paid"),
    )
    body: Json = gemini.encode(Asked("gemini-x", list(map(wire, conversation))))
    _, answer, results = body["contents"]
    assert [part["functionResponse"]["name"] for part in results["parts"]] == ["look", "pay"]
    assert answer["parts"][1]["functionCall"]["args"] == {"invalid_arguments": "no json"}


@pytest.mark.parametrize(
    ("model", "settings", "config"),
    [
        ("gemini-3-pro", {"reasoning_effort": "low"}, {"thinkingLevel": "low", "includeThoughts": True}),
        ("gemini-3-pro", {"reasoning_effort": "none"}, {"thinkingLevel": "low", "includeThoughts": False}),
        ("gemini-3-pro", {"reasoning_effort": {"effort": "max"}}, {"thinkingLevel": "high", "includeThoughts": True}),
        ("gemini-2.5-pro", {"reasoning_effort": "none"}, {"thinkingBudget": 128, "includeThoughts": False}),
        ("gemini-2.5-flash", {"reasoning_effort": "none"}, {"thinkingBudget": 0, "includeThoughts": False}),
        ("gemini-2.5-flash", {"thinking": {"type": "disabled"}}, {"thinkingBudget": 0, "includeThoughts": False}),
        ("gemini-2.5-flash", {}, None),
    ],
)
def test_thinking_is_asked_for_as_the_model_takes_it(model: str, settings: Json, config: Json) -> None:
    """Gemini 3 refuses a number of tokens, those before a level, and 2.5 Pro not to think."""
    body: Json = gemini.encode(Asked(model, [HI], settings=settings))
    assert body.get("generationConfig", {}).get("thinkingConfig") == config


def test_the_schema_of_an_answer_is_sent() -> None:
    schema: Json = {"type": "object", "properties": {"a": {"type": "string"}}}
    form: Json = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    body: Json = gemini.encode(Asked("gemini-x", [HI], output=form))
    assert body["generationConfig"] == {"responseMimeType": "application/json", "responseJsonSchema": schema}
