"""One HTTP exchange with a provider: bounded, checked, and its answer read by perdure itself.

On its own litellm follows redirects with the conversation and sometimes the key, masks an error's text on the event
loop (a second for each megabyte), unpacks replies of any size, repeats a request whose connection was lost, and reads
a stream otherwise than a whole answer. So within :func:`guard_exchange` each request that a client of httpx or httpx2
sends for a call is made here. That holds for every client, transport and proxy, whenever the client was made, as it is
the clients' ``send`` that :func:`install` replaces.

The answer is read by the wire that the request's path names (``models/wires``). litellm gets a short reply
in its place, as nobody reads what litellm makes of it. The reply of a path that no wire has is passed on, within the
same bounds. Calls that an agent's own code makes with litellm, outside of the guard, are left alone.
"""

import functools
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx
import httpx2

from perdure.activities.models.failures import NoReplyError, ProviderError
from perdure.activities.models.provider_reading import (
    LARGEST_ERROR,
    LARGEST_REPLY,
    HttpReply,
    lost_connections,
    read,
    receive,
)
from perdure.activities.models.provider_replies import RedirectedError, StreamUnreadableError, UnusableReplyError
from perdure.activities.models.wires import CHAT, CONVERSE, GEMINI, MESSAGES, OLLAMA, RESPONSES, Wire, wire_of
from perdure.activities.models.wires.reply import Answered, Shown
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.values import JsonValue

ENCODINGS = "gzip, deflate"
"""Encodings that are decompressed here, within bounds. Providers are asked for no other."""

_UNPACKED = ("content-encoding", "content-length", "transfer-encoding")
"""Headers about the body's encoding. They are removed, because the body is passed on decompressed."""

_STREAMS = re.compile(rb'"stream"\s*:\s*true')
"""The field of a request that asks for a stream, in the body of most wires."""


@dataclass
class Exchange:
    """State of the HTTP exchanges of one call.

    Attributes:
        shown: Takes the pieces of the answer; None if no stream is asked for.
        keeps_bytes: Whether litellm is given the provider's bytes, for callbacks that an agent's module registered.
        replied: Whether the provider has replied, with whatever.
        answered: The model's answer, once it has been read.
        error: The failure that the last request met. It says more than what litellm makes of it.
    """

    shown: Shown | None = None
    keeps_bytes: bool = False
    replied: bool = False
    answered: Answered | None = None
    error: Exception | None = None
    kept: bytearray = field(default_factory=bytearray)


_running: ContextVar[Exchange | None] = ContextVar("perdure_exchange", default=None)


Send = Callable[[httpx.Request], Awaitable[httpx.Response]]


@dataclass(frozen=True)
class StandIn:
    """Answers in place of all providers. No key is needed then, and nothing leaves the process.

    Attributes:
        answer: Returns a chat completion in OpenAI's format for the arguments of litellm's call, or None to have an
            HTTP request made.
        send: Returns the reply to that HTTP request.
    """

    answer: Callable[[AgentDefinition, Mapping[str, Any]], Awaitable[dict[str, JsonValue] | None]]
    send: Send


stand_in: ContextVar[StandIn | None] = ContextVar("perdure_stand_in", default=None)
"""The stand-in for the model calls of this task and of the tasks that it starts."""


@contextmanager
def guard_exchange(shown: Shown | None = None, *, keeps_bytes: bool = False) -> Iterator[Exchange]:
    """Guard every HTTP exchange of this block and of the tasks it starts; with ``shown``, the answer is a stream."""
    exchange = Exchange(shown, keeps_bytes)
    token = _running.set(exchange)
    try:
        yield exchange
    finally:
        _running.reset(token)


_installed: set[str] = set()
"""Libraries whose clients are guarded. Others wrap ``send`` too, tracers for one, so that it does not tell."""


def install() -> None:
    """Have the clients of httpx and httpx2 make their requests of a model call here."""
    for library in (httpx, httpx2):
        if library.__name__ not in _installed:
            _installed.add(library.__name__)
            library.AsyncClient.send = _guarded(library, library.AsyncClient.send)
            library.Client.send = _without_redirects(library.Client.send)


def _without_redirects(send: Callable[..., Any]) -> Callable[..., Any]:
    """A synchronous client's ``send``, which litellm uses in threads for a few providers: it follows no redirect."""

    @functools.wraps(send)
    def guarded(client: Any, request: Any, **options: Any) -> Any:  # noqa: ANN401 - of httpx or httpx2
        exchange = _running.get()
        if exchange is None:
            return send(client, request, **options)
        response = send(client, request, **{**options, "follow_redirects": False})
        location = response.headers.get("location")
        if response.is_redirect and location:
            exchange.error = RedirectedError(_origin(str(request.url), location))
            raise exchange.error
        return response

    return guarded


def _guarded(library: Any, send: Callable[..., Any]) -> Callable[..., Any]:  # noqa: ANN401 - httpx or httpx2
    @functools.wraps(send)
    async def guarded(client: Any, request: Any, **options: Any) -> Any:  # noqa: ANN401
        exchange = _running.get()
        if exchange is None:
            return await send(client, request, **options)

        async def ask() -> HttpReply:
            instead = stand_in.get()
            if instead is not None:
                asked = httpx.Request(
                    request.method, str(request.url), headers=request.headers.raw, content=request.content
                )
                return to_reply(await instead.send(asked))
            return to_reply(await send(client, request, **{**options, "stream": True, "follow_redirects": False}))

        request.headers["accept-encoding"] = ENCODINGS
        status, headers, body = await exchange_with(exchange, str(request.url), request.content, ask)
        return library.Response(status, headers=headers, content=body, request=request)

    return guarded


