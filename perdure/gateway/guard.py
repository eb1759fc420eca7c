"""The guard: looks at each request before a route sees it, and puts the headers on each answer.

Plain ASGI, so that a caller without a token is refused before the body is read, and streams pass untouched.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request, cookie_parser
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perdure import tracing
from perdure.contracts.errors import ReasonCode
from perdure.contracts.traces import SpanAttribute, read_traceparent
from perdure.gateway.access import Gateway
from perdure.gateway.audit import access_log, audit_request, method_of, path_of
from perdure.gateway.callers import ANYBODY, Caller
from perdure.gateway.connections import CONNECTION, SMALLEST_PIECE, BoundedProtocol
from perdure.gateway.metrics import HttpMetrics
from perdure.gateway.problems import (
    CutAnswerError,
    ProblemCode,
    ProblemError,
    answer_unexpected,
    problem_response,
    unauthenticated,
)
from perdure.tracing import NewSpan, OpenSpan

COOKIE = "perdure_token"
"""The cookie of the page, which holds a token; scripts cannot read it."""

CODEC = "/codec/"
"""Prefix of the paths that pages of the Temporal UI may ask, from the origins of the settings."""

GUARDED = ("/v1/", CODEC)
"""Prefixes of the paths that need a token."""

CRUMBS = f"the body comes in too many small pieces; send pieces of {SMALLEST_PIECE} bytes or more"

_PREFLIGHT = {
    "access-control-allow-methods": "POST",
    "access-control-allow-headers": "content-type,x-namespace,authorization",
    "access-control-max-age": "600",
}

PROBES = frozenset({"/healthz", "/readyz"})
"""Paths that are answered at once, whatever else begins."""

PART = 64 * 1024
"""Bytes of a body that are sent at once."""

KNOWN_AT_ONCE, STRANGE_AT_ONCE = 8, 2
"""Requests that begin in one turn of the event loop: of one tenant, and of all callers without a good token."""

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
"""This machine's own names."""

_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
}
"""On each answer, unless its route has a header of that name."""


def token_of(headers: Headers) -> tuple[str, bool]:
    """The token of a request, and whether its browser sent it unasked, as a cookie; empty if there is none.

    Of two headers or two cookies none is chosen: a proxy may have looked at the other one, and pages of sites nearby
    can add a cookie.
    """
    told = headers.getlist("authorization")
    if len(told) > 1:
        return "", False
    kind, _, token = "".join(told).partition(" ")
    if kind.lower() == "bearer":
        return token.strip(), False
    # One by one: of several cookies of a name the parser keeps the last.
    pairs = (cookie_parser(pair) for line in headers.getlist("cookie") for pair in line.split(";"))
    found = {pair[COOKIE] for pair in pairs if COOKIE in pair}
    return ("".join(found) if len(found) == 1 else ""), bool(found)


