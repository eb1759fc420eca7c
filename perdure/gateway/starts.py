"""How a turn is started over HTTP: claimed for the tenant, once for each key, and answered when Temporal has it."""

import hashlib
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Header
from pydantic import BaseModel

from perdure.client import (
    BlockedError,
    RequestRefusedError,
    SessionBusyError,
    Turn,
    UnknownAgentError,
    UnknownSessionError,
)
from perdure.client.executions import Runs
from perdure.client.requests import Content
from perdure.client.sessions import describe_missing_session
from perdure.contracts.errors import ReasonCode
from perdure.contracts.turns import MAX_PROMPT_BYTES
from perdure.gateway.access import Caller, Gateway
from perdure.gateway.problems import ProblemCode, ProblemError
from perdure.gateway.views import Prompt, PromptText, TurnBody, TurnTicket
from perdure.store import Store
from perdure.store.errors import NotFoundError, SessionErasedError
from perdure.store.tenants import Claimed

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="The same key with the same body gives the same answer; with another body it is refused",
    ),
]

Begin = Callable[[str], Awaitable[Turn]]
"""Starts the turn with the request id that it is given."""


@dataclass(frozen=True, kw_only=True)
class Starting:
    """A turn that is to be started.

    Attributes:
        action: The verb.
        session: The session that takes it.
        body: All that was asked.
        key: The Idempotency-Key.
        new: Whether the session may not exist yet, and is claimed first.
        named: Whether the caller has chosen its id, which somebody else may have.
        agent: The agent that is asked for; None for that of the session's last turn.
        model: The model that is asked for in place of the agent's own.
        source: Another session that it goes on from.
        steers: Whether a running turn reads it, and no other one begins.
    """

    action: str
    session: str
    body: BaseModel
    key: str | None
    request_id: str | None
    new: bool = False
    named: bool = False
    agent: str | None = None
    model: str | None = None
    source: str | None = None
    steers: bool = False


def content_of(prompt: Prompt) -> Content:
    """A prompt of a request as the client takes it.

    Raises:
        ProblemError: It is too long.
    """
    texts = [prompt] if isinstance(prompt, str) else [part.text for part in prompt if isinstance(part, PromptText)]
    size = sum(len(text.encode()) for text in texts)
    if size > MAX_PROMPT_BYTES:
        msg = (
            f"prompt: is {size:,} bytes, the limit is {MAX_PROMPT_BYTES:,}; let the agent read large input with a tool"
        )
        raise ProblemError(413, ReasonCode.REQUEST_TOO_LARGE, msg)
    return prompt if isinstance(prompt, str) else [part.model_dump(mode="json") for part in prompt]


def options_of(body: TurnBody, caller: Caller, request_id: str) -> dict[str, object]:
    """What a turn is told, as the client takes it; who asks and for which tenant is the token's to say."""
    about = {name: getattr(body, name) for name in TurnBody.model_fields}
    return {**about, "request_id": request_id or None, "by": caller.name, "tenant": caller.tenant}


def derived_session(agent: str, caller: Caller, key: str) -> str:
    """The id of a new session that nobody named: the same for the same tenant and key, so that a retry finds it."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", agent).strip("-._")[:100] or "session"
    return f"{slug}-{_digest(caller.tenant, key)[:20]}"


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


async def start_once(gateway: Gateway, caller: Caller, starting: Starting, begin: Begin) -> TurnTicket:
    """Start the turn, or find that the same request has done so.

    Nothing is noted as answered before Temporal has the turn: after a crash in between, the retry starts it, by the
    same request id in the same session.

    Raises:
        ProblemError: The key came with another body, or the tenant has too many running jobs.
        BlockedError: An operator has blocked such turns.
        UnknownSessionError: The session is another tenant's.
        ClientError: As the client raises it.
    """
    store = await gateway.client.store()
    request_id = starting.request_id
    if starting.key is not None:
        digest = _digest(starting.action, starting.session, starting.body.model_dump_json(exclude_unset=True))
        known = await store.claim_request(caller.tenant, starting.key, digest, starting.session)
        if known.digest != digest:
            msg = "the Idempotency-Key came before, with another body; use a new one for another request"
            raise ProblemError(409, ProblemCode.KEY_REUSED, msg)
        if known.answer is not None:
            return TurnTicket.model_validate_json(known.answer)
        request_id = request_id or f"key-{_digest(caller.tenant, starting.key)[:32]}"
    ticket = await _start(gateway, store, caller, starting, begin, request_id or "")
    if starting.key is not None:
        await store.answer_request(caller.tenant, starting.key, starting.session, ticket.model_dump_json())
    return ticket


async def _start(
    gateway: Gateway, store: Store, caller: Caller, starting: Starting, begin: Begin, request_id: str
) -> TurnTicket:
    session, fresh = starting.session, False
    if starting.new:
        if starting.named:
            await _check_unclaimed(gateway, store, caller, session)
        claimed = await _claim(store, caller, session)
        if claimed.tenant != caller.tenant:
            raise UnknownSessionError(describe_missing_session(session))
        fresh = claimed.fresh
    try:
        before, is_open = 0, False
        if not fresh:
            if request_id and (earlier := await store.turn_by_request(session, request_id)) is not None:
                return TurnTicket(session=session, turn=earlier.turn, request_id=request_id)
            before, is_open = await _look(store, session)
        await _check_blocks(store, caller, starting, is_open=is_open)
        if not is_open:
            await gateway.limits.check_running(store, caller.tenant, claimed=int(fresh))
        turn = await begin(request_id)
    except SessionBusyError:
        if fresh:  # somebody else's turn has this id, and no worker has opened it yet
            await store.release_session(session, caller.tenant)
            raise UnknownSessionError(describe_missing_session(session)) from None
        raise
    except (ProblemError, RequestRefusedError, UnknownAgentError):
        if fresh:
            await store.release_session(session, caller.tenant)
        raise
    number = turn.turn
    if number is None:
        opened = None if fresh else await store.turn_by_request(session, turn.request_id)
        number = opened.turn if opened is not None else before + 1
    return TurnTicket(session=session, turn=number, request_id=turn.request_id)


async def _check_blocks(store: Store, caller: Caller, starting: Starting, *, is_open: bool) -> None:
    """Refuse at once what the turn's claim would refuse; it looks again."""
    if is_open and starting.steers:
        return
    session = starting.source or starting.session
    block = await store.find_block(caller.tenant, session, starting.agent, starting.model)
    if block is not None:
        raise BlockedError(block.describe())


async def _claim(store: Store, caller: Caller, session: str) -> Claimed:
    try:
        return await store.claim_session(session, caller.tenant)
    except SessionErasedError:
        erased = await store.tombstone(session)
        if erased is not None and erased.tenant == caller.tenant:
            raise
        raise UnknownSessionError(describe_missing_session(session)) from None


async def _check_unclaimed(gateway: Gateway, store: Store, caller: Caller, session: str) -> None:
    """See that no turn is about to open the session that was started past the gateway: it may be another tenant's.

    Raises:
        UnknownSessionError: One is.
    """
    if await store.tenant_of(session) is not None or not await Runs(gateway.client.temporal).is_running(session):
        return
    if await store.tenant_of(session) != caller.tenant:  # as it is when another request has started it meanwhile
        raise UnknownSessionError(describe_missing_session(session))


async def _look(store: Store, session: str) -> tuple[int, bool]:
    """The session's last turn, 0 before the first, and whether it is open."""
    try:
        record = await store.session(session)
    except NotFoundError:
        return 0, False
    return record.turn, record.open_turn is not None
