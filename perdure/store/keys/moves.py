"""Moves the keys of sessions between the store and a key store, and erases again what a backup brought back."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from sqlalchemy import Connection, Select, delete, select, update

from perdure.store import schema
from perdure.store.database import Address, begin_writing, connect, mark_wiped, translate_errors
from perdure.store.errors import SessionRunsError, StoreKeyError
from perdure.store.keys.key_store import SETTING, KeyStore
from perdure.store.keys.vault import HOME, IS_THERE, KEYS_ARE_APART, insert_keys
from perdure.store.queries import store_id

T = TypeVar("T")

SLICE = 500
"""Keys that one transaction moves at most."""

ERASER = "the key store"
"""The ``erased_by`` of sessions that came back with a backup and are erased again."""

_K = schema.session_keys


def make_key_store(url: str, key_store: str) -> None:
    """Make the tables of a store's key store; if the store has no keys yet, new ones go there.

    Raises:
        StoreUnavailableError: The store or the key store cannot be reached.
        StoreKeyError: The key store is another store's.
    """
    address = Address(url)
    engine, apart = connect(address), KeyStore(key_store)
    try:
        with translate_errors(address), begin_writing(engine) as connection:
            apart.prepare(store_id(connection), upgrade=True)
            choose_first_home(connection, apart)
            check_home(connection, apart)
    finally:
        engine.dispose()
        apart.close()


def check_home(connection: Connection, key_store: KeyStore | None) -> None:
    """Refuse a process that has another key store than the store, or none.

    Raises:
        StoreKeyError: The keys are elsewhere; the message names the fix.
    """
    home = connection.scalar(HOME)
    if key_store is None and home is not None:
        raise StoreKeyError(KEYS_ARE_APART)
    if key_store is not None and home not in {None, key_store.id}:
        msg = (
            f"the keys of this store's sessions stand in the key store {home}; {SETTING} leads to {key_store.address}, "
            f"which is the key store {key_store.id}; correct it"
        )
        raise StoreKeyError(msg)


def choose_first_home(connection: Connection, key_store: KeyStore) -> None:
    """If the store has no keys yet, have new ones go to this key store."""
    if connection.scalar(HOME) is None and connection.execute(select(_K.c.id).limit(1)).first() is None:
        choose_home(connection, key_store.id)


def choose_home(connection: Connection, key_store: str | None) -> None:
    """Have new keys go to a key store, or with None to the store; waits for transactions that are making one."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("LOCK TABLE session_keys IN SHARE ROW EXCLUSIVE MODE")
    connection.execute(update(schema.identity).values(key_store=key_store))


class Moved(NamedTuple):
    """A slice of moved keys.

    Attributes:
        ids: Ids of the keys that are at their new place now.
        last: Id of the last key that was looked at; empty if there was none.
    """

    ids: Sequence[str] = ()
    last: str = ""


def move_out_slice(connection: Connection, key_store: KeyStore, after: str) -> Moved:
    """Move the next keys into the key store. If interrupted, they are in both places."""
    # Locked, so that an erasure waits, and then wipes them where they are.
    rows = connection.execute(_next_keys(after).with_for_update()).mappings().all()
    if not rows:
        return Moved()
    key_store.write(lambda apart: insert_keys(apart, *map(dict, rows)))
    sessions = _K.c.session.in_([row["session"] for row in rows])
    there = key_store.read(lambda apart: apart.execute(select(_K).where(sessions)).all())
    named = {row.id if row.wrapped else row.session for row in there}
    # A process without a key store may have made another key of the session: then each stays where it is.
    gone = [row["id"] for row in rows if row["id"] in named or row["session"] in named]
    connection.execute(delete(_K).where(_K.c.id.in_(gone)))
    mark_wiped(connection)
    return Moved(gone, rows[-1]["id"])


