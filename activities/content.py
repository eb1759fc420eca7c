"""Images and files on their way to a model: loaded from the store, and put into the form of its provider's wire.

A model that does not take them, by litellm's map, reads a line in their place; one that the map does not know is sent
them. Anthropic's wire takes images in the result of a tool. The others take text there, so the images follow in a user
message.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from perdure.activities.conversations import WireMessage
from perdure.activities.errors import store_failures
from perdure.contracts.files import MAX_ALL_BYTES, MAX_PARTS, PDF, TEXT, FilePart, is_image
from perdure.contracts.values import JsonValue
from perdure.store import NotFoundError, Store
from perdure.store.records import Artifact

KEPT_CHARACTERS = 100_000_000
"""Files kept in memory, as text or base64; the one unused for longest is forgotten first."""

MOST_IMAGE_TOKENS = 50_000
"""Of one image. The dearest known: gpt-4o-mini counts 2,833 tokens and 5,667 for each of at most eight tiles
(OpenAI's page on images and vision); Claude counts at most 4,784, Gemini 2,240."""

MOST_PAGE_TOKENS = 8_000
"""Of one page of a PDF: up to 3,000 of its text and those of an image of it (Anthropic's page on PDF support)."""

MOST_PAGES = 100
"""Of a PDF: Anthropic refuses more."""

LEAST_PAGE_BYTES = 100
"""No page of a PDF is described with less."""

_SEES: Mapping[str, str] = {"image": "supports_vision", PDF: "supports_pdf_input"}

_TAKES_IMAGES_IN_RESULTS = frozenset({"azure_ai", "bedrock", "vertex_ai"})


def takes(facts: Mapping[str, Any], media_type: str) -> bool:
    """Whether a model takes what is of that type, by what litellm's map says of it; without facts, it is tried."""
    if media_type == TEXT or not facts:
        return True
    return facts.get(_SEES["image" if is_image(media_type) else PDF]) is True


def most_tokens(messages: Sequence[WireMessage]) -> int:
    """The most tokens that a provider may count for the images and files of the messages."""
    return sum(_most(part) for message in messages for part in _parts(message))


def _most(part: FilePart) -> int:
    if part.media_type == TEXT:
        return part.size
    if part.media_type == PDF:
        return MOST_PAGE_TOKENS * min(MOST_PAGES, part.size // LEAST_PAGE_BYTES + 1)
    return MOST_IMAGE_TOKENS


def without_places(messages: list[WireMessage]) -> list[WireMessage]:
    """The messages as they are recorded: parts are the same in another session if their bytes are."""
    if not any("parts" in message for message in messages):
        return messages
    return [
        {**one, "parts": [part.model_dump(mode="json", exclude={"artifact"}) for part in _parts(one)]}
        if "parts" in one
        else one
        for one in messages
    ]


class Contents:
    """The images and files of the sessions that a worker serves."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[tuple[str, str], Artifact] = OrderedDict()
        self._characters = 0

    async def fill(self, session: str, facts: Mapping[str, Any], messages: list[WireMessage]) -> list[WireMessage]:
        """The messages with the bytes of those parts that the model takes; the latest, if there are too many."""
        if not any("parts" in message for message in messages):
            return messages
        shown: set[int] = set()
        size = 0
        parts = [part for message in messages for part in _parts(message)]
        for number, part in reversed([*enumerate(parts)]):
            size += part.size if takes(facts, part.media_type) else 0
            if takes(facts, part.media_type) and len(shown) < MAX_PARTS and size <= MAX_ALL_BYTES:
                shown.add(number)
        numbers = iter(range(len(parts)))
        return [
            {**one, "parts": [await self._loaded(session, part, facts, next(numbers) in shown) for part in _parts(one)]}
            if "parts" in one
            else one
            for one in messages
        ]

    async def _loaded(self, session: str, part: FilePart, facts: Mapping[str, Any], shown: bool) -> JsonValue:
        described = part.model_dump(mode="json")
        if not takes(facts, part.media_type):
            return {**described, "left_out": "not shown: this model does not take it"}
        if not shown:
            return {**described, "left_out": "not shown any more: too many came after it"}
        found = await self._find(session, part.artifact)
        if found is None:
            return {**described, "left_out": "not shown: it is not there any more"}
        return {**described, "data": found.text}

    async def _find(self, session: str, artifact: str) -> Artifact | None:
        key = (session, artifact)  # what one session was given, no other one reads
        if key not in self._kept:
            async with store_failures():
                try:
                    found = await self._store.artifact(artifact, session=session)
                except NotFoundError:
                    return None
            self._kept[key] = found
            self._characters += len(found.text)
            while self._characters > KEPT_CHARACTERS and len(self._kept) > 1:
                self._characters -= len(self._kept.popitem(last=False)[1].text)
        self._kept.move_to_end(key)
        return self._kept[key]


def with_content(model: str, messages: list[WireMessage]) -> list[WireMessage]:
    """The messages with their images and files in the form in which the model's provider takes them."""
    if not any("parts" in message for message in messages):
        return messages
    provider, _, name = model.partition("/")
    in_results = provider == "anthropic" or (provider in _TAKES_IMAGES_IN_RESULTS and "claude" in name)
    sent: list[WireMessage] = []
    waiting: list[JsonValue] = []  # images of results, until the last result is told
    for message in messages:
        plain = {name: value for name, value in message.items() if name != "parts"}
        is_result = message.get("role") == "tool"
        if waiting and not is_result:
            sent.append(_following(waiting))
            waiting = []
        if "parts" not in message:
            sent.append(message)
        elif not is_result:
            sent.append({**plain, "content": _joined([*_blocks(message), _text(message)])})
        elif in_results:
            sent.append({**plain, "content": _joined([_text(message), *_images(message)])})
        else:
            sent.append(plain)
            waiting += _images(message)
    return [*sent, _following(waiting)] if waiting else sent


def _following(images: list[JsonValue]) -> WireMessage:
    said: JsonValue = {"type": "text", "text": "The images of the tool results above, in their order:"}
    return {"role": "user", "content": [said, *images]}


def _joined(blocks: list[JsonValue]) -> JsonValue:
    """One text if there is nothing but texts, which every provider takes."""
    texts = [block["text"] for block in blocks if isinstance(block, dict) and block["type"] == "text"]
    return "\n\n".join(map(str, texts)) if len(texts) == len(blocks) else blocks


def _text(message: WireMessage) -> JsonValue:
    return {"type": "text", "text": message.get("content")}


def _images(message: WireMessage) -> list[JsonValue]:
    """The images of a result that are shown; of any other its text has a line."""
    return [block for block in _blocks(message) if isinstance(block, dict) and block["type"] == "image_url"]


def _blocks(message: WireMessage) -> Iterator[JsonValue]:
    for fields in _dicts(message):
        part, data = _part(fields), fields.get("data")
        if not isinstance(data, str):
            why = str(fields.get("left_out") or "not shown")
            yield {"type": "text", "text": f"{part.line[:-1]}: {why}]"}
        elif part.media_type == TEXT:
            yield {"type": "text", "text": f'<file name="{part.name}">\n{data}\n</file>'}
        elif part.media_type == PDF:
            file: JsonValue = {"filename": part.name or "file.pdf", "file_data": f"data:{PDF};base64,{data}"}
            yield {"type": "file", "file": file}
        else:
            yield {"type": "image_url", "image_url": {"url": f"data:{part.media_type};base64,{data}"}}


def _parts(message: WireMessage) -> list[FilePart]:
    return [_part(fields) for fields in _dicts(message)]


def _part(fields: Mapping[str, JsonValue]) -> FilePart:
    return FilePart.model_validate({name: value for name, value in fields.items() if name not in {"data", "left_out"}})


def _dicts(message: WireMessage) -> list[dict[str, JsonValue]]:
    return cast("list[dict[str, JsonValue]]", message.get("parts") or [])
