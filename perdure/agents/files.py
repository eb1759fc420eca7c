"""What a tool returns beside text: images and files, which become artifacts."""

import re
from typing import Protocol

MAX_BYTES = 10_000_000
"""Largest image or file."""

UNKNOWN_TYPE = "application/octet-stream"
"""The media type of bytes of which nothing else is known."""

MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(\s*;\s*[\w-]+=[\w.\"-]+)*")
"""What a media type looks like."""

_TEXTUAL = re.compile(r"text/|application/([\w.-]+\+)?(json|xml|yaml|toml|x-yaml|x-ndjson|javascript|sql)\b")


class HasPath(Protocol):
    """A path, such as that of pathlib."""

    def __fspath__(self) -> str:
        """The path as text."""
        ...


class Image:
    """An image that a tool returns, by itself or in a list with text and others. It becomes an artifact.

    No dataclass and no model, which would be written as JSON wherever it stands.
    """

    def __init__(self, data: bytes, media_type: str = "image/png") -> None:
        self.data = _checked(data, "Image")
        self.media_type = _media_type(media_type)

    def __repr__(self) -> str:
        """Without the data."""
        return f"Image({len(self.data):,} bytes, {self.media_type})"


class File:
    """A file that a tool returns, by itself or in a list with text and others. It becomes an artifact.

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
        if (data is None) == (path is None):
            msg = f"File {name!r} needs either data or path"
            raise ValueError(msg)
        if path is not None:
            with open(path, "rb") as file:  # noqa: PTH123 - this package does not know the file system
                data = file.read(MAX_BYTES + 1)
        self.name = " ".join(name.split())
        self.data = _checked(data.encode(errors="replace") if isinstance(data, str) else data, f"File {name!r}")
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
            msg = f"{self.name} is no text but {self.media_type}, {len(self.data):,} bytes"
            raise ValueError(msg)
        return self.data.decode()


def _checked(data: object, what: str) -> bytes:
    if isinstance(data, bytes | bytearray):
        return bytes(data)
    msg = f"{what} needs bytes, not {type(data).__name__}"
    raise TypeError(msg)


def _media_type(given: str) -> str:
    if MEDIA_TYPE.fullmatch(given):
        return given
    msg = f"{given!r} is no media type; write for example image/png or text/csv"
    raise ValueError(msg)
