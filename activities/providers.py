"""What a provider wants in the messages that it is sent: cache marks, and its model's reasoning.

*Marks*: a provider that is asked to keeps the beginning of a prompt, and the next call then costs less. The last system
message is marked, and with it the tools before it; so are the last two messages that are no answers. The next step
finds the conversation up to there. Source: Dreadnode's cache mode ``latest``.

*Reasoning*: an answer's reasoning is kept as blocks, each with the ``model`` that it is of. Those of type ``thinking``
and ``redacted_thinking`` are Anthropic's; the other types are perdure's:

- ``reasoning_content``: a text beside the content. DeepSeek, Moonshot and Z.ai refuse a conversation with tool calls
  that lacks it, or answer worse.
- ``reasoning_details``: OpenRouter's list, which it hands to the provider behind it as it is.
- ``thought_signature``: Gemini's proof of what it thought before a call, by the call's place; -1 is the text's.

Nothing else is sent back: a field that a provider does not know makes it refuse the whole conversation. All this is
done to what is sent, and to nothing that is stored or recorded.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from perdure.activities.conversations import WireMessage
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.values import JsonValue
from perdure.llm.tool_output import whole_characters

MARKED_MESSAGES = 2
"""With the system message these are three of the four marks that Anthropic takes."""

_MARK: JsonValue = {"type": "ephemeral"}


def marked(definition: AgentDefinition, messages: list[WireMessage]) -> list[WireMessage]:
    """The messages as they are sent, with marks if the agent wants them and its provider takes them."""
    if definition.cache == "off" or not _takes_marks(definition.model):
        return messages
    system = [at for at, one in enumerate(messages) if one.get("role") == "system"]
    said = [at for at, one in enumerate(messages) if one.get("role") not in {"system", "assistant"}]
    places = {*system[-1:], *said[-MARKED_MESSAGES:]}
    return [_with_mark(one) if at in places else one for at, one in enumerate(messages)]


def _takes_marks(model: str) -> bool:
    """Whether it is one of Anthropic's models; others keep what they can by themselves, or refuse the mark."""
    provider, _, name = model.partition("/")
    return provider == "anthropic" or (provider in {"bedrock", "openrouter", "vertex_ai"} and "claude" in name)


def _with_mark(message: WireMessage) -> WireMessage:
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": _with_last_marked(content)}
    if not isinstance(content, str) or not content.strip():  # an empty text may not be marked
        return message
    if message.get("role") == "tool":
        return {**message, "cache_control": _MARK}
    return {**message, "content": [{"type": "text", "text": content, "cache_control": _MARK}]}


def _with_last_marked(blocks: list[JsonValue]) -> JsonValue:
    """The blocks with the mark on the last text that has any: not every provider takes one on a file."""
    for place in reversed(range(len(blocks))):
        block = blocks[place]
        if isinstance(block, dict) and block.get("type") == "text" and str(block.get("text")).strip():
            return [*blocks[:place], {**block, "cache_control": _MARK}, *blocks[place + 1 :]]
    return blocks


MOST_BYTES = 1_000_000
"""Reasoning of one answer, as JSON. The longest answers of today's models are half of that; more is not kept at all,
because no provider takes a part of it."""

_OF_THINKING = ("type", "thinking", "signature", "data")

_OF_CLAUDE = frozenset({"azure_ai", "bedrock", "vertex_ai"})
"""Providers of Claude beside Anthropic; litellm sends them its blocks, and a signature holds on each of them."""

_OF_GEMINI = frozenset({"gemini", "vertex_ai"})

_OF_TEXT = frozenset({"deepseek", "fireworks_ai", "moonshot", "ollama_chat", "together_ai", "zai"})
"""Providers that take ``reasoning_content`` back. Source: their pages on reasoning, and litellm's request transforms.
Mistral refuses the field; OpenAI, Groq and xAI keep the reasoning of a chat completion to themselves."""


def kinds_for(model: str) -> frozenset[str]:
    """The kinds of blocks that a model's provider wants back."""
    provider, _, name = model.partition("/")
    if provider == "anthropic" or (provider in _OF_CLAUDE and "claude" in name):
        return frozenset({"thinking", "redacted_thinking"})
    if provider in _OF_GEMINI:
        return frozenset({"thought_signature"})
    if provider == "openrouter":
        return frozenset({"reasoning_details"})
    return frozenset({"reasoning_content"}) if provider in _OF_TEXT else frozenset()


