"""Blank texts on their way to a model: each becomes null, a word or nothing, since providers refuse texts of spaces.

Anthropic, Bedrock, Moonshot and Z.ai refuse a whole conversation for one such text. So whatever the store holds, no
request has one. Nothing that is stored or recorded changes.
"""

from typing import cast

from perdure.contracts.values import JsonValue, is_visible
from perdure.llm.openai_format import WireMessage

NO_OUTPUT = "(no output)"
"""Text of a tool result without one."""

NO_TEXT = "(no text)"
"""Text of any other message that has nothing else to say."""


def without_blanks(messages: list[WireMessage]) -> list[WireMessage]:
    """The messages without blank texts; a system prompt that is blank is left out."""
    filled = [_filled(message) for message in messages]
    return [message for message in filled if message.get("role") != "system" or message.get("content") != NO_TEXT]


def _filled(message: WireMessage) -> WireMessage:
    content = message.get("content")
    if isinstance(content, list):
        blocks = [block for block in content if not _is_blank(block)]
        return message if len(blocks) == len(content) else {**message, "content": blocks or _word_for(message)}
    if content is None and not _stands_alone(message):
        return message
    if isinstance(content, str) and is_visible(content):
        return message
    return {**message, "content": _word_for(message)}


def _word_for(message: WireMessage) -> JsonValue:
    if not _stands_alone(message):
        return None
    return NO_OUTPUT if message.get("role") == "tool" else NO_TEXT


def _stands_alone(message: WireMessage) -> bool:
    """Whether the message has nothing beside its content; an answer may have calls."""
    return not message.get("tool_calls")


def _is_blank(block: JsonValue) -> bool:
    if not isinstance(block, dict) or block.get("type") != "text":
        return False
    return not is_visible(str(cast("object", block.get("text")) or ""))
