"""The erasure of a session: one transaction deletes its key and leaves a tombstone, others delete the rows in slices.

After the first transaction nobody can read the session, nothing is written for it, and no session gets its id again. An
interrupted erasure goes on when it is requested again.

A fork reads steps of the session that it was made from. Those are kept with the artifacts of their turns, under a name
that no session can have, so that they are not found by the session's id. They are sealed anew with a key of that name.
"""

import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from sqlalchemy import (
    Connection,
    Row,
    Select,
    Table,
    Text,
    bindparam,
    delete,
    insert,
    select,
    tuple_,
    type_coerce,
    update,
)

from perdure.contracts.values import Value
from perdure.store import schema
from perdure.store.database import mark_wiped
from perdure.store.errors import SessionErasedError, SessionRunsError
from perdure.store.keys.sealing import Content, SealedText
from perdure.store.keys.tombstones import Tombstone, Why, describe_erased, find_tombstone, missing_session, tombstone
from perdure.store.session_lock import LockedSession

SLICE = 500
"""Rows that one transaction deletes at most."""

KEPT = "#"
"""Marks the name under which an erased session's steps are kept for forks; no session id has this character."""

_S = schema.steps
_T = schema.tombstones

_SLICED: tuple[tuple[Table, tuple[str, ...]], ...] = (
    (schema.events, ("seq",)),
    (schema.tool_calls, ("turn", "call_id")),
    (schema.todos, ("turn", "step")),
    (schema.feedback, ("turn", "seq")),
    (schema.input_requests, ("turn", "request_id")),
    (schema.failed_generations, ("turn", "seq")),
    (schema.adaptations, ("seq",)),
    (schema.steps, ("id",)),
    (schema.artifacts, ("id",)),
)
"""The tables whose rows are deleted in slices, and the order in which the digest takes them."""

_ABOUT = (
    schema.requests,
    schema.watches,
    schema.webhooks,
    schema.session_keys,
    schema.queued_turns,
    schema.standing_approvals,
)
"""Tables with rows about a session that the tombstone does not count."""


class Erasure(Value):
    """An erasure that has begun: nobody can read the session any more.

    Attributes:
        turn: The session's last turn.
        kept: Number of steps that are kept for forks.
        moved: New locations of the files that are kept for forks.
    """

    session: str
    turn: int
    kept: int = 0
    moved: tuple[str, ...] = ()


MoveFile = Callable[[str, str, str], str]
"""Writes an artifact's file anew, given its location, the new name to seal it for, and its id; returns its location."""


def begin_erasure(
    connection: Connection,
    session: str,
    *,
    closed: int | None = None,
    by: str = "",
    reason: Why = "request",
    move_file: MoveFile | None = None,
) -> Erasure:
    """Delete the session's key and row, leave a tombstone, and rename what forks need.

    Args:
        connection: The transaction.
        session: The session.
        closed: Number of an open turn whose workflow Temporal has ended: it does not forbid the erasure.
        by: Who asks for the erasure.
        reason: Why the session is erased.
        move_file: Moves artifacts outside of the database, if there are any.

    Raises:
        NotFoundError: There is no such session.
        SessionErasedError: The session was erased completely before.
        SessionRunsError: A turn of the session is open.
    """
    locked = LockedSession.find(connection, session, reads=False)
    if locked is None:
        return _go_on(connection, session)
    if locked.open_turn not in {None, closed}:
        msg = f"turn {locked.open_turn} of session {session!r} runs; 'perdure cancel {session}' ends it"
        raise SessionRunsError(msg)
    kept, moved = _keep_shared(connection, session, move_file)
    counts = {"kept_steps": kept, "last_turn": locked.turn}
    row = {
        "session": session,
        "id": uuid.uuid4().hex,
        "tenant": locked.tenant,
        "agent": locked.agent,
        "erased_by": by,
        "reason": reason,
        "digest": "",
        "counts": json.dumps(counts),
        "erased_at": locked.now,
        "caller": locked.caller,
    }
    connection.execute(insert(_T), row)
    _note_deleted(
        connection, tombstone(connection, session), schema.turns, _raw_rows(connection, schema.turns, session)
    )
    for table in (schema.turns, *_ABOUT, schema.sessions):
        connection.execute(delete(table).where(table.c.session == session))
    mark_wiped(connection)
    return Erasure(session=session, turn=locked.turn, kept=kept, moved=moved)


def _go_on(connection: Connection, session: str) -> Erasure:
    """Resume the erasure that was interrupted."""
    found = find_tombstone(connection, session)
    if found is None:
        raise missing_session(connection, session)
    if found.finished_at is not None:
        raise SessionErasedError(describe_erased(found))
    return Erasure(session=session, turn=found.counts["last_turn"], kept=found.counts["kept_steps"])


