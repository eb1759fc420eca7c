"""The transports of MCP servers: a process (stdio), streamable HTTP, or SSE if the server has only that."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from http import HTTPStatus
from weakref import WeakKeyDictionary

import httpx2
from mcp import Client
from mcp_types import INTERNAL_ERROR, DiscoverResult
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from perdure.activities.mcp.connection import (
    Exchange,
    NotedClient,
    Opening,
    Owner,
    connect_over,
    connect_over_http,
    connect_over_sse,
    exchange,
    number_apart,
)
from perdure.activities.mcp.failures import (
    ENDS_WITH,
    ConnectionLostError,
    McpError,
    McpUnavailableError,
    call_failures,
    describe_failure,
    leaf,
)
from perdure.activities.mcp.oauth import TokenFile, authentication
from perdure.activities.mcp.process import StandardError, run_server
from perdure.activities.mcp.references import MissingVariableError, registered_client, resolve_references
from perdure.activities.mcp.server import PROBE_SECONDS, McpServer, Surroundings
from perdure.contracts.errors import ReasonCode
from perdure.contracts.mcp import AnyServerConfig, HttpServerConfig, ServerStatus, StdioServerConfig

LONGEST_SCOPE = 300
"""Characters of a scope that a message has."""

_PLAIN_SCOPE = re.compile(r"[\w:/.+ -]+")
"""Scope that a person may take over into a command; it is the server's text."""

ONLY_SSE = frozenset({400, 404, 405, 415})
"""Statuses with which servers of the older SSE transport answer a POST. Source: MCP, "Backwards Compatibility"."""

_NO_SESSION = re.compile(
    r"session (?:terminated|not found)|(?:missing|invalid|unknown|no valid) session|mcp-session-id"
    r"|not initiali[sz]ed|unsupported protocol version",
    re.IGNORECASE,
)
"""Messages of servers of either protocol generation that refuse a session; the request was not carried out."""


def server_of(config: AnyServerConfig, around: Surroundings) -> McpServer:
    """The server of a configuration."""
    return StdioServer(config, around) if isinstance(config, StdioServerConfig) else HttpServer(config, around)


class StdioServer(McpServer):
    """A server that the worker runs as a process, for as long as the worker lives."""

    def __init__(self, config: StdioServerConfig, around: Surroundings) -> None:
        super().__init__(config, around)
        self._settings = config
        self._said: StandardError | None = None
        self._garbage = ""
        self._mode = "auto"

    async def connect(self) -> Owner:
        """Start the process and make the protocol's handshake."""
        seconds = self._settings.init_timeout.total_seconds()
        try:
            variables = resolve_references(self._settings, self.around.environment)
        except MissingVariableError as error:
            raise self.unavailable(str(error)) from None
        self._garbage, mode = "", self._mode
        self._mode = "legacy" if mode == "auto" else "auto"  # for the next try, if this one fails
        log = self.around.folder / "logs" / f"{self._settings.name}.log"
        self._said = said = StandardError(log, self.clean, lambda: self._note_end(owner))
        hear = self._note_garbage, mode, self.changes.note_change
        owner = Owner(lambda: connect_over(run_server(self._settings, variables, said), *hear))
        try:
            client = await owner.client(seconds)
        except TimeoutError:
            self.close_in_background(owner)
            why = f"it did not answer within {seconds:g} s{self._read_printed()}"
            raise self.unavailable(why, self._read_tail(), again=mode == "auto") from None
        except McpUnavailableError as error:
            raise self.unavailable(str(error)) from None
        except Exception as error:  # noqa: BLE001 - whatever the SDK raises when a process ends early
            why = f"it ended before it answered ({describe_failure(leaf(error))}){self._read_printed()}"
            raise self.unavailable(why, self._read_tail(), again=True) from None
        self._mode = "auto" if client.protocol_version in MODERN_PROTOCOL_VERSIONS else "legacy"
        return owner

    def describe_break(self, why: str) -> str:
        """Describe why the connection broke, with the last lines of the server's standard error."""
        tail = self._read_tail()
        return f"{why}{ENDS_WITH}{tail}" if tail else why

    def _note_end(self, owner: Owner) -> None:
        owner.leave()
        if self.state.status == ServerStatus.CONNECTED and owner is self._owner:
            self.note_status(ServerStatus.DISCONNECTED)

    def _note_garbage(self, line: str) -> None:
        self._garbage = self._garbage or " ".join(self.clean(line).split())[:200]

    def _read_printed(self) -> str:
        return f"; what it prints is not MCP: {self._garbage!r}" if self._garbage else ""

    def _read_tail(self) -> str:
        return "\n".join(self._said.recent) if self._said is not None else ""