def to_reply(response: Any) -> HttpReply:  # noqa: ANN401 - a response of httpx or httpx2
    """The reply in a response whose body has not been read."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    return HttpReply(response.status_code, headers, response.stream, response.aclose, str(response.request.url))


async def exchange_with(
    exchange: Exchange, url: str, body: bytes, ask: Callable[[], Awaitable[HttpReply]]
) -> tuple[int, dict[str, str], bytes]:
    """Make one request of a call; returns the reply that litellm is to see.

    A call is answered once, and is not repeated after a lost connection: the provider may have done the work.

    Raises:
        StreamUnreadableError: A stream is asked for, in a format that perdure cannot read. Nothing was sent.
        NoReplyError: The connection was not made, or was lost.
        UnusableReplyError: The reply is not an answer.
        ProviderError: An error, with status 200.
    """
    if isinstance(exchange.error, NoReplyError | UnusableReplyError):
        raise exchange.error
    wire = wire_of(urlsplit(url).path)
    exchange.error = None
    try:
        if wire is None and exchange.shown is not None:
            _refuse_stream(body)
        return await _exchange(exchange, url, wire, ask)
    except Exception as error:
        exchange.error = error
        raise


def _refuse_stream(body: bytes) -> None:
    """Refuse a request for a stream that perdure could not read.

    Raises:
        StreamUnreadableError: It asks for one.
    """
    if _STREAMS.search(body):
        msg = "streams of this format cannot be read"
        raise StreamUnreadableError(msg)


async def _exchange(
    exchange: Exchange, url: str, wire: Wire | None, ask: Callable[[], Awaitable[HttpReply]]
) -> tuple[int, dict[str, str], bytes]:
    with lost_connections():
        reply = await ask()
    exchange.replied = True
    try:
        location = reply.headers.get("location")
        if 300 <= reply.status < 400 and location:
            raise RedirectedError(_origin(url, location))
        if not 200 <= reply.status < 300:
            with lost_connections():
                body = await read(reply, LARGEST_ERROR, cut=True)
            exchange.error = ProviderError(reply.error(body))
            return reply.status, _headers_of(reply), body
        if wire is None:
            with lost_connections():
                body = await read(reply, LARGEST_REPLY)
            return reply.status, _headers_of(reply), body
        kept = exchange.kept if exchange.keeps_bytes else None
        exchange.answered = await receive(wire, reply, exchange.shown, kept)
    finally:
        await reply.close()
    if exchange.keeps_bytes:
        return reply.status, _headers_of(reply), bytes(exchange.kept)
    return reply.status, {"content-type": "application/json"}, _IN_PLACE[wire.name]


_IN_PLACE: Mapping[str, bytes] = {
    wire.name: json.dumps(answer).encode()
    for wire, answer in (
        (
            CHAT,
            {
                "id": "",
                "object": "chat.completion",
                "created": 0,
                "model": "",
                "choices": [{"index": 0, "message": {"role": "assistant", "content": "-"}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
            },
        ),
        (
            MESSAGES,
            {
                "id": "",
                "type": "message",
                "role": "assistant",
                "model": "",
                "content": [{"type": "text", "text": "-"}],
                "stop_reason": "end_turn",
                "usage": {"input_tokens": 0, "output_tokens": 0},
            },
        ),
        (
            GEMINI,
            {
                "candidates": [
                    {"content": {"parts": [{"text": "-"}], "role": "model"}, "finishReason": "STOP", "index": 0}
                ],
                "usageMetadata": {"promptTokenCount": 0, "candidatesTokenCount": 0, "totalTokenCount": 0},
            },
        ),
        (
            CONVERSE,
            {
                "output": {"message": {"role": "assistant", "content": [{"text": "-"}]}},
                "stopReason": "end_turn",
                "usage": {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0},
                "metrics": {"latencyMs": 0},
            },
        ),
        (
            RESPONSES,
            {
                "id": "",
                "object": "response",
                "created_at": 0,
                "model": "",
                "status": "completed",
                "output": [
                    {
                        "type": "message",
                        "id": "",
                        "role": "assistant",
                        "status": "completed",
                        "content": [{"type": "output_text", "text": "-"}],
                    }
                ],
                "usage": {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0},
            },
        ),
        (OLLAMA, {"model": "", "message": {"role": "assistant", "content": "-"}, "done": True, "done_reason": "stop"}),
    )
}
"""Answers that litellm sees in place of those that were read, by wire: it fails at none of them."""


def _headers_of(reply: HttpReply) -> dict[str, str]:
    return {name: value for name, value in reply.headers.items() if name not in _UNPACKED}


def _origin(asked: str, location: str) -> str:
    """The origin of a redirect's target. The rest may not be shown: its path may hold a key."""
    try:
        target = urlsplit(urljoin(asked, location))
        port = f":{target.port}" if target.port else ""
    except ValueError:
        return "an address that is no URL"
    return f"{target.scheme}://{target.hostname}{port}"
