"""Retention: finds and deletes what is old of sessions, in small transactions, each under one session's lock."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, delete, func, select, update

from perdure.contracts.agents import AgentDefinition
from perdure.contracts.retention import Retention
from perdure.contracts.turns import TurnResult
from perdure.contracts.values import replace
from perdure.store import log, schema
from perdure.store.database import mark_wiped
from perdure.store.keys.sealing import Content
from perdure.store.session_lock import LockedSession
from perdure.store.steps import conversation_steps

SLICE = 100
"""Sessions that one slice of a sweep looks at."""

_S, _T, _A = schema.sessions.c, schema.turns.c, schema.artifacts.c


class Old(NamedTuple):
    """A session that may have something to delete."""

    session: str
    open_turn: int | None
    ended_at: datetime | None
    definition: str


class Trimmed(NamedTuple):
    """Counts of what was deleted of one session."""

    events: int = 0
    artifacts: int = 0


def retentions(connection: Connection) -> dict[str, Retention]:
    """The retentions of registered agents, by name; agents without one are left out."""
    bodies = select(schema.definitions.c.body).join(
        schema.agents, schema.agents.c.definition == schema.definitions.c.hash
    )
    found = (AgentDefinition.model_validate_json(body) for body in connection.scalars(bodies))
    return {each.name: each.retention for each in found if each.retention is not None}


def old_sessions(connection: Connection, agent: str, before: datetime, after: str) -> tuple[Old, ...]:
    """The next sessions of an agent, in the order of their ids from ``after``, with a turn from before a time."""
    last = (_T.session == _S.session) & (_T.turn == _S.turn)
    earlier = select(func.min(_T.started_at)).where(_T.session == _S.session).correlate(schema.sessions)
    statement = (
        select(_S.session, _S.open_turn, _T.ended_at, _T.definition)
        .join_from(schema.sessions, schema.turns, last)
        .where(_S.agent == agent, _S.session > after, earlier.scalar_subquery() < before)
        .order_by(_S.session)
        .limit(SLICE)
    )
    return tuple(Old(*row) for row in connection.execute(statement))


def forks_of(connection: Connection, session: str) -> Sequence[str]:
    """The sessions whose conversations begin with steps of this one."""
    steps, first = schema.steps, schema.steps.alias("first")
    standing = (
        select(first.c.session)
        .join(steps, first.c.parent == steps.c.id)
        .where(steps.c.session == session, first.c.session != session, schema.IS_FIRST)
        .distinct()
        .order_by(first.c.session)
    )
    return connection.scalars(standing).all()


def count_trimmed(connection: Connection, session: str, retention: Retention, now: datetime) -> Trimmed:
    """Count what :func:`trim_session` would delete."""
    artifacts = select(func.count()).where(*_old_artifacts(session, retention.artifacts, now))
    return Trimmed(
        events=log.count(connection, session, _old_turns(session, retention.events, now)) if retention.events else 0,
        artifacts=connection.scalars(artifacts).one() if retention.artifacts else 0,
    )


def trim_session(connection: Connection, session: str, retention: Retention, now: datetime) -> Trimmed:
    """Delete the events and artifacts of a session that are older than its retention, but none of an open turn."""
    if LockedSession.find(connection, session) is None:
        return Trimmed()
    events = artifacts = 0
    if retention.events is not None:
        old = _old_turns(session, retention.events, now)
        events = log.sweep(connection, session, old)
        _forget_requests(connection, session, old)
    if retention.artifacts is not None:
        where = _old_artifacts(session, retention.artifacts, now)
        artifacts = connection.execute(delete(schema.artifacts).where(*where)).rowcount
    if events or artifacts:
        mark_wiped(connection)
    return Trimmed(events=events, artifacts=artifacts)


def keep_latest(connection: Connection, session: str) -> Trimmed:
    """Delete everything of an idle session but its conversation and its last turn."""
    locked = LockedSession.find(connection, session)
    if locked is None or locked.open_turn is not None or locked.head is None:
        return Trimmed()
    read = conversation_steps(connection, locked.head)
    steps = schema.steps.c
    connection.execute(delete(schema.steps).where(steps.session == session, steps.id.not_in(read)))
    calls = schema.tool_calls.c
    connection.execute(delete(schema.tool_calls).where(calls.session == session, calls.turn < locked.turn))
    earlier = select(_T.turn).where(_T.session == session, _T.turn < locked.turn)
    events = log.sweep(connection, session, earlier)
    _forget_requests(connection, session, earlier)
    for table in (schema.todos, schema.feedback, schema.failed_generations):
        connection.execute(delete(table).where(table.c.session == session, table.c.turn < locked.turn))
    gone = (_A.session == session, _A.turn < locked.turn, _A.turn > 0)
    artifacts = connection.execute(delete(schema.artifacts).where(*gone)).rowcount
    told = (_T.session == session, _T.turn < locked.turn)
    connection.execute(update(schema.turns).where(*told).values(prompt=None, error=None))
    ended = select(_T.turn, _T.result).where(*told, _T.result.is_not(None))
    for row in connection.execute(ended).all():
        result = TurnResult.model_validate_json(row.result)
        bare = replace(result, output="", value=None, error=None, requests=(), todos=())
        if bare != result:
            content = Content(session, bare.model_dump_json())
            this = (_T.session == session, _T.turn == row.turn)
            connection.execute(update(schema.turns).where(*this).values(result=content))
    mark_wiped(connection)
    return Trimmed(events=events, artifacts=artifacts)


def needs_trimming(connection: Connection, session: str) -> bool:
    """Whether :func:`keep_latest` has something to delete."""
    row = connection.execute(select(_S.head, _S.turn).where(_S.session == session)).one_or_none()
    if row is None or row.head is None:
        return False
    steps = schema.steps.c
    others = select(func.count()).where(
        steps.session == session, steps.id.not_in(conversation_steps(connection, row.head))
    )
    earlier = select(_T.turn).where(_T.session == session, _T.turn < row.turn)
    return connection.scalars(others).one() > 0 or log.count(connection, session, earlier) > 0


def _forget_requests(connection: Connection, session: str, turns: Select[int]) -> None:
    """Delete what these turns asked people: arguments and questions that their events told."""
    requests = schema.input_requests.c
    connection.execute(delete(schema.input_requests).where(requests.session == session, requests.turn.in_(turns)))


def _old_turns(session: str, age: timedelta | None, now: datetime) -> Select[int]:
    """The turns that ended longer than ``age`` ago; with None, all that have ended."""
    before = now - (age or timedelta(0))
    return select(_T.turn).where(_T.session == session, _T.ended_at < before)


def _old_artifacts(session: str, age: timedelta | None, now: datetime) -> tuple[ColumnElement[bool], ...]:
    """The artifacts of those turns. Files that people sent (turn 0) count by their own age."""
    before = now - (age or timedelta(0))
    of_turns = _A.turn.in_(_old_turns(session, age, now))
    return _A.session == session, of_turns | ((_A.turn == 0) & (_A.created_at < before))
