"""Garbage: rows that nothing refers to any more are found, counted, and deleted in slices."""

from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Protocol

from sqlalchemy import ColumnElement, Connection, Table, delete, exists, func, inspect, literal, select, tuple_

from perdure.store import delegates, schema
from perdure.store.database import mark_wiped
from perdure.store.errors import NotFoundError, SessionRunsError
from perdure.store.keys import tombstones
from perdure.store.keys.erase import KEPT
from perdure.store.keys.moves import KeyedStore, erase_again
from perdure.store.shelf import Shelf
from perdure.store.tries import LONGEST
from perdure.store.webhooks import key_holder_of

YOUNG = timedelta(days=1)
"""Younger rows may belong to a request under way, and are left alone."""

REQUEST_LIFE = timedelta(days=7)
"""Time that an Idempotency-Key is remembered."""

PIECE_LIFE = timedelta(hours=1)
"""Age at which deltas count as left behind by a lost worker."""

SLICE = 500
"""Rows that one transaction deletes."""


def _is_orphan_artifact(now: datetime) -> ColumnElement[bool]:
    """The condition for artifacts of no session and of no steps kept for forks, such as files of an unsent message."""
    artifacts, sessions, steps = schema.artifacts.c, schema.sessions.c, schema.steps.c
    owned = exists().where(sessions.session == artifacts.session) | exists().where(steps.session == artifacts.session)
    return (artifacts.created_at < now - YOUNG) & ~owned


def _is_unread_step(now: datetime) -> ColumnElement[bool]:
    """The condition for steps that were kept for a fork which is erased by now."""
    steps, other = schema.steps, schema.steps.alias("other")
    stood_on = exists().where(other.c.parent == steps.c.id)
    return (steps.c.created_at < now - YOUNG) & steps.c.session.contains(KEPT) & ~stood_on


def _is_old_request(now: datetime) -> ColumnElement[bool]:
    requests = schema.requests.c
    is_retried = requests.said.is_not(None) & (requests.created_at < now - LONGEST)
    return is_retried | (requests.created_at < now - REQUEST_LIFE)


def _is_old_gateway(now: datetime) -> ColumnElement[bool]:
    return schema.gateways.c.alive_at < now - LONGEST


def _is_old_delta(now: datetime) -> ColumnElement[bool]:
    return schema.live.c.at < now - PIECE_LIFE


def _is_unused_definition(now: datetime) -> ColumnElement[bool]:
    """The condition for definitions of no turn and of no registered agent."""
    definitions, turns, agents = schema.definitions.c, schema.turns.c, schema.agents.c
    used = exists().where(turns.definition == definitions.hash) | exists().where(agents.definition == definitions.hash)
    return (definitions.created_at < now - YOUNG) & ~used


def _is_unused_key(now: datetime) -> ColumnElement[bool]:
    """The condition for keys of no session and no webhook: what they have sealed is gone."""
    keys, sessions, steps, artifacts = (
        schema.session_keys.c,
        schema.sessions.c,
        schema.steps.c,
        schema.artifacts.c,
    )
    used = (
        exists().where(sessions.session == keys.session)
        | exists().where(steps.session == keys.session)
        | exists().where(artifacts.session == keys.session)
        | exists().where(literal(key_holder_of("")).concat(schema.webhooks.c.id) == keys.session)
    )
    return (keys.created_at < now - YOUNG) & ~used


_KINDS: dict[str, tuple[Table, Callable[[datetime], ColumnElement[bool]]]] = {
    "steps": (schema.steps, _is_unread_step),
    "artifacts": (schema.artifacts, _is_orphan_artifact),
    "requests": (schema.requests, _is_old_request),
    "gateways": (schema.gateways, _is_old_gateway),
    "pieces": (schema.live, _is_old_delta),
    "definitions": (schema.definitions, _is_unused_definition),
    "keys": (schema.session_keys, _is_unused_key),
}
"""In this order: deleting rows of one kind may turn rows of the next into garbage."""


