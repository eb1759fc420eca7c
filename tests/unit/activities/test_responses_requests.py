"""What is sent to OpenAI's Responses API, by the types of OpenAI's library; its reasoning goes back where it stood."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai.types.responses import ResponseCreateParams
from pydantic import TypeAdapter

from perdure.activities.models import model_call
from perdure.activities.models.model_call import Answer
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from perdure.contracts.tools import ToolDeclaration
from perdure.contracts.values import JsonValue
from perdure.llm.openai_format import WireMessage, wire
from tests.unit.activities.raw_provider import read_request, reply, serving

MODEL = "openai/responses/gpt-5.5"

PARAMS: TypeAdapter[Any] = TypeAdapter(ResponseCreateParams)

LOOK = ToolDeclaration(
    name="look",
    description="Look it up.",
    reference="t:look",
    parameters={"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
)


def reasoning(number: int, **more: Any) -> dict[str, Any]:
    """A reasoning item as OpenAI answers with."""
    return {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": f"sealed-{number}", **more}


def function_call(number: int) -> dict[str, Any]:
    arguments = json.dumps({"what": str(number)})
    told = {"type": "function_call", "id": f"fc_{number}", "status": "completed"}
    return {**told, "call_id": f"call_{number}", "name": "look", "arguments": arguments}


def said(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}


def response(*items: dict[str, Any]) -> dict[str, Any]:
    usage = {"input_tokens": 7, "output_tokens": 5, "total_tokens": 12}
    return {"id": "resp_1", "object": "response", "status": "completed", "output": list(items), "usage": usage}


class Talk:
    """A server of the Responses API that answers as it is told, and keeps what it was sent."""

    def __init__(self, address: str) -> None:
        self.answers: list[dict[str, Any]] = []
        self.sent: list[bytes] = []
        self._address = address

    async def ask(
        self, *items: dict[str, Any], messages: list[WireMessage], model: str = MODEL, **params: Any
    ) -> Answer:
        """The answer with these items."""
        self.answers.append(response(*items))
        access = {"api_base": f"{self._address}/v1", "api_key": "sk-scripted-0123456789"}
        agent = AgentDefinition(name="t", model=model, tools=(LOOK,), tool_mode="api", generate_params=access | params)
        return await model_call.complete(agent, messages)

    @property
    def head(self) -> str:
        """The head of the last request."""
        return self.sent[-1].partition(b"\r\n\r\n")[0].decode().lower()

    @property
    def body(self) -> dict[str, Any]:
        """The body of the last request, by OpenAI's types."""
        body: dict[str, Any] = json.loads(self.sent[-1].partition(b"\r\n\r\n")[2])
        for item in PARAMS.validate_python(body)["input"]:  # an iterable is read when it is asked for
            assert item
        return body


@pytest.fixture
async def talk() -> AsyncIterator[Talk]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talking.sent.append(await read_request(reader))
        writer.write(reply(json.dumps(talking.answers.pop(0)).encode(), "connection: close"))

    async with serving(serve) as address:
        talking = Talk(address)
        yield talking


def conversation(*messages: Message) -> list[WireMessage]:
    return [{"role": "system", "content": "Be brief."}, *map(wire, messages)]


async def test_a_conversation_is_sent_as_items(talk: Talk) -> None:
    called = AssistantMessage(
        content="I look.", tool_calls=(ToolCall(id="c1", name="look", arguments='{"what": "x"}'),)
    )
    result = ToolMessage(call_id="c1", name="look", content="an x")
    messages = conversation(UserMessage(content="What is x?"), called, result)
    answer = await talk.ask(said("Done."), messages=messages, max_tokens=99)
    assert (answer.text, answer.usage.total_tokens) == ("Done.", 12)
    assert talk.head.startswith("post /v1/responses http/1.1")
    assert "authorization: bearer sk-scripted-0123456789" in talk.head
    body = talk.body
    assert body["input"] == [
        {"role": "user", "content": "What is x?"},
        {"role": "assistant", "content": "I look."},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"what": "x"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "an x"},
    ]
    assert (body["model"], body["instructions"], body["store"]) == ("gpt-5.5", "Be brief.", False)
    assert (body["max_output_tokens"], body["include"]) == (99, ["reasoning.encrypted_content"])
    (tool,) = body["tools"]
    assert (tool["type"], tool["name"], tool["strict"]) == ("function", "look", False)


