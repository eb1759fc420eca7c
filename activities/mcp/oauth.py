"""Logins of MCP servers: tokens in a file that only its owner can read, and no browser unless a person asked for it."""

import asyncio
import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import cast

import httpx2
from filelock import AsyncFileLock, Timeout
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.auth.oauth2 import OAuthContext
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
    TokenEndpointAuthMethod,
)
from pydantic import AnyUrl, PrivateAttr, ValidationError

from perdure.activities.mcp.references import RegisteredClient
from perdure.activities.mcp.token_endpoint import TokensError, describe_answer, request_tokens
from perdure.contracts.mcp import HttpServerConfig, OAuthConfig
from perdure.contracts.values import Value, replace
from perdure.local_files import make_folder

LOGIN_PORT = 41741
"""Port of the redirect URL on loopback. Fixed, because the URL is registered with the server."""

CALLBACK = "/callback"
REDIRECT = f"http://127.0.0.1:{LOGIN_PORT}{CALLBACK}"

REFRESH_SECONDS = 30.0
"""Longest wait for another process that refreshes the same tokens."""

SAME_REFUSAL_SECONDS = 10.0
"""Time for which a refused refresh counts for every request that was refused with the same tokens."""

MOST_TRIES = 3
"""Times that a request is sent again with new tokens, as a server may refuse those too."""

LONG_AGO = 1.0
"""Expiry, as seconds since 1970, of tokens that the server refused before their time."""

_HEADER = "Authorization"


class Kept(Value):
    """Contents of a token file."""

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
    """The tokens of one client at one server URL, in a file; implements the SDK's ``TokenStorage``.

    The id of a client of the author's choice is part of the file's name, as tokens are of use to their client only. The
    secret of a registered client is in no file.
    """

    def __init__(self, folder: Path, url: str, oauth: OAuthConfig, client: RegisteredClient | None = None) -> None:
        self._client = client
        self._anew = False
        chosen = client.id if client is not None else oauth.client_metadata_url
        name = url if chosen is None else f"{url}\n{chosen}"
        self.path = folder / "tokens" / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"

    async def get_tokens(self) -> OAuthToken | None:
        """The tokens, or None."""
        return self.load().tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep new tokens. Some servers give a lifetime of zero to tokens that do not expire."""
        lifetime = tokens.expires_in or 0
        expires_at = time.time() + lifetime if lifetime > 0 else None
        self._write(replace(self.load(), tokens=tokens, expires_at=expires_at))
        self._anew = False

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """The client at the server, or None."""
        return self._client_of(self.load())

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep a registration."""
        self._write(replace(self.load(), client=client_info))

    def recall(self, context: OAuthContext) -> None:
        """Bring the SDK up to date with the file: it reads it only once, and other processes write it too."""
        kept = self.load()
        context.current_tokens, context.token_expiry_time = kept.tokens, kept.expires_at
        context.client_info = self._client_of(kept)
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
            kept = Kept.model_validate_json(self.path.read_bytes())
        except (OSError, ValidationError):
            return Kept()
        return replace(kept, tokens=None, expires_at=None) if self._anew else kept

    def granted(self) -> str:
        """The scope of the tokens; empty if there are none, or if nobody said."""
        tokens = self.load().tokens
        return (tokens.scope or "") if tokens is not None else ""

    def start_over(self) -> None:
        """Act as if there were no tokens, until new ones are kept."""
        self._anew = True

    def _client_of(self, kept: Kept) -> OAuthClientInformationFull | None:
        if self._client is None:
            return kept.client
        return OAuthClientInformationFull(
            client_id=self._client.id, client_secret=self._client.secret or None, redirect_uris=[AnyUrl(REDIRECT)]
        )

    def _write(self, kept: Kept) -> None:
        """Replace the file in one go; a temporary file is readable by its owner alone from the start."""
        make_folder(self.path.parent)
        handle, name = tempfile.mkstemp(dir=self.path.parent)
        with os.fdopen(handle, "w") as file:
            file.write(kept.model_dump_json(exclude_none=True))
        Path(name).replace(self.path)


def _wants_more_scope(answer: httpx2.Response) -> bool:
    """Whether a request was refused because its tokens lack a scope."""
    error = extract_field_from_www_auth(answer, "error")
    return answer.status_code == HTTPStatus.FORBIDDEN and error == "insufficient_scope"


