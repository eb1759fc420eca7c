"""Reasoning on its way back to the model that it came from.

An answer's reasoning is kept as blocks, each with its ``model``, which alone gets them back. The types ``thinking`` and
``redacted_thinking`` are Anthropic's; the others are perdure's:

- ``reasoning_content``: a text beside the content. Without it DeepSeek, Moonshot and Z.ai refuse a conversation with
  tool calls, or answer worse.
- ``reasoning_details``: OpenRouter's list, which it passes on to the upstream provider unchanged.
- ``reasoning_item``: an item of OpenAI's Responses with its encrypted reasoning, and its place in the answer.
- ``thought_signature``: Gemini's signature of its thoughts before a call, by the call's place; -1 is the text's.

A model at an address of the author's own (``openai/…`` with ``api_base``, a proxy) gets back what came from there,
whatever its prefix: such blocks have their ``address`` too, and go to the same model there and nowhere else.

Nothing else is sent back, because a provider refuses a whole conversation for a field that it does not know.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, cast
from urllib.parse import urlsplit

from perdure.contracts.agents import AgentDefinition
from perdure.contracts.values import JsonValue
from perdure.llm.openai_format import WireMessage

MOST_BYTES = 1_000_000
"""Largest reasoning of one answer in bytes of JSON, twice the longest of today's models. Longer reasoning is dropped as
a whole, because no provider takes a part of it."""

_OF_CLAUDE = frozenset({"azure_ai", "bedrock", "vertex_ai"})
"""Providers of Claude beside Anthropic. litellm sends them Anthropic's blocks, whose signatures are valid there too."""

_OF_GEMINI = frozenset({"gemini", "vertex_ai"})

_OF_TEXT = frozenset({"deepseek", "fireworks_ai", "moonshot", "ollama", "ollama_chat", "together_ai", "zai"})
"""Providers that take ``reasoning_content`` back. Source: their pages on reasoning, and litellm's request transforms.
Mistral refuses the field; OpenAI, Groq and xAI keep the reasoning of a chat completion to themselves."""


def kinds_for(model: str) -> frozenset[str]:
    """The types of reasoning blocks that a model's provider wants back."""
    provider, _, name = model.partition("/")
    if provider == "anthropic" or (provider in _OF_CLAUDE and "claude" in name):
        return frozenset({"thinking", "redacted_thinking"})
    if provider in _OF_GEMINI:
        return frozenset({"thought_signature"})
    if provider == "openrouter":
        return frozenset({"reasoning_details"})
    if provider in {"openai", "azure"}:  # only an answer of its Responses has such items
        return frozenset({"reasoning_item"})
    return frozenset({"reasoning_content"}) if provider in _OF_TEXT else frozenset()


_OF_AUTHORS = frozenset(
    {
        "custom_openai",
        "hosted_vllm",
        "litellm_proxy",
        "llamafile",
        "lm_studio",
        "openai",
        "openai_like",
        "vllm",
        "xinference",
    }
)
"""Prefixes that name no vendor: what answers is known by its address alone."""

_STRICT_HOSTS = ("api.openai.com", "openai.azure.com", "api.groq.com", "api.mistral.ai", "api.x.ai")
"""Hosts that refuse reasoning in a conversation, under whichever prefix they are called."""

_COMING_BACK = frozenset(
    {
        *("thinking", "redacted_thinking", "reasoning_content"),
        *("reasoning_details", "reasoning_item", "thought_signature"),
    }
)


