"""The page at ``/ui``: its files, the log-in that makes a token a cookie, and who is logged in.

The files stand in ``perdure/gateway/ui`` and need no build. The page reads and asks by the routes below ``/v1`` only.
"""

import time
from collections.abc import Mapping
from typing import ClassVar, Literal, TypedDict

from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.status import HTTP_204_NO_CONTENT

from perdure.contracts.errors import REASONS
from perdure.gateway.access import GatewayOf, Reader
from perdure.gateway.audit import audit_login
from perdure.gateway.bodies import TINY, Body, Router
from perdure.gateway.guard import COOKIE, LOOPBACK
from perdure.gateway.problems import DOCUMENTED, ProblemCode, ProblemError
from perdure.gateway.room import owner_by_address
from perdure.settings import temporal_file

router = Router(tags=["page"], include_in_schema=False)
"""Routes that a browser asks for before anybody is logged in."""

who_router = Router(prefix="/v1", tags=["page"])
"""Routes that a browser asks for after the login."""

FILES = StaticFiles(packages=[("perdure.gateway", "ui")])

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
"""The page's Content-Security-Policy: nothing inline, nothing of another site."""

HEADERS = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}
"""On each file: browsers ask whether it has changed, and keep it otherwise."""

COOKIE_SECONDS = 12 * 3600
"""After this long a browser has to log in again."""

MOST_FAILURES = 10
"""Wrong tokens of one address in a minute that are told and noted as such."""

MOST_ADDRESSES = 10_000
"""Addresses whose wrong tokens are counted at the same time."""


class Failures:
    """Wrong tokens at the log-in, counted for each address and minute."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int]] = {}

    def __len__(self) -> int:
        """The number of addresses that are counted."""
        return len(self._counts)

    def note(self, address: str) -> int:
        """Count a wrong token; returns how many the address, or its network of IPv6, has sent in this minute."""
        now, owner = self._now(), owner_by_address(address)
        minute, count = self._counts.pop(owner, (now, 0))
        count = count + 1 if minute == now else 1
        while len(self._counts) >= MOST_ADDRESSES:  # those that were heard of longest ago begin anew
            del self._counts[next(iter(self._counts))]
        self._counts[owner] = (now, count)
        return count

    @staticmethod
    def _now() -> int:
        return int(time.monotonic() // 60) + 1


def failures_of(request: Request) -> Failures:
    """The application's count of wrong tokens."""
    if not hasattr(request.app.state, "login_failures"):
        request.app.state.login_failures = Failures()
    failures: Failures = request.app.state.login_failures
    return failures


async def _file(path: str, request: Request) -> Response:
    response = await FILES.get_response(path, request.scope)
    response.headers.update(HEADERS)
    return response


@router.get("/ui")
@router.get("/ui/")
@router.get("/ui/errors")
@router.get("/ui/sessions/{session}")
async def show_page(request: Request) -> Response:
    """The page; its script looks at the address."""
    return await _file("index.html", request)


@router.get("/ui/static/{path:path}")
async def show_file(path: str, request: Request) -> Response:
    """A file of the page."""
    if path.endswith(".html"):
        raise HTTPException(404, "there is no such file")
    return await _file(path, request)


@router.get("/ui/reasons.json")
async def list_reasons() -> list[Mapping[str, object]]:
    """List the meaning of each reason code and what to do: the table of ``perdure errors``."""
    return [
        {"code": code.value, "transient": reason.transient, "cause": reason.cause, "advice": reason.advice}
        for code, reason in REASONS.items()
    ]


class LoginBody(Body):
    """A bearer token of the gateway's."""

    longest: ClassVar[int | None] = TINY

    token: str = Field(min_length=1, max_length=1000)


class CookieSettings(TypedDict):
    """Attributes of a cookie."""

    path: str
    secure: bool
    httponly: bool
    samesite: Literal["strict"]


def _cookie(request: Request) -> CookieSettings:
    """Sent back by this site's own pages only, never shown to scripts, and but on this machine only over TLS."""
    secure = request.url.scheme == "https" or request.url.hostname not in LOOPBACK
    return {"path": "/", "secure": secure, "httponly": True, "samesite": "strict"}


@router.post("/ui/login", status_code=HTTP_204_NO_CONTENT, responses=DOCUMENTED)
async def log_in(body: LoginBody, request: Request, gateway: GatewayOf) -> Response:
    """Keep a token as a cookie of the browser, so that the page can ask for what the token allows."""
    if gateway.tokens is None:
        raise ProblemError(401, ProblemCode.UNAUTHENTICATED, "no token is needed here")
    address = request.client.host if request.client is not None else ""
    caller = gateway.tokens.find(body.token)
    if caller is None:
        raise _refuse(address, failures_of(request).note(address))
    response = Response(status_code=HTTP_204_NO_CONTENT)
    response.set_cookie(COOKIE, body.token, max_age=COOKIE_SECONDS, **_cookie(request))
    audit_login(caller, address, "done")
    return response


def _refuse(address: str, count: int) -> ProblemError:
    """The refusal of an address's wrong token, which is that many in this minute."""
    if count <= MOST_FAILURES:
        audit_login(None, address, ProblemCode.UNAUTHENTICATED)
        return ProblemError(401, ProblemCode.UNAUTHENTICATED, "unknown token; see PERDURE_GATEWAY_TOKENS_FILE")
    if count == MOST_FAILURES + 1:
        audit_login(None, address, ProblemCode.RATE_LIMITED)
    msg = f"more than {MOST_FAILURES} wrong tokens came from {address[:100]} in this minute; retry in a minute"
    return ProblemError(429, ProblemCode.RATE_LIMITED, msg, {"Retry-After": "60"})


@router.post("/ui/logout", status_code=HTTP_204_NO_CONTENT)
async def log_out(request: Request) -> Response:
    """Forget the cookie."""
    response = Response(status_code=HTTP_204_NO_CONTENT)
    response.delete_cookie(COOKIE, **_cookie(request))
    return response


class WhoView(BaseModel):
    """Whose token it is, and what it allows."""

    name: str
    tenant: str
    sees_all: bool = Field(description="Whether the sessions of all tenants are seen")
    scopes: tuple[str, ...]
    logged_in: bool = Field(description="False where no tokens are configured, and everybody is the admin")
    temporal_ui: str | None = Field(description="Where the Temporal UI shows workflows, if its address is known")


@who_router.get("/whoami", operation_id="whoami")
async def whoami(gateway: GatewayOf, caller: Reader) -> WhoView:
    """Whose token was sent, its tenant and its scopes."""
    client = gateway.client
    file = temporal_file()
    address = client.settings.ui_url or (file.addresses.ui_url if file is not None else None)
    workflows = f"{address.rstrip('/')}/namespaces/{client.temporal.namespace}/workflows" if address else None
    return WhoView(
        name=caller.name,
        tenant=caller.tenant,
        sees_all=caller.sees_all,
        scopes=tuple(sorted(caller.scopes)),
        logged_in=gateway.tokens is not None,
        temporal_ui=workflows,
    )