class CollectedStore(KeyedStore, Protocol):
    """The parts of a :class:`perdure.store.Store` that a collection needs: also its files."""

    shelf: Shelf


async def collect(store: CollectedStore, *, dry_run: bool = False) -> dict[str, int]:
    """Delete what nothing refers to any more, in slices while turns run; returns the numbers by kind.

    Interrupted erasures are completed first, and those of delegates that ran when their caller was erased.
    """
    now = datetime.now(UTC)
    cut_off = [
        *await store.read("unfinished", tombstones.unfinished),
        *await store.read("orphans", delegates.orphans),
    ]
    if dry_run:
        found = await store.read("count_garbage", lambda connection: _count_garbage(connection, now))
        return {"erasures": len(cut_off), **found, "files": await _collect_files(store, now, dry_run=True)}
    for session in cut_off:
        with suppress(SessionRunsError, NotFoundError):  # it has just begun, or somebody else has erased it
            await store.erase_session(session)
    done = {"erasures": len(cut_off) + await erase_again(store)}
    for kind in _KINDS:
        done[kind] = 0
        while rows := await store.write("delete_garbage", partial(_delete_garbage, kind=kind, now=now)):
            done[kind] += rows
    done["files"] = await _collect_files(store, now, dry_run=False)
    return done


async def _collect_files(store: CollectedStore, now: datetime, *, dry_run: bool) -> int:
    """Delete the files that no row names: leftovers of interrupted writes and sweeps."""
    total = 0
    async for locations in store.shelf.list_old(now - YOUNG):
        unnamed = await store.read("unnamed", partial(_unnamed, locations=locations))
        total += len(unnamed)
        if not dry_run:
            await store.shelf.delete(unnamed)
    return total


def _count_garbage(connection: Connection, now: datetime) -> dict[str, int]:
    """The number of rows of each kind of garbage."""
    return {
        kind: connection.scalars(select(func.count()).select_from(table).where(condition(now))).one()
        for kind, (table, condition) in _KINDS.items()
        if _has(connection, table)
    }


def _delete_garbage(connection: Connection, *, kind: str, now: datetime) -> int:
    """Delete the next rows of a kind; returns how many."""
    table, condition = _KINDS[kind]
    if not _has(connection, table):
        return 0
    key = list(table.primary_key.columns)
    some = select(*key).where(condition(now)).limit(SLICE)
    rows = connection.execute(some).all()
    if not rows:
        return 0
    if table is schema.definitions and connection.dialect.name == "postgresql":
        # Wait for turns that are being opened: one may have found its definition here a moment ago.
        connection.exec_driver_sql("LOCK TABLE definitions IN SHARE ROW EXCLUSIVE MODE")
    mine = key[0].in_([row[0] for row in rows]) if len(key) == 1 else tuple_(*key).in_([tuple(row) for row in rows])
    # Checked once more: a turn may have begun to use one meanwhile.
    connection.execute(delete(table).where(mine, condition(now)))
    mark_wiped(connection)
    return len(rows)


def locations_of(connection: Connection, session: str) -> tuple[str, ...]:
    """Locations of the files of a session's artifacts."""
    artifacts = schema.artifacts.c
    found = select(artifacts.location).where(artifacts.session == session, artifacts.location.is_not(None))
    return tuple(str(location) for location in connection.scalars(found))


def _unnamed(connection: Connection, *, locations: Collection[str]) -> tuple[str, ...]:
    """The locations that no row names."""
    column = schema.artifacts.c.location
    named = set(connection.scalars(select(column).where(column.in_(locations))))
    return tuple(location for location in locations if location not in named)


def _has(connection: Connection, table: Table) -> bool:
    """Whether the database has the table: with SQLite deltas are in a file of their own, which sweeps itself."""
    return table is not schema.live or inspect(connection).has_table(table.name)
