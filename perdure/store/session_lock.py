"""The lock on a session's row, under which everything of the session is written, and the numbering of its events.

What belongs to no row, as the limit of a tenant, is locked by a name.
"""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Self

from sqlalchemy import Connection, bindparam, func, select, update

from perdure.contracts.events import HookEnd, NewEvent
from perdure.store import log, record, schema
from perdure.store.errors import NotFoundError, SessionErasedError, StoreKeyError, TurnEndedError
from perdure.store.keys.tombstones import missing_session, refuse_erased
from perdure.store.keys.vault import open_vault
from perdure.store.record import Behind
from perdure.store.records import Written
from perdure.store.rows import insert_into

_MUTABLE = (
    "tenant",
    "agent",
    "turn",
    "open_turn",
    "head",
    "tip",
    "last_seq",
    "recorded_seq",
    "hook_calls",
    "caller",
)

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
_LOCK_BEHIND = (
    select(schema.sessions)
    .where(schema.sessions.c.session.in_(bindparam("names", expanding=True)), schema.IS_BEHIND)
    .order_by(schema.sessions.c.session)
    .with_for_update()
)
_SAVE = update(schema.sessions).where(schema.sessions.c.session == bindparam("this_session"))

WRITTEN = "perdure_written"
"""Key in the connection's ``info`` under which a transaction collects the events that it writes."""

LAST_SEQS = "perdure_last_seqs"
"""Key under which it collects the sequence numbers of the last of them, by session."""


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
        self.recorded_seq: int | None
        self.hook_calls: int | None
        self.caller: str | None
        self._take(tuple(values))
        # Taken under the lock, so that times increase with sequence numbers.
        self.now = datetime.now(UTC)
        self.is_watched = False
        self._agent_before = self.agent
        self._events: dict[str, NewEvent] = {}

    @classmethod
    def find(
        cls, connection: Connection, session: str, *, looks_for_watchers: bool = False, reads: bool = True
    ) -> Self | None:
        """Wait for the session's lock; None if there is no such session.

        Without ``reads`` nothing of it has to be opened: its key may be gone.
        """
        row = connection.execute(_LOCK_WATCHED if looks_for_watchers else _LOCK, {"session": session}).one_or_none()
        if row is None:
            return None
        locked = cls(connection, session, tuple(row)[: len(_MUTABLE)])
        locked.is_watched = looks_for_watchers and row[-1] is not None and row[-1] > locked.now
        if reads and locked.last_seq > (locked.recorded_seq or 0):
            locked._make_up()
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

    def _make_up(self) -> None:
        """Record what an older release has written in events only."""
        after, hooks = self.recorded_seq or 0, self.hook_calls or 0
        record.make_up(self.connection, [Behind(self.session, self.agent, self.turn, self.last_seq, after, hooks)])
        self._take(tuple(self.connection.execute(_LOCK, {"session": self.session}).one()))

    def _take(self, values: tuple[object, ...]) -> None:
        for name, value in zip(_MUTABLE, values, strict=True):
            setattr(self, name, value)
        self._read = values

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

    def append(self, *events: NewEvent) -> None:
        """Collect events for ``save``. Of several with one key the first counts."""
        for event in events:
            self._events.setdefault(event.key, event)

    def save(self) -> None:
        """Number and write the new events, and write the row if it has changed."""
        lines = log.write(self.connection, self.session, self.last_seq, self.now, list(self._events.values()))
        self.last_seq += len(lines)
        self.recorded_seq = self.last_seq
        # A turn that is closed when the next one opens may have had another agent.
        told = [(self.agent if line.turn == self.turn else self._agent_before, line) for line in lines]
        record.keep(self.connection, self.session, told)
        for agent, line in told:
            written = Written(self.session, agent, self.tenant, self._events[line.key].event)
            self.connection.info.setdefault(WRITTEN, []).append(written)
        calls = sum(isinstance(line.event, HookEnd) and line.turn == self.turn for line in lines)
        self.hook_calls = (self.hook_calls or 0) + calls
        if lines:
            self.connection.info.setdefault(LAST_SEQS, {})[self.session] = self.last_seq
        values = tuple(getattr(self, name) for name in _MUTABLE)
        if values != self._read:
            changed = {**dict(zip(_MUTABLE, values, strict=True)), "updated_at": self.now}
            if self.open_turn is not None:
                changed["begun_at"] = None
            self.connection.execute(_SAVE, {"this_session": self.session, **changed})


UNREADABLE = (StoreKeyError, SessionErasedError)
"""Errors of :func:`make_up` if a session's key is not this process's, or was erased before a backup brought it back."""


def make_up(connection: Connection, sessions: Sequence[str]) -> None:
    """Record what an older release has written of these sessions in events only."""
    behind = [
        Behind(row.session, row.agent, row.turn, row.last_seq, row.recorded_seq or 0, row.hook_calls or 0)
        for row in connection.execute(_LOCK_BEHIND, {"names": list(sessions)})
    ]
    if behind:
        open_vault().load([each.session for each in behind])
        record.make_up(connection, behind)


def append_events(connection: Connection, session: str, events: Sequence[NewEvent]) -> None:
    """Write events of the open turn."""
    if not events:
        return
    locked = LockedSession.lock_for_turn(connection, session, events[0].turn)
    for turn in {event.turn for event in events}:
        locked.require_open(turn)
    locked.append(*events)
    locked.save()
