"""Guards the way between litellm and the network: what of a provider's reply litellm gets to see.

litellm follows redirects with the conversation and sometimes the key, masks an error's text for a second a megabyte on
the event loop, and unpacks a reply however large it becomes. :func:`install` puts its HTTP transports behind this
module: aiohttp's, and httpx's for an operator who has switched the other off. Only calls within :func:`guard_exchanges`
are touched; what an agent's own code does with litellm is its own business.

What a whole reply says is checked by ``perdure.activities.provider_replies``; a streamed one passes as it comes, within
the same bounds, and ``perdure.activities.provider_streams`` looks on.
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
"""Bytes of a reply that is no answer. litellm needs a second of the event loop for each megabyte of it."""

LARGEST_REPLY = 32_000_000
"""Bytes of an answer, unpacked. A longest answer of today's models has less than a hundredth."""

_ENCODINGS = "gzip, deflate"
"""Encodings that are unpacked here, within bounds; a provider is asked for no other."""

_UNPACKED = ("content-encoding", "content-length", "transfer-encoding")
"""Headers that say how the body came, and nothing any more of the one that litellm gets."""


class Exchange:
    """What is known of the exchanges of one call: ``usage`` once a whole answer has come, ``headers`` of what is none.

    litellm keeps no header of an error in a good reply, such as how long to wait.

    Attributes:
        streams: Whether a stream is asked for.
        stream: What has been seen of it, once its reply has begun.
        open_reply: The reply that it is, to be closed when nobody reads on.
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
    """Who answers in place of all providers. No key is needed then, and nothing leaves the process.

    Attributes:
        answer: A chat completion, in OpenAI's form, for the arguments of litellm's call; None leaves it to litellm.
        send: The reply to an HTTP request that litellm then makes.
    """

    answer: Callable[[AgentDefinition, Mapping[str, Any]], Awaitable[dict[str, JsonValue] | None]]
    send: Send


stand_in: ContextVar[StandIn | None] = ContextVar("perdure_stand_in", default=None)
"""Who answers the model calls of this task and of the tasks that it starts."""


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
    """The transport of an operator who has switched aiohttp off, guarded."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await _exchange(super().handle_async_request, request)


class _Connection(ResponseHandler):
    """A connection that is kept for the next request only while its provider has left it open.

    The event loop may not have seen yet that the provider has closed it. The request would be lost, and would use up a
    try although nobody has read it. httpcore and urllib3 look at their sockets in the same way.
    """

    def is_connected(self) -> bool:
        """Whether a request may be sent; a connection that waits for one has nothing to read, here or in its socket.

        What follows a reply must not be taken for the reply to the next request (RFC 9112, section 6.3).
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
    """aiohttp's connections, looked at before they are used again."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401
        super().__init__(**options)
        self._factory = cast("Any", functools.partial(_Connection, loop=self._loop))


_litellms_transport = cast("Callable[..., Any]", http_handler.AsyncHTTPHandler.create_async_transport)


def install() -> None:
    """Have litellm make guarded transports from now on; clients that it has made before keep theirs."""
    ours = ((aiohttp_transport, _AiohttpTransport), (http_handler, _HttpxTransport), (http_handler, Connector))
    for module, guarded_class in ours:
        setattr(module, guarded_class.__bases__[0].__name__, guarded_class)
    http_handler.AsyncHTTPHandler.create_async_transport = staticmethod(_transport)  # type: ignore[assignment]


def _transport(
    ssl_context: ssl.SSLContext | None = None,
    ssl_verify: bool | None = None,
    shared_session: Any = None,  # noqa: ANN401
) -> httpx.AsyncBaseTransport:
    """What litellm makes; where it makes none and leaves that to httpx, one like httpx's."""
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
    """The reply to a request, whole, bounded and checked."""
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
        if exchange.streams and said.message:  # litellm would look for events in it, and find none
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
"""A stream that has begun and sends no byte for so long, not even a ping, is given up."""


class _GuardedStream(httpx.AsyncByteStream):
    """A streamed reply as it passes to litellm: unpacked, bounded in size and in silence, and looked at."""

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
    """The origin that a redirect names: all that may be shown of it, as its path may hold a key."""
    try:
        target = asked.join(location)
    except httpx.InvalidURL:
        return "an address that is no URL"
    port = f":{target.port}" if target.port else ""
    return f"{target.scheme}://{target.host}{port}"


async def _read(response: httpx.Response, most: int, *, cut: bool = False) -> bytes:
    """The body, unpacked; above ``most`` bytes it is cut, or refused."""
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
    """The body in pieces of a bounded number of bytes, also where it is packed."""
    raw = cast("httpx.AsyncByteStream", response.stream)
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        async for packed in raw:
            yield packed
        return
    unpacker: Any = zlib.decompressobj(zlib.MAX_WBITS | 32)  # finds out by itself whether it is gzip or zlib
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
