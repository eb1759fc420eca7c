"""The body of a provider's reply, packet by packet: bounded in size and silence, and decompressed."""

import asyncio
import zlib
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from perdure.activities.models.failures import ErrorReply, NoReplyError
from perdure.activities.models.provider_replies import InvalidReplyError, UnusableReplyError
from perdure.contracts.agents import DEFAULT_IDLE_TIMEOUT

LARGEST_REPLY = 32_000_000
"""Largest answer in bytes, decompressed. The longest answers of today's models have less than a hundredth."""

SETTLE_SECONDS = 0.2
"""Longest wait for the end of a body behind the last event of its stream, so that its connection can be used again."""

LINGER_SECONDS = 5.0
"""A body whose connection stays open ends this long after all of the answer has come."""

_NOT_WHOLE = nullcontext()


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


@dataclass(frozen=True)
class Patience:
    """The longest silences of a call, in seconds. Every byte ends a silence, also that of a comment or a ping.

    Attributes:
        idle: Of the whole call: the agent's ``idle_timeout``.
        stream_idle: Behind the first word of a streamed answer: the agent's ``stream_idle_timeout``.
    """

    idle: float = DEFAULT_IDLE_TIMEOUT.total_seconds()
    stream_idle: float | None = None

    def silence(self, *, has_begun: bool) -> tuple[float, str]:
        """The longest silence of an answer, whose first word may have come, and the setting that says so."""
        if has_begun and self.stream_idle is not None:
            return self.stream_idle, "stream_idle_timeout"
        return self.idle, "idle_timeout"


def describe_silence(seconds: float, setting: str) -> str:
    """The words for a call whose provider was silent for too long."""
    return f"the provider was silent for {seconds:g} s, which is the agent's {setting}"


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


class Packets:
    """The packets of a body: bounded in size and silence; the first ones can be looked at before they are read.

    Attributes:
        size: Bytes that have come.
        first: The packets that were looked at.
        has_begun: Whether the first word of the answer has come.
        ends_at: When the body counts as ended, by the clock of the event loop; None as long as that is not known.
    """

    def __init__(self, pieces: AsyncGenerator[bytes], patience: Patience) -> None:
        self.size = 0
        self.first = b""
        self.has_begun = False
        self.ends_at: float | None = None
        self._pieces = pieces
        self._patience = patience
        self._is_whole: Callable[[], bool] | None = None

    async def look(self) -> bool:
        """Read one more packet into ``first``; False at the end."""
        piece = await self._read()
        self.first += piece or b""
        return piece is not None

    async def next(self) -> bytes | None:
        """The next packet, at first those that were looked at, as one; None at the end.

        Raises:
            NoReplyError: The connection was lost, or silent for too long.
            InvalidReplyError: The body is too long for an answer.
        """
        if self.first:
            first, self.first = self.first, b""
            return first
        return await self._read()

    async def read_whole(self, is_whole: Callable[[bytearray], bool], most: int = LARGEST_REPLY) -> bytes:
        """The first ``most`` bytes of the body as one. One that is whole has ended, whatever its connection does then.

        Args:
            is_whole: Whether a body that has come so far is whole; asked only if nothing follows.
            most: Bytes behind which nothing more is read.

        Raises:
            NoReplyError: The connection was lost, or silent for too long.
            InvalidReplyError: The body is too long for an answer.
        """
        body = bytearray()
        self._is_whole = lambda: is_whole(body)
        try:
            while len(body) <= most and (piece := await self.next()) is not None:
                body += piece
        except NoReplyError:
            if not is_whole(body):
                raise
        return bytes(body[:most])

    async def settle(self) -> None:
        """Read on to the end for a moment, so that the next request can have the connection."""
        self.ends_at = asyncio.get_running_loop().time() + SETTLE_SECONDS
        with suppress(NoReplyError, InvalidReplyError):  # the answer has come
            while await self._read() is not None:
                pass

    async def _read(self) -> bytes | None:
        loop, (silence, setting) = asyncio.get_running_loop(), self._patience.silence(has_begun=self.has_begun)
        until = loop.time() + silence
        with lost_connections():
            try:
                async with asyncio.timeout_at(until if self.ends_at is None else min(until, self.ends_at)) as limit:
                    with _NOT_WHOLE if self._is_whole is None else self._ending(limit, self._is_whole):
                        piece = await anext(self._pieces, None)
            except TimeoutError as error:
                if self.ends_at is not None and loop.time() >= self.ends_at:
                    return None
                raise NoReplyError(describe_silence(silence, setting)) from error
        if piece is not None:
            self.size += len(piece)
        if self.size > LARGEST_REPLY:
            msg = f"the reply has more than {LARGEST_REPLY // 1_000_000} MB, which no answer has"
            raise InvalidReplyError(msg)
        return piece

    @contextmanager
    def _ending(self, limit: asyncio.Timeout, is_whole: Callable[[], bool]) -> Iterator[None]:
        """End the body after ``LINGER_SECONDS`` without a byte, if it is whole by then."""
        loop = asyncio.get_running_loop()

        def look() -> None:
            if not limit.expired() and is_whole():
                self.ends_at = loop.time()
                limit.reschedule(self.ends_at)

        looking = loop.call_later(LINGER_SECONDS, look)
        try:
            yield
        finally:
            looking.cancel()


async def read_error(reply: HttpReply, patience: Patience, most: int) -> bytes:
    """The first ``most`` bytes of an error's body, decompressed; its status is known, so what has come is enough.

    Raises:
        NoReplyError: The connection was lost, or silent for too long, before its first byte.
    """
    async with aclosing(unpack(reply, most + 1)) as pieces:
        return await Packets(pieces, patience).read_whole(bool, most)


async def unpack(reply: HttpReply, most: int) -> AsyncGenerator[bytes]:
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
