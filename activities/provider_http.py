"""Guards HTTP between litellm and providers: bounds, checks and repairs replies before litellm reads them.

On its own litellm follows redirects with the conversation and sometimes the key, masks an error's text on the event
loop (a second for each megabyte), and unpacks replies of any size. :func:`install` replaces its HTTP transports: that
of aiohttp, and that of httpx for operators who have switched aiohttp off. Only calls within :func:`guard_exchanges` are
guarded, not those that an agent's own code makes with litellm.

``perdure.activities.provider_replies`` checks whole replies. A streamed reply passes as it comes, within the same
bounds, and ``perdure.activities.provider_streams`` reads along.
"""

import asyncio
import functools
import os
import select
import ssl
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

import httpx
import litellm
from aiohttp import TCPConnector
from aiohttp.client_proto import ResponseHandler
from litellm.llms.custom_httpx import aiohttp_transport, http_handler  # pyright: ignore[reportMissingTypeStubs]

from perdure.activities.failures import error_object
from perdure.activities.provider_replies import (
    BrokenOffReplyError,
    InvalidReplyError,
    RedirectedError,
    StreamCutError,
    check_reply,
)
from perdure.activities.provider_streams import EVENT_STREAM, StreamRecord
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.budgets import Usage
from perdure.contracts.values import JsonValue

LARGEST_ERROR = 64 * 1024
"""Largest reply with an error, in bytes. litellm blocks the event loop for a second for each megabyte."""

LARGEST_REPLY = 32_000_000
"""Largest answer in bytes, decompressed. The longest answers of today's models have less than a hundredth."""

_ENCODINGS = "gzip, deflate"
"""Encodings that are decompressed here, within bounds. Providers are asked for no other."""

_UNPACKED = ("content-encoding", "content-length", "transfer-encoding")
"""Headers about the body's encoding. They are removed, because litellm gets the decompressed body."""


class Exchange:
    """What is known of the HTTP exchanges of one call.

    Attributes:
        usage: The usage in a whole answer, once it has come.
        headers: Headers of a reply of status 200 that holds an error; litellm drops them, also ``retry-after``.
        streams: Whether a stream is asked for.
        stream: The record of the stream, once its reply has begun.
        open_reply: The streamed reply, to be closed when nobody reads on.
    """

    usage: Usage | None = None
    headers: Mapping[str, str] | None = None
    streams: bool = False
    stream: StreamRecord | None = None
    open_reply: httpx.Response | None = None


_running: ContextVar[Exchange | None] = ContextVar("perdure_exchange", default=None)


Send = Callable[[httpx.Request], Awaitable[httpx.Response]]


@dataclass(frozen=True)
class StandIn:
    """Answers in place of all providers. No key is needed then, and nothing leaves the process.

    Attributes:
        answer: Returns a chat completion in OpenAI's format for the arguments of litellm's call, or None to let litellm
            make an HTTP request.
        send: Returns the reply to that HTTP request.
    """

    answer: Callable[[AgentDefinition, Mapping[str, Any]], Awaitable[dict[str, JsonValue] | None]]
    send: Send


stand_in: ContextVar[StandIn | None] = ContextVar("perdure_stand_in", default=None)
"""The stand-in for the model calls of this task and of the tasks that it starts."""


@contextmanager
def guard_exchanges(*, streams: bool = False) -> Iterator[Exchange]:
    """Guard every HTTP exchange of this block and of the tasks it starts; with ``streams``, answers are streams."""
    exchange = Exchange()
    exchange.streams = streams
    token = _running.set(exchange)
    try:
        yield exchange
    finally:
        _running.reset(token)


class _AiohttpTransport(aiohttp_transport.LiteLLMAiohttpTransport):
    """litellm's usual transport, guarded."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await _exchange(super().handle_async_request, request)


class _HttpxTransport(httpx.AsyncHTTPTransport):
    """litellm's transport where an operator has switched aiohttp off, guarded."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await _exchange(super().handle_async_request, request)


class _Connection(ResponseHandler):
    """A connection that is reused only if the provider has not closed it.

    The event loop may not have seen the close yet. A request on such a connection would be lost, and use up a try that
    nobody has read. httpcore and urllib3 check their sockets in the same way.
    """

    def is_connected(self) -> bool:
        """Whether a request may be sent: an idle connection must have nothing to read, here or in its socket.

        Bytes after a reply must not be taken for the reply to the next request (RFC 9112, section 6.3).
        """
        is_idle = super().is_connected() and not self.should_close
        return is_idle and self.transport is not None and not _is_readable(self.transport)


def _is_readable(transport: asyncio.BaseTransport) -> bool:
    link = transport.get_extra_info("socket")
    if link is None or link.fileno() < 0:
        return False
    looking = select.poll()
    looking.register(link.fileno(), select.POLLIN)
    return bool(looking.poll(0))


class Connector(TCPConnector):
    """aiohttp's connector, whose connections are checked before they are reused."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401
        super().__init__(**options)
        self._factory = cast("Any", functools.partial(_Connection, loop=self._loop))


_litellms_transport = cast("Callable[..., Any]", http_handler.AsyncHTTPHandler.create_async_transport)


def install() -> None:
    """Have litellm make guarded transports from now on. Clients that it has made before keep theirs."""
    ours = ((aiohttp_transport, _AiohttpTransport), (http_handler, _HttpxTransport), (http_handler, Connector))
    for module, guarded_class in ours:
        setattr(module, guarded_class.__bases__[0].__name__, guarded_class)
    http_handler.AsyncHTTPHandler.create_async_transport = staticmethod(_transport)  # type: ignore[assignment]


def _transport(
    ssl_context: ssl.SSLContext | None = None,
    ssl_verify: bool | None = None,
    shared_session: Any = None,  # noqa: ANN401
) -> httpx.AsyncBaseTransport:
    """The transport that litellm makes; a guarded one like httpx's default if litellm makes none."""
    made: httpx.AsyncBaseTransport | None = _litellms_transport(
        ssl_context=ssl_context, ssl_verify=ssl_verify, shared_session=shared_session
    )
    if made is not None:
        return made
    return _HttpxTransport(
        verify=ssl_context if ssl_context is not None else ssl_verify is not False,
        cert=os.getenv("SSL_CERTIFICATE", litellm.ssl_certificate),
        http2=http_handler.http2_enabled(),
    )


