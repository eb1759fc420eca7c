"""Figures of the whole store for metrics: its open turns, counted by index, and its size."""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import Connection, Select, case, func, select

from perdure.store import schema
from perdure.store.records import OpenTurns

Figures = Select[int, int, datetime | None, datetime | None]


def _open_turns(without: Collection[str] = ()) -> Figures:
    requests, sessions, turns = schema.input_requests.c, schema.sessions.c, schema.turns.c
    of_open_turn = (requests.session == sessions.session) & (requests.turn == sessions.open_turn)
    waits = (
        select(sessions.session, func.min(requests.asked_at).label("since"))
        .join_from(schema.sessions, schema.input_requests, of_open_turn)
        .where(schema.IS_OPEN, schema.IS_UNDECIDED)
        .group_by(sessions.session)
        .subquery()
    )
    is_open = (turns.session == sessions.session) & (turns.turn == sessions.open_turn)
    return (
        select(
            func.count(),
            func.count(waits.c.session),
            func.min(waits.c.since),
            func.min(case((waits.c.session.is_(None), turns.started_at))),
        )
        .join_from(schema.sessions, schema.turns, is_open)
        .outerjoin(waits, waits.c.session == sessions.session)
        .where(schema.IS_OPEN, *([sessions.session.not_in(without)] if without else []))
    )


OPEN_TURNS = _open_turns()


def open_turns(connection: Connection, without: Collection[str] = ()) -> OpenTurns:
    """The number of open turns and of those that wait for a person, without the sessions in ``without``."""
    statement = _open_turns(without) if without else OPEN_TURNS
    turns, waiting, waiting_since, running_since = connection.execute(statement).one()
    return OpenTurns(running=turns - waiting, running_since=running_since, waiting=waiting, waiting_since=waiting_since)


FILE = "file"
"""The key of a SQLite store's size: without reading them SQLite does not know the sizes of its tables."""


def table_bytes(connection: Connection) -> dict[str, int]:
    """Bytes on disk of each table with its indexes; for SQLite, of the whole file under ``FILE``."""
    if connection.dialect.name == "sqlite":
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        return {FILE: pages * connection.exec_driver_sql("PRAGMA page_size").scalar_one()}
    names = list(schema.metadata.tables)
    sizes = select(*(func.pg_total_relation_size(func.to_regclass(name)) for name in names))
    return {name: size for name, size in zip(names, connection.execute(sizes).one(), strict=True) if size is not None}
