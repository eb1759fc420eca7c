"""Reads a provider's reply: bounded in size and silence, decompressed, whole or as a stream.

Whether a reply is a stream is judged by its first bytes. The wire's reader puts a stream together to the whole reply,
so both give the same answer. What has come decides where a stream ends, whatever its connection does then. Other jobs
of the worker have their turn while a long reply is read.

Long, because what is read whole and what is read as a stream must agree: both ways are read side by side.
"""

import asyncio
import functools
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import aclosing, contextmanager
from typing import cast

from perdure.activities.heartbeat import note_delta
from perdure.activities.models.error_objects import error_object
from perdure.activities.models.estimates import count_written
from perdure.activities.models.failures import ErrorReply, NoReplyError, ProviderError
from perdure.activities.models.provider_packets import (
    LARGEST_REPLY,
    LINGER_SECONDS,
    HttpReply,
    Packets,
    Patience,
    unpack,
)
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
    Source,
    broken_off,
    is_error,
    to_object,
    to_objects,
)
from perdure.contracts.budgets import Usage
from perdure.contracts.values import JsonValue, replace

LARGEST_ERROR = 64 * 1024
"""Largest reply with an error that is read, in bytes. Masking one takes a second for each megabyte."""

USAGE_SECONDS = 30.0
"""A stream whose connection stays open ends this long after its finish reason and its last piece, if no usage comes."""

LARGE_REPLY = 100_000
"""Bytes of a whole reply whose reading would hold the event loop, and is done on a thread."""

_PACKET = 64 * 1024
"""Bytes of a stream that are read before other jobs have their turn, however many have come at once."""

MOST_LINES = 100_000
"""Lines of JSON of a stream that are read; they are read at once, so that they are bounded."""

_FRAMES = 50
"""Frames of a stream that are read before other jobs have their turn."""


async def receive(wire: Wire, reply: HttpReply, shown: Shown | None, patience: Patience = Patience()) -> Answered:  # noqa: B008
    """The answer in a reply of status 200, whole or a stream, whatever was asked for.

    Args:
        wire: The format of the answer.
        reply: The reply.
        shown: Takes the pieces of the answer; None if no stream was asked for.
        patience: How long the provider may be silent.

    Raises:
        NoReplyError: The connection was lost, or silent for too long.
        UnusableReplyError: The reply is not an answer.
        ProviderError: It is an error.
    """
    async with aclosing(unpack(reply, LARGEST_REPLY + 1)) as pieces:
        packets = Packets(pieces, patience)
        try:
            frames = await _frames_of(wire, reply, packets, is_streamed=shown is not None)
        except NoReplyError as error:
            if shown is None:
                raise
            raise StreamCutError(f"the stream broke off before its first event: {error}") from error
        if shown is not None and frames is None and not packets.first.strip(_BLANK):
            raise StreamCutError("the stream ended before its first event")
        try:
            if frames is None:
                return show_answer(await _read_whole(wire, reply, packets), shown)
            return await _read_stream(wire, frames, packets, shown or Silent())
        except BrokenOffReplyError as error:
            error.headers = reply.headers
            raise


_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
"""Beginnings of an event stream."""

_NAME = re.compile(rb"[\w-]{1,30}")
"""The name of any field of an event stream."""

_BLANK = b" \t\r\n\xef\xbb\xbf"
"""White space before a body, and a byte order mark."""


async def _frames_of(wire: Wire, reply: HttpReply, packets: Packets, *, is_streamed: bool) -> Frames | None:
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
        return JsonLines() if wire is OLLAMA and is_streamed and begun.startswith(b"{") else None
    name, colon, _ = begun.partition(b":")
    # An event stream may begin with a field that nobody knows; words are an error.
    is_odd = "event-stream" in kind and (not begun or (bool(colon) and _NAME.fullmatch(name) is not None))
    return ServerSentEvents() if begun.startswith(_FIELDS) or is_odd else None


async def _read_whole(wire: Wire, reply: HttpReply, packets: Packets) -> Answered:
    body = await packets.read_whole(_is_value)
    read = functools.partial(_answer_in, wire, reply, body)
    return read() if len(body) < LARGE_REPLY else await asyncio.to_thread(read)


def _is_value(body: bytearray) -> bool:
    """Whether a body has an object or a list of JSON, to its end."""
    return isinstance(parse_body(bytes(body)), dict | list)


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
    if pieces := _unframed(wire, parsed, values):
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
        return replace(wire.read(reply), source=Source.of(reply))
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


def _unframed(wire: Wire, first: JsonValue, others: Iterable[JsonValue]) -> list[Object]:
    """The pieces of a stream that came as lines of JSON or as a list; empty for anything else.

    Gemini streams a list unless it is asked for events, and some servers know no events.
    """
    values = to_objects(first if isinstance(first, list) else [first, *itertools.islice(others, MOST_LINES)])
    if wire is OLLAMA:
        return values if len(values) > 1 else []
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


