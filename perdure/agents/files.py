"""Images and files that a tool returns, and a prompt holds, beside text; they become artifacts."""

import re
from typing import Protocol

from perdure.contracts.files import is_image, media_type_of

MAX_BYTES = 10_000_000
"""Largest image or file."""

UNKNOWN_TYPE = "application/octet-stream"
"""The media type of bytes of an unknown kind."""

MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(\s*;\s*[\w-]+=[\w.\"-]+)*")
"""Form of a media type."""

_TEXTUAL = re.compile(r"text/|application/([\w.-]+\+)?(json|xml|yaml|toml|x-yaml|x-ndjson|javascript|sql)\b")


class HasPath(Protocol):
    """A path, such as that of pathlib."""

    def __fspath__(self) -> str:
        """The path as text."""
        ...


class Image:
    """An image that a tool returns or a prompt holds, by itself or in a list with text and others.

    No dataclass and no model, which would be written as JSON wherever it stands.

    Args:
        data: Its bytes.
        media_type: By default what the bytes say, or else ``image/png``.
        path: Where the bytes are read from, in place of ``data``; at once.
        name: What people call it; by default the file's name, if there is a path.
    """

    def __init__(
        self,
        data: bytes | None = None,
        media_type: str | None = None,
        *,
        path: str | HasPath | None = None,
        name: str = "",
    ) -> None:
        if path is not None:
            name = re.split(r"[/\\]", name or str(path if isinstance(path, str) else path.__fspath__()))[-1]
        self.name = " ".join(name.split())
        self.data = _bytes_of(data, path, "Image")
        known = media_type_of(self.data) or ""
        self.media_type = _media_type(media_type or (known if is_image(known) else "image/png"))

    def __repr__(self) -> str:
        """Without the data."""
        return f"Image({len(self.data):,} bytes, {self.media_type})"


class File:
    """A file that a tool returns or a prompt holds, by itself or in a list with text and others.

    Args:
        name: What the model and people call it.
        data: Its bytes; a text is written as UTF-8.
        media_type: Such as ``application/pdf``; ``text/…``, JSON and the like can be read by the model.
        path: Where the bytes are read from, in place of ``data``; at once, so that the file may be removed then.
    """

    def __init__(
        self,
        name: str,
        data: bytes | str | None = None,
        media_type: str = UNKNOWN_TYPE,
        *,
        path: str | HasPath | None = None,
    ) -> None:
        self.name = " ".join(name.split())
        self.data = _bytes_of(data.encode(errors="replace") if isinstance(data, str) else data, path, f"File {name!r}")
        self.media_type = _media_type(media_type)

    def __repr__(self) -> str:
        """Without the data."""
        return f"File({self.name!r}, {len(self.data):,} bytes, {self.media_type})"

    @property
    def text(self) -> str:
        """The bytes as text.

        Raises:
            ValueError: They are no text by their media type, or no UTF-8.
        """
        if not _TEXTUAL.match(self.media_type):
            raise ValueError(f"{self.name} is no text but {self.media_type}, {len(self.data):,} bytes")
        return self.data.decode()


def _bytes_of(data: object, path: str | HasPath | None, what: str) -> bytes:
    if (data is None) == (path is None):
        raise ValueError(f"{what} needs either data or path")
    if path is not None:
        with open(path, "rb") as file:  # noqa: PTH123 - this package does not know the file system
            return file.read(MAX_BYTES + 1)
    if isinstance(data, bytes | bytearray):
        return bytes(data)
    raise TypeError(f"{what} needs bytes, not {type(data).__name__}")


def _media_type(given: str) -> str:
    if MEDIA_TYPE.fullmatch(given):
        return given
    raise ValueError(f"{given!r} is no media type; write for example image/png or text/csv")
