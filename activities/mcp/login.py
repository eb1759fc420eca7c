"""A person's login at an MCP server, in a browser. Nothing else opens one, and only ``mcp_login`` calls this."""

import asyncio
import contextlib
import html
from collections.abc import Callable, Mapping
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider

from perdure.activities.mcp.connection import Owner, connect_over_http
from perdure.activities.mcp.failures import McpUnavailableError, describe_failure, leaf
from perdure.activities.mcp.oauth import CALLBACK, LOGIN_PORT, Person, TokenFile, authentication
from perdure.activities.mcp.references import (
    MissingVariableError,
    own_folder,
    registered_client,
    resolve_references,
)
from perdure.contracts.mcp import HttpServerConfig, ServerStatus

PATIENCE = 300.0
"""Seconds that a person has to log in. Source: Dreadnode's MCP client."""


class _Callback:
    """The OAuth redirect target on loopback."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[AuthorizationCodeResult] = asyncio.get_running_loop().create_future()
        self._state: str | None = None

    def expect(self, url: str) -> None:
        """Accept only answers to the login that this URL begins, by its ``state``."""
        self._state = _query_of(url).get("state")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request of the browser."""
        line = (await reader.readline()).decode(errors="replace").split(" ")
        place = line[1] if line[0] == "GET" and len(line) > 1 else ""
        given = _query_of(place)
        status, text = "404 Not Found", "Nothing to see here."
        ours = urlsplit(place).path == CALLBACK and self._state is not None and given.get("state") == self._state
        if ours and ("code" in given or "error" in given):
            status = "200 OK"
            text = f"The login failed: {given['error']}" if "error" in given else "You are logged in; close this page."
            if not self._answer.done():
                self._settle(given)
        body = html.escape(text).encode()
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    def _settle(self, given: Mapping[str, str]) -> None:
        if "error" in given:
            why = given.get("error_description") or given["error"]
            self._answer.set_exception(McpUnavailableError(f"the login was refused: {why}", ServerStatus.NEEDS_AUTH))
            return
        self._answer.set_result(
            AuthorizationCodeResult(code=given["code"], state=given.get("state"), iss=given.get("iss"))
        )

    async def wait(self) -> AuthorizationCodeResult:
        """Wait for the authorization code that the browser brings back."""
        return await self._answer


def _query_of(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


async def log_in(
    config: HttpServerConfig, environment: Mapping[str, str], show: Callable[[str], None], scope: str = ""
) -> None:
    """Have a person log in at the server, and keep the tokens for the workers of this machine.

    Args:
        config: The server.
        environment: The variables that its settings refer to.
        show: Shows the login's page to the person, by its address.
        scope: Scope to ask for in any case; the person logs in again if the tokens lack it.

    Raises:
        McpUnavailableError: The login failed; the message says why.
    """
    oauth = config.oauth
    if oauth is None:
        raise McpUnavailableError(f"MCP server {config.name!r} has no oauth=OAuthConfig() in its configuration")
    callback = _Callback()

    async def redirect(url: str) -> None:
        callback.expect(url)
        show(url)

    try:
        headers = resolve_references(config, environment)
        tokens = TokenFile(own_folder(environment), config.url, oauth, registered_client(oauth, environment))
        granted = tokens.granted()
        lacks = not set(scope.split()) <= set(granted.split())
        if lacks:
            tokens.start_over()
        person = Person(redirect, callback.wait, f"{granted} {scope}" if lacks else "")
        auth = authentication(config, oauth, tokens, person)
        page = await asyncio.start_server(callback.serve, "127.0.0.1", LOGIN_PORT)
    except (MissingVariableError, OSError) as error:
        raise McpUnavailableError(f"the login at MCP server {config.name!r} cannot begin: {error}") from None
    # The page is closed without waiting for browsers that keep a connection open.
    limit = config.timeout.total_seconds()
    with contextlib.closing(page):
        async with httpx2.AsyncClient(headers=headers, auth=auth, timeout=limit) as http:
            await _greet(config, http, tokens, auth)


async def _greet(
    config: HttpServerConfig, http: httpx2.AsyncClient, tokens: TokenFile, auth: OAuthClientProvider
) -> None:
    owner = Owner(lambda: connect_over_http(config, http, "auto", None))
    try:
        await owner.client(PATIENCE)
        tokens.remember(auth.context)
    except TimeoutError:
        msg = f"nobody logged in at MCP server {config.name!r} within {PATIENCE:g} s"
        raise McpUnavailableError(msg, ServerStatus.NEEDS_AUTH) from None
    except Exception as error:  # noqa: BLE001 - whatever the SDK raises for a login that fails
        msg = f"the login at MCP server {config.name!r} did not work: {describe_failure(leaf(error))}"
        raise McpUnavailableError(msg, ServerStatus.NEEDS_AUTH) from None
    finally:
        await owner.close()
