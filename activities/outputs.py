"""What a tool gave, as the model reads it: text as it is, values as JSON, images and files as artifacts."""

import asyncio
import base64
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import cast

from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from perdure.agents.files import MAX_BYTES, MEDIA_TYPE, UNKNOWN_TYPE, File, Image
from perdure.contracts.tools import CallTool
from perdure.contracts.values import JsonValue
from perdure.engine.outputs import whole_characters
from perdure.engine.redaction import without_known
from perdure.store import Artifact
from perdure.store.records import BASE64

MAX_ALL_BYTES = 50_000_000
"""Largest sum of the images and files of one call: they are stored in one transaction."""

_WRAPPED = ("Error serializing to JSON: ", "TypeError: ", "ValueError: ")
"""What pydantic puts before the cause."""


class InvalidOutputError(Exception):
    """The tool returned a value that cannot be written as JSON, or more than may be stored."""


@dataclass(frozen=True)
class Attachment:
    """An image or a file of a call, and what it is called there."""

    what: str
    media_type: str
    data: bytes


@dataclass(frozen=True)
class CallResult:
    """What a call gave: the text for the model, what becomes artifacts, and why the tool asked the turn to end."""

    text: str
    attachments: tuple[Attachment, ...] = ()
    stop: str | None = None


def output_id(call_id: str) -> str:
    """The artifact of a call's text that is too long for the conversation."""
    return f"art_{call_id}"


def attachment_id(call_id: str, number: int) -> str:
    """The artifact of a call's image or file, from 1."""
    return f"{output_id(call_id)}_{number}"


class Attachments:
    """The images and files of one call. Each leaves a line in the text: what it is, its media type, size and handle."""

    def __init__(self, call_id: str) -> None:
        self._call_id = call_id
        self._all: list[Attachment] = []

    def add(self, what: str, media_type: str, data: bytes) -> str:
        """Take one, and give its line."""
        what = whole_characters(" ".join(what.split()))
        media_type = media_type if MEDIA_TYPE.fullmatch(media_type) else UNKNOWN_TYPE
        self._all.append(Attachment(what, media_type, data))
        handle = attachment_id(self._call_id, len(self._all))
        return f"[{what}, {media_type}, {len(data):,} bytes: artifact {handle}]"

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._all)

    def forget(self, beyond: int) -> None:
        """Go back to so many."""
        del self._all[beyond:]

    def checked(self) -> tuple[Attachment, ...]:
        """All of them.

        Raises:
            InvalidOutputError: One of them or all together are too large.
        """
        for one in self._all:
            if len(one.data) > MAX_BYTES:
                msg = f"{one.what} has more than {MAX_BYTES:,} bytes, the most an artifact may have; store it elsewhere"
                raise InvalidOutputError(msg)
        size = sum(len(one.data) for one in self._all)
        if size > MAX_ALL_BYTES:
            msg = f"the images and files of one call are {size:,} bytes, at most {MAX_ALL_BYTES:,} may be; return fewer"
            raise InvalidOutputError(msg)
        return tuple(self._all)


async def read(value: object, call_id: str) -> CallResult:
    """What a body returned. A list or tuple with images or files in it is read part by part, each on a line.

    Raises:
        InvalidOutputError: It has no JSON form, or an image or a file is too large.
    """
    if isinstance(value, str):
        return CallResult(whole_characters(value))
    return await asyncio.to_thread(_read, value, call_id)  # large values take long, and a generator may block


def _read(value: object, call_id: str) -> CallResult:
    attachments = Attachments(call_id)
    parts = [value]
    if isinstance(value, list | tuple):
        listed = list(cast("Collection[object]", value))
        parts = listed if any(isinstance(one, Image | File) for one in listed) else parts
    lines = [_part(part, attachments) for part in parts]
    return CallResult("\n".join(lines), attachments.checked())


def _part(value: object, attachments: Attachments) -> str:
    """A text as it is, an image or a file as its line, anything else as JSON."""
    if isinstance(value, str):
        return whole_characters(value)
    if isinstance(value, Image | File):
        return _attached(value, attachments)
    return _json(value, attachments)


def _json(value: object, attachments: Attachments) -> str:
    """A value as JSON, with the line of an image or a file in place of each in it.

    Raises:
        InvalidOutputError: It has no JSON form.
    """
    before = attachments.count
    try:
        try:
            text = to_json(value, inf_nan_mode="constants", fallback=lambda one: _attached(one, attachments)).decode()
        except (PydanticSerializationError, UnicodeEncodeError) as error:
            if "surrogates not allowed" not in str(error):
                raise
            attachments.forget(before)
            text = json.dumps(value, ensure_ascii=False, default=lambda one: _plain(one, attachments))
    except (PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
        msg = f"the tool returned a {type(value).__name__} that cannot be written as JSON: {_cause(error)}"
        raise InvalidOutputError(msg) from error
    return whole_characters(text)


def _plain(value: object, attachments: Attachments) -> JsonValue:
    plain: JsonValue = to_jsonable_python(
        value, inf_nan_mode="constants", fallback=lambda one: _attached(one, attachments)
    )
    return plain


def _attached(value: object, attachments: Attachments) -> str:
    if isinstance(value, Image):
        return attachments.add("image", value.media_type, value.data)
    if isinstance(value, File):
        return attachments.add(f"file {value.name}", value.media_type, value.data)
    msg = f"a {type(value).__name__} has no JSON form"
    raise TypeError(msg)


def _cause(error: Exception) -> str:
    """What pydantic says, without what it puts before it."""
    text = str(error)
    for wrapper in _WRAPPED:
        text = text.removeprefix(wrapper)
    return f"{text}; return perdure.Image or perdure.File for bytes" if "utf-8 sequence" in text else text


def artifacts_of(call: CallTool, attachments: Sequence[Attachment], secrets: Collection[str]) -> list[Artifact]:
    """The artifacts of a call's images and files: texts as texts, so that they can be read in parts."""
    return [
        _artifact(attachment_id(call.call_id, number), call.session, one, secrets)
        for number, one in enumerate(attachments, start=1)
    ]


def _artifact(handle: str, session: str, one: Attachment, secrets: Collection[str]) -> Artifact:
    try:
        text = without_known(File(one.what, one.data, one.media_type).text, secrets)
    except ValueError:
        text = base64.b64encode(one.data).decode()
        return Artifact(id=handle, session=session, media_type=f"{one.media_type}{BASE64}", text=text)
    return Artifact(id=handle, session=session, media_type=one.media_type, text=text)
