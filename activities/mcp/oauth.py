"""Logins of MCP servers: tokens in a file that only its owner can read, and no browser unless a person asked for it."""

import hashlib
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

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

REDIRECT = f"http://127.0.0.1:{LOGIN_PORT}/callback"


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

    @property
    def there(self) -> bool:
        """Whether somebody has logged in."""
        return self._read().tokens is not None

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
        """Tell the SDK what it does not ask for: when the tokens end, and where they are refreshed."""
        kept = self._read()
        context.token_expiry_time = kept.expires_at
        context.oauth_metadata, context.protected_resource_metadata = kept.server, kept.resource

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
    provider = OAuthClientProvider(config.url, metadata, tokens, redirect_handler=redirect, callback_handler=callback)
    tokens.recall(provider.context)
    return provider
