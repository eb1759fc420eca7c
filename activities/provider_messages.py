"""The messages as a provider takes them: images and files, cache marks, and its model's reasoning.

*Images and files* are loaded from the store. A model that does not take them, by litellm's map, reads a line in their
place. A model that the map does not have is sent them. Anthropic's API takes images in tool results. The others take
only text there, so the images follow in a user message.

*Cache marks* (Anthropic's ``cache_control``): the provider caches a prompt up to a mark, and the next call costs less.
Marked are the last system message, and with it the tools before it, and the last two messages that are no answers. So
the next step finds the conversation up to there in the cache. Source: Dreadnode's cache mode ``latest``.

*Reasoning*: an answer's reasoning is kept as blocks, each with its ``model``. The types ``thinking`` and
``redacted_thinking`` are Anthropic's; the others are perdure's:

- ``reasoning_content``: a text beside the content. Without it DeepSeek, Moonshot and Z.ai refuse a conversation with
  tool calls, or answer worse.
- ``reasoning_details``: OpenRouter's list, which it passes on to the upstream provider unchanged.
- ``thought_signature``: Gemini's signature of its thoughts before a call, by the call's place; -1 is the text's.

Nothing else is sent back, because a provider refuses a whole conversation for a field that it does not know. All this
changes only what is sent, and nothing that is stored or recorded.
"""

import json
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

from perdure.activities.store_access import store_failures
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.files import MAX_ALL_BYTES, MAX_PARTS, PDF, TEXT, FilePart, is_image
from perdure.contracts.retention import Retention
from perdure.contracts.values import JsonValue, replace_surrogates
from perdure.llm.openai_format import WireMessage
from perdure.store import NotFoundError, Store
from perdure.store.records import Artifact

MARKED_MESSAGES = 2
"""Messages with a cache mark. With the system message that makes three of the four marks that Anthropic takes."""

_MARK: JsonValue = {"type": "ephemeral"}


def add_cache_marks(definition: AgentDefinition, messages: list[WireMessage]) -> list[WireMessage]:
    """The messages as they are sent, with cache marks if the agent wants them and its provider takes them."""
    if definition.cache == "off" or not _takes_marks(definition.model):
        return messages
    system = [at for at, message in enumerate(messages) if message.get("role") == "system"]
    said = [at for at, message in enumerate(messages) if message.get("role") not in {"system", "assistant"}]
    places = {*system[-1:], *said[-MARKED_MESSAGES:]}
    return [_with_mark(message) if at in places else message for at, message in enumerate(messages)]


def _takes_marks(model: str) -> bool:
    """Whether the model is Anthropic's. Other providers cache without marks, or refuse them."""
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
    """The blocks with a mark on the last text that is not empty: not every provider takes a mark on a file."""
    for place in reversed(range(len(blocks))):
        block = blocks[place]
        if isinstance(block, dict) and block.get("type") == "text" and str(block.get("text")).strip():
            return [*blocks[:place], {**block, "cache_control": _MARK}, *blocks[place + 1 :]]
    return blocks


MOST_BYTES = 1_000_000
"""Largest reasoning of one answer in bytes of JSON, twice the longest of today's models. Longer reasoning is dropped as
a whole, because no provider takes a part of it."""

_OF_THINKING = ("type", "thinking", "signature", "data")

_OF_CLAUDE = frozenset({"azure_ai", "bedrock", "vertex_ai"})
"""Providers of Claude beside Anthropic. litellm sends them Anthropic's blocks, whose signatures are valid there too."""

_OF_GEMINI = frozenset({"gemini", "vertex_ai"})

_OF_TEXT = frozenset({"deepseek", "fireworks_ai", "moonshot", "ollama_chat", "together_ai", "zai"})
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
    return frozenset({"reasoning_content"}) if provider in _OF_TEXT else frozenset()


