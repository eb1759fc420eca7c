"""One open client of an MCP server, entered and left by a task of its own, and a record of its HTTP requests.

Without that task a server that dies would cancel the task of its caller, which looks like a cancel by Temporal. The SDK
sends a call's HTTP requests from other tasks and reports little about them, so ``Exchange`` records them.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from functools import partial
from http import HTTPStatus
from typing import Any

import httpcore2
import httpx2
from mcp import Client
from mcp.client import sse, streamable_http
from mcp.client.session import ClientRequestContext
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    DiscoverResult,
    ElicitRequestParams,
    ElicitResult,
    Implementation,
    JSONRPCMessage,
    ToolListChangedNotification,
)
from pydantic import ValidationError

from perdure.activities.mcp.failures import leaf
from perdure.activities.mcp.oauth import lacking_scope
from perdure.activities.mcp.reading import read_body, read_event
from perdure.activities.mcp.token_endpoint import TokensError
from perdure.activities.mcp.tolerance import tolerating
from perdure.contracts.mcp import HttpServerConfig

EXIT_SECONDS = 8.0
"""Longest wait for a client to close: the SDK gives a process up to six seconds before it is killed."""

LARGEST_EVENT = 64 * 1024 * 1024
"""Bytes of one server-sent event. The SDK's limit of one megabyte is less than tools return."""

LONGEST_SAID = 200
"""Characters of a server's question in the log."""

logger = logging.getLogger("perdure.mcp")

ABOUT_US = Implementation(name="perdure", version="0.1")

# The SDK's older transport has no option for it.
_events = partial(sse.sse_within_origin, max_event_size=LARGEST_EVENT)  # type: ignore[attr-defined] # pyright: ignore[reportPrivateImportUsage]
sse.sse_within_origin = _events  # type: ignore[attr-defined] # pyright: ignore[reportPrivateImportUsage]


class _Messages:
    """Reads the messages of streamable HTTP; the SDK makes an error out of each that it cannot read."""

    def validate_json(self, data: str | bytes, *, by_name: bool) -> JSONRPCMessage:
        """Read a message; its fields stand under the names of the protocol."""
        del by_name
        return read_event(data) if isinstance(data, str) else read_body(data)


streamable_http.jsonrpc_message_adapter = _Messages()  # type: ignore[assignment,attr-defined] # pyright: ignore[reportPrivateImportUsage, reportAttributeAccessIssue]


