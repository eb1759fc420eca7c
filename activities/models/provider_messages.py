"""The messages as a provider takes them: images and files, cache marks, and ids of calls.

*Images and files* are loaded from the store. A model that does not take them, by litellm's map, reads a line in their
place. A model that the map does not have is sent them. Anthropic's API takes images in tool results. The others take
only text there, so the images follow in a user message.

*Cache marks* (Anthropic's ``cache_control``): the provider caches a prompt up to a mark, and the next call costs less.
Marked are the last system message, and with it the tools before it, and the last two messages that are no answers. So
the next step finds the conversation up to there in the cache. Source: Dreadnode's cache mode ``latest``.

All this changes only what is sent, and nothing that is stored or recorded.
"""

import time
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

from perdure.activities.models.blank_texts import without_blanks
from perdure.activities.models.forms import Form
from perdure.activities.models.given_way import Given
from perdure.activities.models.reasoning import (
    address_of,
    wants_reasoning,
    with_empty_reasoning,
    with_reasoning,
)
from perdure.activities.store_access import store_failures
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.files import PDF, TEXT, FilePart, is_image
from perdure.contracts.retention import Retention
from perdure.contracts.values import JsonValue
from perdure.llm.mistral import LONGEST, alternating, is_of_mistral, with_short_ids
from perdure.llm.openai_format import WireMessage
from perdure.store import NotFoundError, Store
from perdure.store.records import Artifact

MARKED_MESSAGES = 2
"""Messages with a cache mark. With the system message that makes three of the four marks that Anthropic takes."""

_MARK: JsonValue = {"type": "ephemeral"}


def as_sent(
    definition: AgentDefinition, messages: list[WireMessage], forms: Collection[Form] = ()
) -> list[WireMessage]:
    """The messages as the agent's model takes them, in the forms that it has asked for; files have their data."""
    model = definition.model
    sent = with_reasoning(model, messages, address_of(model, definition.generate_params))
    if Form.EMPTY_REASONING in forms or wants_reasoning(model):
        sent = with_empty_reasoning(sent)
    sent = without_blanks(with_content(model, sent))
    if Form.SYSTEM_IN_USER in forms:
        sent = with_system_in_user(sent)
    if Form.ALTERNATING in forms or is_of_mistral(model):
        sent = alternating(sent)
    if Form.NO_MARKS not in forms:
        sent = add_cache_marks(definition, sent)
    return with_short_ids(sent, longest=0 if Form.SHORT_IDS in forms or is_of_mistral(model) else LONGEST)


def with_system_in_user(messages: list[WireMessage]) -> list[WireMessage]:
    """The messages with the system prompt at the beginning of the user's first one."""
    system: list[JsonValue] = [
        block for message in messages if message.get("role") == "system" for block in _blocks_of(message)
    ]
    others = [message for message in messages if message.get("role") != "system"]
    if not system:
        return others
    first, rest = (others[:1], others[1:]) if others and others[0].get("role") == "user" else ([], others)
    said = [block for message in first for block in _blocks_of(message)]
    return [{"role": "user", "content": _join_blocks([*system, *said])}, *rest]


def _blocks_of(message: WireMessage) -> list[JsonValue]:
    content = message.get("content")
    return content if isinstance(content, list) else [_text(message)]


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
        given: Given = Given(),  # noqa: B008 - it is frozen
    ) -> list[WireMessage]:
        """The messages with the bytes of the files that the model takes; of too many, only the latest.

        In place of a file that the store does not have any more, the model reads a line that says why, by the agent's
        ``retention``; likewise of one that its provider refused, by what the session has ``given`` way to.
        """
        gone = _why_gone(retention)
        if not any("parts" in message for message in messages):
            return messages
        parts = [part for message in messages for part in _parts_of(message)]
        taken = [number for number, part in enumerate(parts) if takes(facts, part.media_type)]
        latest = given.latest([parts[number] for number in taken])
        shown = {number for place, number in enumerate(taken) if place in latest}
        numbers = iter(range(len(parts)))
        return [
            {
                **message,
                "parts": [
                    {**part.model_dump(mode="json"), "gone": REFUSED}
                    if (number := next(numbers)) not in shown and part.artifact in given.refused
                    else await self._loaded(session, part, facts, "" if number in shown else _TOO_MANY, gone)
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


REFUSED = "not shown: the model's provider refused it"
"""Text in place of an image or a file that the provider did not take."""

_TOO_MANY = "not shown any more: too many came after it"


def _why_gone(retention: Retention | None) -> str:
    """Reason for a file's absence from the store, as told to the model."""
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
