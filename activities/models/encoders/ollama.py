"""Requests of Ollama's ``/api/chat``. Source: Ollama's reference of its API.

Its own API has what the one like OpenAI's lacks: the length of the context (``num_ctx``), short unless a request
says it, and the other options of a model.
"""

from collections.abc import Iterator, Mapping
from typing import cast

from perdure.activities.models.encoders import Asked, effort_in, read_arguments, read_data, schema_in
from perdure.activities.models.provider_replies import Object
from perdure.activities.models.wires.reply import joined, to_object, to_objects, to_text
from perdure.contracts.values import JsonValue
from perdure.llm.openai_format import WireMessage

_OPTIONS: Mapping[str, str] = {"max_tokens": "num_predict", "max_completion_tokens": "num_predict"}
"""Options of a model that OpenAI names otherwise."""

_BESIDE = frozenset({"keep_alive", "think"})
"""Settings of a request, and not of its model."""

_LEFT_OUT = frozenset({"parallel_tool_calls", "tool_choice", "user"})
"""Settings of OpenAI's that it has nothing for."""


def encode(asked: Asked) -> Object:
    """The body of a request."""
    settings = {name: value for name, value in asked.settings.items() if name not in _LEFT_OUT}
    effort = effort_in(settings.pop("reasoning_effort", None))
    body: Object = {
        "model": asked.model,
        "messages": cast("JsonValue", list(_messages(asked))),
        "stream": asked.streams,
        **{name: settings.pop(name) for name in _BESIDE & settings.keys()},
    }
    if effort:
        body["think"] = effort if "gpt-oss" in asked.model and effort != "none" else effort != "none"
    if asked.tools:
        body["tools"] = list[JsonValue](asked.tools)
    if (schema := schema_in(asked.output)) is not None:
        body["format"] = schema.get("schema")
    elif asked.output is not None and asked.output.get("type") == "json_object":
        body["format"] = "json"
    if isinstance(settings.get("stop"), str):
        settings["stop"] = [settings["stop"]]
    if settings:
        body["options"] = {_OPTIONS.get(name, name): value for name, value in settings.items()}
    return body


def _messages(asked: Asked) -> Iterator[Object]:
    names: dict[JsonValue, JsonValue] = {}
    for message in asked.messages:
        calls = to_objects(message.get("tool_calls"))
        names |= {call.get("id"): to_object(call.get("function")).get("name") for call in calls}
        sent: Object = {"role": message.get("role"), **_content(message)}
        if calls:
            sent["tool_calls"] = [_call(call) for call in calls]
        if message.get("role") == "tool":
            sent |= {"tool_call_id": message.get("tool_call_id"), "tool_name": names.get(message.get("tool_call_id"))}
        if thinking := to_text(message.get("reasoning_content")):
            sent["thinking"] = thinking
        yield sent


def _call(call: Object) -> JsonValue:
    function = to_object(call.get("function"))
    arguments = read_arguments(to_text(function.get("arguments")))
    return {"id": call.get("id"), "function": {"name": function.get("name"), "arguments": arguments}}


def _content(message: WireMessage) -> Object:
    """The text of a message, with its pictures beside it."""
    content = message.get("content")
    if not isinstance(content, list):
        return {"content": to_text(content)}
    blocks = to_objects(content)
    text = joined(to_text(block.get("text")) for block in blocks)
    urls = (to_text(to_object(block.get("image_url")).get("url")) for block in blocks if "image_url" in block)
    images: list[JsonValue] = [data[1] if (data := read_data(url)) is not None else url for url in urls]
    return {"content": text, **({"images": images} if images else {})}