def _keep_shared(connection: Connection, session: str, move_file: MoveFile | None) -> tuple[int, tuple[str, ...]]:
    """Rename the steps that forks read, and the artifacts of their turns; their number, and the new files."""
    first = schema.steps.alias("first")
    begins = select(_S.c.id).join(first, (first.c.parent == _S.c.id) & (first.c.session != _S.c.session))
    roots = select(_S.c.id, _S.c.parent).where(
        _S.c.session == session, _S.c.id.in_(begins.where(_S.c.session == session, schema.IS_FIRST))
    )
    chain = roots.cte("chain", recursive=True)
    chain = chain.union(select(_S.c.id, _S.c.parent).where(_S.c.id == chain.c.parent, _S.c.session == session))
    columns = (_S.c.id, _S.c.turn, _S.c.messages, _S.c.calls)
    kept = connection.execute(select(*columns).where(_S.c.id.in_(select(chain.c.id)))).all()
    if not kept:
        return 0, ()
    name, turns = f"{session}{KEPT}{uuid.uuid4().hex[:8]}", {0, *(row.turn for row in kept)}
    renamed = update(_S).where(_S.c.id == bindparam("this_id"))
    steps = [{"this_id": row.id, **_sealed_anew(name, messages=row.messages, calls=row.calls)} for row in kept]
    connection.execute(renamed, steps)
    artifacts = schema.artifacts
    found = connection.execute(
        select(artifacts.c.id, artifacts.c.text, artifacts.c.location).where(
            artifacts.c.session == session, artifacts.c.turn.in_(turns)
        )
    ).all()
    if found:
        values = [
            {
                "this_id": row.id,
                "location": move_file(row.location, name, row.id) if row.location and move_file else row.location,
                **_sealed_anew(name, text=row.text),
            }
            for row in found
        ]
        connection.execute(update(artifacts).where(artifacts.c.id == bindparam("this_id")), values)
    return len(kept), tuple(row.location for row in found if row.location)


def _sealed_anew(name: str, **texts: str) -> dict[str, object]:
    return {"session": name, **{column: Content(name, text) for column, text in texts.items()}}


def erase_slice(connection: Connection, erasure: Erasure) -> bool:
    """Delete the next rows; False once nothing is left and the tombstone is finished."""
    locked = select(_T.c.session).where(_T.c.session == erasure.session).with_for_update()
    connection.execute(locked).one()
    stone = tombstone(connection, erasure.session)
    for table, key in _SLICED:
        rows = _raw_rows(connection, table, erasure.session, SLICE)
        if rows:
            _note_deleted(connection, stone, table, rows)
            columns = [table.c[name] for name in key]
            keys = [tuple(getattr(row, name) for name in key) for row in rows]
            mine = columns[0].in_([first for (first,) in keys]) if len(key) == 1 else tuple_(*columns).in_(keys)
            connection.execute(delete(table).where(table.c.session == erasure.session, mine))
            return True
    # Rows that a claim or a message added while the erasure began.
    for table in _ABOUT:
        connection.execute(delete(table).where(table.c.session == erasure.session))
    finished = update(_T).where(_T.c.session == erasure.session, _T.c.finished_at.is_(None))
    connection.execute(finished.values(finished_at=datetime.now(UTC)))
    mark_wiped(connection)
    return False


def digest_of(connection: Connection, session: str) -> str:
    """The digest that an erasure of a session without forks would leave, to compare a copy with a tombstone."""
    digest = ""
    for table in (schema.turns, *(table for table, _ in _SLICED)):
        for row in _raw_rows(connection, table, session):
            digest = _hash_behind(digest, table, row)
    return digest


def _raw_rows(
    connection: Connection, table: Table, session: str, most: int | None = None
) -> list[Row[*tuple[object, ...]]]:
    """The first rows of a session in the order of their keys, unopened: sealed columns stay sealed."""
    columns = [
        type_coerce(column, Text()).label(column.name) if isinstance(column.type, SealedText) else column
        for column in table.c
    ]
    mine: Select[*tuple[object, ...]] = (
        select(*columns).where(table.c.session == session).order_by(*table.primary_key.columns).limit(most)
    )
    return list(connection.execute(mine))


def _note_deleted(
    connection: Connection, stone: Tombstone, table: Table, rows: Iterable[Row[*tuple[object, ...]]]
) -> None:
    """Add rows that are about to be deleted to the tombstone's counts and digest."""
    digest, counts = stone.digest, Counter(stone.counts)
    for row in rows:
        digest = _hash_behind(digest, table, row)
        counts[table.name] += 1
    values = {"digest": digest, "counts": json.dumps(counts)}
    connection.execute(update(_T).where(_T.c.session == stone.session).values(values))


def _hash_behind(digest: str, table: Table, row: Row[*tuple[object, ...]]) -> str:
    values: tuple[object, ...] = tuple(row)
    text = json.dumps([table.name, *(None if value is None else str(value) for value in values)])
    return hashlib.sha256(f"{digest}{text}".encode()).hexdigest()
