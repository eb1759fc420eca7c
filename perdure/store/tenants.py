"""Tenants of sessions, and requests by Idempotency-Key: for gateways with several tenants, in any number of processes.

A gateway claims a session before it starts the first turn. A claim is the session's row at turn 0: readers do not see
it, and the turn that opens the session fills it in.
"""

from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, bindparam, delete, func, or_, select, update

from perdure.contracts.values import Value
from perdure.store import schema
from perdure.store.schema import insert_into
from perdure.store.sealing import Content
from perdure.store.session_lock import new_session
from perdure.store.tombstones import refuse_erased

UNOPENED = timedelta(hours=1)
"""Time that a claimed session counts as running although no worker has opened its turn."""

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
    fresh = connection.execute(statement, new_session(session, agent, tenant)).one_or_none() is not None
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


def count_running(connection: Connection, tenant: str) -> int:
    """Number of the tenant's sessions that have an open turn or were just claimed."""
    fresh = (_S.turn == 0) & (_S.created_at > datetime.now(UTC) - UNOPENED)
    statement = select(func.count()).where(_S.tenant == tenant, or_(_S.open_turn.is_not(None), fresh))
    return connection.execute(statement).scalar_one()


def claim_request(connection: Connection, tenant: str, key: str, digest: str, session: str) -> KnownRequest:
    """Note a request under its key, unless the key has one; returns the request that the key has."""
    now = datetime.now(UTC)
    row = {"tenant": tenant, "key": key, "digest": digest, "session": session, "created_at": now}
    connection.execute(insert_into(connection, schema.requests).on_conflict_do_nothing(), row)
    found = connection.execute(_REQUEST, {"tenant": tenant, "key": key}).one()
    return KnownRequest(digest=found.digest, session=found.session, answer=found.answer)


def answer_request(connection: Connection, tenant: str, key: str, session: str, answer: str) -> None:
    """Note the answer of the request with this key, about this session."""
    connection.execute(_ANSWER, {"of": tenant, "by_key": key, "answer": Content(session, answer)})
