"""The delegates of a session, found by their own rows: each names its caller as long as it, or its tombstone, stands.

Their number has no bound, and no retention takes them away.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, select, true

from perdure.contracts.ids import delegates_stem
from perdure.store import schema
from perdure.store.session_lock import UNREADABLE, make_up

NAMES_AT_ONCE = 500
"""Callers in one statement."""

_S, _T, _X = schema.sessions.c, schema.turns.c, schema.tombstones.c


class Below(NamedTuple):
    """A session that works, or worked, for another one: a delegate, or a delegate of one.

    Attributes:
        open_turn: Number of its turn, if that is open.
        is_erased: Whether it was erased whole, and only its tombstone is left.
    """

    session: str
    open_turn: int | None
    is_erased: bool


def running_delegates(connection: Connection, session: str) -> tuple[str, ...]:
    """The sessions that a session has called and whose turns are open."""
    return tuple(each.session for each in _called(connection, [session]) if each.open_turn is not None)


def sessions_below(connection: Connection, session: str, *, of_earlier_turns: bool = False) -> tuple[Below, ...]:
    """The delegates of a session and theirs, the deepest first; also those that were erased.

    With ``of_earlier_turns`` without the delegates of its last turn.
    """
    _make_up_tree(connection, session)
    level = _called(connection, [session], _is_earlier(session) if of_earlier_turns else true())
    found = dict[str, Below]()
    while level:
        found.update((each.session, each) for each in level)
        level = [each for each in _called(connection, [each.session for each in level]) if each.session not in found]
    return tuple(reversed(found.values()))


def orphans(connection: Connection) -> Sequence[str]:
    """The sessions of delegates whose caller was erased, and whose turns have ended."""
    erased = select(_S.session).join(schema.tombstones, _X.session == _S.caller).where(_S.open_turn.is_(None))
    return connection.scalars(erased.order_by(_S.session)).all()


def _is_earlier(session: str) -> ColumnElement[bool]:
    """The condition for sessions that began before the last turn of this one."""
    last = select(_T.started_at).where(_T.session == session).order_by(_T.turn.desc()).limit(1)
    return _S.created_at < last.scalar_subquery()


def _called(connection: Connection, callers: Sequence[str], where: ColumnElement[bool] | None = None) -> list[Below]:
    """The sessions that these have called."""
    found: list[Below] = []
    for names in _slices(callers):
        _make_up(connection, names)
        called = select(_S.session, _S.open_turn).where(_S.caller.in_(names), true() if where is None else where)
        erased = select(_X.session, _X.finished_at).where(_X.caller.in_(names))
        standing = [Below(row.session, row.open_turn, is_erased=False) for row in connection.execute(called)]
        gone = [Below(row.session, None, is_erased=row.finished_at is not None) for row in connection.execute(erased)]
        found += [*standing, *gone]
    return found


def _make_up_tree(connection: Connection, session: str) -> None:
    """Record what an older release has written of all sessions that may be below this one, as their ids say."""
    stem = delegates_stem(session)
    behind = select(_S.session).where(schema.IS_BEHIND, _S.session.startswith(stem, autoescape=True))
    for names in _slices(connection.scalars(behind).all()):
        _make_up(connection, names)


def _make_up(connection: Connection, names: Sequence[str]) -> None:
    try:
        make_up(connection, names)
    except UNREADABLE:  # what cannot be read is erased all the same
        for name in names:
            with suppress(*UNREADABLE):
                make_up(connection, [name])


def _slices(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[place : place + NAMES_AT_ONCE] for place in range(0, len(names), NAMES_AT_ONCE))