def _wants_other_tokens(answer: httpx2.Response) -> bool:
    """Whether a request was refused because of its tokens. After any other 403 it may have been carried out."""
    return answer.status_code == HTTPStatus.UNAUTHORIZED or _wants_more_scope(answer)


def lacking_scope(answer: httpx2.Response) -> str | None:
    """Scope that the tokens of a request lack; None if it was not refused for that, empty if nobody said."""
    return (extract_scope_from_www_auth(answer) or "") if _wants_more_scope(answer) else None


def _add_scopes(*scopes: str | None) -> str | None:
    """All words of the scopes, each once."""
    return " ".join(dict.fromkeys(word for scope in scopes for word in (scope or "").split())) or None


class _Metadata(OAuthClientMetadata):
    """A client as it describes itself. The SDK writes into it the scope that the server proposes.

    The author's scope stands in place of that, unless the server named a scope that the tokens lack.
    """

    _ours: str | None = PrivateAttr(default=None)
    _more: str = PrivateAttr(default="")
    _steps_up: bool = PrivateAttr(default=False)

    def adjust(self, *, ours: str | None, more: str) -> None:
        """Adjust each scope that is written from now on."""
        self._ours, self._more = ours, more

    def note_challenge(self, *, steps_up: bool) -> None:
        """Note whether the scope that is written next is one that the tokens lack."""
        self._steps_up = steps_up

    def __setattr__(self, name: str, value: object) -> None:
        """Set a field; a scope is adjusted."""
        if name == "scope":
            proposed = cast("str | None", value)
            if self._ours is not None and not self._steps_up:
                kept = "offline_access" if "offline_access" in (proposed or "").split() else ""  # for refresh tokens
                proposed = _add_scopes(self._ours, kept)
            value = _add_scopes(proposed, self._more)
        super().__setattr__(name, value)