def reasoning_of(model: str, message: object, calls: Sequence[object]) -> tuple[JsonValue, ...]:
    """The reasoning blocks of an answer that its provider wants back; none if they are over ``MOST_BYTES`` together.

    Args:
        model: The model, as ``provider/model``.
        message: The answer as litellm returns it.
        calls: The answer's tool calls as litellm returns them.
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
            yield {name: replace_surrogates(text) for name, text in texts.items()}
    text = getattr(message, "reasoning_content", None)
    if isinstance(text, str) and text:
        yield {"type": "reasoning_content", "text": replace_surrogates(text)}
    if details := _list(extra.get("reasoning_details")):
        yield {"type": "reasoning_details", "details": _replace_surrogates(cast("JsonValue", details))}
    signatures = [_fields(getattr(call, "provider_specific_fields", None)).get("thought_signature") for call in calls]
    of_text = next(iter(_list(extra.get("thought_signatures"))), None)
    if of_text not in signatures:  # otherwise a call has the same one, and a second copy would cost tokens
        signatures.append(of_text)
    for place, signature in enumerate(signatures):
        if isinstance(signature, str) and signature:
            at = place if place < len(calls) else -1
            yield {"type": "thought_signature", "call": at, "signature": replace_surrogates(signature)}


def with_reasoning(model: str, messages: list[WireMessage]) -> list[WireMessage]:
    """The messages with reasoning in the fields of the model's provider.

    Reasoning of another vendor's model, which answered before a fallback, is left out: its signature is not valid here.
    """
    return [_to_sent(model, message) if "reasoning" in message else message for message in messages]


def _to_sent(model: str, message: WireMessage) -> WireMessage:
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
    """Put a signature of Gemini where litellm expects it: at its call, or at the message."""
    at, signature = block.get("call"), cast("JsonValue", block.get("signature"))
    calls = _list(sent.get("tool_calls"))
    if at == -1:
        sent["provider_specific_fields"] = {"thought_signatures": [signature]}
    elif isinstance(at, int) and at < len(calls):
        call = cast("JsonValue", {**_fields(calls[at]), "provider_specific_fields": {"thought_signature": signature}})
        sent["tool_calls"] = cast("JsonValue", [*calls[:at], call, *calls[at + 1 :]])


def _vendor(model: str) -> str:
    """The vendor of a model's reasoning. Claude's signatures are valid at every provider of Claude."""
    provider, _, name = model.partition("/")
    if provider == "openrouter":
        return f"{provider}/{name.partition('/')[0]}"
    if provider in _OF_CLAUDE and "claude" in name:
        return "anthropic"
    return "gemini" if provider in _OF_GEMINI else provider


def _replace_surrogates(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {replace_surrogates(name): _replace_surrogates(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_replace_surrogates(part) for part in value]
    return replace_surrogates(value) if isinstance(value, str) else value


def _fields(value: object) -> dict[str, object]:
    """A copy of an object's fields."""
    return dict(cast("dict[str, object]", value)) if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


KEPT_CHARACTERS = 100_000_000
"""Characters of files kept in memory, as text or base64; the file unused for longest is dropped first."""

KEPT_FOR = timedelta(hours=1)
"""Age at which a kept file is read again: a retention may have deleted it, and then no model may see it any more."""

MOST_IMAGE_TOKENS = 50_000
"""Most tokens of one image. The most known is gpt-4o-mini's: 2,833, and 5,667 for each of at most eight tiles
(OpenAI's page on images and vision). Claude counts at most 4,784, Gemini 2,240."""

MOST_PAGE_TOKENS = 8_000
"""Most tokens of one PDF page: up to 3,000 of text, and those of the page's image (Anthropic's page on PDF support)."""

MOST_PAGES = 100
"""Most pages of a PDF. Anthropic refuses more."""

LEAST_PAGE_BYTES = 100
"""Least bytes of a PDF's file for each of its pages."""

_SEES: Mapping[str, str] = {"image": "supports_vision", PDF: "supports_pdf_input"}

