"""The keys of sessions in a database of their own, so that a backup of the store holds nothing that opens it.

It has the table ``session_keys`` and one row about itself. Each operation is a statement or a short transaction, which
may run inside a transaction of the store but never around one. So a key is committed before anything that it seals, and
the next try finds a key that was not used. An erased key leaves its session's name: no key is made under that name
again, and a session that comes back with a backup is recognised as erased.
"""

import secrets
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from sqlalchemy import Column, Connection, MetaData, Table, Text, insert, inspect, select

from perdure.store import schema
from perdure.store.database import (
    Address,
    Database,
    begin_writing,
    create_file,
    mark_wiped,
    translate_errors,
    write_ahead,
)
from perdure.store.errors import StoreConfigError, StoreKeyError, StoreUnavailableError
from perdure.store.migrate import lock_migrations
from perdure.store.rows import insert_into

T = TypeVar("T")

SETTING = "PERDURE_KEY_STORE_URL"

_metadata = MetaData()
schema.session_keys.to_metadata(_metadata)
_about = Table(
    "key_store", _metadata, Column("id", Text, primary_key=True), Column("store", Text, nullable=False, unique=True)
)
"""One row: the id of this key store, and the id of the store whose keys it has."""


class KeyStore:
    """A second database for the keys of one store. Every method may raise :class:`StoreUnavailableError`."""

    def __init__(self, url: str) -> None:
        """Prepare for the address without opening it.

        Raises:
            StoreConfigError: The address is not valid, or of a database in memory.
        """
        self.address = Address(url, SETTING)
        if self.address.in_memory:
            raise StoreConfigError(f"{SETTING} is a database in memory, which keeps no keys; name a file or PostgreSQL")
        self.id = ""
        self._database = Database(self.address)

    def prepare(self, store: str, *, upgrade: bool) -> None:
        """Check that this is the key store of ``store``, an id; with ``upgrade`` make its tables.

        Raises:
            StoreUnavailableError: The database cannot be reached, or has no tables yet.
            StoreKeyError: It holds the keys of another store, or is a store itself.
        """
        with translate_errors(self.address, "key store"):
            file = self.address.file
            if file is not None and upgrade and self.address.has_plain_file:
                create_file(file)
            if file is not None and not file.exists():
                raise StoreUnavailableError(f"there is no key store at {file}; {_MADE_BY}")
            with self._database.engine.connect() as connection:
                tables = inspect(connection)
                is_store, is_there = tables.has_table(schema.identity.name), tables.has_table(_about.name)
            if is_store:
                msg = f"{SETTING} leads to a transcript store, {self.address}; give it a database of its own"
                raise StoreKeyError(msg)
            if not is_there:
                if not upgrade:
                    raise StoreUnavailableError(f"the key store {self.address} has no tables yet; {_MADE_BY}")
                if self.address.file is not None:
                    with self._database.engine.connect() as connection:
                        write_ahead(connection.exec_driver_sql)
                with begin_writing(self._database.engine) as connection:
                    lock_migrations(connection)
                    _metadata.create_all(connection)
                    if connection.execute(select(_about)).first() is None:
                        connection.execute(insert(_about), {"id": uuid.uuid4().hex, "store": store})
            with self._database.engine.connect() as connection:
                found = connection.execute(select(_about)).one()
        if found.store != store:
            msg = (
                f"{SETTING} leads to {self.address}, which holds the keys of the store {found.store}; this is the "
                f"store {store}. Give each store a key store of its own"
            )
            raise StoreKeyError(msg)
        self.id = found.id

    def read(self, work: Callable[[Connection], T]) -> T:
        """Do work that only reads."""
        with translate_errors(self.address, "key store"):
            return self._database.read(work)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Do idempotent work in a transaction of its own; it may be done twice."""
        with translate_errors(self.address, "key store"):
            result = self._database.write(work, is_idempotent=True)
            self._database.shorten_log()
            return result

    def close(self) -> None:
        """Close all connections."""
        self._database.close()


_MADE_BY = f"a worker with this {SETTING} sets it up when it starts, or 'perdure store migrate' does"


def wipe_key(connection: Connection, holder: str) -> None:
    """Wipe a session's key, and leave its name, so that no key is made for it again."""
    keys, now = schema.session_keys, datetime.now(UTC)
    row = {"id": secrets.token_urlsafe(12), "session": holder, "wrapped": "", "wrapped_by": "", "created_at": now}
    wiped = insert_into(connection, keys).on_conflict_do_update(
        index_elements=[keys.c.session],
        set_={"wrapped": "", "wrapped_by": "", "created_at": now},
        where=keys.c.wrapped != "",
    )
    connection.execute(wiped, row)
    mark_wiped(connection)