class _Context(OAuthContext):
    """The SDK's notes about a login. A registered client proves itself as the login's metadata allows."""

    def prepare_token_auth(
        self, data: dict[str, str], headers: dict[str, str] | None = None
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Add the client's credentials to a request for tokens."""
        client = self.client_info
        if client is not None and client.client_secret is not None and client.token_endpoint_auth_method is None:
            found = self.oauth_metadata
            # RFC 8414: a login that names no method takes client_secret_basic
            methods = (found and found.token_endpoint_auth_methods_supported) or ["client_secret_basic"]
            basic = "client_secret_basic" in methods or "client_secret_post" not in methods
            method: TokenEndpointAuthMethod = "client_secret_basic" if basic else "client_secret_post"
            self.client_info = client.model_copy(update={"token_endpoint_auth_method": method})
        return super().prepare_token_auth(data, headers)


@dataclass(frozen=True)
class Person:
    """A person at a browser, who logs in: how the page is shown, and what the browser brings back.

    Attributes:
        scope: What the person is asked for beside what the server proposes and what was granted before.
    """

    redirect: Callable[[str], Awaitable[None]]
    callback: Callable[[], Awaitable[AuthorizationCodeResult]]
    scope: str = ""


class _SharedLogin(OAuthClientProvider):
    """The SDK's login, with tokens that other processes may refresh. Without a person nobody is asked."""

    def __init__(
        self,
        url: str,
        metadata: "_Metadata",
        tokens: TokenFile,
        oauth: OAuthConfig,
        person: Person | None,
    ) -> None:
        super().__init__(url, metadata, tokens)
        self.context = _Context(
            server_url=url,
            client_metadata=metadata,
            storage=tokens,
            redirect_handler=None if person is None else person.redirect,
            callback_handler=None if person is None else person.callback,
            client_metadata_url=oauth.client_metadata_url,
        )
        self._metadata = metadata
        self._tokens = tokens
        self._unattended = person is None
        self._alone = asyncio.Lock()
        self._failed: tuple[float, TokensError, str | None] | None = None
        """The last failed refresh: its time by the monotonic clock, its failure, and the header of the tokens."""

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Send a request with valid tokens, if anybody has logged in.

        The SDK's own flow holds a lock from before a request until after its answer. It is used only to refresh tokens
        and after a refusal, so that requests with valid tokens run in parallel. A server may refuse tokens before their
        time: they are refreshed once.

        Raises:
            TokensError: The tokens could not be refreshed, and nobody can log in here. The request was not carried out.
        """
        kept, answer = self._tokens.load(), None
        if self._unattended and kept.tokens is None:
            yield request
            return
        if kept.header:
            request.headers[_HEADER] = kept.header
            answer = yield request
        refreshed = False
        for _ in range(MOST_TRIES):
            if answer is not None and not _wants_other_tokens(answer):
                return
            refused = request.headers.get(_HEADER)
            withdrawn = refused if answer is not None and not (refreshed or _wants_more_scope(answer)) else None
            began = time.monotonic()
            async with self._alone, contextlib.aclosing(super().async_auth_flow(request)) as flow:
                self._share_failure(since=began, refused=refused)
                async with self._hold_refresh(withdrawn):
                    outgoing = await anext(flow)
                    while outgoing is not request:
                        refreshed = True
                        outgoing = await self._refresh(flow, outgoing)
                valid = self.context.is_token_valid()
                again = valid and request.headers.get(_HEADER) != refused
                if not again and answer is not None and self._unattended:
                    return
                if not again and (answer is not None or not self._unattended):
                    with contextlib.suppress(StopAsyncIteration):
                        first = (yield request) if answer is None else answer
                        outgoing = await flow.asend(self._challenge(request, first))
                        while True:
                            outgoing = await flow.asend((yield outgoing))
                    return
            answer = yield request
            if not valid:  # nobody can log in here
                return

    async def _refresh(
        self, flow: AsyncGenerator[httpx2.Request, httpx2.Response], outgoing: httpx2.Request
    ) -> httpx2.Request:
        """Send the SDK's request for new tokens; the request that it wants to send next."""
        try:
            return await flow.asend(await request_tokens(outgoing))
        except TokensError as error:
            self._failed = time.monotonic(), error, self._tokens.load().header
            raise

    def _share_failure(self, *, since: float, refused: str | None) -> None:
        """Raise the failure of a refresh that this request has waited for: else a hundred calls would try in turn.

        So does a request that was refused with the tokens of the same time, and whose refusal came a little later.
        """
        if self._failed is None:
            return
        at, error, header = self._failed
        is_same = error.is_refusal and header == refused and at >= since - SAME_REFUSAL_SECONDS
        if at >= since or is_same:
            raise TokensError(str(error), is_refusal=error.is_refusal)

    async def _handle_refresh_response(self, response: httpx2.Response) -> bool:
        """Keep new tokens; a person who is here may log in if there are none."""
        if response.is_success:
            response.status_code = HTTPStatus.OK
        elif self._unattended:
            why = f"{response.request.url}: {describe_answer(response)}"
            raise TokensError(why, is_refusal=response.is_client_error)
        came = await super()._handle_refresh_response(response)
        if came:
            self._tokens.recall(self.context)
        return came

    def _challenge(self, request: httpx2.Request, answer: httpx2.Response) -> httpx2.Response:
        """The answer by which the SDK decides about a login. A person logs in also where a server greets strangers."""
        self._metadata.note_challenge(steps_up=_wants_more_scope(answer))
        if self._unattended or answer.is_error or _HEADER in request.headers:
            return answer
        return httpx2.Response(HTTPStatus.UNAUTHORIZED, request=request)

    @contextlib.asynccontextmanager
    async def _hold_refresh(self, withdrawn: str | None) -> AsyncIterator[None]:
        """Bring the SDK up to date; if the tokens have expired, hold the lock so that only this process refreshes.

        Args:
            withdrawn: The header of tokens that the server refused; they count as expired.
        """
        lock = self._tokens.lock()
        try:
            if self._tokens.load().header in {"", withdrawn}:
                with contextlib.suppress(Timeout):  # its holder is stuck; at worst a refresh token is used twice
                    await lock.acquire()
            self._tokens.recall(self.context)
            tokens = self.context.current_tokens
            if tokens is not None and f"Bearer {tokens.access_token}" == withdrawn:
                self.context.token_expiry_time = LONG_AGO
            if self.context.is_token_valid():
                await lock.release()
            yield
        finally:
            await lock.release()


def authentication(
    config: HttpServerConfig, oauth: OAuthConfig, tokens: TokenFile, person: Person | None = None
) -> OAuthClientProvider:
    """The SDK's login for a server. Without a person it refreshes tokens, and asks nobody for a login."""
    metadata = _Metadata(
        client_name=oauth.client_name,
        redirect_uris=[AnyUrl(REDIRECT)],
        scope=oauth.scope,
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
    )
    metadata.adjust(ours=oauth.scope, more="" if person is None else person.scope)
    return _SharedLogin(config.url, metadata, tokens, oauth, person)
