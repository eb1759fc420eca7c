"""Requests of OpenAI's chat completions, which most providers take as well."""

import re
from typing import cast

from perdure.activities.models.encoders import Asked
from perdure.activities.models.provider_replies import Object
from perdure.activities.models.reasoning import without_own_fields
from perdure.contracts.values import JsonValue

REASONS = re.compile(r"(?:o\d|gpt-(?:[5-9]|\d\d)(?!\S*-chat)|codex)")
"""Beginnings of the names of OpenAI's models that reason."""

OF_TOOLS = frozenset({"tool_choice", "parallel_tool_calls"})
"""Settings that OpenAI and vLLM refuse in a request without tools."""


def encode(asked: Asked) -> Object:
    """The body of a request.

    OpenAI's models that reason refuse ``max_tokens``. Source: OpenAI's reference of chat completions.
    """
    settings = {name: value for name, value in asked.settings.items() if asked.tools or name not in OF_TOOLS}
    if "max_tokens" in settings and REASONS.match(asked.model):
        settings.setdefault("max_completion_tokens", settings.pop("max_tokens"))
    body: Object = {
        "model": asked.model,
        "messages": [cast("JsonValue", _message(message)) for message in asked.messages],
        **settings,
    }
    if asked.tools:
        body["tools"] = list[JsonValue](asked.tools)
    if asked.output is not None:
        body["response_format"] = asked.output
    if asked.streams:
        body["stream"] = True
    if asked.streams and asked.asks_for_usage:
        body["stream_options"] = {"include_usage": True}
    return body


def _message(message: Object) -> Object:
    """A message; a field that is null is left out, since some servers do not take it. A mark stands in its content."""
    sent: Object = {name: part for name, part in without_own_fields(message).items() if part is not None}
    mark, content = sent.pop("cache_control", None), sent.get("content")
    if mark is not None and isinstance(content, str):
        sent["content"] = [{"type": "text", "text": content, "cache_control": mark}]
    return sent
