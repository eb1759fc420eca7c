"""Requests of Bedrock's Converse. Source: AWS's reference of its API, and botocore's model of the service.

Messages of one side are one message, with the user's first, and results of tools are the user's. A cache mark is a
block of its own behind what it marks.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import cast

from perdure.activities.models.encoders import Asked, effort_in, read_arguments, read_data, schema_in
from perdure.activities.models.encoders.messages import (
    BEFORE_THE_FIRST,
    choose,
    names_of_calls,
    think,
    with_thinking,
)
from perdure.activities.models.provider_replies import Object
from perdure.activities.models.wires.reply import to_object, to_objects, to_text
from perdure.contracts.values import JsonValue
from perdure.llm.openai_format import WireMessage

_SAMPLING: Mapping[str, str] = {
    "max_tokens": "maxTokens",
    "max_completion_tokens": "maxTokens",
    "temperature": "temperature",
    "top_p": "topP",
    "stop": "stopSequences",
}

_BESIDE = frozenset({"guardrailConfig", "performanceConfig", "requestMetadata"})
"""Settings of a request, and not of its model."""

_CACHED: JsonValue = {"cachePoint": {"type": "default"}}

_NAMES = re.compile(r"[^\w \-()\[\]]|_")
"""Characters that the name of a document may not have."""


def encode(asked: Asked) -> Object:
    """The body of a request; its path says which model is asked, and whether for a stream."""
    files = _Files()
    body: Object = {"messages": cast("JsonValue", _joined(_messages(asked.messages, files)))}
    system = [message for message in asked.messages if message.get("role") == "system"]
    if system:
        body["system"] = [block for message in system for block in _blocks(message, files)]
    settings = dict(asked.settings)
    choice, parallel = settings.pop("tool_choice", None), settings.pop("parallel_tool_calls", None)
    sampling = {own: settings.pop(name) for name, own in _SAMPLING.items() if name in settings}
    if isinstance(sampling.get("stopSequences"), str):
        sampling["stopSequences"] = [sampling["stopSequences"]]
    if "claude" in asked.model and (effort := effort_in(settings.pop("reasoning_effort", None))):
        most = sampling.get("maxTokens", asked.most_tokens)
        settings |= think(effort, most, thinks_as_needed=asked.thinks_as_needed)
        sampling.setdefault("maxTokens", most)
    if sampling:
        body["inferenceConfig"] = sampling
    if (form := schema_in(asked.output)) is not None:
        schema: JsonValue = {"name": form.get("name"), "schema": json.dumps(form.get("schema"))}
        body["outputConfig"] = {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": schema}}}
    tools = [_tool(to_object(tool.get("function"))) for tool in asked.tools]
    names, chosen = names_of_calls(asked.messages), choose(choice, None)
    if tools and (names or chosen.get("type") != "none"):  # calls are refused without tools
        body["toolConfig"] = {"tools": tools, **_chosen(chosen)}
        if parallel is not None and "claude" in asked.model:
            settings["tool_choice"] = choose(choice, parallel)
    elif names and not tools:
        body["toolConfig"] = {"tools": [_tool({"name": name, "description": "Not there any more."}) for name in names]}
    body |= {name: settings.pop(name) for name in _BESIDE & settings.keys()}
    if settings:
        body["additionalModelRequestFields"] = settings
    return body


def _tool(function: Object) -> JsonValue:
    told = {name: function[name] for name in ("name", "description") if function.get(name)}
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    return {"toolSpec": {**told, "inputSchema": {"json": schema}}}


def _chosen(choice: Object) -> Object:
    """The choice of tools in the words of Converse, which has none for no tool."""
    match choice.get("type"):
        case "tool":
            return {"toolChoice": {"tool": {"name": choice.get("name")}}}
        case "auto" | "any" as kind:
            return {"toolChoice": {kind: {}}}
        case _:
            return {}


class _Files:
    """Names for the documents of a request, which has to have another for each."""

    def __init__(self) -> None:
        self._count = 0

    def name(self, given: str) -> str:
        """A name for the next document."""
        self._count += 1
        return f"{_NAMES.sub('-', given.rpartition('.')[0] or given)[:100] or 'document'} {self._count}"


def _messages(messages: Iterable[WireMessage], files: _Files) -> Iterator[tuple[str, list[JsonValue]]]:
    """Each message but the system's, as its side and its blocks."""
    for message in messages:
        match message.get("role"):
            case "system":
                continue
            case "assistant":
                yield "assistant", list(_answer(message, files))
            case "tool":
                blocks = _blocks(message, files)  # a mark stands behind the result, and not in it
                content = [block for block in blocks if block is not _CACHED]
                said: Object = {"toolUseId": message.get("tool_call_id"), "content": content}
                is_marked = bool(message.get("cache_control")) or len(content) < len(blocks)
                yield "user", [{"toolResult": said}, *([_CACHED] if is_marked else [])]
            case _:
                yield "user", _blocks(message, files)


def _joined(messages: Iterable[tuple[str, list[JsonValue]]]) -> list[JsonValue]:
    """The messages, with those of one side that follow each other as one, and the user's first."""
    sent: list[tuple[str, list[JsonValue]]] = []
    for role, blocks in messages:
        if not sent and role == "assistant":
            sent.append(("user", [{"text": BEFORE_THE_FIRST}]))
        if sent and sent[-1][0] == role:
            sent[-1][1].extend(blocks)
        else:
            sent.append((role, blocks))
    return [{"role": role, "content": blocks} for role, blocks in sent]


def _answer(message: WireMessage, files: _Files) -> Iterator[JsonValue]:
    """The blocks of an answer, with its reasoning where it stood."""
    for kind, block in with_thinking(message, _blocks(message, files)):
        if kind == "thinking":
            yield _reasoning(to_object(block))
        elif kind == "call":
            yield _use(to_object(block))
        else:
            yield block


def _reasoning(block: Object) -> JsonValue:
    if data := to_text(block.get("data")):
        return {"reasoningContent": {"redactedContent": data}}
    signature: Object = {"signature": block["signature"]} if block.get("signature") else {}
    return {"reasoningContent": {"reasoningText": {"text": to_text(block.get("thinking")), **signature}}}


def _use(call: Object) -> JsonValue:
    function = to_object(call.get("function"))
    given = read_arguments(to_text(function.get("arguments")))
    return {"toolUse": {"toolUseId": call.get("id"), "name": function.get("name"), "input": given}}


def _blocks(message: Mapping[str, JsonValue], files: _Files) -> list[JsonValue]:
    """Texts, pictures and files of a message's content, with its cache marks."""
    content = message.get("content")
    if isinstance(content, str):
        return [{"text": content}] if content else []
    blocks: list[JsonValue] = []
    for block in to_objects(content):
        blocks.append(_block(block, files))
        if block.get("cache_control"):
            blocks.append(_CACHED)
    return blocks


def _block(block: Object, files: _Files) -> JsonValue:
    match block.get("type"):
        case "image_url":
            kind, data = read_data(to_text(to_object(block.get("image_url")).get("url"))) or ("", "")
            return {"image": {"format": kind.partition("/")[2], "source": {"bytes": data}}}
        case "file":
            file = to_object(block.get("file"))
            kind, data = read_data(to_text(file.get("file_data"))) or ("", "")
            told: Object = {"format": kind.partition("/")[2], "name": files.name(to_text(file.get("filename")))}
            return {"document": {**told, "source": {"bytes": data}}}
        case _:
            return {"text": to_text(block.get("text"))}
