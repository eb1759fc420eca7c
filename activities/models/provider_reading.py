"""Reads a provider's reply: bounded in size and silence, decompressed, whole or as a stream.

Whether a reply is a stream is judged by its first bytes. The wire's reader puts a stream together to the whole reply,
so both give the same answer. Other jobs of the worker have their turn while a long reply is read.

Long, because what is read whole and what is read as a stream must agree: both ways are read side by side.
"""

import asyncio
import functools
import itertools
import json
import re
import zlib
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from perdure.activities.heartbeat import note_delta
from perdure.activities.models.error_objects import error_object
from perdure.activities.models.estimates import count_written
from perdure.activities.models.failures import ErrorReply, NoReplyError, ProviderError
from perdure.activities.models.provider_replies import (
    DEEPEST,
    BrokenOffReplyError,
    InvalidReplyError,
    Object,
    StreamCutError,
    UnusableReplyError,
    is_deeper,
    parse_body,
    parse_values,
)
from perdure.activities.models.wires import OLLAMA, Wire
from perdure.activities.models.wires.frames import BinaryEvents, Frame, Frames, JsonLines, ServerSentEvents
from perdure.activities.models.wires.reply import (
    Answered,
    Pieces,
    Shown,
    Silent,
    broken_off,
    is_error,
    to_object,
    to_objects,
)
from perdure.contracts.budgets import Usage
from perdure.contracts.values import JsonValue, replace

LARGEST_ERROR = 64 * 1024
"""Largest reply with an error that is read, in bytes. Masking one takes a second for each megabyte."""

LARGEST_REPLY = 32_000_000
"""Largest answer in bytes, decompressed. The longest answers of today's models have less than a hundredth."""

STALLED_SECONDS = 60.0
"""A stream that has begun is given up if it sends no byte for this time, not even a ping."""

LARGE_REPLY = 100_000
"""Bytes of a whole reply whose reading would hold the event loop, and is done on a thread."""

_PACKET = 64 * 1024
"""Bytes of a stream that are read before other jobs have their turn, however many have come at once."""

MOST_LINES = 100_000
"""Lines of JSON of a stream that are read; they are read at once, so that they are bounded."""

_FRAMES = 50
"""Frames of a stream that are read before other jobs have their turn."""


@dataclass
class HttpReply:
    """A reply whose head has come.

    Attributes:
        headers: By name in lower case.
        raw: The body as it comes, still encoded.
        close: Closes the connection if the body has not been read to its end.
        url: The address that was asked.
    """

    status: int
    headers: Mapping[str, str]
    raw: AsyncIterable[bytes]
    close: Callable[[], Awaitable[None]]
    url: str = ""

    def error(self, body: bytes) -> ErrorReply:
        """The reply as an error, with this body."""
        parts = urlsplit(self.url)
        address = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"
        return ErrorReply(self.status, self.headers, body.decode("utf-8", "replace"), address)


@contextmanager
def lost_connections() -> Iterator[None]:
    """Turn what an HTTP client raises into one error, so that nobody above repeats the request.

    Raises:
        NoReplyError: The connection was not made, or was lost.
    """
    try:
        yield
    except UnusableReplyError:
        raise
    except Exception as error:
        if not _is_of_transport(error):
            raise
        text = str(error) or str(error.__cause__ or error.__context__ or "")
        raise NoReplyError(text or type(error).__name__) from error


_TRANSPORT = frozenset({"TransportError", "RequestError", "InvalidURL", "ClientError", "StreamError", "HTTPError"})
"""Classes from which all errors of httpx, httpx2, httpcore and aiohttp come that say something about a connection."""


def _is_of_transport(error: Exception) -> bool:
    return isinstance(error, OSError | TimeoutError) or any(base.__name__ in _TRANSPORT for base in type(error).__mro__)


async def receive(wire: Wire, reply: HttpReply, shown: Shown | None) -> Answered:
    """The answer in a reply of status 200, whole or a stream, whatever was asked for.

    Args:
        wire: The format of the answer.
        reply: The reply.
        shown: Takes the pieces of the answer; None if no stream was asked for.

    Raises:
        UnusableReplyError: The reply is not an answer.
        ProviderError: It is an error.
    """
    async with aclosing(_unpack(reply, LARGEST_REPLY + 1)) as pieces:
        packets = _Packets(pieces, is_streamed=shown is not None)
        frames = await _frames_of(wire, reply, packets)
        try:
            if frames is None:
                return show_answer(await _read_whole(wire, reply, packets), shown)
            return await _read_stream(wire, frames, packets, shown or Silent())
        except BrokenOffReplyError as error:
            error.headers = reply.headers
            raise


