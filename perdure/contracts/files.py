"""Images and files of a conversation: what stands for them in histories, events and the transcript.

The bytes are artifacts of the store. A message holds a :class:`FilePart` for each, and whoever calls the model loads
them. What a file is, its bytes say, and not its name.
"""

import base64
import binascii
import hashlib
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from perdure.contracts.file_checks import find_problem
from perdure.contracts.values import Value

MAX_IMAGE_BYTES = 3_750_000
"""Largest image: 5 MB as base64, the smallest limit among the large providers (Anthropic's)."""

MAX_PDF_BYTES = 10_000_000
"""Largest PDF; artifacts are no larger."""

MAX_TEXT_BYTES = 400_000
"""Largest text file: it stands whole in the conversation, a token for about four bytes."""

MAX_PARTS = 20
"""Most images and files of one prompt. Anthropic takes smaller pictures only where a request has more than 20."""

MAX_ALL_BYTES = 20_000_000
"""Largest sum of the images and files of one prompt: as base64 it leaves room in a request of 32 MB (Anthropic's)."""

MAX_INLINE_BYTES = 500_000
"""Largest sum of the files inside a request: as base64, with a prompt, a definition and a history at their limits, they
still fit into a payload of Temporal's (2 MB)."""

MAX_NAME = 100
"""Longest name of a file that is kept."""

PDF = "application/pdf"
TEXT = "text/plain"

_MAGIC = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF.{4}WEBP", re.DOTALL), "image/webp"),
    (re.compile(rb"%PDF-"), PDF),
)

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")


class ContentError(ValueError):
    """An image or a file cannot be taken; the message names the limit and what to do."""


def media_type_of(data: bytes) -> str | None:
    """The media type of a PNG, JPEG, GIF, WebP, PDF or UTF-8 text by its bytes; None of anything else."""
    for magic, media_type in _MAGIC:
        if magic.match(data):
            return media_type
    try:
        return None if "\0" in data.decode() else TEXT
    except UnicodeDecodeError:
        return None


def is_image(media_type: str) -> bool:
    """Whether the media type is that of an image."""
    return media_type.startswith("image/")


class ToolFile(Value):
    """An image or a file that a tool has returned.

    Attributes:
        artifact: The artifact of the session that has the bytes.
        name: Name of a file, as the tool has it; empty without one.
    """

    artifact: str
    media_type: str = ""
    name: str = Field(default="", max_length=MAX_NAME, exclude_if=operator.not_)


def _read_ids(files: object) -> object:
    """The files; older logs have the ids of their artifacts alone."""
    if not isinstance(files, list | tuple):
        return files
    listed = cast("Sequence[object]", files)
    return tuple({"artifact": one} if isinstance(one, str) else one for one in listed)


ToolFiles = Annotated[tuple[ToolFile, ...], BeforeValidator(_read_ids)]
"""Images and files of a call, in order."""


class FilePart(Value):
    """Stand-in for an image or a file in messages, events and histories.

    Attributes:
        artifact: The artifact of the session that has the bytes.
        sha256: The digest of the bytes, in hexadecimal.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    artifact: str = Field(pattern=r"^[A-Za-z0-9_-]{1,120}$")
    media_type: str = Field(pattern=r"^(image/(png|jpeg|gif|webp)|application/pdf|text/plain)$")
    size: int = Field(ge=1, le=MAX_PDF_BYTES)
    name: str = Field(default="", max_length=MAX_NAME)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")

    @property
    def line(self) -> str:
        """Line that people, and models that cannot see the file, read in its place."""
        kind = "image" if is_image(self.media_type) else "file"
        return " ".join(part for part in (f"[{kind}", self.media_type, format_size(self.size), self.name) if part) + "]"


def check_parts(parts: tuple[FilePart, ...]) -> tuple[FilePart, ...]:
    """The images and files of one message.

    Raises:
        ContentError: They are too many, or too large together.
    """
    if len(parts) > MAX_PARTS:
        msg = f"are {len(parts)} images and files, at most {MAX_PARTS} may be; send the rest with a later message"
        raise ContentError(msg)
    size = sum(part.size for part in parts)
    if size > MAX_ALL_BYTES:
        msg = f"are {size:,} bytes together, the limit is {MAX_ALL_BYTES:,}; make them smaller, or send fewer at once"
        raise ContentError(msg)
    return parts


Parts = Annotated[tuple[FilePart, ...], AfterValidator(check_parts)]
"""The images and files of one message."""


def parts_field() -> Any:  # noqa: ANN401 - as pydantic's own Field
    """A field of parts that leaves no trace in what is written of a message without any."""
    return Field(default=(), exclude_if=operator.not_)


class InlineFile(Value):
    """An image or a file inside a request, for callers that cannot write into the store.

    Attributes:
        name: What people call it.
        data: The bytes as base64.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: str = Field(min_length=1)
    name: str = ""

    @property
    def decoded(self) -> bytes:
        """The bytes.

        Raises:
            ValueError: ``data`` is not base64.
        """
        try:
            return base64.b64decode(self.data, validate=True)
        except (binascii.Error, ValueError) as error:
            msg = f"{self.name or 'data'!r} is no base64 ({error})"
            raise ValueError(msg) from None


