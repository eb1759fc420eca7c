"""Access of a request: its caller, the scopes of routes, and whose a session is."""

import asyncio
import contextlib
import copy
import re
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Annotated

from fastapi import Depends, Path, Security
from fastapi.security import HTTPBearer
from starlette.requests import HTTPConnection, Request

from perdure.client import Client, ClientError, SessionErasedError, UnknownSessionError
from perdure.client.sessions import describe_missing_session
from perdure.contracts.ids import SESSION_ID_PATTERN
from perdure.gateway.callers import Caller, Scope
from perdure.gateway.hub import Hub
from perdure.gateway.limits import Limits
from perdure.gateway.problems import ProblemCode, ProblemError, gateway_stops, unauthenticated
from perdure.gateway.tokens import Tokens
from perdure.gateway.tries import Tries
from perdure.store import SessionRecord
from perdure.store.keys.tombstones import describe_erased
from perdure.tracing import Tracing


@dataclass(kw_only=True)
class Gateway:
    """State that the routes of one application share.

    Attributes:
        client: A copy of its own, in which turns that replies begin count in their tenant's limit.
        tokens: None lets everybody in as :data:`perdure.gateway.callers.ANYBODY`.
        bodies: Threads that parse and validate large bodies.
        stopping: Set when the process is about to end: streams then end.
        tracing: The spans of requests; None without tracing.
        tries: The tries of requests without a key.
    """

    client: Client
    tokens: Tokens | None
    limits: Limits
    hub: Hub
    bodies: Executor = field(default_factory=lambda: ThreadPoolExecutor(2, thread_name_prefix="perdure-bodies"))
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    tracing: Tracing | None = None
    tries: Tries = field(init=False)

    def __post_init__(self) -> None:
        settings = self.client.settings
        self.tries = Tries(self.client, settings.gateway_retry_window)
        self.client = copy.copy(self.client)
        self.client.replies = self.client.replies.under(self.begin_next)

    def hold(self, caller: Caller) -> AbstractContextManager[asyncio.Event]:
        """An event that is set once the caller may not stay, for as long as the block lasts."""
        return nullcontext(asyncio.Event()) if self.tokens is None else self.tokens.hold(caller)

    def ends(self, gone: asyncio.Event) -> dict[asyncio.Event, ProblemError]:
        """The events that end a stream, and why: the gateway stops, or the caller may not stay."""
        stops = gateway_stops("what it follows", "read on behind the last event")
        return {self.stopping: stops, gone: unauthenticated("the token is no longer known")}

    @asynccontextmanager
    async def begin_next(self, session: SessionRecord) -> AsyncIterator[None]:
        """Begin one more job of the tenant in the block, in an idle session.

        Raises:
            ProblemError: It has as many running as it may.
        """
        async with self.limits.begin_next(await self.client.store(), session.tenant, session.session):
            yield

    def check(self, caller: Caller) -> Caller:
        """The caller, whose token may have been taken out since it was found.

        Raises:
            ProblemError: It has been.
        """
        if self.tokens is not None and not self.tokens.has(caller):
            raise unauthenticated("the token is no longer known")
        return caller


def gateway_of(connection: HTTPConnection) -> Gateway:
    """The gateway that the request came to."""
    gateway: Gateway = connection.app.state.gateway
    return gateway


GatewayOf = Annotated[Gateway, Depends(gateway_of)]
"""The gateway, as a parameter of a route."""

_BEARER = HTTPBearer(auto_error=False, description="A token of the gateway's file of tokens")


async def caller_of(connection: HTTPConnection, gateway: GatewayOf) -> Caller:
    """Who asks. The guard has looked at the token before the body was read, which may have taken long."""
    caller = gateway.check(connection.state.caller)
    return await act_for(gateway, caller, str(connection.path_params.get("session", "")))


def sender_of(connection: HTTPConnection, gateway: GatewayOf) -> Caller:
    """Who asks, before the admission of a turn says which tenant a caller acts for who sees all."""
    return gateway.check(connection.state.caller)


async def act_for(gateway: Gateway, caller: Caller, session: str) -> Caller:
    """The caller; one that sees all is of the session's tenant for as long as the request is about that session."""
    if not caller.sees_all or not re.fullmatch(SESSION_ID_PATTERN, session):
        return caller
    store = await gateway.client.store()
    tenant = await store.tenant_of(session)
    if tenant is None and (erased := await store.tombstone(session)) is not None:
        tenant = erased.tenant
    return replace(caller, tenant=tenant or "")


def require(scope: Scope, find: Callable[..., object] = caller_of) -> Callable[..., Caller]:
    """A dependency that refuses callers without the scope, and gives the others, found by ``find``."""

    def check(caller: Annotated[Caller, Depends(find)], _: Annotated[object, Security(_BEARER)]) -> Caller:
        if not caller.may(scope):
            msg = f"the token {caller.name!r} lacks the scope {scope.value!r}; use one that has it"
            raise ProblemError(403, ProblemCode.FORBIDDEN, msg)
        return caller

    return check


Reader = Annotated[Caller, Depends(require(Scope.READ))]
Runner = Annotated[Caller, Depends(require(Scope.RUN))]
Starter = Annotated[Caller, Depends(require(Scope.RUN, sender_of))]
"""A runner whose turn is admitted: the admission looks at the session."""
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
    tenant = await store.tenant_of(session)
    if tenant is None:  # nobody has claimed it, and no worker has opened it
        with contextlib.suppress(ClientError):
            tenant = await gateway.client.views.tenant_of_unopened(session)
    if tenant != caller.tenant:
        erased = await store.tombstone(session)
        if erased is not None and erased.tenant == caller.tenant:
            if erased.finished_at is None:  # the route that erases goes on, and every other one finds nothing
                return session
            raise SessionErasedError(describe_erased(erased))
        raise UnknownSessionError(describe_missing_session(session))
    return session


@contextlib.contextmanager
def missing_as(told: Exception) -> Iterator[None]:
    """Have a session or turn that nobody has be told in a door's own words; one that was erased keeps its own.

    Raises:
        SessionErasedError: It was the caller's, and was erased.
    """
    try:
        yield
    except SessionErasedError:
        raise
    except UnknownSessionError:
        raise told from None


OwnSession = Annotated[str, Depends(own_session)]
"""The session of the path, which is the caller's tenant's. Routes with ``{session}`` in the path take this one."""


async def admitted_session(session: SessionId, request: Request, gateway: GatewayOf) -> str:
    """The session's id; whose it is, the admission of the turn says. If the body is refused, this says it before."""
    if hasattr(request.state, "refused_body"):
        await own_session(session, await caller_of(request, gateway), gateway)
    return session


AdmittedSession = Annotated[str, Depends(admitted_session)]
"""The session of the path, for routes that start a turn of it by :func:`perdure.gateway.starts.start_once`."""
