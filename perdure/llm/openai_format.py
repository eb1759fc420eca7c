"""Messages and tools in OpenAI's chat format, in which models are called and ``perdure export`` writes."""

import json
from collections.abc import Iterable, Iterator, Sequence

from perdure.contracts.messages import AssistantMessage, Message, ToolMessage, UserMessage
from perdure.contracts.tools import ToolDeclaration
from perdure.contracts.values import JsonValue, json_object

WireMessage = dict[str, JsonValue]
"""A message in OpenAI's chat format, which litellm takes for every provider; ``reasoning``, ``parts`` are perdure's."""

MAX_ARGUMENTS_SHOWN = 2_000
"""Longest arguments that are not JSON in what the model reads."""


def openai_messages(messages: Sequence[Message], instructions: str = "") -> list[WireMessage]:
    """A conversation for another program: the system prompt first, every result right after its call.

    Reasoning, which only one provider understands, is left out, and so are results without a call in the conversation.
    """
    prompt: list[WireMessage] = [{"role": "system", "content": instructions}] if instructions else []
    return prompt + [_export_message(message) for message in order_messages(messages)]


def _export_message(message: Message) -> WireMessage:
    wired = {name: part for name, part in wire(message).items() if name not in {"reasoning", "parts"}}
    return {**wired, "content": with_lines(message)} if isinstance(message, UserMessage) else wired


def with_lines(message: UserMessage) -> str:
    """The text of a message, and a line in place of each image and file."""
    return "\n".join((message.content, *(part.line for part in message.parts)))


def openai_tools(tools: Iterable[ToolDeclaration]) -> list[JsonValue]:
    """Declarations of tools in OpenAI's format."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in tools
    ]


def wire(message: Message) -> WireMessage:
    """A message in OpenAI's chat format: role, content, calls, and no field that a provider might refuse."""
    wired: WireMessage = {"role": "user", "content": message.content}
    if isinstance(message, AssistantMessage):
        wired = {"role": "assistant", "content": message.content or (None if message.tool_calls else "")}
        if message.tool_calls:
            wired["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": _make_sendable(call.arguments)},
                }
                for call in message.tool_calls
            ]
        if message.thinking:
            wired["reasoning"] = list(message.thinking)
        return wired
    if isinstance(message, ToolMessage):
        wired = {"role": "tool", "tool_call_id": message.call_id, "content": message.content}
    if message.parts:
        wired["parts"] = [part.model_dump(mode="json") for part in message.parts]
    return wired


def order_messages(messages: Sequence[Message]) -> Iterator[Message]:
    """The messages with every result right after its call; a result without its call is left out."""
    results = {message.call_id: message for message in messages if isinstance(message, ToolMessage)}
    for message in messages:
        if not isinstance(message, ToolMessage):
            yield message
        if isinstance(message, AssistantMessage):
            yield from (results[call.id] for call in message.tool_calls if call.id in results)


def _make_sendable(arguments: str) -> str:
    """Arguments as a JSON object: some providers refuse the whole conversation if a past call has broken ones."""
    try:
        json_object(arguments or "{}")
    except ValueError:
        return json.dumps({"invalid_arguments": arguments[:MAX_ARGUMENTS_SHOWN]})
    return arguments or "{}"
