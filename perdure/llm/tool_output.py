"""A tool's output as models read it: text as it is, values as JSON, a line for each file; long output is cut.

Source of the sizes: Dreadnode's tools (30,000 characters, kept as 15,000 + 15,000).
"""

import json
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from inspect import isasyncgen, isawaitable, iscoroutine
from typing import Literal, cast

from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from perdure.agents.context import InvalidOutputError
from perdure.agents.files import MAX_BYTES, MEDIA_TYPE, UNKNOWN_TYPE, File, Image
from perdure.agents.parameters import ReturnValue, draw_iterators, spell_numbers
from perdure.contracts.plain import is_of, to_plain, to_text
from perdure.contracts.values import replace_surrogates

OFFLOAD_CHARACTERS = 30_000
"""Characters above which an output is stored as an artifact, of which the model reads head, tail and a handle."""

_KEPT_AT_EACH_END = 15_000


class ToolTimeoutError(TimeoutError):
    """The body ran longer than the tool's time-out."""


def head_and_tail(text: str, limit: int) -> str:
    """The text cut to at most ``limit`` characters: its beginning, its end, and a note between them if it fits."""
    if len(text) <= limit:
        return text
    note = f"\n… {len(text) - limit:,} characters left out …\n"
    room = limit - len(note)
    if room < len(note):
        return text[:limit]
    tail = room // 2
    return text[: room - tail] + note + text[len(text) - tail :]


def shorten_output(text: str, artifact: str, reader: str | None = None) -> str:
    """Shorten a long output that is stored as an artifact, for the model.

    ``reader`` is the agent's tool to read on with, if it has one.
    """
    head, middle, tail = text[:_KEPT_AT_EACH_END], text[_KEPT_AT_EACH_END:-_KEPT_AT_EACH_END], text[-_KEPT_AT_EACH_END:]
    lines = middle.count("\n")
    way = f"; read on with {reader}, start={_KEPT_AT_EACH_END}" if reader else ""
    left_out = f"{len(middle):,} characters ({lines:,} lines) left out"
    return f"{head}\n\n… {left_out}; the whole output is artifact {artifact} {way and f'({way[2:]}) '}…\n\n{tail}"


MAX_ALL_BYTES = 50_000_000
"""Largest sum of the images and files of one call in bytes: they are stored in one transaction."""

_WRAPPED = ("Error serializing to JSON: ", "TypeError: ", "ValueError: ")
"""Prefixes that pydantic puts before the cause."""


@dataclass(frozen=True)
class Attachment:
    """An image or a file of a call: ``what`` describes it in the text, ``file`` is the name of a file."""

    what: str
    media_type: str
    data: bytes
    file: str | None = None


@dataclass(frozen=True)
class Part:
    """A part of a result: its text for the model, and the images and files in it."""

    kind: Literal["text", "json", "attachment"]
    text: str
    attachments: tuple[Attachment, ...] = ()


class Attachments:
    """The images and files of one call. Each leaves a line in the text: what it is, its media type and its size.

    Args:
        place: The end of the line, which says where the image or file is, by its number from 1.
    """

    def __init__(self, place: Callable[[int], str] = lambda _: "") -> None:
        self._place = place
        self._all: list[Attachment] = []

    def add(self, what: str, media_type: str, data: bytes, file: str | None = None) -> str:
        """Add an image or a file, and return its line."""
        what = replace_surrogates(" ".join(to_text(what).split()))
        media_type, data = to_text(media_type), cast("bytes", to_plain(data))
        file = None if file is None else replace_surrogates(to_text(file))
        media_type = media_type if MEDIA_TYPE.fullmatch(media_type) else UNKNOWN_TYPE
        self._all.append(Attachment(what, media_type, data, file))
        return f"[{what}, {media_type}, {len(data):,} bytes{self._place(len(self._all))}]"

    @property
    def count(self) -> int:
        """The number of attachments so far."""
        return len(self._all)

    @property
    def size(self) -> int:
        """The bytes of all attachments so far."""
        return sum(len(attachment.data) for attachment in self._all)

    def take_since(self, count: int) -> tuple[Attachment, ...]:
        """The attachments after the first ``count``."""
        return tuple(self._all[count:])

    def forget(self, beyond: int) -> None:
        """Drop all attachments after the first ``beyond``."""
        del self._all[beyond:]

    def check(self) -> tuple[Attachment, ...]:
        """All attachments.

        Raises:
            InvalidOutputError: One of them, or all together, are too large.
        """
        for attachment in self._all:
            if len(attachment.data) > MAX_BYTES:
                too_large = f"has more than {MAX_BYTES:,} bytes, the most an artifact may have"
                msg = f"{attachment.what} {too_large}; store it elsewhere"
                raise InvalidOutputError(msg)
        if self.size > MAX_ALL_BYTES:
            size = f"{self.size:,} bytes, at most {MAX_ALL_BYTES:,} may be"
            msg = f"the images and files of one call are {size}; return fewer"
            raise InvalidOutputError(msg)
        return tuple(self._all)