def _check_inline(files: tuple[InlineFile, ...]) -> tuple[InlineFile, ...]:
    size = sum(len(file.decoded) for file in files)
    if size > MAX_INLINE_BYTES:
        msg = (
            f"are {size:,} bytes together, {MAX_INLINE_BYTES:,} fit into a request; larger ones go through the store: "
            "use perdure's client, or 'perdure run … --attach FILE'"
        )
        raise ValueError(msg)
    return files


def refuse_files(fields: object, advice: str) -> None:
    """Refuse the fields of an update that has files, for which it has no room.

    Raises:
        PydanticCustomError: It has some.
    """
    if isinstance(fields, Mapping) and cast("Mapping[str, object]", fields).get("files"):
        kind, message = "files", "files do not fit into an update; {advice}"
        raise PydanticCustomError(kind, message, {"advice": advice})


InlineFiles = Annotated[tuple[InlineFile, ...], Field(max_length=MAX_PARTS), AfterValidator(_check_inline)]
"""The images and files inside one request."""


def clean_name(name: str) -> str:
    """A file's name without control characters, cut to what events and messages have room for."""
    return _CONTROL.sub(" ", name).strip()[:MAX_NAME]


def part_of(session: str, name: str, data: bytes) -> FilePart:
    """The part for a file's bytes, which are to be kept as that artifact of the session: the same bytes, the same one.

    Two sessions never share an artifact, so that no session can read by a digest what another one was given.

    Raises:
        ContentError: Nothing that models take, empty, too large, not whole, or refused by every provider.
    """
    name = clean_name(name)
    who = repr(name) if name else "the image or file"
    if not data:
        msg = f"{who} is empty"
        raise ContentError(msg)
    media_type = media_type_of(data)
    if media_type is None:
        msg = f"{who} is no PNG, JPEG, GIF, WebP, PDF or UTF-8 text by its bytes; convert it, or let a tool read it"
        raise ContentError(msg)
    limit = {PDF: MAX_PDF_BYTES, TEXT: MAX_TEXT_BYTES}.get(media_type, MAX_IMAGE_BYTES)
    if len(data) > limit:
        way = "make it smaller" if is_image(media_type) else "send a part of it, or let a tool read it"
        msg = f"{who} ({media_type}) has {len(data):,} bytes, the limit is {limit:,}; {way}"
        raise ContentError(msg)
    if (problem := find_problem(media_type, data)) is not None:
        msg = f"{who} ({media_type}) {problem}"
        raise ContentError(msg)
    digest = hashlib.sha256(data).hexdigest()
    key = hashlib.sha256(f"{session}\0{digest}".encode()).hexdigest()[:32]
    return FilePart(artifact=f"file_{key}", media_type=media_type, size=len(data), name=name, sha256=digest)


def format_size(size: int) -> str:
    """A size as people read it: ``34 kB``."""
    if size < 1_000:
        return f"{size} bytes"
    return f"{size / 1_000:.0f} kB" if size < 1_000_000 else f"{size / 1_000_000:.1f} MB"
