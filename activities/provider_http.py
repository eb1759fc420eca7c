"""Guards the way between litellm and the network: what of a provider's reply litellm gets to see.

litellm follows redirects with the conversation and sometimes the key, masks an error's text for a second a megabyte on
the event loop, and unpacks a reply however large it becomes. :func:`install` puts its HTTP transports behind this
module: aiohttp's, and httpx's for an operator who has switched the other off. Only calls within :func:`guard_exchanges`
are touched; what an agent's own code does with litellm is its own business.

A reply of status 200 is repaired where that changes nothing, else refused. litellm makes a traceback of what it does
not expect, or a success, and what is wrong is then hard to say. So the two wires that most providers speak, OpenAI's
chat completions and Anthropic's messages, are checked here, where the reply's own words are still there. Replies of
other wires pass the bounds only.

Long, because the guard and the two wires that it checks are read together.
"""

import asyncio
import functools
import json
import os
import re
import select
import ssl
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
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
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.budgets import Paid, Usage
from perdure.contracts.values import JsonValue

Object = dict[str, JsonValue]

MOST_TOKENS = 10**12
"""A provider's count is kept within 0 and this: what is more can be no search attribute, what is less lifts budgets."""

DEEPEST = 200
"""Levels of a reply; Python's reader ends at about a thousand, and more than a dozen nobody needs."""

LONGEST_NUMBER = 4_000
"""Digits of an integer; Python reads 4,300."""

UNREADABLE = "arguments with numbers too long or values nested too deep to be read"
"""In place of the arguments of a call: the model then reads that they are no object."""

_MARK = "\0unreadable\0"
"""In place of such a value until it is known whose it is."""

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)

_ENDED = frozenset(
    {
        *("stop", "end_turn", "stop_sequence", "eos", "eos_token", "complete", "completed"),
        *("tool_calls", "tool_call", "tool_use", "function_call"),
        *("length", "max_tokens", "compaction"),
        *("content_filter", "content_filtered", "safety", "sensitive", "refusal"),
    }
)
"""Reasons, in lower case, with which an answer has ended, was cut off or filtered; litellm knows which."""

_CUT_OFF = frozenset({"model_context_window_exceeded", "model_length"})
"""Reasons of Anthropic and of Mistral for an answer that was cut off, which litellm takes for a success."""

_FAILED = frozenset({"error", "network_error", "insufficient_system_resource", "abort"})
"""Reasons with which OpenRouter, Zhipu, DeepSeek and vLLM say that they broke the answer off."""


class UnusableAnswerError(Exception):
    """An answer that is paid for and cannot be used."""

    paid = Paid()


class UnusableReplyError(UnusableAnswerError):
    """A reply that is no answer; ``usage`` is what the provider counted for it all the same."""

    def __init__(self, text: str, usage: Usage | None = None) -> None:
        super().__init__(text)
        self.usage = usage or Usage()


class InvalidReplyError(UnusableReplyError):
    """A reply that does not have the shape of an answer; the next one may."""


class RedirectedError(UnusableReplyError):
    """The provider's address sends its requests elsewhere; the text names the origin."""


class BrokenOffReplyError(UnusableReplyError):
    """The provider failed while the model wrote, and said so inside its answer, with a status of its own or none."""

    def __init__(self, text: str, usage: Usage, status: int | None) -> None:
        super().__init__(text, usage)
        self.status_code = status


def check_reply(path: str, body: bytes, largest_error: int) -> tuple[bytes, Usage | None]:
    """The body of a reply of status 200 as litellm can read it, and what was counted for the answer in it.

    What is no answer has no count, and is cut to ``largest_error``.

    Raises:
        InvalidReplyError: No answer can be made of it.
        BrokenOffReplyError: It says that the answer was broken off.
    """
    reply, is_as_sent = _parse_body(body)
    if not isinstance(reply, dict):
        return body[:largest_error], None
    if reply.get("error"):
        return body if len(body) <= largest_error else _cut_error(reply, largest_error), None
    changes = [not is_as_sent, _replace_counts(reply)]
    if path.endswith("/chat/completions"):
        changes.append(_check_completion(reply))
    elif path.endswith("/messages"):
        changes.append(_check_message(reply))
    return json.dumps(reply).encode() if any(changes) else body, usage_of(reply)