async def _exchange(send: Send, request: httpx.Request) -> httpx.Response:
    """Send a request; the reply is bounded and checked, and a whole one is read to its end."""
    exchange = _running.get()
    if exchange is None:
        return await send(request)
    request.headers["accept-encoding"] = _ENCODINGS
    instead = stand_in.get()
    response = await (send(request) if instead is None else instead.send(request))
    if exchange.streams and response.is_success and _is_stream(response):
        exchange.stream, exchange.open_reply = StreamRecord(), response
        return httpx.Response(
            response.status_code,
            headers=_headers_of(response),
            stream=_GuardedStream(response, exchange.stream),
            request=request,
        )
    try:
        if response.has_redirect_location:
            raise RedirectedError(_origin(request.url, response.headers["location"]))
        if not response.is_success:
            body = await _read(response, LARGEST_ERROR, cut=True)
        else:
            checked = check_reply(request.url.path, await _read(response, LARGEST_REPLY), LARGEST_ERROR)
            body, exchange.usage = checked
    finally:
        await response.aclose()
    headers = _headers_of(response)
    status = response.status_code
    if response.is_success and exchange.usage is None:
        exchange.headers = dict(response.headers)
        said = error_object(body.decode("utf-8", "replace"))
        status = said.status or status  # OpenRouter's
        if exchange.streams and said.message:  # litellm would look for events in a whole reply, and find none
            raise BrokenOffReplyError(said.words(), Usage(), said.status)
    elif exchange.streams and exchange.usage is not None:
        msg = "the provider was asked for a stream and sent none"
        raise StreamCutError(msg, exchange.usage, has_ended_well=True)
    return httpx.Response(status, headers=headers, content=body, request=request)


def _headers_of(response: httpx.Response) -> list[tuple[str, str]]:
    return [(name, value) for name, value in response.headers.multi_items() if name not in _UNPACKED]


def _is_stream(response: httpx.Response) -> bool:
    return str(response.headers.get("content-type", "")).lower().startswith(EVENT_STREAM)


STALLED_SECONDS = 60.0
"""A stream that has begun is given up if it sends no byte for this time, not even a ping."""


class _GuardedStream(httpx.AsyncByteStream):
    """A streamed reply on its way to litellm: decompressed, bounded in size and silence, and recorded."""

    def __init__(self, response: httpx.Response, record: StreamRecord) -> None:
        self._response = response
        self._record = record

    async def __aiter__(self) -> AsyncIterator[bytes]:
        record = self._record
        async with aclosing(_unpack(self._response, LARGEST_REPLY + 1)) as pieces:
            while True:
                try:
                    async with asyncio.timeout(STALLED_SECONDS if record.size else None):
                        piece = await anext(pieces, None)
                except TimeoutError as error:
                    msg = f"the stream was silent for {STALLED_SECONDS:g} s"
                    raise StreamCutError(msg) from error
                if piece is None:
                    break
                record.read(piece)
                if record.size > LARGEST_REPLY:
                    msg = f"the reply has more than {LARGEST_REPLY // 1_000_000} MB, which no answer has"
                    raise InvalidReplyError(msg)
                yield piece
        record.end()

    async def aclose(self) -> None:
        await self._response.aclose()


def _origin(asked: httpx.URL, location: str) -> str:
    """The origin of a redirect's target. The rest may not be shown: its path may hold a key."""
    try:
        target = asked.join(location)
    except httpx.InvalidURL:
        return "an address that is no URL"
    port = f":{target.port}" if target.port else ""
    return f"{target.scheme}://{target.host}{port}"


async def _read(response: httpx.Response, most: int, *, cut: bool = False) -> bytes:
    """The body, decompressed. Above ``most`` bytes it is cut, or refused without ``cut``."""
    body = bytearray()
    async with aclosing(_unpack(response, most + 1)) as pieces:
        async for piece in pieces:
            body += piece
            if len(body) <= most:
                continue
            if cut:
                return bytes(body[:most])
            msg = f"the reply has more than {most // 1_000_000} MB, which no answer has"
            raise InvalidReplyError(msg)
    return bytes(body)


async def _unpack(response: httpx.Response, most: int) -> AsyncGenerator[bytes]:
    """The body in pieces, decompressed to at most ``most`` bytes at a time."""
    raw = cast("httpx.AsyncByteStream", response.stream)
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        async for packed in raw:
            yield packed
        return
    unpacker: Any = zlib.decompressobj(zlib.MAX_WBITS | 32)  # detects gzip and zlib
    is_first = encoding == "deflate"
    async for packed in raw:
        left = packed
        while left:
            try:
                piece = unpacker.decompress(left, most)
            except zlib.error as error:
                if not is_first:
                    raise httpx.DecodingError(str(error), request=response.request) from error
                unpacker = zlib.decompressobj(-zlib.MAX_WBITS)  # deflate without zlib's header, as some send it
                piece = unpacker.decompress(left, most)
            is_first = False
            left = unpacker.unconsumed_tail
            if piece:
                yield piece
