"""Requests of OpenAI's Responses API.

Nothing is kept at the provider: the conversation is perdure's, so each request brings it whole, with ``store`` off. The
model's reasoning comes encrypted with its answer, and goes back with it. Source: OpenAI's pages on reasoning models,
on function calling and on migrating from chat completions.
"""

from collections.abc import Iterator
from typing import cast

from perdure.activities.models.encoders import Asked
from perdure.activities.models.encoders.chat import OF_TOOLS, REASONS
from perdure.activities.models.provider_replies import Object
from perdure.activities.models.reasoning import ITEMS
from perdure.activities.models.wires.reply import joined, to_object, to_objects, to_text
from perdure.contracts.values import JsonValue
from perdure.llm.openai_format import WireMessage

_CEILINGS = ("max_completion_tokens", "max_tokens")

_ENCRYPTED = "reasoning.encrypted_content"


def encode(asked: Asked) -> Object:
    """The body of a request."""
    system = [message for message in asked.messages if message.get("role") == "system"]
    items = [item for message in asked.messages if message.get("role") != "system" for item in _items(message)]
    body: Object = {
        "model": asked.model,
        "input": cast("JsonValue", items),
        "store": False,
        **_settings(asked),
    }
    if system:
        body["instructions"] = "\n\n".join(map(_text_of, system))
    if asked.tools:
        body["tools"] = [_tool(to_object(tool.get("function"))) for tool in asked.tools]
    if asked.encrypts and REASONS.match(asked.model):  # it refuses to encrypt the reasoning of one that does not
        body["include"] = [_ENCRYPTED]
    if asked.streams:
        body["stream"] = True
    return body


def _settings(asked: Asked) -> Object:
    """The author's settings, and the form of the answer, under the names that they have here."""
    settings = {name: value for name, value in asked.settings.items() if asked.tools or name not in OF_TOOLS}
    named: Object = {}
    for name in _CEILINGS:
        if name in settings:
            named["max_output_tokens"] = settings.pop(name)
    effort = settings.pop("reasoning_effort", None)
    if effort is not None:
        named["reasoning"] = effort if isinstance(effort, dict) else {"effort": effort}
    text: Object = {}
    if "verbosity" in settings:
        text["verbosity"] = settings.pop("verbosity")
    if asked.output is not None:
        text["format"] = {"type": asked.output.get("type"), **to_object(asked.output.get("json_schema"))}
    if text:
        named["text"] = text
    choice = settings.get("tool_choice")
    if isinstance(choice, dict) and isinstance(choice.get("function"), dict):
        settings["tool_choice"] = {"type": choice.get("type"), **to_object(choice["function"])}
    return {**settings, **named}


def _tool(function: Object) -> JsonValue:
    """A tool; without ``strict`` it would be strict, which is not so of a chat completion's."""
    return {"type": "function", "strict": False, **function}


def _items(message: WireMessage) -> Iterator[Object]:
    """The items of one message."""
    match message.get("role"):
        case "tool":
            output = _contents(message)
            yield {"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": output}
        case "assistant":
            yield from _answer(message)
        case role:
            yield {"role": role, "content": _contents(message)}


def _answer(message: WireMessage) -> Iterator[Object]:
    """The items of an answer, with its reasoning where it stood."""
    blocks = to_objects(message.get(ITEMS))
    yield from _reasoning(block for block in blocks if not block.get("calls") and not block.get("behind_text"))
    if text := _text_of(message):
        yield {"role": "assistant", "content": text}
    yield from _reasoning(block for block in blocks if not block.get("calls") and block.get("behind_text"))
    for number, call in enumerate(to_objects(message.get("tool_calls")), start=1):
        function = to_object(call.get("function"))
        arguments = function.get("arguments")
        yield {
            "type": "function_call",
            "call_id": call.get("id"),
            "name": function.get("name"),
            "arguments": arguments,
        }
        yield from _reasoning(block for block in blocks if block.get("calls") == number)


def _reasoning(blocks: Iterator[Object]) -> Iterator[Object]:
    for block in blocks:
        yield {"type": "reasoning", "summary": [], **to_object(block.get("item"))}


def _text_of(message: WireMessage) -> str:
    content = message.get("content")
    return to_text(content) if not isinstance(content, list) else joined(map(_text_in, content))


def _text_in(block: JsonValue) -> str:
    return to_text(to_object(block).get("text"))


def _contents(message: WireMessage) -> JsonValue:
    """The content of a message of a user or a tool: a text, or texts, pictures and files."""
    content = message.get("content")
    if not isinstance(content, list):
        return to_text(content)
    return [_part(to_object(block)) for block in content]


def _part(block: Object) -> JsonValue:
    match block.get("type"):
        case "text":
            return {"type": "input_text", "text": block.get("text")}
        case "image_url":
            image = to_object(block.get("image_url"))
            return {"type": "input_image", "image_url": image.get("url"), "detail": image.get("detail") or "auto"}
        case "file":
            return {"type": "input_file", **to_object(block.get("file"))}
        case _:
            return dict(block)
