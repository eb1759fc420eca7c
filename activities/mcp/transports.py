"""How servers are connected: a process of their own, streamable HTTP, or SSE where the server has only that."""

import contextlib
from collections.abc import AsyncIterator

import httpx2
from mcp import Client
from mcp_types import DiscoverResult
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from activities.mcp.connection import Opening, Owner, over, over_http, over_sse
from activities.mcp.failures import ConnectionLostError, McpError, McpUnavailableError, leaf
from activities.mcp.oauth import LoginNeededError, TokenFile, authentication
from activities.mcp.process import StandardError, running
from activities.mcp.references import MissingVariableError, resolved
from activities.mcp.server import McpServer, Surroundings
from perdure.contracts.mcp import AnyServerConfig, HttpServerConfig, ServerState, ServerStatus, StdioServerConfig

ONLY_SSE = frozenset({400, 404, 405, 415})
"""Answers to a POST by servers that know the older transport only. Source: the protocol's rule for older servers."""

REFUSED = frozenset({401, 403})


def server_of(config: AnyServerConfig, around: Surroundings) -> McpServer:
    """The server of a configuration."""
    return StdioServer(config, around) if isinstance(config, StdioServerConfig) else HttpServer(config, around)


class StdioServer(McpServer):
    """A process of the worker's, kept while the worker lives."""

    def __init__(self, config: StdioServerConfig, around: Surroundings) -> None:
        super().__init__(config, around)
        self._settings = config
        self._said: StandardError | None = None
        self._garbage = ""

    async def connect(self) -> Owner:
        """Start the process and greet it."""
        seconds = self._settings.init_timeout.total_seconds()
        try:
            variables = resolved(self._settings, self.around.environment)
        except MissingVariableError as error:
            raise self.unavailable(str(error)) from None
        self._garbage = ""
        log = self.around.folder / "logs" / f"{self._settings.name}.log"
        self._said = said = StandardError(log, self.around.clean, lambda: self._ended(owner))
        owner = Owner(lambda: over(running(self._settings, variables, said), self._note_garbage, "auto"))
        try:
            await owner.client(seconds)
        except TimeoutError:
            self.leave(owner)
            raise self.unavailable(f"it did not answer within {seconds:g} s{self._printed()}", self._tail()) from None
        except McpUnavailableError as error:
            raise self.unavailable(str(error)) from None
        except Exception as error:  # noqa: BLE001 - whatever the SDK raises when a process ends early
            why = f"it ended before it answered ({leaf(error)}){self._printed()}"
            raise self.unavailable(why, self._tail(), again=True) from None
        return owner

    def last_words(self, why: str) -> str:
        """Why it broke, and what it wrote last."""
        tail = self._tail()
        return f"{why}; its standard error ends with: {tail[-500:]}" if tail else why

    def _ended(self, owner: Owner) -> None:
        owner.leave()
        if self.state.status == ServerStatus.CONNECTED and owner is self._owner:
            self.state = ServerState(name=self.config.name, status=ServerStatus.DISCONNECTED)

    def _note_garbage(self, line: str) -> None:
        self._garbage = self._garbage or " ".join(line.split())[:200]

    def _printed(self) -> str:
        return f"; what it prints is not MCP: {self._garbage!r}" if self._garbage else ""

    def _tail(self) -> str:
        return "\n".join(self._said.recent) if self._said is not None else ""