def reasoning_of(model: str, message: object, calls: Sequence[object]) -> tuple[JsonValue, ...]:
    """What the model's provider wants back of an answer, as texts of whole characters; nothing if it is too long.

    Args:
        model: In the form ``provider/model``.
        message: The answer as litellm gives it.
        calls: Its tool calls, likewise.
    """
    wanted = kinds_for(model)
    kept = tuple({**block, "model": model} for block in _blocks(message, calls) if block["type"] in wanted)
    size = sum(len(json.dumps(block).encode()) for block in kept)
    return kept if size <= MOST_BYTES else ()


def _blocks(message: object, calls: Sequence[object]) -> Iterator[dict[str, JsonValue]]:
    extra = _fields(getattr(message, "provider_specific_fields", None))
    for block in _list(getattr(message, "thinking_blocks", None)):
        texts = {name: text for name in _OF_THINKING if isinstance(text := _fields(block).get(name), str)}
        if "type" in texts:
            yield {name: whole_characters(text) for name, text in texts.items()}
    text = getattr(message, "reasoning_content", None)
    if isinstance(text, str) and text:
        yield {"type": "reasoning_content", "text": whole_characters(text)}
    if details := _list(extra.get("reasoning_details")):
        yield {"type": "reasoning_details", "details": _whole(cast("JsonValue", details))}
    signatures = [_fields(getattr(call, "provider_specific_fields", None)).get("thought_signature") for call in calls]
    of_text = next(iter(_list(extra.get("thought_signatures"))), None)
    if of_text not in signatures:  # a call has it already, and a second copy is paid for
        signatures.append(of_text)
    for place, signature in enumerate(signatures):
        if isinstance(signature, str) and signature:
            at = place if place < len(calls) else -1
            yield {"type": "thought_signature", "call": at, "signature": whole_characters(signature)}


def with_reasoning(model: str, messages: list[WireMessage]) -> list[WireMessage]:
    """The messages with the reasoning that the model's provider wants back in its own fields, and no other's.

    Reasoning of another vendor's model, which answered before this one, is left out: it is signed for that one alone.
    """
    return [_sent(model, message) if "reasoning" in message else message for message in messages]


def _sent(model: str, message: WireMessage) -> WireMessage:
    sent = {name: part for name, part in message.items() if name != "reasoning"}
    wanted = kinds_for(model)
    for block in map(_fields, _list(message["reasoning"])):
        kind = str(block.get("type"))
        if kind not in wanted or _vendor(str(block.pop("model", model))) != _vendor(model):
            continue
        if kind == "reasoning_content":
            sent[kind] = cast("JsonValue", block.get("text"))
        elif kind == "reasoning_details":
            sent[kind] = cast("JsonValue", block.get("details"))
        elif kind == "thought_signature":
            _sign(sent, block)
        else:
            sent["thinking_blocks"] = cast("JsonValue", [*_list(sent.get("thinking_blocks")), block])
    return sent


def _sign(sent: WireMessage, block: Mapping[str, object]) -> None:
    """Put a signature of Gemini's where litellm looks for it: at its call, or at the message."""
    at, signature = block.get("call"), cast("JsonValue", block.get("signature"))
    calls = _list(sent.get("tool_calls"))
    if at == -1:
        sent["provider_specific_fields"] = {"thought_signatures": [signature]}
    elif isinstance(at, int) and at < len(calls):
        call = cast("JsonValue", {**_fields(calls[at]), "provider_specific_fields": {"thought_signature": signature}})
        sent["tool_calls"] = cast("JsonValue", [*calls[:at], call, *calls[at + 1 :]])


def _vendor(model: str) -> str:
    """Whose reasoning it is: a signature of Claude's holds wherever Claude runs, one behind a router with its maker."""
    provider, _, name = model.partition("/")
    if provider == "openrouter":
        return f"{provider}/{name.partition('/')[0]}"
    if provider in _OF_CLAUDE and "claude" in name:
        return "anthropic"
    return "gemini" if provider in _OF_GEMINI else provider


def _whole(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {whole_characters(name): _whole(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_whole(part) for part in value]
    return whole_characters(value) if isinstance(value, str) else value


def _fields(value: object) -> dict[str, object]:
    """A copy of an object's fields."""
    return dict(cast("dict[str, object]", value)) if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []
