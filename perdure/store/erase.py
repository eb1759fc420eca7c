"""The erasure of a session, in slices: each is a transaction, and an erasure that was cut off goes on when asked again.

A fork stands on steps of the session that it was made from. Those stay, with the artifacts of their turns, under a name
that no session can have, so that nobody finds them by the session's id.
"""

import uuid

from sqlalchemy import ColumnElement, Connection, Table, delete, select, update

from perdure.contracts.values import Value
from perdure.store import schema
from perdure.store.errors import NotFoundError, SessionRunsError
from perdure.store.session_lock import LockedSession

SLICE = 500
"""Rows that one transaction deletes."""

_S = schema.steps


class Erasure(Value):
    """What is to be erased: what a session had when somebody asked. What begins meanwhile stays.

    Attributes:
        turn: The session's last turn.
        last_seq: The number of its last event.
        kept: Steps that forks stand on, which stay.
    """

    session: str
    turn: int
    last_seq: int
    kept: int = 0


def begin_erasure(connection: Connection, session: str, *, closed: int | None = None) -> Erasure:
    """Look what is to be erased, and put what forks need out of the way.

    Args:
        connection: The transaction.
        session: The session.
        closed: An open turn that Temporal has ended, and that does not forbid the erasure.

    Raises:
        NotFoundError: There is no such session.
        SessionRunsError: A turn of it is open.
    """
    locked = LockedSession.find(connection, session)
    if locked is None:
        msg = f"there is no session {session!r}"
        raise NotFoundError(msg)
    if locked.open_turn not in {None, closed}:
        msg = f"turn {locked.open_turn} of session {session!r} runs; 'perdure cancel {session}' ends it"
        raise SessionRunsError(msg)
    return Erasure(session=session, turn=locked.turn, last_seq=locked.last_seq, kept=_keep_shared(connection, session))


def _keep_shared(connection: Connection, session: str) -> int:
    """Rename the steps that other sessions' first steps lead back to, and the artifacts of their turns."""
    first = schema.steps.alias("first")
    begins = select(_S.c.id).join(first, (first.c.parent == _S.c.id) & (first.c.session != _S.c.session))
    roots = select(_S.c.id, _S.c.parent).where(
        _S.c.session == session, _S.c.id.in_(begins.where(_S.c.session == session, schema.IS_FIRST))
    )
    chain = roots.cte("chain", recursive=True)
    chain = chain.union(select(_S.c.id, _S.c.parent).where(_S.c.id == chain.c.parent, _S.c.session == session))
    kept = connection.execute(select(_S.c.id, _S.c.turn).where(_S.c.id.in_(select(chain.c.id)))).all()
    if not kept:
        return 0
    name, turns = f"{session}#{uuid.uuid4().hex[:8]}", {0, *(row.turn for row in kept)}
    connection.execute(update(_S).where(_S.c.id.in_(select(chain.c.id))).values(session=name))
    artifacts = schema.artifacts
    of_kept = (artifacts.c.session == session, artifacts.c.turn.in_(turns))
    connection.execute(update(artifacts).where(*of_kept).values(session=name))
    return len(kept)


def erase_slice(connection: Connection, erasure: Erasure) -> bool:
    """Delete the next rows; False once nothing is left, and the session is gone."""
    upto = erasure.turn
    parts: tuple[tuple[Table, str, ColumnElement[bool]], ...] = (
        (schema.events, "seq", schema.events.c.seq <= erasure.last_seq),
        (schema.tool_calls, "call_id", schema.tool_calls.c.turn <= upto),
        (schema.steps, "id", schema.steps.c.turn <= upto),
        (schema.artifacts, "id", schema.artifacts.c.turn <= upto),
        (schema.turns, "turn", schema.turns.c.turn <= upto),
    )
    for table, key, condition in parts:
        mine = (table.c.session == erasure.session, condition)
        some = select(table.c[key]).where(*mine).limit(SLICE)
        if connection.execute(delete(table).where(*mine, table.c[key].in_(some))).rowcount:
            return True
    for table in (schema.requests, schema.watches, schema.webhooks):
        connection.execute(delete(table).where(table.c.session == erasure.session))
    sessions = schema.sessions
    connection.execute(delete(sessions).where(sessions.c.session == erasure.session, sessions.c.turn <= upto))
    return False