def address_of(model: str, params: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> str:
    """The address that a call goes to, as a digest, since it may hold a key; empty for a vendor's own.

    A model at an address of the author's own gets back what that address answered with, and so does no other one.
    """
    provider = model.partition("/")[0]
    if provider not in _OF_AUTHORS:
        return ""
    names = (f"{provider.upper()}_API_BASE", f"{provider.upper()}_BASE_URL")
    given = (params.get("api_base"), params.get("base_url"), *map(environment.get, names))
    address = next((str(value) for value in given if value), "")
    host = ""
    with suppress(ValueError):  # an address that is none: the call itself says so
        host = urlsplit(address).hostname or ""
    is_vendor = not address and provider == "openai"
    if is_vendor or any(host == strict or host.endswith(f".{strict}") for strict in _STRICT_HOSTS):
        return ""
    return hashlib.sha256(address.encode()).hexdigest()[:16]


def kept_reasoning(model: str, blocks: Sequence[Mapping[str, JsonValue]], address: str = "") -> tuple[JsonValue, ...]:
    """The reasoning blocks of an answer that its provider wants back; none if they are over ``MOST_BYTES`` together.

    Args:
        model: The model, as ``provider/model``.
        blocks: The answer's blocks, in its order.
        address: The address that answered, of :func:`address_of`.
    """
    wanted = _COMING_BACK if address else kinds_for(model)
    place: dict[str, JsonValue] = {"model": model, "address": address} if address else {"model": model}
    kept: tuple[JsonValue, ...] = tuple(
        {**block, **place} for block in blocks if block["type"] in wanted and not (address and block.get("inside"))
    )
    size = sum(len(json.dumps(block).encode()) for block in kept)
    return kept if size <= MOST_BYTES else ()


def reasoning_of(definition: AgentDefinition, blocks: Sequence[Mapping[str, JsonValue]]) -> tuple[JsonValue, ...]:
    """The reasoning blocks of an answer to this agent's call that are kept."""
    return kept_reasoning(definition.model, blocks, address_of(definition.model, definition.generate_params))


def with_reasoning(model: str, messages: list[WireMessage], address: str = "") -> list[WireMessage]:
    """The messages with reasoning in the fields of the model's provider.

    That of another model, which answered before a fallback, is left out, and so is that of another address: its
    signature may not be valid here.
    """
    return [_to_sent(model, message, address) if "reasoning" in message else message for message in messages]


def _to_sent(model: str, message: WireMessage, address: str) -> WireMessage:
    sent = {name: part for name, part in message.items() if name != "reasoning"}
    for block in map(_fields, _list(message["reasoning"])):
        kind, field = str(block.get("type")), str(block.pop("field", "reasoning_content"))
        block.pop("inside", None)
        if not _is_valid(kind, str(block.pop("model", model)), str(block.pop("address", "")), model, address):
            continue
        if kind == "reasoning_content":
            sent[field] = cast("JsonValue", block.get("text"))
        elif kind == "reasoning_details":
            sent[kind] = cast("JsonValue", block.get("details"))
        elif kind == "thought_signature":
            _sign(sent, block, in_content=bool(address))
        elif kind == "reasoning_item":
            if _is_whole(block.get("item")):
                sent[ITEMS] = cast("JsonValue", [*_list(sent.get(ITEMS)), block])
        else:
            place = block.pop("calls", 0)
            sent["thinking_blocks"] = cast("JsonValue", [*_list(sent.get("thinking_blocks")), block])
            sent[PLACES] = cast("JsonValue", [*_list(sent.get(PLACES)), place])
    if not any(_list(sent.get(PLACES))):
        sent.pop(PLACES, None)
    return sent


_WANTS_REASONING = re.compile(r"deepseek/.*(reasoner|v[4-9])")


def wants_reasoning(model: str) -> bool:
    """Whether the model refuses an answer in a conversation that has no reasoning, also another model's.

    Source: DeepSeek's page on its thinking mode; an empty text is taken.
    """
    return _WANTS_REASONING.match(model) is not None


def with_empty_reasoning(messages: list[WireMessage]) -> list[WireMessage]:
    """The messages with an empty ``reasoning_content`` in each answer that has none."""
    return [
        {"reasoning_content": "", **message} if message.get("role") == "assistant" else message for message in messages
    ]


def _is_valid(kind: str, made_by: str, made_at: str, model: str, address: str) -> bool:
    """Whether a block that a model made at an address is valid for this model at this address."""
    return (made_by, made_at) == (model, address) and kind in (_COMING_BACK if address else kinds_for(model))


def _is_whole(item: object) -> bool:
    """Whether an item holds its reasoning; OpenAI keeps none, and so refuses one that is a name only."""
    fields = _fields(item)
    return bool(fields.get("encrypted_content") or fields.get("content"))


ITEMS = "reasoning_items"
"""Field of a message with the reasoning items of an answer of OpenAI's Responses, each with its place."""

PLACES = "thinking_places"
"""Field of a message with interleaved thinking: for each of its thinking blocks the number of calls before it."""


def without_own_fields(message: WireMessage) -> WireMessage:
    """A message without the fields that perdure's own encoders read, and no provider knows."""
    return {name: part for name, part in message.items() if name not in {ITEMS, PLACES}}


def _sign(sent: WireMessage, block: Mapping[str, object], *, in_content: bool) -> None:
    """Put a signature of Gemini where litellm, or Google's OpenAI-shaped address, expects it: at its call or text."""
    at, signature = block.get("call"), cast("JsonValue", block.get("signature"))
    calls = _list(sent.get("tool_calls"))
    if at == -1 and not in_content:
        sent["provider_specific_fields"] = {"thought_signatures": [signature]}
    elif isinstance(at, int) and at < len(calls):
        field = "extra_content" if in_content else "provider_specific_fields"
        held: object = {"google": {"thought_signature": signature}} if in_content else {"thought_signature": signature}
        call = cast("JsonValue", {**_fields(calls[at]), field: held})
        sent["tool_calls"] = cast("JsonValue", [*calls[:at], call, *calls[at + 1 :]])


def _fields(value: object) -> dict[str, object]:
    """A copy of an object's fields."""
    return dict(cast("dict[str, object]", value)) if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []
