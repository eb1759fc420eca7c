"""Whose a session is, and which requests came before: what doors of several tenants need, in any number of processes.

A door claims a session before it starts its first turn. A claim is the session's row at turn 0: readers do not see it,
and the turn that opens the session fills it in.
"""

from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, bindparam, delete, func, or_, select, update

from perdure.contracts.values import Value
from perdure.store import schema
from perdure.store.schema import insert_into
from perdure.store.session_lock import new_session

UNOPENED = timedelta(hours=1)
"""How long a claimed session counts as running although no worker has opened its turn."""

_S, _R = schema.sessions.c, schema.requests.c
_TENANT = select(_S.tenant).where(_S.session == bindparam("session"))
_RELEASE = delete(schema.sessions).where(
    _S.session == bindparam("session"), _S.tenant == bindparam("tenant"), _S.turn == 0
)
_REQUEST = select(schema.requests).where(_R.tenant == bindparam("tenant"), _R.key == bindparam("key"))
_ANSWER = update(schema.requests).where(_R.tenant == bindparam("of"), _R.key == bindparam("by_key"))


class Claimed(Value):
    """A session that somebody wants to start.

    Attributes:
        tenant: Whose it is.
        fresh: Whether this claim made it.
    """

    tenant: str
    fresh: bool


class KnownRequest(Value):
    """A request by its key.

    Attributes:
        digest: Of all that was asked with the key at first.
        session: The session that it is about.
        answer: JSON of what it was answered with; None until it was.
    """

    digest: str
    session: str
    answer: str | None = None


def claim_session(connection: Connection, session: str, tenant: str, agent: str = "") -> Claimed:
    """Make the session the tenant's if it is nobody's; of several at once, one gets it."""
    statement = insert_into(connection, schema.sessions).on_conflict_do_nothing().returning(_S.session)
    fresh = connection.execute(statement, new_session(session, agent, tenant)).one_or_none() is not None
    return Claimed(tenant=str(connection.execute(_TENANT, {"session": session}).scalar_one()), fresh=fresh)


def release_session(connection: Connection, session: str, tenant: str) -> None:
    """Give up a claim; a session that a turn has opened stays."""
    connection.execute(_RELEASE, {"session": session, "tenant": tenant})


def tenant_of(connection: Connection, session: str) -> str | None:
    """The tenant of a session, also of one that is only claimed; None if there is none of that id."""
    found = connection.execute(_TENANT, {"session": session}).scalar_one_or_none()
    return None if found is None else str(found)


def count_running(connection: Connection, tenant: str) -> int:
    """How many sessions of the tenant have an open turn, or are about to."""
    fresh = (_S.turn == 0) & (_S.created_at > datetime.now(UTC) - UNOPENED)
    statement = select(func.count()).where(_S.tenant == tenant, or_(_S.open_turn.is_not(None), fresh))
    return connection.execute(statement).scalar_one()


def claim_request(connection: Connection, tenant: str, key: str, digest: str, session: str) -> KnownRequest:
    """Note what is asked with the key; what was noted first counts."""
    now = datetime.now(UTC)
    row = {"tenant": tenant, "key": key, "digest": digest, "session": session, "created_at": now}
    connection.execute(insert_into(connection, schema.requests).on_conflict_do_nothing(), row)
    found = connection.execute(_REQUEST, {"tenant": tenant, "key": key}).one()
    return KnownRequest(digest=found.digest, session=found.session, answer=found.answer)


def answer_request(connection: Connection, tenant: str, key: str, answer: str) -> None:
    """Note what the request with the key was answered with."""
    connection.execute(_ANSWER, {"of": tenant, "by_key": key, "answer": answer})