class _Packets:
    """The packets of a body: bounded in size and silence; the first ones can be looked at before they are read."""

    def __init__(self, pieces: AsyncGenerator[bytes], *, is_streamed: bool) -> None:
        self.size = 0
        self.first = b""
        self._pieces = pieces
        self._is_streamed = is_streamed

    async def look(self) -> bool:
        """Read one more packet into ``first``; False at the end."""
        piece = await self._next()
        self.first += piece or b""
        return piece is not None

    async def rest(self) -> AsyncGenerator[bytes]:
        """Every packet, also the ones that were looked at."""
        if self.first:
            yield self.first
        while (piece := await self._next()) is not None:
            yield piece

    async def _next(self) -> bytes | None:
        try:
            async with asyncio.timeout(STALLED_SECONDS if self.size and self._is_streamed else None):
                with lost_connections():
                    piece = await anext(self._pieces, None)
        except TimeoutError as error:
            msg = f"the stream was silent for {STALLED_SECONDS:g} s"
            raise StreamCutError(msg) from error
        if piece is not None:
            self.size += len(piece)
        if self.size > LARGEST_REPLY:
            msg = f"the reply has more than {LARGEST_REPLY // 1_000_000} MB, which no answer has"
            raise InvalidReplyError(msg)
        return piece


_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
"""Beginnings of an event stream."""

_NAME = re.compile(rb"[\w-]{1,30}")
"""The name of any field of an event stream."""

_BLANK = b" \t\r\n\xef\xbb\xbf"
"""White space before a body, and a byte order mark."""


async def _frames_of(wire: Wire, reply: HttpReply, packets: _Packets) -> Frames | None:
    """The reader of a stream's frames, judged by the body's first bytes; None for a whole reply.

    The content type says little: streams come as JSON, as text and without a type, and errors as event streams.
    """
    kind = reply.headers.get("content-type", "").lower()
    if "vnd.amazon.eventstream" in kind:
        return BinaryEvents()
    while not (begun := packets.first.lstrip(_BLANK)) or (
        (len(begun) < 6 and any(name.startswith(begun) for name in _FIELDS))
        or ("event-stream" in kind and _NAME.fullmatch(begun))
    ):
        if not await packets.look():
            break
    if begun.startswith((b"{", b"[", b"<")):
        return JsonLines() if wire is OLLAMA and begun.startswith(b"{") else None
    name, colon, _ = begun.partition(b":")
    # An event stream may begin with a field that nobody knows; words are an error.
    is_odd = "event-stream" in kind and (not begun or (bool(colon) and _NAME.fullmatch(name) is not None))
    return ServerSentEvents() if begun.startswith(_FIELDS) or is_odd else None


async def _read_whole(wire: Wire, reply: HttpReply, packets: _Packets) -> Answered:
    body = bytearray()
    async for piece in packets.rest():
        body += piece
    read = functools.partial(_answer_in, wire, reply, bytes(body))
    return read() if len(body) < LARGE_REPLY else await asyncio.to_thread(read)


_ANSWERS = frozenset({"choices", "content", "candidates", "output", "message", "usage"})
"""Fields of answers. A reply without any is quoted: it may say why in a field that nobody knows."""

MOST_QUOTED = 500
"""Bytes of such a reply that are quoted."""


def _answer_in(wire: Wire, reply: HttpReply, body: bytes) -> Answered:
    """The answer in a body.

    Raises:
        InvalidReplyError: It does not have the shape of an answer.
        ProviderError: It holds an error, or anything else but an answer.
    """
    values = parse_values(body)
    parsed = next(values, None)
    if parsed is None:
        _refuse_endless(body.decode("utf-8", "replace"))
    if pieces := _unframed(parsed, values):
        return _join(wire, pieces)
    if not isinstance(parsed, dict) or is_error(parsed.get("error")):
        raise _error_in_a_200(reply, parsed, body)
    try:
        return _weighed(wire, parsed)
    except InvalidReplyError as error:
        if error.usage == Usage() and error_object(body[:LARGEST_ERROR].decode("utf-8", "replace")).message:
            raise _error_in_a_200(reply, parsed, body) from None
        if _ANSWERS.isdisjoint(parsed):
            said = body[:MOST_QUOTED].decode("utf-8", "replace")
            raise InvalidReplyError(f"{error}: {said}", error.usage) from None
        raise


