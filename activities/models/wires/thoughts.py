"""Reasoning that a server without a reasoning parser leaves in the text of an answer, whatever its wire.

It stands at the beginning, between the tags of the model's own format. A chat template may have written the first tag,
so that the answer has the last one alone; and an answer may end in its reasoning.
"""

import re
from collections.abc import Sequence

from perdure.contracts.values import JsonValue

_TAGS = (
    *(("<think>", "</think>"), ("<thinking>", "</thinking>"), ("<thought>", "</thought>")),
    *(("<seed:think>", "</seed:think>"), ("[THINK]", "[/THINK]"), ("◁think▷", "◁/think▷")),
)
"""Tags of DeepSeek, Qwen and most others, Nova, Gemma and Gemini, Seed-OSS, Magistral, and Kimi."""

_BEGUN = re.compile(
    r"\s*(?:" + "|".join(f"{re.escape(first)}(.*?){re.escape(last)}" for first, last in _TAGS) + ")", re.DOTALL
)

_ENDLESS = re.compile(r"\s*(?:" + "|".join(re.escape(first) for first, _ in _TAGS) + r")(?=\n)")
"""The first tag on a line of its own: without a last tag all behind it is reasoning. An answer may name the tag."""

_LAST = re.compile(r"(?:\A|\n)</think>[ \t]*(?=\n|\Z)")
"""The last tag on a line of its own; elsewhere it may be what the answer speaks of."""


def split_thoughts(text: str) -> tuple[str, str]:
    """The text of an answer without the reasoning at its beginning, and that reasoning."""
    thoughts: list[str] = []
    at = 0
    while (found := _BEGUN.match(text, at)) is not None:
        thoughts += [thought for thought in found.groups() if thought is not None]
        at = found.end()
    if (endless := _ENDLESS.match(text, at)) is not None:
        return "", "".join([*thoughts, text[endless.end() :]])
    last = None if at else _LAST.search(text)
    if last is not None and "think>" not in text[: last.start()]:
        return text[last.end() :], text[: last.start()]
    return text[at:], "".join(thoughts)


_KINDS = frozenset({"reasoning_content", "reasoning_details", "reasoning_item", "thinking"})
"""Types of blocks with the words of a model's reasoning."""


def with_thought(reasoning: Sequence[dict[str, JsonValue]], thought: str) -> tuple[dict[str, JsonValue], ...]:
    """The blocks of an answer's reasoning with that of its text, unless it came beside the text too."""
    if not thought or any(block["type"] in _KINDS for block in reasoning):
        return tuple(reasoning)
    return {"type": "reasoning_content", "text": thought, "inside": True}, *reasoning
