"""Slots: they limit the open turns of an agent or a tenant; turns without a slot wait in a queue.

Open turns are counted in the table of sessions, so a slot is free as soon as its turn ends. Delegates neither count nor
wait: they work in their caller's slot.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, case, delete, func, or_, select, update

from perdure.contracts.ids import DELEGATED
from perdure.contracts.turns import OpenTurn
from perdure.contracts.values import Value
from perdure.store import schema
from perdure.store.commit_turn import close_abandoned, find_turn
from perdure.store.errors import StoreError
from perdure.store.records import QueuedTurn
from perdure.store.rows import insert_into
from perdure.store.session_lock import LockedSession, take_turns

STALE = timedelta(seconds=60)
"""A queued turn that has not asked for this time does not block others: its workflow may be gone."""

KEPT = timedelta(hours=1)
"""Time after which such a turn's row is deleted. If it asks again before, it keeps its place."""

LOOKED_AT = 3
"""Number of turns in the way that one attempt checks, and of turns at a queue's head that make these checks."""

PRIORITY = 3
"""Default priority of a turn, which is Temporal's: 1 goes first, 5 last."""

_S, _T, _Q = schema.sessions.c, schema.turns.c, schema.queued_turns.c
_HOLDER = (_S.session, _S.open_turn.label("turn"), _T.run_started_at)
_LEAVE = delete(schema.queued_turns).where(_Q.session == bindparam("of_session"))


class SlotLimit(Value):
    """The number of turns of an agent or a tenant that may be open at once."""

    of: Literal["agent", "tenant"]
    name: str
    most: int

    def __str__(self) -> str:
        """The limit's name in a sentence."""
        if self.of == "tenant" and not self.name:
            return "jobs without a tenant"
        return f"{self.of} {self.name!r}"


class InTheWay(Value):
    """A turn that holds a slot, or waits for one before others.

    Attributes:
        turn: The turn's number; None while it waits.
        run_started_at: Start of the workflow run that opened the turn, or waits with it.
    """

    session: str
    turn: int | None
    run_started_at: datetime


class SlotWait(Value):
    """Reason a turn has no slot.

    Attributes:
        limit: The limit without a free slot; of two, the tenant's.
        running: Number of open turns that count for the limit.
        before: Number of turns that wait before this one.
        queued_at: When the turn began to wait.
    """

    limit: SlotLimit
    running: int
    before: int
    queued_at: datetime

    @property
    def is_near(self) -> bool:
        """Whether the turn is among the next that get a slot."""
        return self.before < max(self.limit.most - self.running, 0) + LOOKED_AT

    def __str__(self) -> str:
        """The wait as people read it."""
        limit, setting = self.limit, "max_running" if self.limit.of == "agent" else "PERDURE_TENANT_MAX_RUNNING"
        if self.running >= limit.most:
            turns = "turn runs" if self.running == 1 else "turns run"
            said = f"{self.running} {turns} of {limit}, whose limit is {limit.most} ({setting})"
        else:
            said = f"{self.running} of {limit.most} turns of {limit} run ({setting})"
        return f"queued: {said}; {self.before} wait{'s' if self.before == 1 else ''} before it"


class NoSlotError(StoreError):
    """The turn has no slot and has to wait."""

    def __init__(self, wait: SlotWait) -> None:
        super().__init__(str(wait))
        self.wait = wait


def ask_for_slot(
    connection: Connection, opening: OpenTurn, agent: str, limits: Sequence[SlotLimit], priority: int = PRIORITY
) -> SlotWait | None:
    """Enter a turn in the queue, and return why it has to wait; None if it may open now.

    A turn that asks again keeps its place.
    """
    now, request = datetime.now(UTC), opening.request
    row = {
        "session": opening.session,
        "request_id": opening.request_id,
        "run_started_at": opening.run_started_at,
        "agent": agent,
        "tenant": request.tenant,
        "priority": priority,
        "queued_at": now,
        "seen_at": now,
        "held_by": "",
    }
    statement = insert_into(connection, schema.queued_turns).values(row)
    same = _Q.request_id == statement.excluded.request_id
    changing: dict[str, ColumnElement[object]] = {
        name: statement.excluded[name] for name in row if name not in {"session", "queued_at", "held_by"}
    }
    changing["queued_at"] = case((same, _Q.queued_at), else_=statement.excluded.queued_at)
    connection.execute(statement.on_conflict_do_update(index_elements=["session"], set_=changing))
    connection.execute(delete(schema.queued_turns).where(_Q.seen_at < now - KEPT))
    waits = _find_waits(connection, opening, limits, now)
    held = update(schema.queued_turns).where(_Q.session == opening.session)
    connection.execute(held.values(held_by=",".join(sorted(wait.limit.of for wait in waits))))
    return max(waits, key=lambda wait: wait.limit.of, default=None)


def take_slot(connection: Connection, opening: OpenTurn, limits: Sequence[SlotLimit]) -> None:
    """Take a slot for a turn that opens in this transaction, and take the turn out of the queue.

    The limits are locked until the transaction ends, so that no other turn takes the same slot.

    Raises:
        NoSlotError: All slots are taken, or others wait before it.
    """
    for limit in sorted(limits, key=lambda limit: limit.of):  # in one order, or two turns could deadlock
        take_turns(connection, f"perdure slot {limit.of} {limit.name}")
    waits = _find_waits(connection, opening, limits, datetime.now(UTC))
    if waits:
        raise NoSlotError(waits[0])
    leave_queue(connection, opening.session)


