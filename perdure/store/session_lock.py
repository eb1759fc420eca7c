"""The lock on a session's row, under which everything of the session is written, and the numbering of its events.

What belongs to no row, as the limit of a tenant, is locked by a name.
"""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Self

from sqlalchemy import Connection, bindparam, delete, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from perdure.contracts.events import Envelope, NewEvent
from perdure.store import schema
from perdure.store.errors import NotFoundError, TurnEndedError
from perdure.store.keys.sealing import Content
from perdure.store.keys.tombstones import missing_session, refuse_erased
from perdure.store.records import Written
from perdure.store.schema import envelope, insert_into
from perdure.store.standing_approvals import keep_standing

_MUTABLE = ("tenant", "agent", "turn", "open_turn", "head", "tip", "last_seq")

_LOCK = (
    select(*(schema.sessions.c[name] for name in _MUTABLE))
    .where(schema.sessions.c.session == bindparam("session"))
    .with_for_update()
)
_LOCK_WATCHED = (
    select(
        *(schema.sessions.c[name] for name in _MUTABLE),
        select(schema.watches.c.until).where(schema.watches.c.session == schema.sessions.c.session).scalar_subquery(),
    )
    .where(schema.sessions.c.session == bindparam("session"))
    .with_for_update(of=schema.sessions)
)
"""The same, which also reads whether somebody follows the session's deltas, without a further round trip."""
_SAVE = update(schema.sessions).where(schema.sessions.c.session == bindparam("this_session"))
_STORED_KEYS = select(schema.events.c.key).where(
    schema.events.c.session == bindparam("session"), schema.events.c.key.in_(bindparam("keys", expanding=True))
)
_KEY = [schema.events.c.session, schema.events.c.key]
_INSERT_NEW = {
    name: statement.on_conflict_do_nothing(index_elements=_KEY).execution_options(preserve_rowcount=True)
    for name, statement in (("sqlite", sqlite.insert(schema.events)), ("postgresql", postgresql.insert(schema.events)))
}
_TAKE_BACK = delete(schema.events).where(
    schema.events.c.session == bindparam("this_session"), schema.events.c.seq > bindparam("after")
)

WRITTEN = "perdure_written"
"""Key in the connection's ``info`` under which a transaction collects the events that it writes."""

LAST_SEQS = "perdure_last_seqs"
"""Key under which it collects the sequence numbers of the last of them, by session."""

_RETRIES = (
    select(schema.events)
    .where(
        schema.events.c.session == bindparam("session"),
        schema.events.c.turn == bindparam("turn"),
        schema.events.c.step == bindparam("step"),
        schema.IS_RETRY,
    )
    .order_by(schema.events.c.seq)
)

_ADAPTATIONS = (
    select(schema.events)
    .where(schema.events.c.session == bindparam("session"), schema.IS_ADAPTED)
    .order_by(schema.events.c.seq)
)


def new_session(session: str, agent: str, tenant: str) -> Mapping[str, object]:
    """The row of a session before its first turn."""
    now = datetime.now(UTC)
    about = {"session": session, "tenant": tenant, "agent": agent, "turn": 0, "last_seq": 0}
    return {**about, "created_at": now, "updated_at": now}


def take_turns(connection: Connection, name: str) -> None:
    """Wait for the transactions that took this name before, and let no other one go on before this one ends.

    SQLite has one writer anyway.
    """
    if connection.dialect.name != "sqlite":
        digest = hashlib.sha256(name.encode()).digest()
        connection.execute(select(func.pg_advisory_xact_lock(int.from_bytes(digest[:8], signed=True))))