_TAKES_IMAGES_IN_RESULTS = frozenset({"azure_ai", "bedrock", "vertex_ai"})


def takes(facts: Mapping[str, Any], media_type: str) -> bool:
    """Whether a model takes files of this media type, by its entry in litellm's map; True without an entry."""
    if media_type == TEXT or not facts:
        return True
    return facts.get(_SEES["image" if is_image(media_type) else PDF]) is True


def count_most_tokens(messages: Sequence[WireMessage]) -> int:
    """The most tokens that any provider counts for the images and files of the messages."""
    return sum(_count_most(part) for message in messages for part in _parts_of(message))


def _count_most(part: FilePart) -> int:
    if part.media_type == TEXT:
        return part.size
    if part.media_type == PDF:
        return MOST_PAGE_TOKENS * min(MOST_PAGES, part.size // LEAST_PAGE_BYTES + 1)
    return MOST_IMAGE_TOKENS


def without_places(messages: list[WireMessage]) -> list[WireMessage]:
    """The messages as they are recorded: files without session and handle, so that equal bytes are equal parts."""
    if not any("parts" in message for message in messages):
        return messages
    return [
        {**message, "parts": [part.model_dump(mode="json", exclude={"artifact"}) for part in _parts_of(message)]}
        if "parts" in message
        else message
        for message in messages
    ]


class Contents:
    """The images and files of the sessions that a worker serves, cached in memory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[tuple[str, str], tuple[Artifact, float]] = OrderedDict()
        self._characters = 0

    async def with_bytes(
        self,
        session: str,
        facts: Mapping[str, Any],
        messages: list[WireMessage],
        retention: Retention | None = None,
    ) -> list[WireMessage]:
        """The messages with the bytes of the files that the model takes; of too many, only the latest.

        In place of a file that the store does not have any more, the model reads a line that says why, by the agent's
        ``retention``.
        """
        gone = _why_gone(retention)
        if not any("parts" in message for message in messages):
            return messages
        shown: set[int] = set()
        size = 0
        parts = [part for message in messages for part in _parts_of(message)]
        for number, part in reversed([*enumerate(parts)]):
            size += part.size if takes(facts, part.media_type) else 0
            if takes(facts, part.media_type) and len(shown) < MAX_PARTS and size <= MAX_ALL_BYTES:
                shown.add(number)
        numbers = iter(range(len(parts)))
        return [
            {
                **message,
                "parts": [
                    await self._loaded(session, part, facts, "" if next(numbers) in shown else _TOO_MANY, gone)
                    for part in _parts_of(message)
                ],
            }
            if "parts" in message
            else message
            for message in messages
        ]

    async def _loaded(
        self, session: str, part: FilePart, facts: Mapping[str, Any], left_out: str, gone: str
    ) -> JsonValue:
        described = part.model_dump(mode="json")
        if not takes(facts, part.media_type):
            return {**described, "left_out": "not shown: this model does not take it"}
        if left_out:
            return {**described, "left_out": left_out}
        found = await self._find(session, part.artifact)
        if found is None:
            return {**described, "gone": gone}
        return {**described, "data": found.text}

    async def _find(self, session: str, artifact: str) -> Artifact | None:
        key = (session, artifact)  # one session's files are never shown to another
        now = time.monotonic()
        if key in self._kept and now - self._kept[key][1] > KEPT_FOR.total_seconds():
            self._characters -= len(self._kept.pop(key)[0].text)
        if key not in self._kept:
            async with store_failures():
                try:
                    found = await self._store.artifact(artifact, session=session)
                except NotFoundError:
                    return None
            self._kept[key] = found, now
            self._characters += len(found.text)
            while self._characters > KEPT_CHARACTERS and len(self._kept) > 1:
                self._characters -= len(self._kept.popitem(last=False)[1][0].text)
        self._kept.move_to_end(key)
        return self._kept[key][0]


_TOO_MANY = "not shown any more: too many came after it"


def _why_gone(retention: Retention | None) -> str:
    """Why the store does not have a file any more, for the model."""
    if retention is not None and retention.artifacts is not None:
        return f"deleted after {_format_age(retention.artifacts)} by retention"
    if retention is not None and retention.keep_latest:
        return "deleted by retention"
    return "not shown: it is not there any more"


def _format_age(age: timedelta) -> str:
    number, unit = (age.days, "day") if age >= timedelta(days=1) else (int(age / timedelta(hours=1)), "hour")
    return f"{number} {unit}{'' if number == 1 else 's'}"


def with_content(model: str, messages: list[WireMessage]) -> list[WireMessage]:
    """The messages with images and files in the format of the model's provider."""
    if not any("parts" in message for message in messages):
        return messages
    provider, _, name = model.partition("/")
    in_results = provider == "anthropic" or (provider in _TAKES_IMAGES_IN_RESULTS and "claude" in name)
    sent: list[WireMessage] = []
    waiting: list[JsonValue] = []  # images of results, until the message after the last result
    for message in messages:
        plain = {name: value for name, value in message.items() if name != "parts"}
        is_result = message.get("role") == "tool"
        if waiting and not is_result:
            sent.append(_message_of_images(waiting))
            waiting = []
        if "parts" not in message:
            sent.append(message)
        elif not is_result:
            sent.append({**plain, "content": _join_blocks([*map(_block_of, _dicts(message)), _text(message)])})
        elif in_results:
            sent.append({**plain, "content": _join_blocks([_text(message), *_images(message)])})
        else:
            sent.append(plain)
            waiting += _images(message)
    return [*sent, _message_of_images(waiting)] if waiting else sent


def _message_of_images(images: list[JsonValue]) -> WireMessage:
    said: JsonValue = {"type": "text", "text": "The images of the tool results above, in their order:"}
    return {"role": "user", "content": [said, *images]}


def _join_blocks(blocks: list[JsonValue]) -> JsonValue:
    """The blocks as one text if all are texts, since every provider takes that."""
    texts = [block["text"] for block in blocks if isinstance(block, dict) and block["type"] == "text"]
    return "\n\n".join(map(str, texts)) if len(texts) == len(blocks) else blocks


def _text(message: WireMessage) -> JsonValue:
    return {"type": "text", "text": message.get("content")}


def _images(message: WireMessage) -> list[JsonValue]:
    """The images of a tool result, with lines for missing ones. Other files have a line in the result's text."""
    told = [fields for fields in _dicts(message) if "data" in fields or "gone" in fields]
    return [block for fields in told if (block := _block_of(fields))["type"] == "image_url" or "gone" in fields]


def _block_of(fields: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    part, data = _to_part(fields), fields.get("data")
    if not isinstance(data, str):
        why = str(fields.get("left_out") or fields.get("gone") or "not shown")
        return {"type": "text", "text": f"{part.line[:-1]}: {why}]"}
    if part.media_type == TEXT:
        return {"type": "text", "text": f'<file name="{part.name}">\n{data}\n</file>'}
    if part.media_type == PDF:
        file: JsonValue = {"filename": part.name or "file.pdf", "file_data": f"data:{PDF};base64,{data}"}
        return {"type": "file", "file": file}
    return {"type": "image_url", "image_url": {"url": f"data:{part.media_type};base64,{data}"}}


def _parts_of(message: WireMessage) -> list[FilePart]:
    return [_to_part(fields) for fields in _dicts(message)]


_ADDED = frozenset({"data", "left_out", "gone"})


def _to_part(fields: Mapping[str, JsonValue]) -> FilePart:
    return FilePart.model_validate({name: value for name, value in fields.items() if name not in _ADDED})


def _dicts(message: WireMessage) -> list[dict[str, JsonValue]]:
    return cast("list[dict[str, JsonValue]]", message.get("parts") or [])