async def cancel_question(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    """Answer a question for which the server holds a connection open: nobody may answer for days."""
    del context
    logger.warning("an MCP server asked %r and waits; it was told that nobody answers", params.message[:LONGEST_SAID])
    return ElicitResult(action="cancel")


Opening = Callable[[], AbstractAsyncContextManager[Client]]


class Owner:
    """Opens a client, holds it open until it is told to leave, and closes it."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._leave = asyncio.Event()
        self._opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._opened.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._task = asyncio.create_task(self._run(), name="mcp-owner")
        self.failure: BaseException | None = None
        """Failure that closed the client; None if it was told to close."""

    @property
    def ended(self) -> bool:
        """Whether the client is closed, or about to be."""
        return self._leave.is_set() or self._task.done()

    async def client(self, seconds: float) -> Client:
        """Wait for the open client, at most ``seconds``.

        Raises:
            TimeoutError: It did not open in time; it is closed in the background.
            Exception: Whatever the SDK raised when it could not open.
        """
        try:
            done, _ = await asyncio.wait([self._opened], timeout=seconds)
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        if not done:
            self._task.cancel()
            raise TimeoutError
        return self._opened.result()

    def leave(self) -> None:
        """Have the client closed in the background."""
        self._leave.set()

    async def close(self, seconds: float = EXIT_SECONDS) -> None:
        """Close the client, and wait for that; after ``seconds`` its task is cancelled."""
        self._leave.set()
        done, _ = await asyncio.wait([self._task], timeout=seconds)
        if not done:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            async with self._opening() as client:
                if not self._opened.done():
                    self._opened.set_result(client)
                await self._leave.wait()
        except BaseException as error:  # noqa: BLE001 - the edge of the task: callers are told by the future
            self.failure = leaf(error)
        if not self._opened.done():
            self._opened.set_exception(
                self.failure if isinstance(self.failure, Exception) else ConnectionError("it was closed")
            )


def do_nothing() -> None:
    """Do nothing about a list of tools that has changed."""


@asynccontextmanager
async def connect_over(
    transport: AbstractAsyncContextManager[Any],
    on_garbage: Callable[[str], None],
    mode: str,
    on_change: Callable[[], None] = do_nothing,
) -> AsyncIterator[Client]:
    """A client over a transport of the SDK. ``on_change`` is called when the server's list of tools has changed."""

    async def hear(message: object) -> None:
        if isinstance(message, ValidationError):
            on_garbage(str(message.errors()[0]["input"]))
        elif isinstance(message, ToolListChangedNotification):
            on_change()

    over, answer = tolerating(transport), cancel_question
    async with Client(
        over, mode=mode, client_info=ABOUT_US, message_handler=hear, elicitation_callback=answer, cache=None
    ) as client:
        yield client


def connect_over_http(
    config: HttpServerConfig,
    http: httpx2.AsyncClient,
    mode: str,
    known: DiscoverResult | None,
    on_change: Callable[[], None] = do_nothing,
) -> Client:
    """A client over streamable HTTP; with ``known``, an earlier discovery, it sends nothing before the first call."""

    async def hear(message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            on_change()

    transport = tolerating(streamable_http_client(config.url, http_client=http, max_sse_event_size=LARGEST_EVENT))
    return Client(
        transport,
        mode=mode,
        prior_discover=known,
        client_info=ABOUT_US,
        message_handler=hear,
        elicitation_callback=cancel_question,
        cache=None,
    )


def number_apart(client: Client) -> None:
    """Have a client's requests bear other numbers than those of another client of the same server.

    A call that is sent again with an answer may go over another client, and may not bear its first number.
    """
    dispatcher: Any = client.session._dispatcher  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    dispatcher._next_id = secrets.randbelow(2**48)  # noqa: SLF001


@asynccontextmanager
async def connect_over_sse(
    config: HttpServerConfig, http: Callable[[], httpx2.AsyncClient], on_change: Callable[[], None] = do_nothing
) -> AsyncIterator[Client]:
    """A client of a server that has only the older SSE transport. It closes the HTTP client that ``http`` makes."""
    broken: list[Exception] = []

    def made(headers: object = None, timeout: object = None, auth: object = None) -> httpx2.AsyncClient:
        del headers, timeout, auth  # those of the client
        return http()

    async def hear(message: object) -> None:
        if isinstance(message, httpx2.HTTPError):
            broken.append(message)
        elif isinstance(message, ToolListChangedNotification):
            on_change()

    transport = tolerating(sse_client(config.url, httpx_client_factory=made))
    async with Client(transport, mode="legacy", client_info=ABOUT_US, message_handler=hear, cache=None) as client:
        yield client
    if broken:
        raise broken[0]


class Exchange:
    """The HTTP requests of one call, or of one handshake.

    Attributes:
        reached: Whether a request began to be sent; if none did, the server certainly did not carry out the call.
        status: The HTTP status of the last answer, or 0.
        refusals: The statuses of answers with an error.
        needs_login: Whether a person has to log in.
        lacks_scope: Scope that the tokens lack, if a login for that is needed.
        no_tokens: Why the tokens could not be refreshed; empty if they could, or had not to be.
        in_session: Whether a request named a session.
        silent: Whether the server sent nothing until the read timeout.
    """

    def __init__(self) -> None:
        self.reached = False
        self.status = 0
        self.refusals: list[int] = []
        self.needs_login = False
        self.lacks_scope = ""
        self.no_tokens = ""
        self.in_session = False
        self.silent = False

    async def trace(self, event: str, info: Mapping[str, object]) -> None:
        """Record what the connection does with a request; httpcore's trace extension calls this."""
        self.silent = self.silent or isinstance(info.get("exception"), httpcore2.ReadTimeout)
        self.reached = self.reached or event.endswith("send_request_headers.started")


_current: ContextVar[Exchange | None] = ContextVar("mcp_exchange", default=None)


@contextlib.contextmanager
def exchange() -> Iterator[Exchange]:
    """Record the requests that this block causes, whichever task sends them."""
    noted = Exchange()
    token = _current.set(noted)
    try:
        yield noted
    finally:
        _current.reset(token)


class NotedClient(httpx2.AsyncClient):
    """An HTTP client whose requests are recorded in the ``Exchange`` of the call that caused them."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:  # noqa: ANN401 - the vendor's own
        """Send a request. Without tokens for it the answer is a refusal: an exception would end the SDK's session."""
        noted = _current.get() or Exchange()
        request.extensions = {**request.extensions, "trace": noted.trace}
        try:
            response = await super().send(request, **options)
        except TokensError as error:
            noted.no_tokens, noted.needs_login = str(error), error.is_refusal
            return httpx2.Response(HTTPStatus.UNAUTHORIZED, request=request)
        noted.status = response.status_code
        noted.in_session = noted.in_session or streamable_http.MCP_SESSION_ID in request.headers
        if response.is_error:
            noted.refusals.append(response.status_code)
        noted.needs_login = noted.needs_login or response.status_code == HTTPStatus.UNAUTHORIZED
        if self.auth is not None and (scope := lacking_scope(response)) is not None:
            noted.needs_login, noted.lacks_scope = True, scope
        return response