def move_in_slice(connection: Connection, key_store: KeyStore, after: str) -> Moved:
    """Copy the next keys from the key store into the store. :func:`drop_moved` must follow once this is committed."""
    if connection.dialect.name == "postgresql":  # an erasure waits, and then deletes them here too
        connection.exec_driver_sql("LOCK TABLE session_keys IN SHARE ROW EXCLUSIVE MODE")
    rows = key_store.read(lambda apart: apart.execute(_next_keys(after)).mappings().all())
    if not rows:
        return Moved()
    stones = schema.tombstones.c.session
    erased = set(connection.scalars(select(stones).where(stones.in_([row["session"] for row in rows]))))
    copied = [dict(row) for row in rows if row["session"] not in erased]
    if copied:
        insert_keys(connection, *copied)
    ids = _K.c.id.in_([row["id"] for row in rows])
    return Moved(connection.scalars(select(_K.c.id).where(ids)).all(), rows[-1]["id"])


def drop_moved(apart: Connection, ids: Sequence[str]) -> None:
    """Delete keys from the key store that were moved into the store."""
    apart.execute(delete(_K).where(_K.c.id.in_(ids), IS_THERE))
    mark_wiped(apart)


def _next_keys(after: str) -> Select[*tuple[object, ...]]:
    return select(_K).where(_K.c.id > after, IS_THERE).order_by(_K.c.id).limit(SLICE)


def _find_erased(key_store: KeyStore, after: str, connection: Connection) -> tuple[Sequence[str], str]:
    """Sessions that exist although their keys were erased, since they came from a backup; and where to go on."""
    wiped = select(_K.c.session).where(_K.c.wrapped == "", _K.c.session > after).order_by(_K.c.session).limit(SLICE)
    names = key_store.read(lambda apart: apart.scalars(wiped).all())
    sessions = schema.sessions.c.session
    found = connection.scalars(select(sessions).where(sessions.in_(names))).all()
    return found, names[-1] if names else ""


class KeyedStore(Protocol):
    """The parts of a :class:`perdure.store.Store` that moves of keys need: its transactions, key store and erasure."""

    key_store: KeyStore | None

    async def read(self, operation: str, work: Callable[[Connection], T]) -> T:
        """Do work that only reads."""
        ...

    async def write(self, operation: str, work: Callable[[Connection], T]) -> T:
        """Do work in one transaction that writes."""
        ...

    def forks_of(self, session: str) -> Awaitable[Sequence[str]]:
        """Sessions that read steps of this one."""
        ...

    async def erase_session(self, session: str, *, by: str = "") -> object:
        """Erase a session."""
        ...


async def move_keys(store: KeyedStore, *, out: bool) -> int:
    """Move all keys to the key store, or back to the store, with new ones going there too; returns how many moved.

    Works in slices while turns run. If interrupted, the next call goes on.

    Raises:
        StoreKeyError: There is no key store.
    """
    apart = store.key_store
    if apart is None:
        raise StoreKeyError(f"there is no key store; set {SETTING} to a database of its own")
    await store.write("choose_home", lambda connection: choose_home(connection, apart.id if out else None))
    move, total, moved = move_out_slice if out else move_in_slice, 0, Moved()
    while True:
        before = moved
        moved = await store.write("move_keys", partial(_move, move, apart, before.last))
        if not moved.last:
            return total
        if not out:
            await store.read("drop_moved", partial(_drop, apart, moved.ids))
        total += len(moved.ids)


def _move(move: Callable[[Connection, KeyStore, str], Moved], apart: KeyStore, after: str, store: Connection) -> Moved:
    return move(store, apart, after)


def _drop(apart: KeyStore, ids: Sequence[str], _: Connection) -> None:
    apart.write(lambda connection: drop_moved(connection, ids))


async def erase_again(store: KeyedStore) -> int:
    """Erase the sessions that a backup brought back although their keys were erased; returns how many."""
    total, last, apart = 0, "", store.key_store
    while apart is not None:
        found, last = await store.read("find_erased", partial(_find_erased, apart, last))
        for session in found:
            if await store.forks_of(session):  # the steps that forks read cannot be opened, so not sealed anew
                continue
            with suppress(SessionRunsError):
                await store.erase_session(session, by=ERASER)
                total += 1
        if not last:
            break
    return total