async def _read_stream(wire: Wire, frames: Frames, packets: Packets, shown: Shown) -> Answered:
    """The answer in a stream.

    Raises:
        StreamCutError: It ended, or broke off, before the answer did.
        BrokenOffReplyError: The provider said in it that it failed.
        InvalidReplyError: It has not the shape of an answer.
    """
    pieces = wire.pieces()
    with _weighing(pieces):
        return await _take_stream(wire, pieces, frames, packets, shown)


async def _take_stream(wire: Wire, pieces: Pieces, frames: Frames, packets: Packets, shown: Shown) -> Answered:
    taken, limit = _Taken(pieces, shown), None
    try:
        while not taken.is_over and (packet := await packets.next()) is not None:
            came, before = taken.words.count, limit
            await taken.take_all(frames, packet)
            packets.has_begun, limit = taken.words.has_begun, _longest_end(pieces.missing())
            if limit is not None and (limit != before or taken.words.count > came):
                packets.ends_at = asyncio.get_running_loop().time() + limit
        if taken.is_over:
            await packets.settle()
        for frame in () if taken.is_over else frames.end():
            taken.take(frame)
    except NoReplyError as error:
        if pieces.error is None and "a finish reason" in pieces.missing():
            root = error.__cause__ or error
            why = str(error) if isinstance(root, TimeoutError) else f"the stream broke off ({type(root).__name__})"
            msg = f"{why}, without {_and(pieces.missing())}"
            raise StreamCutError(msg, _usage_of(wire, pieces)) from error
    end = functools.partial(_read_end, wire, pieces, taken.unreadable, is_done=taken.is_done)
    return end() if packets.size < LARGE_REPLY else await asyncio.to_thread(end)


def _longest_end(missing: tuple[str, ...]) -> float | None:
    """Seconds behind the last piece of an answer after which it has ended; None as long as it has no finish reason."""
    if "a finish reason" in missing:
        return None
    return USAGE_SECONDS if missing else LINGER_SECONDS


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
    answered = replace(wire.read(reply), source=Source.of(reply))
    # What Anthropic counts at the beginning of a stream is not what came.
    return replace(answered, counts=replace(answered.counts, output_tokens=0)) if missing else answered


class _Words:
    """Shows the pieces of an answer, and counts them.

    Attributes:
        count: Pieces that have come.
        has_begun: Whether a piece of the answer itself has come, and not only of its reasoning.
    """

    def __init__(self, shown: Shown) -> None:
        self.count = 0
        self.has_begun = False
        self._shown = shown

    def begin(self, *, has_calls_in_text: bool) -> None:
        """Start over."""
        self._shown.begin(has_calls_in_text=has_calls_in_text)

    def text(self, piece: str) -> None:
        """Take a piece of the answer's text."""
        self.count += 1
        self.has_begun = True
        self._shown.text(piece)

    def thinking(self, piece: str) -> None:
        """Take a piece of the model's reasoning."""
        self.count += 1
        self._shown.thinking(piece)

    def tool_call(self, index: int, name: str, characters: int) -> None:
        """Take a piece of a tool call."""
        self.count += 1
        self.has_begun = True
        self._shown.tool_call(index, name, characters)


class _Taken:
    """The frames of a stream that were taken, up to the last one of the answer.

    Attributes:
        count: Number of frames.
        words: The pieces of the answer in them.
        unreadable: The first frame that cannot be read and comes before the answer's end.
        is_done: Whether the provider has said that nothing follows.
    """

    def __init__(self, pieces: Pieces, shown: Shown) -> None:
        self.count = 0
        self.words = _Words(shown)
        self.unreadable = ""
        self.is_done = False
        self._pieces = pieces

    @property
    def is_over(self) -> bool:
        """Whether the last event has come: nothing behind it is a part of the answer."""
        return self.is_done or self._pieces.is_over

    async def take_all(self, frames: Frames, packet: bytes) -> None:
        """Add the frames that a packet completes to the answer; other jobs have their turn meanwhile."""
        for start in range(0, len(packet), _PACKET):
            for frame in frames.read(packet[start : start + _PACKET]):
                self.take(frame)
                if self.is_over:
                    return
                if self.count % _FRAMES == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)

    def take(self, frame: Frame) -> None:
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
                if self._pieces.missing():
                    self.unreadable = self.unreadable or data
                return
        if isinstance(event, list) and event:  # Gemini's errors
            event = event[0]
        if isinstance(event, dict):
            self.is_done = self.is_done or "message_stop" in (event.get("type"), frame.event)
            self._pieces.add(event, frame, self.words)


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