class HttpServer(McpServer):
    """A server at a URL.

    The newer protocol generation has no sessions: each call has a client of its own, over shared connections, so that
    one that breaks affects no other. With the older generation the session is kept open.
    """

    def __init__(self, config: HttpServerConfig, around: Surroundings) -> None:
        super().__init__(config, around)
        self._settings = config
        self._http: httpx2.AsyncClient | None = None
        self._known: DiscoverResult | None = None
        self._version = ""
        self._asked = WeakKeyDictionary[Owner, asyncio.Task[McpError | None]]()
        """The last question to a session whether it still lives."""
        self._refused = False
        """Whether the last request was refused for want of valid tokens."""

    async def connect(self) -> Owner:
        """Make the handshake over streamable HTTP, or over SSE if the server refuses that."""
        try:
            headers = resolve_references(self._settings, self.around.environment)
        except MissingVariableError as error:
            raise self.unavailable(str(error)) from None
        http, hear = self._http or self._client(headers), self.changes.note_change
        self._http = http
        with exchange() as greeting:
            try:
                owner, client = await self._greet(
                    lambda: connect_over_http(self._settings, http, "auto", None, hear), greeting
                )
            except McpUnavailableError:
                if greeting.status not in ONLY_SSE:
                    raise
                owner, _ = await self._greet(
                    lambda: connect_over_sse(self._settings, lambda: self._client(headers), hear), greeting
                )
                return owner
        if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            self._known, self._version = client.session.discover_result, client.protocol_version
        return owner

    def leave_session(self, kept: Owner | None, error: McpError | TimeoutError) -> bool:
        """Have the list asked for over a new session, whatever was wrong with the last one."""
        owner = self._owner
        if self.stakes.is_in_use() and not (isinstance(error, McpError) and _NO_SESSION.search(error.said)):
            return False
        self._known = None
        if owner is not None:
            self.retire(owner)
        return True

    @contextlib.asynccontextmanager
    async def client(self, *, is_call: bool) -> AsyncIterator[tuple[Client, Owner]]:
        """A client for one request; a failure is explained by what its own HTTP requests met."""
        client, owner = await self._open()
        is_kept = owner is self._owner
        try:
            with exchange() as noted:
                try:
                    yield client, owner
                except (McpError, ConnectionLostError) as error:
                    may_be_lost = is_call and (is_kept or noted.status in ONLY_SSE)
                    lost = await self._find_lost_session((client, owner), error, noted) if may_be_lost else None
                    if lost is not None:
                        self._known = None
                        self.retire(owner)
                    raise (lost or self._explain_failure(error, noted, owner)) from None
            if self._refused:
                self._refused = False
                self.note_status(ServerStatus.CONNECTED)
        finally:
            if not is_kept:
                await owner.close()
                if owner.failure is not None:
                    self._known = None  # make a new handshake: it may be another server by now

    async def close(self) -> None:
        """Close the session and the connections."""
        await super().close()
        if self._http is not None:
            await self._http.aclose()

    async def _open(self) -> tuple[Client, Owner]:
        if self._known is None:
            kept = await self.get_kept_client()
            if self._known is None:
                return kept
            self.drop()
            self.note_status(ServerStatus.CONNECTED)
        known, http, version = self._known, self._http, self._version
        assert http is not None, "the handshake made it"  # noqa: S101 - narrows the type
        owner = Owner(lambda: connect_over_http(self._settings, http, version, known, self.changes.note_change))
        client = await owner.client(self.config.init_timeout.total_seconds())
        number_apart(client)
        return client, owner

    async def _greet(self, opening: Opening, greeting: Exchange) -> tuple[Owner, Client]:
        seconds = self.config.init_timeout.total_seconds()
        owner = Owner(opening)
        try:
            return owner, await owner.client(seconds)
        except TimeoutError:
            self.close_in_background(owner)
            raise self.unavailable(f"{self._settings.url} did not answer within {seconds:g} s") from None
        except Exception as error:  # noqa: BLE001 - whatever the SDK raises for a server that is not there
            await owner.close()
            if greeting.needs_login or greeting.no_tokens or greeting.status == HTTPStatus.FORBIDDEN:
                raise self._login(greeting) from None
            cause = leaf(error)
            answers = ", ".join(f"HTTP {status}" for status in dict.fromkeys(greeting.refusals))
            refused = greeting.status >= HTTPStatus.BAD_REQUEST
            why = f"{self._settings.url}: {answers if refused else self._cause(cause, silent=greeting.silent)}"
            why += "" if refused else "; start it, or correct its url"
            raise self.unavailable(why, again=True) from None

    async def _find_lost_session(
        self, session: tuple[Client, Owner], error: McpError | ConnectionLostError, noted: Exchange
    ) -> ConnectionLostError | None:
        """The loss of the session, if that is why the server refused; None if it still answers in the session.

        Servers tell it in many words, and a tool of sessions may fail with the same words. So the server is asked for
        its tools: if it refuses that as well, it refuses the session. Calls that are refused together ask once.
        """
        if isinstance(error, ConnectionLostError) or noted.needs_login or noted.no_tokens or not error.said:
            return None
        if error.code == ReasonCode.TOOL_TIMEOUT:
            return None
        named = bool(_NO_SESSION.search(error.said))
        missing = noted.in_session and noted.status in {HTTPStatus.NOT_FOUND, HTTPStatus.GONE}
        if self.stakes.is_in_use() and not (named or missing):
            return None
        client, owner = session
        asked = self._asked.get(owner)
        if asked is None or (asked.done() and (asked.exception() or asked.result() is None)):
            asked = self._asked[owner] = asyncio.create_task(self._find_refusal(client))
            self._background.add(asked)
            asked.add_done_callback(self._background.discard)
        refusal = await asyncio.shield(asked)
        if refusal is None:
            return None
        refused_alike = refusal.said == error.said and refusal.number == error.number != INTERNAL_ERROR
        return ConnectionLostError(error.said, unsent=named or missing or refused_alike)

    async def _find_refusal(self, client: Client) -> McpError | None:
        """The refusal of a list of tools; None if the server lists them, or does not answer in time."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                with exchange(), call_failures(self.config.name, "tools/list", 0):
                    await client.list_tools()
        except McpError as refusal:
            return refusal
        except (TimeoutError, ConnectionLostError):
            return None
        return None

    def _explain_failure(self, error: McpError | ConnectionLostError, noted: Exchange, owner: Owner) -> Exception:
        """The error for a failed call, by what its HTTP requests met."""
        if noted.needs_login or noted.no_tokens:
            self._refused = True
            return self.note_failure(self._login(noted))
        if isinstance(error, ConnectionLostError):
            silent = noted.silent or isinstance(owner.failure, httpx2.ReadTimeout)
            return ConnectionLostError(self._cause(error, silent=silent), unsent=not noted.reached)
        if noted.status in ONLY_SSE:
            self._known = None  # servers of the older generation answer requests of the newer one like this
        if noted.status >= HTTPStatus.BAD_REQUEST:
            return McpError(error.code, f"{error} (HTTP {noted.status})")
        return error

    def _cause(self, error: BaseException, *, silent: bool) -> str:
        """Cause of the broken connection; names the setting if that was a timeout."""
        if not silent:
            return describe_failure(error)
        seconds = self._settings.sse_read_timeout.total_seconds()
        return f"ReadTimeout: the server said nothing for longer than sse_read_timeout ({seconds:g} s)"

    def _client(self, headers: dict[str, str]) -> httpx2.AsyncClient:
        settings, oauth, auth = self._settings, self._settings.oauth, None
        if oauth is not None:
            client = registered_client(oauth, self.around.environment)
            auth = authentication(settings, oauth, TokenFile(self.around.folder, settings.url, oauth, client))
        read = settings.sse_read_timeout.total_seconds()
        waits = httpx2.Timeout(settings.timeout.total_seconds(), read=read, pool=None)
        # Unlimited: the worker's own settings bound how many calls run at once.
        return NotedClient(headers=headers, auth=auth, timeout=waits, limits=httpx2.Limits(max_connections=None))

    def _login(self, noted: Exchange) -> McpUnavailableError:
        """The failure for want of valid tokens; a login mends it, unless only the token endpoint failed."""
        name, url = self.config.name, self._settings.url
        why = self.clean(noted.no_tokens)
        if why and not noted.needs_login:
            msg = f"MCP server {name!r} at {url} cannot be used: the worker cannot refresh its tokens: {why}"
            return McpUnavailableError(f"{msg}; the call was not carried out")
        scope = self.clean(" ".join(noted.lacks_scope.split())[:LONGEST_SCOPE])
        option = f'--scope "{scope}" ' if _PLAIN_SCOPE.fullmatch(scope) else ""
        how = (
            f"log in once with 'python -m perdure.worker.mcp_login --agents MODULE {option}{name}'"
            if self._settings.oauth is not None
            else "set valid credentials in its headers, or oauth=OAuthConfig() and log in"
        )
        lacks = f" with the scope {scope!r}, which its tokens lack" if scope else ""
        lacks += f", as its tokens were not refreshed ({why})" if why else ""
        msg = f"MCP server {name!r} at {url} wants a login{lacks}; {how}"
        return McpUnavailableError(msg, ServerStatus.NEEDS_AUTH)
