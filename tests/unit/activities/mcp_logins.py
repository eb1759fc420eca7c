"""A login in front of an MCP server for tests, and a person who logs in there."""

import asyncio
import base64
import json
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qs, urlencode

import httpx2
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from perdure import HttpServerConfig, OAuthConfig
from perdure.activities.mcp import login as login_page
from perdure.activities.mcp import oauth
from perdure.activities.mcp.login import log_in
from perdure.local_ports import find_free_port
from tests.unit.activities.mcp_http import Web
from tests.unit.activities.mcp_peers import Connected, worker_of


class Login:
    """An authorization server in front of an MCP server."""

    def __init__(self, at: Web) -> None:
        self.at = at
        self.app: ASGIApp = at.server().streamable_http_app()
        self.valid: set[str] = set()
        self.refreshes = self.registrations = 0
        self.refresh_token = ""
        self.lifetime: object = 3600
        """What tokens say of their lifetime, in seconds; None if they say nothing."""
        self.faults: list[Response] = []
        """Answers of the token endpoint in place of the next ones."""
        self.paths: list[str] = []
        self.clients: dict[str, str] = {}
        """Registered clients with their secrets; with one, no other gets a token, and nobody may register."""
        self.proven: list[str] = []
        """How clients proved themselves when they asked for tokens."""
        self.asked: list[str] = []
        """Scopes that people were asked for."""
        self.greets_strangers = False
        self.more: dict[str, Any] = {}
        """Further metadata of the login."""
        self.before: Callable[[], None] = lambda: None
        self.refusal = Response(status_code=401, headers={"WWW-Authenticate": "Bearer"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        self.paths.append(request.url.path)
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        self.before()
        if request.url.path == "/mcp" and (token in self.valid or self.greets_strangers):
            await self.app(scope, receive, send)
            return
        await (await self._reply(request))(scope, receive, send)

    async def _reply(self, request: Request) -> Response:
        base, path = self.at.url, request.url.path
        if path.startswith("/.well-known/oauth-protected-resource"):
            return JSONResponse({"resource": f"{base}/mcp", "authorization_servers": [base]})
        if path.startswith("/.well-known/"):
            ends = {f"{name}_endpoint": f"{base}/oauth/{name}" for name in ("authorization", "token", "registration")}
            more = {"response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"]}
            return JSONResponse({"issuer": base, **ends, **more, **self.more})
        if path == "/oauth/registration":
            self.registrations += 1
            if self.clients:
                return JSONResponse({"error": "access_denied"}, 403)
            asked = await request.json()
            return JSONResponse({**asked, "client_id": "us", "token_endpoint_auth_method": "none"}, 201)
        if path == "/oauth/authorization":
            self.asked.append(request.query_params.get("scope", ""))
            back = {"code": "the-code", "state": request.query_params["state"], "iss": base}
            return RedirectResponse(f"{request.query_params['redirect_uri']}?{urlencode(back)}")
        if path == "/oauth/token" and self.faults:
            return self.faults.pop(0)
        if path == "/oauth/token":
            asked = parse_qs((await request.body()).decode())
            return self._token(asked) if self._is_known(request, asked) else JSONResponse({"error": "who"}, 401)
        return self.refusal

    def _is_known(self, request: Request, asked: dict[str, list[str]]) -> bool:
        """Whether the client is one that may have tokens; notes how it proved itself."""
        header = request.headers.get("authorization", "")
        pair = base64.b64decode(header.removeprefix("Basic ")).decode().split(":") if header else []
        given = pair or [*asked["client_id"], *asked.get("client_secret", [""])]
        self.proven.append("basic" if pair else "post" if given[1] else "none")
        return not self.clients or self.clients.get(given[0]) == given[1]

    def _token(self, asked: dict[str, list[str]]) -> Response:
        if asked["grant_type"] == ["refresh_token"]:
            self.refreshes += 1
            if asked["refresh_token"] != [self.refresh_token]:  # each is taken once
                return JSONResponse({"error": "invalid_grant"}, 400)
        token, self.refresh_token = secrets.token_hex(8), secrets.token_hex(8)
        self.valid = {token}
        given = {"access_token": token, "token_type": "Bearer", "refresh_token": self.refresh_token}
        return JSONResponse(given if self.lifetime is None else {**given, "expires_in": self.lifetime})


def config(login: Login, **settings: Any) -> HttpServerConfig:
    return HttpServerConfig(name="web", url=f"{login.at.url}/mcp", oauth=OAuthConfig(**settings))


@asynccontextmanager
async def worker(
    login: Login, folder: Path, *, environment: Mapping[str, str] | None = None, **settings: Any
) -> AsyncIterator[Connected]:
    async with worker_of(config(login, **settings), folder=folder, **(environment or {})) as connected:
        yield connected


@contextmanager
def own_port() -> Iterator[int]:
    """Have the browser return to a port that no other test uses."""
    port = find_free_port()
    back = f"http://127.0.0.1:{port}{oauth.CALLBACK}"
    with patch.object(login_page, "LOGIN_PORT", port), patch.object(oauth, "REDIRECT", back):
        yield port


async def person_logs_in(
    login: Login, folder: Path, *, more_scope: str = "", environment: Mapping[str, str] | None = None, **settings: Any
) -> list[str]:
    """Log in, with a browser that follows the page's redirect back to us; gives the pages that were shown."""
    shown: list[str] = []
    visits: list[asyncio.Task[httpx2.Response]] = []

    async def visit(url: str) -> httpx2.Response:
        async with httpx2.AsyncClient(follow_redirects=True) as browser:
            return await browser.get(url)

    def show(url: str) -> None:
        shown.append(url)
        visits.append(asyncio.create_task(visit(url)))

    variables = {"PERDURE_MCP_FOLDER": str(folder / "mcp"), **(environment or {})}
    with own_port():
        await log_in(config(login, **settings), variables, show, more_scope)
    for visit_ in visits:
        assert "logged in" in (await visit_).text
    return shown


def token_file(folder: Path) -> Path:
    (file,) = (folder / "mcp" / "tokens").glob("*.json")
    return file


def run_out(folder: Path) -> None:
    """Have the tokens be too old."""
    edit_tokens(folder, lambda kept: kept.update(expires_at=1.0))


def edit_tokens(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change what the file of tokens says."""
    kept = json.loads(token_file(folder).read_text())
    edit(kept)
    token_file(folder).write_text(json.dumps(kept))