def parts_of(value: object, attachments: Attachments, annotated: ReturnValue | None = None) -> list[Part]:
    """The parts of a value that a body returned. A list or tuple with images or files in it is read part by part.

    Raises:
        InvalidOutputError: The value does not fit the body's annotation, or has no JSON form.
    """
    is_member = is_of(value, Enum) and not is_of(value, str)  # which is JSON, also where it stands for a text
    plain = value
    with suppress(RecursionError):  # what is nested too deeply has no JSON form
        plain = to_plain(value)
    _refuse_unawaited(plain)
    checked = value if annotated is None else annotated.check(value)
    is_same, value = checked is value, checked
    with suppress(RecursionError):
        value = draw_iterators(plain if is_same else to_plain(value))
    if is_member:
        return [Part("json", _json(value, attachments))]
    values = [value]
    if isinstance(value, list | tuple):
        listed = list(cast("Collection[object]", value))
        values = listed if any(isinstance(item, Image | File) for item in listed) else values
    return [_to_part(item, attachments) for item in values]


def _refuse_unawaited(value: object) -> None:
    """Refuse awaitables and async iterators, as the value or among its items: only an event loop could read them."""
    items: Collection[object] = (value,)
    if isinstance(value, list | tuple | set):
        items = cast("Collection[object]", value)
    elif isinstance(value, dict):
        items = cast("dict[object, object]", value).values()
    pending = [item for item in items if isawaitable(item)]
    for coroutine in filter(iscoroutine, pending):
        coroutine.close()  # or Python would warn in the worker's log
    if pending:
        kind = type(pending[0]).__name__
        msg = f"the tool returned a {kind} that nobody awaited; write 'async def' and 'return await …'"
        raise InvalidOutputError(msg)
    if any(isasyncgen(item) for item in items):
        msg = "the tool returned an async generator; collect it: return [item async for item in …]"
        raise InvalidOutputError(msg)


def _to_part(value: object, attachments: Attachments) -> Part:
    if isinstance(value, str):
        return Part("text", replace_surrogates(value))
    before = attachments.count
    if isinstance(value, Image | File):
        line = _attach(value, attachments)
        return Part("attachment", line, attachments.take_since(before))
    text = _json(value, attachments)
    return Part("json", text, attachments.take_since(before))


def _json(value: object, attachments: Attachments) -> str:
    """A value as JSON, with the line of an image or a file in place of each in it.

    Raises:
        InvalidOutputError: The value has no JSON form.
    """
    before = attachments.count

    def write(what: object) -> str:
        attachments.forget(before)
        return to_json(what, inf_nan_mode="strings", fallback=lambda inner: _attach(inner, attachments)).decode()

    def read(inner: object) -> object:
        made = to_jsonable_python(
            spell_numbers(inner), inf_nan_mode="strings", fallback=lambda inner: _attach(inner, attachments)
        )
        return spell_numbers(made)

    try:
        try:
            text = write(value)
            if "null" in text and (spelled := spell_numbers(value)) is not value:  # as models write such numbers
                try:
                    text = write(spelled)
                except PydanticSerializationError:  # a model's own code takes numbers only
                    text = write(value)
        except (PydanticSerializationError, UnicodeEncodeError) as error:
            if "surrogates not allowed" not in str(error):
                raise
            attachments.forget(before)
            text = json.dumps(spell_numbers(value), ensure_ascii=False, default=read)
    except (PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
        cause = str(error)
        for wrapper in _WRAPPED:
            cause = cause.removeprefix(wrapper)
        if "utf-8 sequence" in cause:
            cause += "; return perdure.Image or perdure.File for bytes"
        msg = f"the tool returned a {type(value).__name__} that cannot be written as JSON: {cause}"
        raise InvalidOutputError(msg) from error
    return replace_surrogates(text)


def _attach(value: object, attachments: Attachments) -> str:
    if isinstance(value, Image):
        return attachments.add("image", value.media_type, value.data)
    if isinstance(value, File):
        return attachments.add(f"file {to_text(value.name)}", value.media_type, value.data, value.name)
    msg = f"a {type(value).__name__} has no JSON form"
    raise TypeError(msg)


def output_id(call_id: str) -> str:
    """Id of the artifact with a call's long output."""
    return f"art_{call_id}"


def attachment_id(call_id: str, number: int) -> str:
    """Id of the artifact with a call's image or file, by its number from 1."""
    return f"{output_id(call_id)}_{number}"


def attachments_of(call_id: str) -> Attachments:
    """An empty collection for a call's images and files; the line of each names the artifact that it becomes."""
    return Attachments(lambda number: f": artifact {attachment_id(call_id, number)}")


@dataclass(frozen=True)
class CallResult:
    """The result of a call: text for the model, attachments for artifacts, and why the tool asked the turn to end."""

    text: str
    attachments: tuple[Attachment, ...] = ()
    stop: str | None = None