class Guard:
    """Who asks, how often, how much; the access log, the metrics and the headers of every answer."""

    def __init__(
        self, app: ASGIApp, gateway: Gateway, metrics: HttpMetrics, max_body: int, doors: Sequence[str] = ()
    ) -> None:
        """``doors`` are the prefixes of paths beside ours that need a token."""
        self._app = app
        self._gateway = gateway
        self._metrics = metrics
        self._max_body = max_body
        self._guarded = (*GUARDED, *doors)
        self._strangers_turn = asyncio.Semaphore(STRANGE_AT_ONCE)
        self._turns = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(KNOWN_AT_ONCE))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.monotonic(), 500

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                audit_request(scope, status)
                headers = MutableHeaders(scope=message)
                for name, value in (self._cors_headers(scope) | _HEADERS).items():
                    headers.setdefault(name, value)
                if scope["path"].startswith(self._guarded):
                    headers.setdefault("cache-control", "no-store")
                if self._gateway.tracing is not None and (context := tracing.current_span()):
                    headers.setdefault("traceresponse", context)
            await _send_in_parts(scope, message, send)

        with self._trace(scope) as span:
            try:
                await self._let_in(scope, receive, answer)
            finally:
                await self._leave(scope, status)
                self._note(scope, status, time.monotonic() - began)
                _note_in_span(span, scope, status)

    async def _leave(self, scope: Scope, status: int) -> None:
        """Note that the connection of a request that a retry may join has ended, however that came."""
        held = scope.get("state", {}).get("held")
        if held is not None:
            told = status >= HTTPStatus.INTERNAL_SERVER_ERROR and self._gateway.stopping.is_set()
            await asyncio.shield(self._gateway.tries.leave(held, told=told))

    @contextmanager
    def _trace(self, scope: Scope) -> Iterator[OpenSpan | None]:
        """Let what the request starts belong to its caller's trace; a request that acts has a span of its own there."""
        caller = read_traceparent(Headers(scope=scope).get("traceparent", "")) or ""
        spans, method = self._gateway.tracing, method_of(scope)
        if spans is None or method in _SAFE or not scope["path"].startswith(self._guarded):
            with tracing.asked_by(caller):
                yield None
            return
        span = spans.begin(NewSpan(method, {SpanAttribute.HTTP_METHOD: method}, parent=caller, kind="server"))
        with spans.hold(span) as opened:
            yield opened

    def _find_caller(self, scope: Scope) -> Caller | None:
        """Who asks: None without a good token, and where none is needed."""
        if not scope["path"].startswith(self._guarded):
            return None
        tokens = self._gateway.tokens
        return ANYBODY if tokens is None else tokens.find(token_of(Headers(scope=scope))[0])

    async def _take_turn(self, scope: Scope, caller: Caller | None) -> None:
        """Let few requests begin at once, or a thousand of them would hold up whatever is in progress, and a probe."""
        if scope["path"] in PROBES:
            return
        async with self._strangers_turn if caller is None else self._turns[caller.tenant]:
            await asyncio.sleep(0)

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = self._find_caller(scope)
        await self._take_turn(scope, caller)
        try:
            if scope["method"] == "OPTIONS" and scope["path"].startswith(CODEC):
                await self._answer_preflight(scope)(scope, receive, send)
                return
            self._check(scope, caller)
            receive = self._limit_body(scope, receive)
        except ProblemError as error:
            response = problem_response(error.status, error.code, error.detail, error.headers, request=Request(scope))
            await response(scope, receive, send)
            return
        await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the routes answer; a failure that nobody foresaw is told and logged here, without its text.

        Raises:
            CutAnswerError: It failed behind the beginning of the answer: the server closes the connection.
        """
        began = False

        async def note_start(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            await self._app(scope, receive, note_start)
        except CutAnswerError:
            raise
        except Exception as error:  # noqa: BLE001 - the edge of the process
            response = answer_unexpected(Request(scope), error)
            if began:
                raise CutAnswerError("the answer was cut off; the line before says by what") from None
            await response(scope, receive, send)

    def _check(self, scope: Scope, caller: Caller | None) -> None:
        headers = Headers(scope=scope)
        token, unasked = token_of(headers)
        tokens = self._gateway.tokens
        if (tokens is None or unasked) and not self._cors_headers(scope):
            _check_origin(scope["method"], headers, only_loopback=tokens is None)
        if not scope["path"].startswith(self._guarded):
            return
        if caller is None:
            why = "unknown token" if token else "send one token: 'Authorization: Bearer …'"
            raise unauthenticated(why)
        state = scope.setdefault("state", {})
        state["caller"] = caller
        connection = state.get(CONNECTION)
        if isinstance(connection, BoundedProtocol) and (why := connection.prove(caller.tenant)):
            raise ProblemError(429, ProblemCode.RATE_LIMITED, why, {"Retry-After": "1"})
        self._gateway.limits.take_request(caller.tenant)

    def _cors_headers(self, scope: Scope) -> dict[str, str]:
        """Headers that let a page of the Temporal UI read the answer; empty for other pages and other routes."""
        origin = Headers(scope=scope).get("origin", "")
        if not scope["path"].startswith(CODEC) or origin not in self._gateway.client.settings.codec_origins:
            return {}
        return {
            "access-control-allow-origin": origin,
            "access-control-allow-credentials": "true",
            "vary": "Origin",
        }

    def _answer_preflight(self, scope: Scope) -> Response:
        if not self._cors_headers(scope):
            msg = "a page of this origin may not ask; name it in PERDURE_CODEC_ORIGINS, as https://host or http://host:port"
            raise ProblemError(403, ProblemCode.FOREIGN_ORIGIN, msg)
        return Response(status_code=204, headers=_PREFLIGHT)

    def _limit_body(self, scope: Scope, receive: Receive) -> Receive:
        """The body, up to the limit: one that says it is longer is refused at once, any other when it is.

        To take a piece of a body apart costs as much if it has one byte as if it has a thousand, so crumbs are refused.
        """
        limit, size = self._max_body, 0
        msg = f"the body has more than {limit:,} bytes, the limit"
        told = Headers(scope=scope).get("content-length", "")
        if told.isdigit() and int(told) > limit:
            raise ProblemError(413, ReasonCode.REQUEST_TOO_LARGE, msg)

        connection = scope.get("state", {}).get(CONNECTION)

        async def receive_counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limit:
                raise HTTPException(413, msg)  # of which FastAPI alone makes no other error
            if isinstance(connection, BoundedProtocol) and connection.is_crumbled(size):
                raise HTTPException(413, CRUMBS)
            return message

        return receive_counted

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "")
        self._metrics.note(method_of(scope), route, status, seconds)
        caller = scope.get("state", {}).get("caller")
        fields = {
            "method": method_of(scope),
            "path": path_of(scope),
            "status": status,
            "milliseconds": round(seconds * 1000, 1),
            **({"who": caller.name, "tenant": caller.tenant} if caller is not None else {}),
        }
        access_log.info("%s %s %s", fields["method"], fields["path"], status, extra=fields)


async def _send_in_parts(scope: Scope, message: Message, send: Send) -> None:
    """Send a long body part by part: the server copies each, and takes the next once the one before was read.

    What is left counts as held by the connection all the same.
    """
    body, connection = message.get("body", b""), scope.get("state", {}).get(CONNECTION)
    if len(body) <= PART or not isinstance(connection, BoundedProtocol):
        await send(message)
        return
    try:
        for place in range(0, len(body), PART):
            connection.unsent = max(0, len(body) - place - PART)
            more = message.get("more_body", False) or connection.unsent > 0
            await send({**message, "body": body[place : place + PART], "more_body": more})
    finally:
        connection.unsent = 0


def _note_in_span(span: OpenSpan | None, scope: Scope, status: int) -> None:
    if span is None:
        return
    if route := getattr(scope.get("route"), "path", ""):
        span.rename(f"{method_of(scope)} {route}")
        span.note({SpanAttribute.HTTP_ROUTE: route})
    span.note({SpanAttribute.HTTP_STATUS: status})
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        span.fail(str(status))


def _read_host(url: str) -> SplitResult:
    """The address with its host; without one if it is none."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def _check_origin(method: str, headers: Headers, *, only_loopback: bool) -> None:
    """Refuse what another site's page has a browser send: nothing else in it proves who asks."""
    host = headers.get("host", "")
    name = _read_host(f"//{host}").hostname or ""
    if only_loopback and name not in LOOPBACK:  # a name of theirs that leads here
        msg = f"without tokens the gateway answers as localhost only, not as {name!r}; configure tokens"
        raise ProblemError(403, ProblemCode.FOREIGN_ORIGIN, msg)
    origin = headers.get("origin")
    if origin is not None and method not in _SAFE and _read_host(origin).netloc != host:
        msg = "a page of another site may not ask this; send the token in the header Authorization"
        raise ProblemError(403, ProblemCode.FOREIGN_ORIGIN, msg)
