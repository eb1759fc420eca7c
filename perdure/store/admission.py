"""Admission: whether a turn that a caller asks for may start, decided in one transaction before Temporal is asked.

Of several admissions at once each sees those that were committed before it: a key and a session are claimed by one of
them, and while a limit is in force, a tenant's admissions take turns, so that none passes it.
"""

import hashlib
import json
from datetime import datetime
from typing import Literal, NamedTuple

from sqlalchemy import Connection, select

from perdure.contracts.ids import Signed, refusal_of
from perdure.contracts.values import Value, replace
from perdure.store import schema
from perdure.store.behind import notice_of_behind
from perdure.store.blocks import find_block
from perdure.store.errors import SessionErasedError
from perdure.store.ids import sign_id
from perdure.store.keys.tombstones import describe_erased, find_tombstone
from perdure.store.queries import turn_by_request
from perdure.store.session_lock import take_turns
from perdure.store.tenants import (
    answer_request,
    claim_request,
    claim_session,
    count_running,
    find_request,
    note_begun,
    release_session,
    tenant_of,
)
from perdure.store.tries import Try

_S, _A = schema.sessions.c, schema.agents.c


class Ticket(Value):
    """The turn that takes a request.

    Attributes:
        notice: What whoever asks should know, as of a session that goes on behind what was done; empty if nothing.
    """

    session: str
    turn: int | None
    request_id: str
    notice: str = ""


class Asked(Value):
    """A turn that a caller asks for.

    Attributes:
        tenant: The caller's; None is that of the session, for a caller who sees the sessions of all tenants.
        action: The verb.
        body: All that was asked, as text: one key stands for one action, session and body.
        session: The session that takes it; None has the store derive its id from the key, with ``stem`` in front.
        source: Another session that it goes on from.
        key: The caller's key of the request, or ours; empty without one.
        attempt: The first try of a request with a key of ours.
        request_id: The turn's; empty has it derived from the key.
        begins: Whether the session may not exist yet.
        is_named: Whether the caller has chosen its id, which somebody else may have.
        agent: The agent that is asked for; None for that of the session's last turn.
        knows_agent: Whether the agent need not be registered.
        model: The model that is asked for in place of the agent's own.
        steers: Whether a running turn reads it, and no other one begins.
        runs: Whether Temporal runs a turn under the id that the caller has chosen.
        looked: Whether Temporal was asked for a session that the store does not know; ``elsewhere`` is its tenant.
        most: How many jobs of the tenant may run; 0 means no limit.
    """

    tenant: str | None
    action: str
    body: str
    session: str | None
    stem: str = ""
    source: str | None = None
    key: str = ""
    attempt: Try | None = None
    request_id: str = ""
    begins: bool = False
    is_named: bool = False
    agent: str | None = None
    knows_agent: bool = True
    model: str | None = None
    steers: bool = False
    runs: bool = False
    looked: bool = False
    elsewhere: str | None = None
    most: int = 0


class Fresh(Value):
    """The turn may start.

    Attributes:
        request_id: Empty if the request has neither key nor id.
        last: The session's last turn; 0 before the first.
        is_open: Whether that turn is open.
        notice: The notice to whoever goes on from that turn, if it has ended.
        claimed: Whether this admission made the session.
        is_stored: Whether the store has a turn of the session that it goes on from.
        strangers: The registered agents, if the one that is asked for is not among them.
        begun_at: When an old session was counted as running by this admission; None if it counts already or need not.
    """

    session: str
    tenant: str
    request_id: str
    last: int = 0
    is_open: bool = False
    notice: str = ""
    claimed: bool = False
    is_stored: bool = False
    strangers: tuple[str, ...] = ()
    begun_at: datetime | None = None


class Known(Value):
    """The request has started its turn before."""

    session: str
    ticket: Ticket


class Taken(Value):
    """The key is another request's, or the session is not the caller's to use.

    Attributes:
        what: ``key``: it came with another request. ``session``: there is none of that id for the tenant. ``erased``:
            it was the tenant's. ``reserved``: only perdure derives such an id.
        says: The sentence for ``erased`` and ``reserved``.
    """

    session: str
    what: Literal["key", "session", "erased", "reserved"]
    says: str = ""


class Blocked(Value):
    """An operator refuses such turns."""

    session: str
    says: str


class OverLimit(Value):
    """The tenant has as many running jobs as it may."""

    session: str
    running: int


class Unseen(Value):
    """The store does not know the session, and Temporal may: nothing was decided, ask again with what it says."""

    session: str


Admission = Fresh | Known | Taken | Blocked | OverLimit | Unseen


def admit(connection: Connection, asked: Asked) -> Admission:
    """Say whether a turn may start, note its key and claim its session. What is refused claims no session."""
    session, subject = asked.session, asked.source or asked.session
    if subject is None:
        session = subject = _derive(connection, asked, asked.tenant or "")
    owner = tenant_of(connection, subject)
    tenant = asked.tenant
    if tenant is None:  # a caller who sees all acts for the session's tenant
        erased = find_tombstone(connection, subject) if owner is None else None
        tenant = erased.tenant if erased is not None else owner or ""
    if (not asked.begins or asked.source is not None) and owner != tenant:
        refused = _refuse_stranger(connection, asked, subject, owner, tenant)
        if refused is not None:
            return refused
    if session is None:
        session = _derive(connection, asked, tenant)
    request_id = asked.request_id
    if asked.key:
        digest = _digest(asked.action, session, asked.body)
        known = claim_request(connection, tenant, asked.key, digest, session, asked.attempt)
        if known.digest != digest:
            return Taken(session=session, what="key")
        if known.answer is not None:
            return Known(session=session, ticket=Ticket.model_validate_json(known.answer))
        request_id = request_id or f"key-{_digest(tenant, asked.key)[:32]}"
    claimed = False
    if asked.begins:
        found = _claim(connection, asked, session, tenant)
        if isinstance(found, Taken):
            return found
        claimed = found
    fresh = Fresh(session=session, tenant=tenant, request_id=request_id, claimed=claimed)
    admission = _judge(connection, asked, fresh, subject)
    if claimed and not isinstance(admission, Fresh):
        release_session(connection, session, tenant)
    return admission