def _parse_body(body: bytes) -> tuple[JsonValue, bool]:
    """The JSON value at the beginning of a body, and whether the body is that value alone; None without a value."""
    marked: list[str] = []

    def integer(digits: str) -> JsonValue:
        if len(digits) <= LONGEST_NUMBER:
            return int(digits)
        marked.append(digits)
        return _MARK

    decoder = json.JSONDecoder(parse_int=integer)
    try:
        text = body.decode("utf-8-sig").lstrip()
        try:
            value, end = decoder.raw_decode(text)
        except RecursionError:
            marked.append(text)
            value, end = decoder.raw_decode(text := _without_depths(text))
    except ValueError:
        return None, True
    return value, not marked and not text[end:].strip()


def _without_depths(text: str) -> str:
    """The text with a mark for each value that lies too deep."""
    parts: list[str] = []
    depth, since = 0, 0
    for token in _TOKEN.finditer(text):
        if token[0] in "[{":
            depth += 1
            if depth == DEEPEST:
                parts.append(text[since : token.start()])
        elif token[0] in "]}":
            if depth == DEEPEST:
                parts.append(json.dumps(_MARK))
                since = token.end()
            depth -= 1
    return "".join(parts) + text[since:]


def _cut_error(reply: Object, largest: int) -> bytes:
    """An error with as much of its message as litellm can mask in the time of a blink."""
    error = reply["error"]
    parts: Object = error if isinstance(error, dict) else {"message": str(error)}
    short = {name: parts[name] for name in ("code", "type", "status", "message") if name in parts}
    cut = {name: value[:largest] if isinstance(value, str) else value for name, value in short.items()}
    kind = {"type": reply["type"]} if isinstance(reply.get("type"), str) else {}
    return json.dumps({"error": cut, **kind}).encode()


def _clamp(value: JsonValue) -> JsonValue:
    """Counts within what a counter of ours holds; they may stand in groups."""
    if isinstance(value, dict):
        return {name: _clamp(part) for name, part in value.items()}
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value if 0 <= value <= MOST_TOKENS else (MOST_TOKENS if value > 0 else 0)
    return 0 if value == _MARK else value


def _replace_counts(reply: Object) -> bool:
    """Clamp the counts of tokens; whether that changed any."""
    if not isinstance(reply.get("usage"), dict):
        return False
    usage = _clamp(before := reply["usage"])
    reply["usage"] = usage
    return usage != before


def usage_of(reply: Object) -> Usage:
    """What the provider counted, in the words of either wire."""
    usage = reply.get("usage")
    counts = usage if isinstance(usage, dict) else {}

    def count(name: str) -> int:
        found = counts.get(name)
        return int(found) if isinstance(found, int | float) else 0

    cached = count("cache_read_input_tokens")
    read = count("input_tokens") + cached + count("cache_creation_input_tokens")
    written = count("completion_tokens") or count("output_tokens")
    return Usage(input_tokens=count("prompt_tokens") or read, output_tokens=written, cached_tokens=cached)


def _check_completion(reply: Object) -> bool:
    """Repair and check a chat completion; whether it was changed. One without any choice is an empty answer."""
    choices = reply.get("choices")
    if not isinstance(choices, list):
        raise _missing_field("choices", reply)
    if not choices:
        return False
    choice = choices[0]
    if not isinstance(choice, dict) or not isinstance(message := choice.get("message"), dict):
        raise _missing_field("message", reply)
    if (error := choice.get("error")) is not None:
        raise _error_of_broken_off(error, reply)
    changed = _check_end(choice, "finish_reason", reply)
    for name, usual in (("finish_reason", None), ("index", 0)):
        if name not in choice:
            choice[name], changed = usual, True
    if message.get("role") != "assistant":
        message["role"], changed = "assistant", True
    text = _join_texts(message.get("content"))
    if text != message.get("content"):
        message["content"], changed = text, True
    return _check_calls(message.get("tool_calls"), reply) or changed