async def test_settings_have_the_names_that_they_have_there(talk: Talk) -> None:
    await talk.ask(
        said("Done."),
        messages=conversation(UserMessage(content="Hi")),
        reasoning_effort="low",
        verbosity="low",
        tool_choice={"type": "function", "function": {"name": "look"}},
        parallel_tool_calls=False,
        temperature=0.5,
        extra_headers={"x-own": "1"},
        extra_body={"truncation": "auto", "store": True},
    )
    body = talk.body
    assert body["reasoning"] == {"effort": "low"}
    assert body["text"] == {"verbosity": "low"}
    assert body["tool_choice"] == {"type": "function", "name": "look"}
    assert (body["parallel_tool_calls"], body["temperature"]) == (False, 0.5)
    assert (body["truncation"], body["store"]) == ("auto", True)
    assert "x-own: 1" in talk.head


@pytest.mark.parametrize("model", ["gpt-4.1", "gpt-5-chat-latest", "somebodys-own"])
async def test_a_model_that_does_not_reason_is_asked_for_no_reasoning(talk: Talk, model: str) -> None:
    """OpenAI refuses the whole request: encrypted content is not supported with this model."""
    messages = conversation(UserMessage(content="Hi"))
    await talk.ask(said("Done."), messages=messages, model=f"openai/responses/{model}")
    assert "include" not in talk.body


async def test_pictures_and_files_are_parts_of_an_input(talk: Talk) -> None:
    blocks: JsonValue = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="}},
    ]
    await talk.ask(said("A."), messages=[{"role": "user", "content": blocks}])
    assert talk.body["input"][0]["content"] == [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AA=="},
    ]


ORDERS = {
    "before a call": [reasoning(1), function_call(1)],
    "between calls": [reasoning(1), function_call(1), reasoning(2), function_call(2)],
    "before a text and a call": [reasoning(1), said("I look."), function_call(1)],
    "behind a text": [reasoning(1), said("I look."), reasoning(2), function_call(1)],
    "two in a row": [reasoning(1), reasoning(2), function_call(1)],
    "with a summary": [reasoning(1, summary=[{"type": "summary_text", "text": "Hm."}]), function_call(1)],
}


def sent_back(item: dict[str, Any]) -> object:
    """What goes back of an item, in a form that can be compared."""
    match item.get("type"):
        case "reasoning":
            return item["id"], item["summary"], item["encrypted_content"]
        case "function_call":
            return item["arguments"]
        case _:
            return "text"


async def again(talk: Talk, answer: Answer, model: str = MODEL) -> list[dict[str, Any]]:
    """Go on behind an answer; returns the items of that answer as they were sent back."""
    calls = tuple(
        ToolCall(id=f"c{at}", name=call.name, arguments=call.arguments) for at, call in enumerate(answer.calls)
    )
    told = AssistantMessage(content=answer.text, tool_calls=calls, thinking=answer.thinking)
    results = (ToolMessage(call_id=call.id, name="look", content="an x") for call in calls)
    messages = conversation(UserMessage(content="What is x?"), told, *results)
    await talk.ask(said("Done."), messages=messages, model=model)
    items: list[dict[str, Any]] = talk.body["input"][1:]
    return [item for item in items if item.get("type") != "function_call_output"]


@pytest.mark.parametrize("name", ORDERS)
async def test_reasoning_goes_back_where_it_stood(talk: Talk, name: str) -> None:
    """OpenAI refuses a reasoning item without the item that followed it."""
    answer = await talk.ask(*ORDERS[name], messages=conversation(UserMessage(content="What is x?")))
    assert list(map(sent_back, await again(talk, answer))) == list(map(sent_back, ORDERS[name]))


async def test_reasoning_goes_to_no_other_model(talk: Talk) -> None:
    """It is encrypted for the one that it is of."""
    answer = await talk.ask(reasoning(1), function_call(1), messages=conversation(UserMessage(content="What is x?")))
    items = await again(talk, answer, "openai/responses/gpt-5.4")
    assert [item["type"] for item in items] == ["function_call"]


async def test_reasoning_that_is_a_name_only_stays(talk: Talk) -> None:
    """OpenAI has not kept it: an item of that id is not found."""
    bare = {"type": "reasoning", "id": "rs_1", "summary": []}
    answer = await talk.ask(bare, function_call(1), messages=conversation(UserMessage(content="What is x?")))
    assert [item["type"] for item in await again(talk, answer)] == ["function_call"]