def _weighed(wire: Wire, reply: Object) -> Answered:
    """The answer in a reply; with a failure comes the size of what the model wrote, if nobody counted it."""
    try:
        return wire.read(reply)
    except UnusableReplyError as error:
        error.uncounted = 0 if error.usage.output_tokens else count_written(reply)
        raise


@contextmanager
def _weighing(pieces: Pieces) -> Iterator[None]:
    """Tell with the failure of a stream how much the model wrote, unless its provider has counted that."""
    try:
        yield
    except UnusableReplyError as error:
        if not error.usage.output_tokens or "usage" in pieces.missing():
            error.uncounted = count_written(pieces.reply())
        raise


def _unframed(first: JsonValue, others: Iterable[JsonValue]) -> list[Object]:
    """The pieces of a stream that came as lines of JSON or as a list; empty for anything else.

    Gemini streams a list unless it is asked for events, and some servers know no events.
    """
    values = to_objects(first if isinstance(first, list) else [first, *itertools.islice(others, MOST_LINES)])
    partial = [value for value in values if value.get("choices") or value.get("candidates")]
    if len(partial) < 2 and not isinstance(first, list):
        choices = to_objects(partial[0].get("choices")) if partial else []
        return values if any("delta" in choice and not choice.get("message") for choice in choices) else []
    return values if partial else []


def _join(wire: Wire, events: list[Object]) -> Answered:
    pieces = wire.pieces()
    for event in events:
        pieces.add(event, Frame(""), Silent())
    with _weighing(pieces):
        return _read_end(wire, pieces, "", is_done=False)


def _refuse_endless(text: str) -> None:
    """Refuse a body that ends within a depth, unless it is an error that was cut off.

    Raises:
        InvalidReplyError: It does.
    """
    if is_deeper(text, DEEPEST) and not text.lstrip().startswith('{"error"'):
        msg = "the reply is nested too deep, and does not end"
        raise InvalidReplyError(msg)


def _error_in_a_200(reply: HttpReply, parsed: JsonValue, body: bytes) -> ProviderError:
    """The error in a reply of status 200, with the status that it names itself, if it does."""
    if isinstance(parsed, dict) and len(body) > LARGEST_ERROR:
        body = json.dumps(_cut(parsed)).encode()
    told = reply.error(body[:LARGEST_ERROR])
    return ProviderError(
        ErrorReply(error_object(told.body).status or told.status, told.headers, told.body, told.address)
    )


