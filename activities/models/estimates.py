"""Estimates of the tokens of an answer that its provider did not count.

A request has a prompt, and an answer of text, reasoning or calls was written. So a zero for either counts
nothing, whether usage is missing or the provider sent the zero: proxies drop usage, and some local servers send zeros
for all answers. Without an estimate such an answer would cost nothing, and no budget would end its turn.

An estimate is cautious, as one for a compaction is, and litellm's ``token_counter`` is not used: it loads tokenizers
from the network for some models, and holds the event loop for long prompts.
"""

import json
from collections.abc import Mapping
from typing import Any, cast

from perdure.activities.models.provider_replies import Object, UnusableReplyError
from perdure.activities.models.wires.reply import Answered
from perdure.contracts.budgets import Usage
from perdure.contracts.values import replace
from perdure.llm.compaction import CHARACTERS_PER_TOKEN

IMAGE_TOKENS = 1_600
"""Tokens of an image: Anthropic's for one of 1.1 megapixels, about twice OpenAI's."""

PAGE_TOKENS = 3_000
"""Tokens of a page of a PDF, by Anthropic's page on PDF support."""

PAGE_CHARACTERS = 70_000
"""Characters of base64 of such a page: 50 kB."""

_PICTURE = "data:image/"
_DOCUMENT = "data:application/pdf"

_UNREAD = frozenset({"type", "cache_control"})
"""Fields of a message that no model reads."""

_WRITTEN = frozenset({"text", "content", "thinking", "reasoning", "reasoning_content", "refusal", "name"})
"""Fields with texts that a model wrote, on every wire."""

_ARGUMENTS = frozenset({"arguments", "input", "args"})
"""Fields with the arguments of a call, as text or as an object."""

_TWICE = frozenset({"reasoning_details", "thinking_blocks"})
"""Fields that repeat the reasoning beside them."""


def fill_counts(answered: Answered, arguments: Mapping[str, Any]) -> Answered:
    """Return the answer with an estimate in place of each count that its provider did not send.

    Args:
        answered: The answer.
        arguments: The arguments of litellm's call that it answers.
    """
    counts, written = answered.counts, _size_of(answered)
    is_short = not counts.output_tokens and written and answered.finish_reason != "content_filter"
    if counts.input_tokens and not is_short:
        return answered
    filled = replace(
        counts,
        input_tokens=counts.input_tokens or _count_read(arguments),
        output_tokens=_tokens(written) if is_short else counts.output_tokens,
        estimated=True,
    )
    return replace(answered, counts=filled)


def usage_of(error: UnusableReplyError, arguments: Mapping[str, Any]) -> Usage:
    """The usage of a reply that cannot be used, with an estimate of what the model wrote and nobody counted."""
    usage = error.usage
    if not error.uncounted:
        return usage
    read = usage.input_tokens or _count_read(arguments)
    written = max(usage.output_tokens, _tokens(error.uncounted))
    return replace(usage, input_tokens=read, output_tokens=written, estimated=True)


def count_written(reply: Object) -> int:
    """Bytes that a model wrote in a reply, whatever its wire."""
    return _count_texts(reply, is_written=False)


def _count_texts(value: object, *, is_written: bool) -> int:
    if isinstance(value, str):
        return _bytes(value) if is_written else 0
    if isinstance(value, list):
        return sum(_count_texts(part, is_written=is_written) for part in cast("list[object]", value))
    if not isinstance(value, dict):
        return 0
    size = 0
    for name, part in cast("Object", value).items():
        if name in _ARGUMENTS:
            size += _bytes(part if isinstance(part, str) else json.dumps(part))
        elif name not in _TWICE:
            size += _count_texts(part, is_written=name in _WRITTEN)
    return size


def _size_of(answered: Answered) -> int:
    calls = sum(_bytes(call.name) + _bytes(call.arguments) for call in answered.calls)
    thoughts = sum(_count_texts(block, is_written=False) for block in answered.reasoning)
    return _bytes(answered.text) + _bytes(answered.refusal) + calls + thoughts


def _count_read(arguments: Mapping[str, Any]) -> int:
    tokens = sum(_count_sent(message) for message in arguments["messages"])
    size = sum(_bytes(json.dumps(arguments[name])) for name in ("tools", "response_format") if name in arguments)
    return tokens + _tokens(size)


def _count_sent(value: object) -> int:
    """Tokens of a part of a message as it is sent."""
    if isinstance(value, str):
        if value.startswith(_PICTURE):
            return IMAGE_TOKENS
        if value.startswith(_DOCUMENT):
            return PAGE_TOKENS * (len(value) // PAGE_CHARACTERS + 1)
        return _tokens(_bytes(value))
    if isinstance(value, list):
        return sum(map(_count_sent, cast("list[object]", value)))
    if isinstance(value, dict):
        return sum(_count_sent(part) for name, part in cast("Object", value).items() if name not in _UNREAD)
    return 0


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _tokens(size: int) -> int:
    """Tokens of so many bytes, rounded up. A letter of most scripts beside Latin has two or three bytes."""
    return -(-size // CHARACTERS_PER_TOKEN)
