"""Requests of Ollama's API, judged by what litellm sends."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from perdure.activities.models import model_call, providers
from perdure.activities.models.encoders import Asked, ollama
from perdure.activities.models.model_call import Answer
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.tools import ToolDeclaration
from tests.unit.activities.raw_provider import read_request, reply, serving

Json = Any

LOOK = ToolDeclaration(
    name="look", description="Look.", reference="t:look", parameters={"type": "object", "properties": {}}
)
HI: Json = {"role": "user", "content": "Hi"}
CALL: Json = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
PICTURE: Json = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
CONVERSATIONS: Mapping[str, Json] = {
    "a system prompt": [{"role": "system", "content": "Be brief."}, HI],
    "a call": [
        HI,
        {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "seen"},
    ],
    "a picture": [{"role": "user", "content": [{"type": "text", "text": "This?"}, PICTURE]}],
}
SETTINGS: Mapping[str, Mapping[str, Json]] = {
    "none": {},
    "options": {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "stop": ["x"], "max_tokens": 99, "seed": 1},
    "its own": {"num_ctx": 32_000, "keep_alive": "5m", "repeat_penalty": 1.1},
    "an effort": {"reasoning_effort": "low"},
    "no effort": {"reasoning_effort": "none"},
}


async def sent(conversation: Json, settings: Mapping[str, Json], prefix: str = "ollama_chat") -> tuple[str, Json]:
    """The first line of the head, and the body that arrives."""
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await read_request(reader))
        answer = {"model": "m", "message": {"role": "assistant", "content": "hi"}, "done": True, "done_reason": "stop"}
        writer.write(reply(json.dumps(answer).encode(), "connection: close"))

    async with serving(serve) as address:
        params = {**settings, "api_base": address}
        agent = AgentDefinition(
            name="t", model=f"{prefix}/qwen3", tools=(LOOK,), tool_mode="api", generate_params=params
        )
        assert isinstance(await model_call.complete(agent, json.loads(json.dumps(conversation))), Answer)
    head, _, body = requests[-1].partition(b"\r\n\r\n")
    return head.decode().splitlines()[0], json.loads(body)


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_ollama_is_sent_what_litellm_would_send(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the name of a result's tool, which its templates want."""
    for settings in SETTINGS.values():
        line, ours = await sent(CONVERSATIONS[name], settings)
        assert await sent(CONVERSATIONS[name], settings, "ollama") == (line, ours)
        with monkeypatch.context() as environment:
            environment.setattr(providers, "PROVIDERS", {})
            theirs = await sent(CONVERSATIONS[name], settings)
        named = [message.pop("tool_name") for message in ours["messages"] if message["role"] == "tool"]
        assert named == ["look"] * (name == "a call")
        for message in theirs[1]["messages"]:
            if message.get("images") == []:
                del message["images"]
        assert (line, {"options": {}, **ours}) == theirs, settings


@pytest.mark.parametrize(
    ("model", "effort", "think"),
    [
        ("qwen3", "high", True),
        ("qwen3", "none", False),
        ("gpt-oss:20b", "high", "high"),
        ("gpt-oss:20b", "none", False),
    ],
)
def test_an_effort_is_a_level_for_gpt_oss_only(model: str, effort: str, think: Json) -> None:
    assert ollama.encode(Asked(model, [HI], settings={"reasoning_effort": effort}))["think"] == think


def test_the_schema_of_an_answer_is_its_format() -> None:
    schema: Json = {"type": "object", "properties": {"a": {"type": "string"}}}
    form: Json = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    assert ollama.encode(Asked("qwen3", [HI], output=form))["format"] == schema
    assert ollama.encode(Asked("qwen3", [HI], output={"type": "json_object"}))["format"] == "json"
