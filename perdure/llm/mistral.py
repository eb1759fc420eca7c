"""Conversations as Mistral's models want them: ids of calls of nine letters and digits, and roles in turn.

Mistral's API, and its tokenizer in vLLM, refuse other ids, and OpenAI's API those of more than 40 characters. The log
keeps perdure's own ids; these are made of them when a request is built, always the same for the same call, so that a
provider finds the conversation in its cache. A user's message follows an answer: neither the results of tools nor
another message of the user's. Other models ask for either form by a refusal.

Source: mistral-common 1.13, ``validator.py``: "Tool call id was … but must be a-z, A-Z, 0-9, with a length of 9."
"Unexpected role 'user' after role 'tool'": NousResearch/hermes-agent#20154, zed-industries/zed#31736. "Conversation
roles must alternate": charmbracelet/crush#279.
"""

import hashlib
import re
import string
from collections.abc import Sequence
from typing import cast

from perdure.contracts.values import JsonValue
from perdure.llm.openai_format import WireMessage

LENGTH = 9

LONGEST = 40
"""Longest id that OpenAI takes for certain. Source: reports of ``string_above_max_length``, 2025-03 to 2026-01."""

_ALPHABET = string.digits + string.ascii_letters
_FAMILY = re.compile(r"mistral|mixtral|ministral|magistral|mathstral|codestral|devstral|pixtral|voxtral", re.IGNORECASE)


def is_of_mistral(model: str) -> bool:
    """Whether the model is one of Mistral's by its name, wherever it is served."""
    return _FAMILY.search(model) is not None


def with_short_ids(messages: Sequence[WireMessage], *, longest: int = 0) -> list[WireMessage]:
    """The messages with ids of nine letters and digits, in calls and results alike; ids up to ``longest`` stay."""
    ids = _ShortIds(longest)
    return [_with_ids(message, ids) for message in messages]


class _ShortIds:
    """Short ids of one request, each for one id of the log."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._given: dict[str, str] = {}
        self._taken: set[str] = set()

    def of(self, long: str) -> str:
        """The short id in place of one of the log."""
        if len(long) <= self._longest:
            return long
        if long not in self._given:
            tries = (_digest(f"{long}{'#' * number}") for number in range(len(self._taken) + 1))
            self._given[long] = next(short for short in tries if short not in self._taken)
            self._taken.add(self._given[long])
        return self._given[long]


def _digest(text: str) -> str:
    number = int.from_bytes(hashlib.sha256(text.encode()).digest())
    digits: list[str] = []
    for _ in range(LENGTH):
        number, place = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[place])
    return "".join(digits)


def _with_ids(message: WireMessage, ids: _ShortIds) -> WireMessage:
    changed = dict(message)
    if isinstance(told := message.get("tool_call_id"), str):
        changed["tool_call_id"] = ids.of(told)
    if isinstance(calls := message.get("tool_calls"), list):
        changed["tool_calls"] = [
            {**call, "id": ids.of(str(call["id"]))} for call in cast("list[dict[str, JsonValue]]", calls)
        ]
    return changed


NOTED = "Noted."
"""Text of the assistant's message between the results of tools and a message of the user."""


def alternating(messages: Sequence[WireMessage]) -> list[WireMessage]:
    """The messages with an answer between results and a user, and messages of the user in a row as one."""
    sent: list[WireMessage] = []
    for message in messages:
        role, before = message.get("role"), sent[-1].get("role") if sent else None
        if role == "user" and before == "tool":
            sent.append({"role": "assistant", "content": NOTED})
        if role == "user" and before == "user":
            sent[-1] = {**sent[-1], "content": _joined(sent[-1].get("content"), message.get("content"))}
        else:
            sent.append(message)
    return sent


def _joined(first: JsonValue, second: JsonValue) -> JsonValue:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_blocks(first), *_blocks(second)]


def _blocks(content: JsonValue) -> list[JsonValue]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]
