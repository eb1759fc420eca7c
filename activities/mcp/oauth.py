"""Logins of MCP servers: tokens in a file that only its owner can read, and no browser unless a person asked for it."""

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from http import HTTPStatus
from pathlib import Path

import httpx2
from filelock import AsyncFileLock, Timeout
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl, ValidationError

from perdure.contracts.mcp import HttpServerConfig, OAuthConfig
from perdure.contracts.values import Value

LOGIN_PORT = 41741
"""Where a login comes back to, on loopback: registered with the server, so it stays the same."""

CALLBACK = "/callback"
REDIRECT = f"http://127.0.0.1:{LOGIN_PORT}{CALLBACK}"


REFRESH_SECONDS = 30.0
"""Longest wait for another process that refreshes the same tokens."""


class LoginNeededError(Exception):
    """The server wants a person to log in."""


class _Kept(Value):
    """What a token file holds."""

    tokens: OAuthToken | None = None
    expires_at: float | None = None
    client: OAuthClientInformationFull | None = None
    server: OAuthMetadata | None = None
    resource: ProtectedResourceMetadata | None = None


class TokenFile:
    """The tokens of one server URL, as the SDK asks for them."""

    def __init__(self, folder: Path, url: str) -> None:
        self.path = folder / "tokens" / f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.json"

    async def get_tokens(self) -> OAuthToken | None:
        """The tokens, or None."""
        return self._read().tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep new tokens."""
        expires_at = None if tokens.expires_in is None else time.time() + tokens.expires_in
        self._write(self._read().model_copy(update={"tokens": tokens, "expires_at": expires_at}))

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """What the server registered us as, or None."""
        return self._read().client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep a registration."""
        self._write(self._read().model_copy(update={"client": client_info}))

    def recall(self, context: OAuthContext) -> None:
        """Tell the SDK what is kept now: it reads the file once, and other processes write it too."""
        kept = self._read()
        context.current_tokens, context.token_expiry_time = kept.tokens, kept.expires_at
        context.client_info = kept.client
        context.oauth_metadata = kept.server or context.oauth_metadata
        context.protected_resource_metadata = kept.resource or context.protected_resource_metadata

    def lock(self) -> AsyncFileLock:
        """Held by the process that refreshes the tokens: a server may take each refresh token once."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return AsyncFileLock(self.path.with_suffix(".lock"), timeout=REFRESH_SECONDS, mode=0o600)

    def remember(self, context: OAuthContext) -> None:
        """Keep what a login found out about the server."""
        found = {"server": context.oauth_metadata, "resource": context.protected_resource_metadata}
        self._write(self._read().model_copy(update=found))

    def _read(self) -> _Kept:
        try:
            return _Kept.model_validate_json(self.path.read_bytes())
        except (OSError, ValidationError):
            return _Kept()

    def _write(self, kept: _Kept) -> None:
        """Replace the file in one go; a temporary file is readable by its owner alone from the start."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.path.parent)
        with os.fdopen(handle, "w") as file:
            file.write(kept.model_dump_json(exclude_none=True))
        Path(name).replace(self.path)


async def _refuse(_: str) -> None:
    raise LoginNeededError


async def _never() -> AuthorizationCodeResult:
    raise LoginNeededError


class _SharedLogin(OAuthClientProvider):
    """The SDK's login, with tokens that other processes refresh too."""

    def __init__(
        self,
        url: str,
        metadata: OAuthClientMetadata,
        tokens: TokenFile,
        redirect: Callable[[str], Awaitable[None]],
        callback: Callable[[], Awaitable[AuthorizationCodeResult]],
    ) -> None:
        super().__init__(url, metadata, tokens, redirect_handler=redirect, callback_handler=callback)
        self._tokens = tokens
        self._unattended = redirect is _refuse

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Send a request with tokens that are valid now, if anybody has logged in."""
        self._tokens.recall(self.context)
        if self._unattended and self.context.current_tokens is None:
            yield request
            return
        lock = self._tokens.lock()
        flow = super().async_auth_flow(request)
        try:
            await self._hold(lock)
            outgoing = await anext(flow)
            while True:
                if outgoing is request:  # the tokens have been refreshed, if they had to be
                    await lock.release()
                response = yield outgoing
                if outgoing is request and response.status_code == HTTPStatus.UNAUTHORIZED and self._newer(request):
                    response = yield request
                outgoing = await flow.asend(response)
        except StopAsyncIteration:
            return
        finally:
            await lock.release()
            await flow.aclose()

    async def _hold(self, lock: AsyncFileLock) -> None:
        """Keep other processes from refreshing tokens that have run out here, unless one has done so by now."""
        if self.context.is_token_valid():
            return
        with contextlib.suppress(Timeout):  # whoever holds it is stuck; the worst is a refresh token that is used twice
            await lock.acquire()
        self._tokens.recall(self.context)
        if self.context.is_token_valid():
            await lock.release()

    def _newer(self, request: httpx2.Request) -> bool:
        """Put tokens into the request that another process got since it was sent."""
        self._tokens.recall(self.context)
        tokens = self.context.current_tokens
        header = f"Bearer {tokens.access_token}" if tokens is not None else ""
        if not header or request.headers.get("Authorization") == header:
            return False
        request.headers["Authorization"] = header
        return True


def authentication(
    config: HttpServerConfig,
    oauth: OAuthConfig,
    tokens: TokenFile,
    redirect: Callable[[str], Awaitable[None]] = _refuse,
    callback: Callable[[], Awaitable[AuthorizationCodeResult]] = _never,
) -> OAuthClientProvider:
    """The SDK's login for a server. Without the two handlers it refreshes tokens, and asks nobody for a login."""
    metadata = OAuthClientMetadata(
        client_name=oauth.client_name,
        redirect_uris=[AnyUrl(REDIRECT)],
        scope=oauth.scope,
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
    )
    return _SharedLogin(config.url, metadata, tokens, redirect, callback)
