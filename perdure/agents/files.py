"""What a tool returns, and a prompt holds, beside text: images and files, which become artifacts."""

import re
from typing import Protocol

from perdure.contracts.files import is_image, media_type_of

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
        if (data is None) == (path is None):
            msg = "Image needs either data or path"
            raise ValueError(msg)
        if path is not None:
            data, name = _read(path), name or str(path.__fspath__() if not isinstance(path, str) else path)
            name = re.split(r"[/\\]", name)[-1]
        self.name = " ".join(name.split())
        self.data = _check_data(data, "Image")
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
        if (data is None) == (path is None):
            msg = f"File {name!r} needs either data or path"
            raise ValueError(msg)
        if path is not None:
            data = _read(path)
        self.name = " ".join(name.split())
        self.data = _check_data(data.encode(errors="replace") if isinstance(data, str) else data, f"File {name!r}")
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


def _read(path: str | HasPath) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123 - this package does not know the file system
        return file.read(MAX_BYTES + 1)


def _check_data(data: object, what: str) -> bytes:
    if isinstance(data, bytes | bytearray):
        return bytes(data)
    msg = f"{what} needs bytes, not {type(data).__name__}"
    raise TypeError(msg)


def _media_type(given: str) -> str:
    if MEDIA_TYPE.fullmatch(given):
        return given
    msg = f"{given!r} is no media type; write for example image/png or text/csv"
    raise ValueError(msg)