def _check_calls(calls: JsonValue, reply: Object) -> bool:
    """Make a text of arguments that are none: they are the model's mistake, and it is to read of it."""
    if calls is not None and not isinstance(calls, list):
        raise _missing_field("tool_calls", reply)
    changed = False
    for call in calls or ():
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise _missing_field("function", reply)
        arguments = function.get("arguments")
        if arguments is not None and not isinstance(arguments, str):
            function["arguments"], changed = json.dumps(UNREADABLE if _has_mark(arguments) else arguments), True
    return changed


def _check_message(reply: Object) -> bool:
    """Repair and check a message of Anthropic's wire; whether it was changed."""
    for name, kind in (("content", list), ("usage", dict)):
        if not isinstance(reply.get(name), kind):
            raise _missing_field(name, reply)
    if "stop_reason" not in reply:
        raise _missing_field("stop_reason", reply)
    changed = _check_end(reply, "stop_reason", reply)
    if not isinstance(reply.get("model"), str):
        reply["model"], changed = "", True
    content = reply["content"]
    for block in content if isinstance(content, list) else ():
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise _missing_field("type", reply)
        if block["type"] == "tool_use":
            if not isinstance(block.get("name"), str):
                raise _missing_field("name", reply)
            if not isinstance(block.get("id"), str):
                block["id"], changed = "", True  # each call gets one of ours
            if "input" not in block or _has_mark(block["input"]):
                block["input"], changed = (UNREADABLE if "input" in block else {}), True
    return changed


def _check_end(place: Object, name: str, reply: Object) -> bool:
    """Refuse an answer that was broken off; True if its reason was replaced by one that litellm knows."""
    reason = place.get(name)
    if not reason:
        return False
    said = str(reason).lower()
    if said in _FAILED:
        text = f"the provider broke the answer off ({name} {reason})"
        raise BrokenOffReplyError(text, usage_of(reply), None)
    if said in _CUT_OFF:
        place[name] = "max_tokens" if name == "stop_reason" else "length"
        return True
    if said not in _ENDED:
        msg = f"the answer ends with {name} {str(reason)[:100]!r}, which is no end that perdure knows"
        raise InvalidReplyError(msg, usage_of(reply))
    return False


def _error_of_broken_off(error: JsonValue, reply: Object) -> BrokenOffReplyError:
    parts: Object = error if isinstance(error, dict) else {"message": str(error)}
    code = parts.get("code")
    status = code if isinstance(code, int) and 400 <= code <= 599 else None
    text = str(parts.get("message") or "the provider broke the answer off")
    return BrokenOffReplyError(text, usage_of(reply), status)


def _missing_field(name: str, reply: Object) -> InvalidReplyError:
    return InvalidReplyError(f"the reply has no {name!r}, or one of another kind", usage_of(reply))


def _join_texts(content: JsonValue) -> JsonValue:
    """A content that is a list of texts as the one text it is."""
    if not isinstance(content, list) or not content:
        return content
    texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
    joined = [text for text in texts if isinstance(text, str)]
    return "".join(joined) if len(joined) == len(content) else content


def _has_mark(value: JsonValue) -> bool:
    if isinstance(value, dict):
        return any(map(_has_mark, value.values()))
    return any(map(_has_mark, value)) if isinstance(value, list) else value == _MARK


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
    """

    usage: Usage | None = None
    headers: Mapping[str, str] | None = None


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
def guard_exchanges() -> Iterator[Exchange]:
    """Guard every HTTP exchange of this block and of the tasks it starts."""
    exchange = Exchange()
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
    headers = [(name, value) for name, value in response.headers.multi_items() if name not in _UNPACKED]
    status = response.status_code
    if response.is_success and exchange.usage is None:
        exchange.headers = dict(response.headers)
        status = error_object(body.decode("utf-8", "replace")).status or status  # OpenRouter's
    return httpx.Response(status, headers=headers, content=body, request=request)


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
