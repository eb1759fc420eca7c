"""Logins of MCP servers: tokens in a file that only its owner can read, and no browser unless a person asked for it."""

import asyncio
import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from pathlib import Path

import httpx2
from filelock import AsyncFileLock, Timeout
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.auth.oauth2 import OAuthContext
from mcp.client.auth.utils import extract_field_from_www_auth
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl, ValidationError

from perdure.contracts.mcp import HttpServerConfig, OAuthConfig
from perdure.contracts.values import Value, replace
from perdure.local_files import make_folder

LOGIN_PORT = 41741
"""Port of the redirect URL on loopback. Fixed, because the URL is registered with the server."""

CALLBACK = "/callback"
REDIRECT = f"http://127.0.0.1:{LOGIN_PORT}{CALLBACK}"

REFRESH_SECONDS = 30.0
"""Longest wait for another process that refreshes the same tokens."""

MOST_TRIES = 3
"""Times that a request is sent again with new tokens, as a server may refuse those too."""

_HEADER = "Authorization"


class LoginNeededError(Exception):
    """The server wants a person to log in."""


class Kept(Value):
    """What a token file holds."""

    tokens: OAuthToken | None = None
    expires_at: float | None = None
    client: OAuthClientInformationFull | None = None
    server: OAuthMetadata | None = None
    resource: ProtectedResourceMetadata | None = None

    @property
    def header(self) -> str:
        """The Authorization header; empty without tokens, or if they have expired."""
        valid = self.tokens is not None and (self.expires_at is None or time.time() <= self.expires_at)
        return f"Bearer {self.tokens.access_token}" if self.tokens is not None and valid else ""


class TokenFile:
    """The tokens of one server URL, in a file; implements the SDK's ``TokenStorage``."""

    def __init__(self, folder: Path, url: str) -> None:
        self.path = folder / "tokens" / f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.json"

    async def get_tokens(self) -> OAuthToken | None:
        """The tokens, or None."""
        return self.load().tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep new tokens."""
        expires_at = None if tokens.expires_in is None else time.time() + tokens.expires_in
        self._write(replace(self.load(), tokens=tokens, expires_at=expires_at))

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """What the server registered us as, or None."""
        return self.load().client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep a registration."""
        self._write(replace(self.load(), client=client_info))

    def recall(self, context: OAuthContext) -> None:
        """Bring the SDK up to date with the file: it reads it only once, and other processes write it too."""
        kept = self.load()
        context.current_tokens, context.token_expiry_time = kept.tokens, kept.expires_at
        context.client_info = kept.client
        context.oauth_metadata = kept.server or context.oauth_metadata
        context.protected_resource_metadata = kept.resource or context.protected_resource_metadata

    def lock(self) -> AsyncFileLock:
        """The lock of the process that refreshes the tokens: a server may accept each refresh token only once."""
        make_folder(self.path.parent)
        return AsyncFileLock(self.path.with_suffix(".lock"), timeout=REFRESH_SECONDS, mode=0o600)

    def remember(self, context: OAuthContext) -> None:
        """Keep the metadata that a login has fetched from the server."""
        found = {"server": context.oauth_metadata, "resource": context.protected_resource_metadata}
        self._write(self.load().model_copy(update=found))

    def load(self) -> Kept:
        """Read the file; empty if it is missing or unreadable."""
        try:
            return Kept.model_validate_json(self.path.read_bytes())
        except (OSError, ValidationError):
            return Kept()

    def _write(self, kept: Kept) -> None:
        """Replace the file in one go; a temporary file is readable by its owner alone from the start."""
        make_folder(self.path.parent)
        handle, name = tempfile.mkstemp(dir=self.path.parent)
        with os.fdopen(handle, "w") as file:
            file.write(kept.model_dump_json(exclude_none=True))
        Path(name).replace(self.path)


async def _refuse(_: str) -> None:
    raise LoginNeededError


async def _refuse_login() -> AuthorizationCodeResult:
    raise LoginNeededError


def _wants_other_tokens(answer: httpx2.Response) -> bool:
    """Whether a request was refused because of its tokens. After any other 403 it may have been carried out."""
    if answer.status_code == HTTPStatus.FORBIDDEN:
        return extract_field_from_www_auth(answer, "error") == "insufficient_scope"
    return answer.status_code == HTTPStatus.UNAUTHORIZED


class _SharedLogin(OAuthClientProvider):
    """The SDK's login, with tokens that other processes may refresh."""

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
        self._alone = asyncio.Lock()

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Send a request with valid tokens, if anybody has logged in.

        The SDK's own flow holds a lock from before a request until after its answer. It is used only to refresh tokens
        and after a refusal, so that requests with valid tokens run in parallel.
        """
        kept, answer = self._tokens.load(), None
        if self._unattended and kept.tokens is None:
            yield request
            return
        if kept.header:
            request.headers[_HEADER] = kept.header
            answer = yield request
        for _ in range(MOST_TRIES):
            if answer is not None and not _wants_other_tokens(answer):
                return
            refused = request.headers.get(_HEADER)
            async with self._alone, contextlib.aclosing(super().async_auth_flow(request)) as flow:
                async with self._hold_refresh():
                    outgoing = await anext(flow)
                    while outgoing is not request:
                        outgoing = await flow.asend((yield outgoing))
                valid = self.context.is_token_valid()
                again = valid and request.headers.get(_HEADER) != refused
                if not again and (answer is not None or not self._unattended):
                    with contextlib.suppress(StopAsyncIteration):
                        outgoing = await flow.asend((yield request) if answer is None else answer)
                        while True:
                            outgoing = await flow.asend((yield outgoing))
                    return
            answer = yield request
            if not valid:  # nobody can log in here
                return

    @contextlib.asynccontextmanager
    async def _hold_refresh(self) -> AsyncIterator[None]:
        """Bring the SDK up to date; if the tokens have expired, hold the lock so that only this process refreshes."""
        lock = self._tokens.lock()
        try:
            if not self._tokens.load().header:
                with contextlib.suppress(Timeout):  # its holder is stuck; at worst a refresh token is used twice
                    await lock.acquire()
            self._tokens.recall(self.context)
            if self.context.is_token_valid():
                await lock.release()
            yield
        finally:
            await lock.release()


def authentication(
    config: HttpServerConfig,
    oauth: OAuthConfig,
    tokens: TokenFile,
    redirect: Callable[[str], Awaitable[None]] = _refuse,
    callback: Callable[[], Awaitable[AuthorizationCodeResult]] = _refuse_login,
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
