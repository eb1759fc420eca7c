"""Frames of a streamed reply: server-sent events, lines of JSON, and AWS's binary event streams.

Each reader takes the bytes of a reply as they come, in packets of any size, and returns the frames that are complete.
Server-sent events are read as the HTML standard says (section 9.2.6): lines end with CR, LF or CRLF and nothing else,
comments are skipped, the data of several lines is one text, and a character may be cut by a packet's end.
"""

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, cast

from botocore.eventstream import (  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]
    EventStreamBuffer,
    ParserError,
)

from perdure.activities.models.provider_replies import InvalidReplyError

_LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Frame:
    """One event of a stream: its data, and its type where the framing has one."""

    data: str
    event: str = ""


class Frames(Protocol):
    """Reads frames out of bytes that come in packets."""

    def read(self, piece: bytes) -> Iterator[Frame]:
        """The frames that this packet completes."""
        ...

    def end(self) -> Iterator[Frame]:
        """The frames that the reply's end completes."""
        ...


class _Lines:
    """Lines of UTF-8 text, which end with one of CR, LF and CRLF."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
        self._begun: list[str] = []
        self._after_return = False

    def read(self, piece: bytes, *, final: bool = False) -> Iterator[str]:
        """The lines that this packet completes; with ``final`` also the one without an end."""
        text = self._decode(piece, final)
        if self._after_return and text.startswith("\n"):  # the second half of a CRLF whose packet ended between
            text = text[1:]
        if text:
            self._after_return = text.endswith("\r")
        *lines, rest = _LINE_END.split(text)
        for line in lines:
            self._begun.append(line)
            yield "".join(self._begun)
            self._begun.clear()
        if rest:
            self._begun.append(rest)
        if final and self._begun:
            yield "".join(self._begun)
            self._begun.clear()


class ServerSentEvents:
    """Frames of ``text/event-stream``. An event that the reply's end cuts off before its blank line counts as well."""

    def __init__(self) -> None:
        self._lines = _Lines()
        self._data: list[str] = []
        self._event = ""

    def read(self, piece: bytes) -> Iterator[Frame]:
        """The events that this packet completes."""
        for line in self._lines.read(piece):
            yield from self._read_line(line)

    def end(self) -> Iterator[Frame]:
        """The event that the reply's end completes, if it has data."""
        for line in self._lines.read(b"", final=True):
            yield from self._read_line(line)
        yield from self._dispatch()

    def _read_line(self, line: str) -> Iterator[Frame]:
        if not line:
            yield from self._dispatch()
            return
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "error":  # llama.cpp's servers sent errors in a field of this name
            self._data.append(value)
            self._event = name

    def _dispatch(self) -> Iterator[Frame]:
        if self._data:
            yield Frame("\n".join(self._data), self._event)
        self._data.clear()
        self._event = ""


class JsonLines:
    """Frames of ``application/x-ndjson``: one JSON value a line."""

    def __init__(self) -> None:
        self._lines = _Lines()

    def read(self, piece: bytes) -> Iterator[Frame]:
        """The lines that this packet completes, without empty ones."""
        return (Frame(line) for line in self._lines.read(piece) if line.strip())

    def end(self) -> Iterator[Frame]:
        """The line that the reply's end completes."""
        return (Frame(line) for line in self._lines.read(b"", final=True) if line.strip())


class BinaryEvents:
    """Frames of ``application/vnd.amazon.eventstream``, read by botocore.

    A frame's type is that of its event or, for an error, ``error:`` and the type of the exception.
    """

    def __init__(self) -> None:
        self._buffer: Any = EventStreamBuffer()

    def read(self, piece: bytes) -> Iterator[Frame]:
        """The events that this packet completes.

        Raises:
            InvalidReplyError: The bytes are no event stream, or a checksum is wrong.
        """
        self._buffer.add_data(piece)
        try:
            for message in self._buffer:
                headers = cast("dict[str, Any]", message.headers)
                failed = headers.get(":exception-type") or headers.get(":error-code")
                kind = f"error:{failed}" if failed else str(headers.get(":event-type", ""))
                text = message.payload.decode("utf-8", "replace") or str(headers.get(":error-message", ""))
                yield Frame(text, kind)
        except ParserError as error:
            msg = f"the reply is no event stream: {error}"
            raise InvalidReplyError(msg) from error

    def end(self) -> Iterator[Frame]:
        """Nothing: a frame without its end is none."""
        return iter(())
