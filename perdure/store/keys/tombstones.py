"""Tombstones: what is left of an erased session: when and by whom it was erased, and a hash of its rows."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

from sqlalchemy import Connection, Row, bindparam, select

from perdure.contracts.values import Value
from perdure.store import schema
from perdure.store.errors import NotFoundError, SessionErasedError

_T = schema.tombstones
_FIND = select(_T).where(_T.c.session == bindparam("session"))

_called = select(_T.c.session).where(_T.c.caller == bindparam("session")).cte("below", recursive=True)
_below = _called.union(select(_T.c.session).where(_T.c.caller == _called.c.session))
_BELOW = select(_below.c.session).order_by(_below.c.session)

Why = Literal["request", "retention"]
"""Reason a session was erased: somebody asked for it, or its agent's retention was over."""


class Tombstone(Value):
    """The proof of an erasure. The session's id cannot be used again.

    Attributes:
        id: The tombstone's own id, to be quoted.
        erased_by: Who asked for the erasure, as far as that is known.
        erased_at: When the session's key and row were deleted: nobody can read the session from then on.
        finished_at: When the last row was deleted; None while the erasure is not complete. An interrupted one goes on
            when it is requested again.
        counts: Number of deleted rows by table, and ``kept_steps``, the steps that are kept for forks.
        caller: The session that called this one, if it was a delegate's.
        delegates: The sessions of its delegates, and of theirs, that were erased too.
        digest: SHA-256 over the deleted rows in hexadecimal, as a chain: each row is hashed after the hash of the rows
            before it. An earlier copy of the database gives the same digest.
    """

    id: str
    session: str
    tenant: str
    agent: str
    erased_by: str
    reason: Why
    erased_at: datetime
    finished_at: datetime | None
    digest: str
    counts: Mapping[str, int]
    caller: str | None = None
    delegates: tuple[str, ...] = ()


def find_tombstone(connection: Connection, session: str) -> Tombstone | None:
    """The tombstone of a session, if it was erased."""
    row = connection.execute(_FIND, {"session": session}).one_or_none()
    return None if row is None else _tombstone(connection, row)


def tombstone(connection: Connection, session: str) -> Tombstone:
    """The tombstone of a session.

    Raises:
        NotFoundError: The session was not erased, or never existed.
    """
    found = find_tombstone(connection, session)
    if found is None:
        msg = f"no session {session!r} was erased"
        raise NotFoundError(msg)
    return found


def tombstones(
    connection: Connection, *, tenant: str | None = None, limit: int = 50, before: datetime | None = None
) -> Sequence[Tombstone]:
    """Tombstones, the latest first: all, or those of a tenant, or from before a time."""
    statement = select(_T).order_by(_T.c.erased_at.desc(), _T.c.session).limit(limit)
    if tenant is not None:
        statement = statement.where(_T.c.tenant == tenant)
    if before is not None:
        statement = statement.where(_T.c.erased_at < before)
    return tuple(_tombstone(connection, row) for row in connection.execute(statement).all())


def unfinished(connection: Connection) -> Sequence[str]:
    """The sessions whose erasure was interrupted."""
    return connection.scalars(select(_T.c.session).where(_T.c.finished_at.is_(None)).order_by(_T.c.erased_at)).all()


def _tombstone(connection: Connection, row: Row[*tuple[object, ...]]) -> Tombstone:
    """A tombstone from its row."""
    fields = {name: getattr(row, name) for name in Tombstone.model_fields if name != "delegates"}
    below = tuple(connection.scalars(_BELOW, {"session": row.session}))
    return Tombstone.model_validate({**fields, "counts": json.loads(row.counts), "delegates": below})


def refuse_erased(connection: Connection, session: str) -> None:
    """Refuse the id of an erased session.

    Raises:
        SessionErasedError: A session with this id was erased.
    """
    found = find_tombstone(connection, session)
    if found is not None:
        raise SessionErasedError(describe_erased(found))


def missing_session(connection: Connection, session: str) -> NotFoundError:
    """The error for a session that does not exist: it was erased, or never began."""
    found = find_tombstone(connection, session)
    if found is not None:
        return SessionErasedError(describe_erased(found))
    return NotFoundError(f"there is no session {session!r}")


def describe_erased(found: Tombstone) -> str:
    """A sentence for people about the erasure."""
    by = f" by {found.erased_by}" if found.erased_by else ""
    why = "at the end of its retention" if found.reason == "retention" else f"on request{by}"
    when = found.erased_at.strftime("%Y-%m-%d %H:%M UTC")
    return (
        f"session {found.session!r} was erased {why} on {when} (tombstone {found.id}); its id is not given again, so "
        "choose another"
    )
