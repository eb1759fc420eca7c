"""The event log: written under the session's lock, read by its followers, and swept by retention.

Nothing of the store is decided by what the log says: facts stand in rows (see :mod:`perdure.store.record`), so that a
sweep takes nothing away but the log. Therefore only this module touches the table.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, Select, bindparam, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite

from perdure.contracts.events import AnyEvent, Envelope, NewEvent
from perdure.store import schema
from perdure.store.keys.sealing import Content
from perdure.store.rows import envelope

_E = schema.events.c
_OF_SESSION = _E.session == bindparam("session")
_ALL = select(schema.events).where(_OF_SESSION).order_by(_E.seq)
_AFTER = _ALL.where(_E.seq > bindparam("after")).limit(bindparam("most"))
_BY_KEY = _ALL.where(_E.key.in_(bindparam("keys", expanding=True)))
_OF_INPUT = _ALL.where(
    _E.turn.in_(bindparam("turns", expanding=True)), _E.type.in_(("user_input_required", "user_input_received"))
)
_OF_DELEGATES = _ALL.where(_E.type.in_(("delegate_start", "delegate_end")), _E.seq <= bindparam("last"))
_RETRIES = _ALL.where(_E.turn == bindparam("turn"), _E.step == bindparam("step"), schema.IS_RETRY)
_BEHIND = (
    select(schema.events)
    .where(
        _E.session.in_(bindparam("names", expanding=True)),
        _E.seq > bindparam("after"),
        _E.type.in_(bindparam("types", expanding=True)),
    )
    .order_by(_E.session, _E.seq)
)
_KEYS = select(_E.key).where(_OF_SESSION, _E.key.in_(bindparam("keys", expanding=True)))

_INSERT = {
    name: statement.on_conflict_do_nothing(index_elements=[_E.session, _E.key]).execution_options(
        preserve_rowcount=True
    )
    for name, statement in (("sqlite", sqlite.insert(schema.events)), ("postgresql", postgresql.insert(schema.events)))
}
_TAKE_BACK = delete(schema.events).where(_E.session == bindparam("this_session"), _E.seq > bindparam("after"))


class Line(NamedTuple):
    """An event with its place in the log."""

    seq: int
    turn: int
    step: int
    at: datetime
    key: str
    event: AnyEvent


def write(connection: Connection, session: str, last: int, now: datetime, events: Sequence[NewEvent]) -> list[Line]:
    """Number and insert the events behind the number ``last``, without those whose keys are there already."""
    lines = _number(events, last, now)
    if not _insert(connection, session, lines):  # some exist already, which is rare: number the others anew
        connection.execute(_TAKE_BACK, {"this_session": session, "after": last})
        known = {"session": session, "keys": [event.key for event in events]}
        stored = set(connection.scalars(_KEYS, known))
        lines = _number([event for event in events if event.key not in stored], last, now)
        _insert(connection, session, lines)
    return lines


def _number(events: Sequence[NewEvent], last: int, now: datetime) -> list[Line]:
    return [
        Line(seq, event.turn, event.step, now, event.key, event.event) for seq, event in enumerate(events, last + 1)
    ]


def _insert(connection: Connection, session: str, lines: Sequence[Line]) -> bool:
    """Insert events. False if some existed: those are left out, and leave a gap in the numbers."""
    rows = [
        {
            "session": session,
            "seq": line.seq,
            "turn": line.turn,
            "step": line.step,
            "type": line.event.type,
            "at": line.at,
            "key": line.key,
            "body": Content(session, line.event.model_dump_json()),
        }
        for line in lines
    ]
    return not rows or connection.execute(_INSERT[connection.dialect.name], rows).rowcount == len(rows)


def events(connection: Connection, session: str, *, after: int = 0, limit: int = 500) -> tuple[Envelope, ...]:
    """Events after a sequence number, in order; none for a session that does not exist."""
    return tuple(map(envelope, connection.execute(_AFTER, {"session": session, "after": after, "most": limit})))


def events_by_key(connection: Connection, session: str, keys: Sequence[str]) -> tuple[Envelope, ...]:
    """The events with these keys, as far as they exist, in order."""
    return tuple(map(envelope, connection.execute(_BY_KEY, {"session": session, "keys": list(keys)})))


def input_events(connection: Connection, session: str, turn: int) -> tuple[Envelope, ...]:
    """The events of a turn and the one before it about input requests and decisions, in order."""
    return tuple(map(envelope, connection.execute(_OF_INPUT, {"session": session, "turns": [turn - 1, turn]})))


def delegate_events(connection: Connection, session: str, *, last: int) -> tuple[Envelope, ...]:
    """The events about starts and ends of a session's delegates, in order, up to the sequence number ``last``."""
    return tuple(map(envelope, connection.execute(_OF_DELEGATES, {"session": session, "last": last})))


def retries(connection: Connection, session: str, turn: int, step: int) -> tuple[Envelope, ...]:
    """The retries of a generation of the open turn, in order: for a further attempt of its activity."""
    return tuple(map(envelope, connection.execute(_RETRIES, {"session": session, "turn": turn, "step": step})))


def read_behind(connection: Connection, after: Mapping[str, int], types: Collection[str]) -> Iterator[tuple[str, Line]]:
    """The events of these types of sessions, each after a number, in order."""
    whole = [session for session, seq in after.items() if seq == 0]
    for names, seq in ((whole, 0), *(([session], seq) for session, seq in after.items() if seq > 0)):
        for row in connection.execute(_BEHIND, {"names": names, "after": seq, "types": list(types)}):
            yield row.session, Line(row.seq, row.turn, row.step, row.at, row.key, envelope(row).event)


def count(connection: Connection, session: str, turns: Select[int]) -> int:
    """The number of events of these turns."""
    counted = select(func.count()).where(_E.session == session, _E.turn.in_(turns))
    return connection.scalars(counted).one()


def sweep(connection: Connection, session: str, turns: Select[int]) -> int:
    """Delete the events of these turns, and note for their followers how far; returns how many."""
    swept = (_E.session == session, _E.turn.in_(turns))
    last = connection.scalar(select(func.max(_E.seq)).where(*swept))
    if last is None:
        return 0
    deleted = connection.execute(delete(schema.events).where(*swept)).rowcount
    noted = schema.sessions.update().where(schema.sessions.c.session == session)
    connection.execute(noted.values(swept_seq=last))
    return deleted


def swept_seq(connection: Connection, session: str) -> int:
    """Sequence number of the last event that a sweep has deleted; 0 if none was."""
    swept = select(schema.sessions.c.swept_seq).where(schema.sessions.c.session == session)
    return connection.scalar(swept) or 0