class LockedSession:
    """A session's row, held until the transaction ends: one writer at a time, so the sequence has no gaps.

    Changes and events are collected and written once, by ``save``.
    """

    def __init__(self, connection: Connection, session: str, values: Sequence[object]) -> None:
        """Take the row's values, in the order of ``_MUTABLE``."""
        self.connection = connection
        self.session = session
        self.tenant: str
        self.agent: str
        self.turn: int
        self.open_turn: int | None
        self.head: str | None
        self.tip: str | None
        self.last_seq: int
        for name, value in zip(_MUTABLE, values, strict=True):
            setattr(self, name, value)
        # Taken under the lock, so that times increase with sequence numbers.
        self.now = datetime.now(UTC)
        self.is_watched = False
        self._read = tuple(values)
        self._agent_before = self.agent
        self._events: dict[str, NewEvent] = {}

    @classmethod
    def find(cls, connection: Connection, session: str, *, looks_for_watchers: bool = False) -> Self | None:
        """Wait for the session's lock; None if there is no such session."""
        row = connection.execute(_LOCK_WATCHED if looks_for_watchers else _LOCK, {"session": session}).one_or_none()
        if row is None:
            return None
        locked = cls(connection, session, tuple(row)[: len(_MUTABLE)])
        locked.is_watched = looks_for_watchers and row[-1] is not None and row[-1] > locked.now
        return locked

    @classmethod
    def create(cls, connection: Connection, session: str, agent: str, tenant: str) -> Self:
        """Lock a session's row, and insert it first if the session is new.

        Raises:
            SessionErasedError: A session with this id was erased.
        """
        statement = insert_into(connection, schema.sessions).on_conflict_do_nothing()
        returning = statement.returning(*(schema.sessions.c[name] for name in _MUTABLE))
        row = connection.execute(returning, new_session(session, agent, tenant)).one_or_none()
        # No row: somebody else has inserted the session meanwhile.
        locked = cls.find(connection, session) if row is None else cls(connection, session, tuple(row))
        if locked is None:
            raise missing_session(connection, session)
        refuse_erased(connection, session)
        return locked

    @classmethod
    def lock_for_turn(
        cls, connection: Connection, session: str, turn: int, *, looks_for_watchers: bool = False
    ) -> Self:
        """Lock a session to write for its open turn; with ``looks_for_watchers`` also see whether somebody follows.

        Raises:
            NotFoundError: There is no such session or turn.
            TurnEndedError: The turn has ended.
        """
        locked = cls.find(connection, session, looks_for_watchers=looks_for_watchers)
        if locked is None:
            raise missing_session(connection, session)
        locked.require_open(turn)
        return locked

    def require_open(self, turn: int) -> None:
        """Refuse to write for a turn other than the open one."""
        if turn == self.open_turn:
            return
        if turn > self.turn:
            msg = f"session {self.session!r} has no turn {turn} yet, its last one is {self.turn}"
            raise NotFoundError(msg)
        msg = f"turn {turn} of session {self.session!r} has ended, nothing may be written for it any more"
        raise TurnEndedError(msg)

    def has_event(self, key: str) -> bool:
        """Whether the log has an event with this key."""
        return self.connection.scalar(_STORED_KEYS, {"session": self.session, "keys": [key]}) is not None

    def count_events(self, prefix: str) -> int:
        """The number of events whose keys begin with a prefix."""
        key = schema.events.c.key
        begins = select(func.count()).where(
            schema.events.c.session == self.session, func.substr(key, 1, len(prefix)) == prefix
        )
        return self.connection.scalars(begins).one()

    def append(self, *events: NewEvent) -> None:
        """Collect events for ``save``. Of several with one key the first counts."""
        for event in events:
            self._events.setdefault(event.key, event)

    def save(self) -> None:
        """Number and write the new events, and write the row if it has changed."""
        events = list(self._events.values())
        if events and not self._insert_new(events):  # some exist already, which is rare: number the others anew
            after = {"this_session": self.session, "after": self.last_seq}
            self.connection.execute(_TAKE_BACK, after)
            keys = {"session": self.session, "keys": list(self._events)}
            stored = set(self.connection.scalars(_STORED_KEYS, keys))
            events = [event for event in events if event.key not in stored]
            self._insert_new(events)
        self.last_seq += len(events)
        for event in events:
            # A turn that is closed when the next one opens may have had another agent.
            agent = self.agent if event.turn == self.turn else self._agent_before
            keep_standing(self.connection, self.session, agent, event.event)
            written = Written(self.session, agent, self.tenant, event.event)
            self.connection.info.setdefault(WRITTEN, []).append(written)
        if events:
            self.connection.info.setdefault(LAST_SEQS, {})[self.session] = self.last_seq
        values = tuple(getattr(self, name) for name in _MUTABLE)
        if values != self._read:
            changed = {**dict(zip(_MUTABLE, values, strict=True)), "updated_at": self.now}
            if self.open_turn is not None:
                changed["begun_at"] = None
            self.connection.execute(_SAVE, {"this_session": self.session, **changed})

    def _insert_new(self, events: Sequence[NewEvent]) -> bool:
        """Insert events. False if some existed: those are left out, and leave a gap in the numbers."""
        rows = [
            {
                "session": self.session,
                "seq": seq,
                "turn": event.turn,
                "step": event.step,
                "type": event.event.type,
                "at": self.now,
                "key": event.key,
                "body": Content(self.session, event.event.model_dump_json()),
            }
            for seq, event in enumerate(events, start=self.last_seq + 1)
        ]
        statement = _INSERT_NEW[self.connection.dialect.name]
        return not rows or self.connection.execute(statement, rows).rowcount == len(rows)


def append_events(connection: Connection, session: str, events: Sequence[NewEvent]) -> None:
    """Write events of the open turn."""
    if not events:
        return
    locked = LockedSession.lock_for_turn(connection, session, events[0].turn)
    for turn in {event.turn for event in events}:
        locked.require_open(turn)
    locked.append(*events)
    locked.save()


def retries(connection: Connection, session: str, turn: int, step: int) -> tuple[Envelope, ...]:
    """The retries of one generation, in order."""
    rows = connection.execute(_RETRIES, {"session": session, "turn": turn, "step": step})
    return tuple(envelope(row) for row in rows)


def adaptations(connection: Connection, session: str) -> tuple[Envelope, ...]:
    """Events of what the providers of a session have refused so far, in order."""
    return tuple(envelope(row) for row in connection.execute(_ADAPTATIONS, {"session": session}))