class HttpServer(McpServer):
    """A server behind a URL.

    Of the newer protocol generation, which has no sessions, each call has a client of its own over shared connections:
    one that breaks takes no other with it. A session of the older one is kept.
    """

    def __init__(self, config: HttpServerConfig, around: Surroundings) -> None:
        super().__init__(config, around)
        self._settings = config
        self._http: httpx2.AsyncClient | None = None
        self._known: DiscoverResult | None = None
        self._version = ""
        self._refusals: set[int] = set()

    async def connect(self) -> Owner:
        """Greet the server over streamable HTTP, or over SSE if it refuses that."""
        try:
            headers = resolved(self._settings, self.around.environment)
        except MissingVariableError as error:
            raise self.unavailable(str(error)) from None
        self._refusals.clear()
        auth = self._authentication()
        http = self._http = self._http or self._client(headers, auth)
        try:
            owner, client = await self._greeted(lambda: over_http(self._settings, http, "auto", None))
        except McpUnavailableError as error:
            if not self._refusals & ONLY_SSE or error.status is ServerStatus.NEEDS_AUTH:
                await self._forget()
                raise
            owner, _ = await self._greeted(lambda: over_sse(self._settings, headers, auth))
            return owner
        if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            self._known, self._version = client.session.discover_result, client.protocol_version
        return owner

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[tuple[Client, Owner]]:
        """A client for one request."""
        if self._known is None:
            kept = await self.kept()
            if self._known is None:
                async with self._refused(kept[1]):
                    yield kept
                return
            self.drop()
            self.state = ServerState(name=self.config.name, status=ServerStatus.CONNECTED)
        known, http, version = self._known, self._http, self._version
        assert http is not None, "it was made when the server was greeted"  # noqa: S101 - narrows the type
        owner = Owner(lambda: over_http(self._settings, http, version, known))
        try:
            async with self._refused(owner):
                yield await owner.client(self.config.init_timeout.total_seconds()), owner
        finally:
            await owner.closed()
            if owner.failure is not None:
                self._known = None  # greet it anew: it may be another one by now

    async def close(self) -> None:
        """Close the session and the connections."""
        await super().close()
        await self._forget()

    async def _greeted(self, opening: Opening) -> tuple[Owner, Client]:
        seconds = self.config.init_timeout.total_seconds()
        owner = Owner(opening)
        try:
            return owner, await owner.client(seconds)
        except TimeoutError:
            self.leave(owner)
            raise self.unavailable(f"{self._settings.url} did not answer within {seconds:g} s") from None
        except Exception as error:  # noqa: BLE001 - whatever the SDK raises for a server that is not there
            await owner.closed()
            cause = leaf(error)
            if isinstance(cause, LoginNeededError) or self._refusals & REFUSED:
                raise self._login() from None
            statuses = ", ".join(f"HTTP {status}" for status in sorted(self._refusals))
            why = f"{self._settings.url}: {statuses or f'{type(cause).__name__}: {cause}'}"
            raise self.unavailable(why, again=True) from None

    def _authentication(self) -> httpx2.Auth | None:
        oauth = self._settings.oauth
        tokens = TokenFile(self.around.folder, self._settings.url)
        if oauth is None or not tokens.there:
            return None
        return authentication(self._settings, oauth, tokens)

    def _client(self, headers: dict[str, str], auth: httpx2.Auth | None) -> httpx2.AsyncClient:
        settings = self._settings
        limits = httpx2.Timeout(settings.timeout.total_seconds(), read=settings.sse_read_timeout.total_seconds())
        return httpx2.AsyncClient(
            headers=headers, auth=auth, timeout=limits, event_hooks={"response": [self._note_status]}
        )

    async def _note_status(self, response: httpx2.Response) -> None:
        if response.is_success:
            self._refusals.clear()
        elif response.is_error:
            self._refusals.add(response.status_code)

    @contextlib.asynccontextmanager
    async def _refused(self, owner: Owner) -> AsyncIterator[None]:
        """A call that failed because the server wants a login says so; the next one looks for new tokens."""
        try:
            yield
        except (McpError, ConnectionLostError):
            if not (self._refusals & REFUSED or isinstance(owner.failure, LoginNeededError)):
                raise
            await self._forget()
            raise self.failed(self._login()) from None

    def _login(self) -> McpUnavailableError:
        name, url = self.config.name, self._settings.url
        how = (
            f"log in once with 'python -m worker.mcp_login --agents MODULE {name}'"
            if self._settings.oauth is not None
            else "set valid credentials in its headers, or oauth=OAuthConfig() and log in"
        )
        msg = f"MCP server {name!r} at {url} wants a login; {how}"
        return McpUnavailableError(msg, ServerStatus.NEEDS_AUTH)

    async def _forget(self) -> None:
        http, self._http, self._known = self._http, None, None
        if http is not None:
            await http.aclose()