def leave_queue(connection: Connection, session: str) -> None:
    """Take the session's turn out of the queue."""
    connection.execute(_LEAVE, {"of_session": session})


def _find_waits(
    connection: Connection, opening: OpenTurn, limits: Sequence[SlotLimit], now: datetime
) -> list[SlotWait]:
    """The waits for the limits that have no free slot for the turn."""
    mine = connection.execute(select(schema.queued_turns).where(_Q.session == opening.session)).one_or_none()
    place = (PRIORITY, now) if mine is None else (mine.priority, mine.queued_at)
    waits: list[SlotWait] = []
    for limit in limits:
        holders = _select_holders(limit, opening.session).subquery()
        running = connection.scalars(select(func.count()).select_from(holders)).one()
        ahead = select(func.count()).where(*_ahead(limit, opening.session, place, now))
        before = connection.scalars(ahead).one()
        if before >= limit.most - running:
            waits.append(SlotWait(limit=limit, running=running, before=before, queued_at=place[1]))
    return waits


def _select_holders(limit: SlotLimit, but: str) -> Select[*tuple[object, ...]]:
    """The open turns that count for a limit.

    The open turn of the session ``but`` does not: it is closed when the session's next turn opens. Nor does that of a
    session whose newer run waits in the queue: its workflow has ended.
    """
    is_open = (_T.session == _S.session) & (_T.turn == _S.open_turn)
    newer = (_Q.session == _S.session) & (_Q.run_started_at > _T.run_started_at)
    return (
        select(*_HOLDER)
        .select_from(schema.sessions)
        .join(schema.turns, is_open)
        .outerjoin(schema.queued_turns, newer)
        .where(
            schema.IS_OPEN,
            _S.agent == limit.name if limit.of == "agent" else _S.tenant == limit.name,
            _S.session != but,
            _T.request_id.not_like(f"{DELEGATED}%"),
            _Q.session.is_(None),
        )
    )


def _ahead(
    limit: SlotLimit, session: str, place: tuple[int, datetime], now: datetime
) -> tuple[ColumnElement[bool], ...]:
    """The conditions for turns that wait before ``place`` for a slot of the limit, and for no other limit."""
    priority, at = place
    later = and_(_Q.queued_at == at, _Q.session < session)
    return (
        _Q.agent == limit.name if limit.of == "agent" else _Q.tenant == limit.name,
        _Q.session != session,
        _Q.held_by.in_(("", limit.of)),
        _Q.seen_at > now - STALE,
        or_(_Q.priority < priority, and_(_Q.priority == priority, or_(_Q.queued_at < at, later))),
    )


def find_in_the_way(connection: Connection, session: str, wait: SlotWait, attempt: int) -> tuple[InTheWay, ...]:
    """A few of the turns in the way, the oldest first, and others at each attempt: their workflows may have ended."""
    limit = wait.limit
    if wait.running >= limit.most:
        offset = (attempt - 1) * LOOKED_AT % wait.running
        found = _select_holders(limit, session).order_by(_T.run_started_at, _S.session).offset(offset)
        return tuple(
            InTheWay(session=row.session, turn=row.turn, run_started_at=row.run_started_at)
            for row in connection.execute(found.limit(LOOKED_AT))
        )
    mine = connection.execute(select(schema.queued_turns).where(_Q.session == session)).one_or_none()
    if mine is None:
        return ()
    ahead = _ahead(limit, session, (mine.priority, mine.queued_at), datetime.now(UTC))
    waiting = select(_Q.session, _Q.run_started_at).where(*ahead).order_by(_Q.priority, _Q.queued_at).limit(LOOKED_AT)
    return tuple(
        InTheWay(session=row.session, turn=None, run_started_at=row.run_started_at)
        for row in connection.execute(waiting)
    )


def free_slot(connection: Connection, gone: InTheWay) -> bool:
    """Close an open turn whose workflow is gone, or take a waiting one out of the queue; False if it was neither."""
    if gone.turn is None:
        waited = delete(schema.queued_turns).where(_Q.session == gone.session, _Q.run_started_at == gone.run_started_at)
        return connection.execute(waited).rowcount > 0
    locked = LockedSession.find(connection, gone.session)
    row = find_turn(connection, gone.session, gone.turn)
    if locked is None or row is None or locked.open_turn != gone.turn:
        return False
    close_abandoned(locked, row)
    locked.save()
    return True


def select_queued() -> Select[str]:
    """The sessions with a turn in the queue."""
    return select(_Q.session).where(_Q.seen_at > datetime.now(UTC) - STALE)


def queued_turns(
    connection: Connection, tenant: str | None = None, *, session: str | None = None
) -> tuple[QueuedTurn, ...]:
    """The turns in the queue, the latest first: of all sessions, of a tenant's, or of one."""
    fresh = _Q.seen_at > datetime.now(UTC) - STALE
    mine = [
        *([] if tenant is None else [func.coalesce(_S.tenant, _Q.tenant) == tenant]),
        *([] if session is None else [_Q.session == session]),
    ]
    found = select(*_Q, _S.turn).select_from(schema.queued_turns)
    found = found.outerjoin(schema.sessions, _S.session == _Q.session).where(fresh, *mine)
    rows = connection.execute(found.order_by(_Q.queued_at.desc(), _Q.session.desc()))
    return tuple(
        QueuedTurn(
            session=row.session,
            request_id=row.request_id,
            agent=row.agent,
            tenant=row.tenant,
            turn=(row.turn or 0) + 1,
            queued_at=row.queued_at,
        )
        for row in rows
    )