def note_outcome(connection: Connection, fresh: Fresh, key: str, turn: int | None, request_id: str) -> Ticket:
    """Note under its key which turn takes a request, and return it; without a number it is that of the next turn."""
    if turn is None:
        opened = None if fresh.claimed else turn_by_request(connection, fresh.session, request_id)
        turn = opened.turn if opened is not None else fresh.last + 1
    ticket = Ticket(session=fresh.session, turn=turn, request_id=request_id, notice=fresh.notice)
    if key:
        answer_request(connection, fresh.tenant, key, fresh.session, ticket.model_dump_json())
    return ticket


def begin(connection: Connection, tenant: str, session: str, most: int) -> datetime | OverLimit | None:
    """Count a session as running, unless the tenant has as many others as it may; see :attr:`Fresh.begun_at`."""
    take_turns(connection, f"perdure admission {tenant}")
    running = count_running(connection, tenant, but=session)
    return OverLimit(session=session, running=running) if running >= most else note_begun(connection, session)


def _derive(connection: Connection, asked: Asked, tenant: str) -> str:
    """The id of a new session that nobody named: the same for the same tenant and key, so that a retry finds it."""
    known = find_request(connection, tenant, asked.key)
    if known is not None:
        return known.session
    return sign_id(connection, Signed.KEY, tenant, asked.stem, (asked.key,))


def _refuse_stranger(
    connection: Connection, asked: Asked, session: str, owner: str | None, tenant: str
) -> Taken | Unseen | None:
    """Refuse a session that is not the tenant's; None if Temporal says that it is."""
    erased = find_tombstone(connection, session)
    if erased is not None:
        is_own = erased.tenant == tenant
        return Taken(session=session, what="erased" if is_own else "session", says=describe_erased(erased))
    if owner is None and not asked.looked:
        return Unseen(session=session)
    if owner is None and asked.elsewhere == tenant:
        return None
    return Taken(session=session, what="session")


def _claim(connection: Connection, asked: Asked, session: str, tenant: str) -> Taken | bool:
    """Claim the session; whether this made it."""
    if asked.is_named:
        owner, refused = tenant_of(connection, session), refusal_of(session)
        if refused is not None and owner != tenant:
            return Taken(session=session, what="reserved", says=refused)
        if asked.runs and owner != tenant:
            return Taken(session=session, what="session")
    try:
        claimed = claim_session(connection, session, tenant)
    except SessionErasedError as error:
        release_session(connection, session, tenant)
        erased = find_tombstone(connection, session)
        is_own = erased is not None and erased.tenant == tenant
        return Taken(session=session, what="erased" if is_own else "session", says=str(error))
    return claimed.fresh if claimed.tenant == tenant else Taken(session=session, what="session")


def _judge(connection: Connection, asked: Asked, fresh: Fresh, subject: str) -> Admission:
    """Judge whatever else may stand against a turn of the tenant's own session."""
    session, tenant, row = fresh.session, fresh.tenant, None
    if not fresh.claimed:
        if fresh.request_id:
            earlier = turn_by_request(connection, session, fresh.request_id)
            if earlier is not None:
                ticket = note_outcome(connection, fresh, asked.key, earlier.turn, fresh.request_id)
                return Known(session=session, ticket=ticket)
        row = _find(connection, session)
    last, is_open = (row.turn, row.open_turn is not None) if row is not None else (0, False)
    if not (is_open and asked.steers):
        block = find_block(connection, tenant, subject, asked.agent, asked.model)
        if block is not None:
            return Blocked(session=session, says=block.describe())
    begun_at = begin(connection, tenant, session, asked.most) if asked.most and not is_open else None
    if isinstance(begun_at, OverLimit):
        return begun_at
    source = row if subject == session else _find(connection, subject)
    strangers = set[str]()  # the agents that are known, if this one is not among them
    own = row.agent if row is not None and row.turn else None
    is_known = asked.knows_agent or asked.agent == own
    if not is_known and connection.scalar(select(_A.name).where(_A.name == asked.agent)) is None:
        strangers = {*connection.scalars(select(_A.name)), *([own] if own else [])}
    return replace(
        fresh,
        last=last,
        is_open=is_open,
        notice="" if is_open else notice_of_behind(connection, session, last),
        is_stored=source is not None and source.turn > 0,
        strangers=tuple(sorted(strangers)),
        begun_at=begun_at,
    )


class _Row(NamedTuple):
    turn: int
    open_turn: int | None
    agent: str


def _find(connection: Connection, session: str) -> _Row | None:
    row = connection.execute(select(_S.turn, _S.open_turn, _S.agent).where(_S.session == session)).one_or_none()
    return None if row is None else _Row(*row)


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