def _cut(reply: Object) -> Object:
    """An error's body with its message cut, so that it can still be read."""
    error = reply.get("error")
    parts: Object = error if isinstance(error, dict) else {"message": str(error)}
    short = {name: parts[name] for name in ("code", "type", "status", "message") if name in parts}
    return {
        "error": {
            name: value[: LARGEST_ERROR // 4] if isinstance(value, str) else value for name, value in short.items()
        }
    }


async def _read_stream(wire: Wire, frames: Frames, packets: _Packets, shown: Shown) -> Answered:
    """The answer in a stream.

    Raises:
        StreamCutError: It ended, or broke off, before the answer did.
        BrokenOffReplyError: The provider said in it that it failed.
        InvalidReplyError: It has not the shape of an answer.
    """
    pieces = wire.pieces()
    with _weighing(pieces):
        return await _take_stream(wire, pieces, frames, packets, shown)


async def _take_stream(wire: Wire, pieces: Pieces, frames: Frames, packets: _Packets, shown: Shown) -> Answered:
    taken = _Taken()
    try:
        async for packet in packets.rest():
            for start in range(0, len(packet), _PACKET):
                for frame in frames.read(packet[start : start + _PACKET]):
                    taken.take(pieces, frame, shown)
                    if taken.count % _FRAMES == 0:
                        await asyncio.sleep(0)
                await asyncio.sleep(0)
        for frame in frames.end():
            taken.take(pieces, frame, shown)
    except NoReplyError as error:
        if pieces.error is None and pieces.missing():
            root = error.__cause__ or error
            msg = f"the stream broke off without {_and(pieces.missing())} ({type(root).__name__})"
            raise StreamCutError(msg, _usage_of(wire, pieces)) from error
    except StreamCutError as error:
        raise StreamCutError(str(error), _usage_of(wire, pieces)) from error
    end = functools.partial(_read_end, wire, pieces, taken.unreadable, is_done=taken.is_done)
    return end() if packets.size < LARGE_REPLY else await asyncio.to_thread(end)


def _read_end(wire: Wire, pieces: Pieces, unreadable: str, *, is_done: bool) -> Answered:
    """The answer in a stream that has been read to its end. If only usage is missing, its tokens are not counted.

    Raises:
        StreamCutError: The answer has no end, or a part of it could not be read.
        BrokenOffReplyError: The provider said in it that it failed.
        InvalidReplyError: It has not the shape of an answer.
    """
    reply = pieces.reply()
    usage = wire.counts_of(reply).usage
    if pieces.error is not None:
        raise broken_off(to_object(pieces.error), usage)
    odd = f"the stream has an event that cannot be read: {unreadable[:100]!r}" if unreadable else ""
    missing = pieces.missing()
    if "a finish reason" in missing:
        msg = f"the stream ended without {_and(missing)}"
        raise StreamCutError(f"{msg}; {odd}" if odd else msg, usage, has_ended_well=is_done)
    if odd:
        raise StreamCutError(odd, usage, has_ended_well=True)
    answered = wire.read(reply)
    # What Anthropic counts at the beginning of a stream is not what came.
    return replace(answered, counts=replace(answered.counts, output_tokens=0)) if missing else answered


class _Taken:
    """Counts the frames of a stream, and keeps the first that cannot be read and comes before the answer's end.

    Attributes:
        is_done: Whether the provider has said that nothing follows.
    """

    def __init__(self) -> None:
        self.count = 0
        self.unreadable = ""
        self.is_done = False

    def take(self, pieces: Pieces, frame: Frame, shown: Shown) -> None:
        """Add a frame to the answer."""
        self.count += 1
        note_delta()
        data = frame.data.strip()
        if data in {"", "[DONE]"}:
            self.is_done = self.is_done or bool(data)
            return
        event: JsonValue
        try:
            event = cast("JsonValue", json.loads(data))
        except (ValueError, RecursionError):
            event = {"error": {"message": data}} if frame.event == "error" else parse_body(data)
            if event is None:
                if pieces.missing():
                    self.unreadable = self.unreadable or data
                return
        if isinstance(event, list) and event:  # Gemini's errors
            event = event[0]
        if isinstance(event, dict):
            self.is_done = self.is_done or "message_stop" in (event.get("type"), frame.event)
            pieces.add(event, frame, shown)


def _usage_of(wire: Wire, pieces: Pieces) -> Usage:
    """The usage that a stream has reported so far, when it broke off."""
    return wire.counts_of(pieces.reply()).usage


def _and(words: tuple[str, ...]) -> str:
    return " and without ".join(words)


def show_answer(answered: Answered, shown: Shown | None) -> Answered:
    """Show an answer that did not come as a stream; returns it."""
    if shown is None:
        return answered
    for block in answered.reasoning:
        if thought := block.get("thinking") or (block.get("text") if block["type"] == "reasoning_content" else None):
            shown.thinking(str(thought))
    if answered.text:
        shown.text(answered.text)
    for index, call in enumerate(answered.calls):
        shown.tool_call(index, call.name, len(call.arguments))
    return answered


async def read(reply: HttpReply, most: int) -> bytes:
    """The first ``most`` bytes of the body, decompressed."""
    body = bytearray()
    async with aclosing(_unpack(reply, most + 1)) as pieces:
        async for piece in pieces:
            body += piece
            if len(body) > most:
                break
    return bytes(body[:most])


async def _unpack(reply: HttpReply, most: int) -> AsyncGenerator[bytes]:
    """The body in pieces, decompressed to at most ``most`` bytes at a time."""
    encoding = reply.headers.get("content-encoding", "").strip().lower()
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        async for packed in reply.raw:
            yield packed
        return
    unpacker: Any = zlib.decompressobj(zlib.MAX_WBITS | 32)  # detects gzip and zlib
    is_first = encoding == "deflate"
    async for packed in reply.raw:
        left = packed
        while left:
            try:
                piece = unpacker.decompress(left, most)
            except zlib.error as error:
                if not is_first:
                    msg = f"the reply cannot be unpacked: {error}"
                    raise InvalidReplyError(msg) from error
                unpacker = zlib.decompressobj(-zlib.MAX_WBITS)  # deflate without zlib's header, as some send it
                piece = unpacker.decompress(left, most)
            is_first = False
            left = unpacker.unconsumed_tail
            if piece:
                yield piece
