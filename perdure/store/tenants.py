"""Tenants of sessions, and requests by Idempotency-Key: for gateways with several tenants, in any number of processes.

A gateway claims a session before it starts the first turn. A claim is the session's row at turn 0: readers do not see
it, and the turn that opens the session fills it in.
"""

from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, bindparam, delete, func, or_, select, update

from perdure.contracts.values import Value
from perdure.store import schema
from perdure.store.keys.sealing import Content
from perdure.store.keys.tombstones import refuse_erased
from perdure.store.rows import insert_into
from perdure.store.session_lock import new_session
from perdure.store.tries import Try

UNOPENED = timedelta(hours=1)
"""Time that a session counts as running although no worker has opened the turn that was begun in it."""

_S, _R = schema.sessions.c, schema.requests.c
_TENANT = select(_S.tenant).where(_S.session == bindparam("session"))
_RELEASE = delete(schema.sessions).where(
    _S.session == bindparam("session"), _S.tenant == bindparam("tenant"), _S.turn == 0
)
_REQUEST = select(schema.requests).where(_R.tenant == bindparam("tenant"), _R.key == bindparam("key"))
_ANSWER = update(schema.requests).where(_R.tenant == bindparam("of"), _R.key == bindparam("by_key"))


class Claimed(Value):
    """The result of a claim.

    Attributes:
        tenant: The tenant that has the session, which may be another one.
        fresh: Whether this claim made the session.
    """

    tenant: str
    fresh: bool


class KnownRequest(Value):
    """The first request with an Idempotency-Key.

    Attributes:
        digest: Digest of the whole request.
        session: The session that the request is about.
        answer: JSON of the answer; None until it was answered.
    """

    digest: str
    session: str
    answer: str | None = None


def claim_session(connection: Connection, session: str, tenant: str, agent: str = "") -> Claimed:
    """Claim a session for a tenant, unless it has one. Of several claims at once, one succeeds.

    Raises:
        SessionErasedError: A session of that id was erased.
    """
    statement = insert_into(connection, schema.sessions).on_conflict_do_nothing().returning(_S.session)
    row = {**new_session(session, agent, tenant), "begun_at": datetime.now(UTC)}
    fresh = connection.execute(statement, row).one_or_none() is not None
    if fresh:
        refuse_erased(connection, session)
    return Claimed(tenant=str(connection.execute(_TENANT, {"session": session}).scalar_one()), fresh=fresh)


def release_session(connection: Connection, session: str, tenant: str) -> None:
    """Give up a claim. A session that a turn has opened stays."""
    connection.execute(_RELEASE, {"session": session, "tenant": tenant})


def tenant_of(connection: Connection, session: str) -> str | None:
    """The tenant of a session, also of one that is only claimed or queued; None if there is none of that id."""
    found = connection.execute(_TENANT, {"session": session}).scalar_one_or_none()
    if found is None:
        queued = schema.queued_turns.c
        found = connection.execute(select(queued.tenant).where(queued.session == session)).scalar_one_or_none()
    return None if found is None else str(found)


def count_running(connection: Connection, tenant: str, *, but: str = "") -> int:
    """Number of the tenant's sessions, without ``but``, whose turn is open or has begun and is not opened yet."""
    runs = or_(_S.open_turn.is_not(None), _S.begun_at > datetime.now(UTC) - UNOPENED)
    statement = select(func.count()).where(_S.tenant == tenant, _S.session != but, runs)
    return connection.execute(statement).scalar_one()


def note_begun(connection: Connection, session: str) -> datetime | None:
    """Count a session as running from now on; returns the time, or None if it counts already.

    It counts until a worker opens the turn, and for :data:`UNOPENED` at most.
    """
    now = datetime.now(UTC)
    is_idle = _S.open_turn.is_(None) & or_(_S.begun_at.is_(None), _S.begun_at <= now - UNOPENED)
    noted = update(schema.sessions).where(_S.session == session, is_idle).values(begun_at=now).returning(_S.session)
    return None if connection.execute(noted).one_or_none() is None else now


def forget_begun(connection: Connection, session: str, begun_at: datetime) -> None:
    """Count a session no longer, as the turn that was noted then could not begin."""
    noted = (_S.session == session) & (_S.begun_at == begun_at)
    connection.execute(update(schema.sessions).where(noted).values(begun_at=None))


def claim_request(
    connection: Connection, tenant: str, key: str, digest: str, session: str, one: Try | None = None
) -> KnownRequest:
    """Note a request under its key, unless the key has one; returns the request that the key has.

    With a try, retries find the request by what it says.
    """
    _insert_request(connection, tenant, key, digest, session, one)
    found = find_request(connection, tenant, key)
    assert found is not None, "it was just noted"  # noqa: S101 - narrows the type
    return found


def take_key(connection: Connection, tenant: str, key: str, session: str) -> bool:
    """Take a key for a request about a session; of several that take it, one succeeds."""
    return _insert_request(connection, tenant, key, "", session)


def _insert_request(
    connection: Connection, tenant: str, key: str, digest: str, session: str, one: Try | None = None
) -> bool:
    row: dict[str, object] = {
        "tenant": tenant,
        "key": key,
        "digest": digest,
        "session": session,
        "created_at": datetime.now(UTC),
    }
    if one is not None:
        row |= {"said": one.said, "tries": one.number or 0, "holder": one.holder}
    statement = insert_into(connection, schema.requests).on_conflict_do_nothing().returning(_R.key)
    return connection.execute(statement, row).one_or_none() is not None


def find_request(connection: Connection, tenant: str, key: str) -> KnownRequest | None:
    """The request that came with this key; None if none has."""
    found = connection.execute(_REQUEST, {"tenant": tenant, "key": key}).one_or_none()
    return None if found is None else KnownRequest(digest=found.digest, session=found.session, answer=found.answer)


def answer_request(connection: Connection, tenant: str, key: str, session: str, answer: str) -> None:
    """Note the answer of the request with this key, about this session."""
    connection.execute(_ANSWER, {"of": tenant, "by_key": key, "answer": Content(session, answer)})
