"""Who asks, and what they may: the caller of a request, the scopes of routes, and whose a session is."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Path, Security
from fastapi.security import HTTPBearer
from starlette.requests import HTTPConnection

from perdure.client import Client, SessionErasedError, UnknownSessionError
from perdure.client.sessions import describe_missing_session
from perdure.contracts.turns import SESSION_ID_PATTERN
from perdure.gateway.problems import ProblemCode, ProblemError
from perdure.store.tombstones import describe_erased
from perdure.tracing import Tracing

if TYPE_CHECKING:
    from perdure.gateway.hub import Hub
    from perdure.gateway.limits import Limits
    from perdure.gateway.tokens import Tokens


class Scope(StrEnum):
    """What a token allows."""

    READ = "read"
    """Lists, results, transcripts, events."""
    RUN = "run"
    """Start, send, resume, fork, compact, extend, cancel."""
    APPROVE = "approve"
    """Answer, approve, deny."""
    ADMIN = "admin"
    """All of it, and what erases or concerns many sessions at once; not ``decrypt``."""
    DECRYPT = "decrypt"
    """Decrypt payloads of Temporal's, of whichever tenant."""


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who asks.

    Attributes:
        name: The token's name; what ``by`` of a turn or an approval is.
        tenant: Whose sessions the caller sees; empty is the default tenant.
    """

    name: str
    tenant: str = ""
    scopes: frozenset[Scope] = frozenset()

    def may(self, scope: Scope) -> bool:
        """Whether the token has the scope; ``admin`` has all but ``decrypt``, which looks into every tenant."""
        return scope in self.scopes or (Scope.ADMIN in self.scopes and scope is not Scope.DECRYPT)


ANYBODY = Caller(name="local", scopes=frozenset(Scope))
"""Who asks where no tokens are configured: the admin of the default tenant, on this machine."""


@dataclass(kw_only=True)
class Gateway:
    """What the routes of one application share.

    Attributes:
        tokens: None lets everybody in as :data:`ANYBODY`.
        stopping: Set when the process is about to end: streams then end.
        tracing: The spans of requests; None without tracing.
    """

    client: Client
    tokens: "Tokens | None"
    limits: "Limits"
    hub: "Hub"
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    tracing: Tracing | None = None


def gateway_of(connection: HTTPConnection) -> Gateway:
    """The gateway that the request came to."""
    gateway: Gateway = connection.app.state.gateway
    return gateway


GatewayOf = Annotated[Gateway, Depends(gateway_of)]
"""The gateway, as a parameter of a route."""

_BEARER = HTTPBearer(auto_error=False, description="A token of the gateway's file of tokens")


def caller_of(connection: HTTPConnection) -> Caller:
    """Who asks; the guard has looked at the token before the body was read."""
    caller: Caller = connection.state.caller
    return caller


def require(scope: Scope) -> Callable[..., Caller]:
    """A dependency that refuses callers without the scope, and gives the others."""

    def check(caller: Annotated[Caller, Depends(caller_of)], _: Annotated[object, Security(_BEARER)]) -> Caller:
        if not caller.may(scope):
            msg = f"the token {caller.name!r} lacks the scope {scope.value!r}; use one that has it"
            raise ProblemError(403, ProblemCode.FORBIDDEN, msg)
        return caller

    return check


Reader = Annotated[Caller, Depends(require(Scope.READ))]
Runner = Annotated[Caller, Depends(require(Scope.RUN))]
Approver = Annotated[Caller, Depends(require(Scope.APPROVE))]
Admin = Annotated[Caller, Depends(require(Scope.ADMIN))]

SessionId = Annotated[str, Path(pattern=SESSION_ID_PATTERN, max_length=200, description="The session's id")]


async def own_session(session: SessionId, caller: Annotated[Caller, Depends(caller_of)], gateway: GatewayOf) -> str:
    """The session's id, if it is the caller's tenant's: another tenant's is missing, and in the same words.

    Raises:
        SessionErasedError: It was the caller's, and was erased.
        UnknownSessionError: There is none of that id for the caller.
    """
    store = await gateway.client.store()
    if await store.tenant_of(session) != caller.tenant:
        erased = await store.tombstone(session)
        if erased is not None and erased.tenant == caller.tenant:
            if erased.finished_at is None:  # the route that erases goes on, and every other one finds nothing
                return session
            raise SessionErasedError(describe_erased(erased))
        raise UnknownSessionError(describe_missing_session(session))
    return session


OwnSession = Annotated[str, Depends(own_session)]
"""The session of the path, which is the caller's tenant's. Routes with ``{session}`` in the path take this one."""
