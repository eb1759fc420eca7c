"""Lists of turns, whichever sessions they are of: those of one agent, the latest change first."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, case, func, literal, or_, select

from perdure.contracts.ids import DELEGATED
from perdure.contracts.turns import StopReason
from perdure.store import schema
from perdure.store.queries import IS_WAITING

Place = tuple[datetime, str, int]
"""Place in the list: when the state of a turn changed, its session and its number."""


class TurnFilter(NamedTuple):
    """Filter of a list of turns; delegates' turns are in none.

    Attributes:
        agent: Only turns of this agent.
        tenant: Only of sessions of this tenant; empty is the default tenant, and None is any.
        session: Only of this session.
        ends: Only turns that ended for one of these reasons.
        waits: Only open turns that wait for a person, or only those that do not.
        since: Only turns whose state stands since this moment or a later one.
    """

    agent: str
    tenant: str | None = None
    session: str | None = None
    ends: Sequence[StopReason] = ()
    waits: bool | None = None
    since: datetime | None = None


class ListedTurn(NamedTuple):
    """A turn in a list.

    Attributes:
        changed_at: When it ended, or began if it is open.
        is_waiting: Whether it waits for a person.
    """

    session: str
    turn: int
    request_id: str
    changed_at: datetime
    stop_reason: StopReason | None
    reason_code: str | None
    is_waiting: bool

    @property
    def place(self) -> Place:
        """Its place in the list."""
        return self.changed_at, self.session, self.turn


class TurnList(NamedTuple):
    """A part of a list of turns, and how many the whole list has."""

    turns: Sequence[ListedTurn]
    total: int


_T, _S = schema.turns.c, schema.sessions.c
_CHANGED: ColumnElement[datetime] = func.coalesce(_T.ended_at, _T.started_at, type_=_T.started_at.type)
_IS_OPEN = (_S.open_turn == _T.turn) & _T.ended_at.is_(None)


def list_turns(connection: Connection, wanted: TurnFilter, limit: int, before: Place | None = None) -> TurnList:
    """The turns of a filter that stand behind the place, at most so many."""
    waits = case((_IS_OPEN, IS_WAITING), else_=literal(value=False))
    clauses = [_T.agent == wanted.agent, _T.request_id.not_like(f"{DELEGATED}%")]
    if wanted.tenant is not None:
        clauses.append(_S.tenant == wanted.tenant)
    if wanted.session is not None:
        clauses.append(_T.session == wanted.session)
    if wanted.ends:
        clauses.append(_T.stop_reason.in_([reason.value for reason in wanted.ends]))
    if wanted.waits is not None:
        clauses += [_T.ended_at.is_(None), waits if wanted.waits else ~waits]
    if wanted.since is not None:
        clauses.append(wanted.since <= _CHANGED)
    joined = _T.session == _S.session
    total = connection.scalar(
        select(func.count()).select_from(schema.turns.join(schema.sessions, joined)).where(*clauses)
    )
    shown = select(
        *(_T.session, _T.turn, _T.request_id, _T.stop_reason, _T.reason_code),
        _CHANGED.label("changed_at"),
        waits.label("is_waiting"),
    )
    chosen = shown.join_from(schema.turns, schema.sessions, joined).where(*clauses)
    if before is not None:
        at, session, turn = before
        is_later = (_T.session < session) | and_(_T.session == session, _T.turn < turn)
        changed = _CHANGED
        chosen = chosen.where(or_(changed < at, and_(changed == at, is_later)))
    rows = connection.execute(chosen.order_by(_CHANGED.desc(), _T.session.desc(), _T.turn.desc()).limit(limit))
    found = [
        ListedTurn(
            session=row.session,
            turn=row.turn,
            request_id=row.request_id,
            changed_at=row.changed_at,
            stop_reason=StopReason(row.stop_reason) if row.stop_reason is not None else None,
            reason_code=row.reason_code,
            is_waiting=bool(row.is_waiting),
        )
        for row in rows
    ]
    return TurnList(found, total or 0)
