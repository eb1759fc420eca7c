"""Revisions of the schema: checked whenever a store is opened, upgraded by workers or ``perdure store migrate``.

A store has two rows about its schema. One names the newest migration that was run. The other names the oldest schema
that a release must know to use the store; it changes only when a migration removes something. So older releases that
know that schema, also those that only know the second row, go on beside newer ones.
"""

import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import ColumnClause, Connection, Engine, Text, column, delete, insert, inspect, select, table

from perdure.store.database import Address, begin_writing, connect, create_file, translate_errors, write_ahead
from perdure.store.errors import StoreUnavailableError, StoreVersionError
from perdure.store.schema import KNOWN_REVISIONS, MIGRATIONS_TABLE, OLDEST_REVISION, REVISION_TABLE

MIGRATIONS = Path(__file__).parent / "migrations"
"""Alembic's folder. It is packaged, and run from here only."""

_ADVISORY_LOCK = 0x70657264

_upgrading = threading.Lock()
"""Held during a migration, because Alembic keeps the running one in module globals."""


@dataclass(frozen=True)
class Schema:
    """The revisions of a store's schema.

    Attributes:
        applied: The newest migration that has been run; None if there are no tables yet.
        oldest: The oldest schema that a release must know to use the store; None if there are no tables yet.
    """

    applied: str | None
    oldest: str | None

    @property
    def is_known(self) -> bool:
        """Whether this release may use the store, or upgrade it."""
        return self.oldest is None or self.oldest in KNOWN_REVISIONS

    @property
    def is_newer(self) -> bool:
        """Whether a newer release has upgraded the store."""
        return self.applied is not None and self.applied not in KNOWN_REVISIONS

    @property
    def pending(self) -> tuple[str, ...]:
        """The migrations of this release that the store lacks, the next one first."""
        if self.is_newer:
            return ()
        done = KNOWN_REVISIONS.index(self.applied) + 1 if self.applied is not None else 0
        return KNOWN_REVISIONS[done:]


def prepare(engine: Engine, address: Address, *, upgrade: bool) -> None:
    """Check that this release can use the schema; with ``upgrade`` create or upgrade it first.

    Raises:
        StoreUnavailableError: The SQLite file is missing, and ``upgrade`` is not set.
        StoreVersionError: This release cannot use the schema.
    """
    file = address.file
    if file is not None and upgrade and address.has_plain_file:
        create_file(file)
    if file is not None and not upgrade and not file.exists():
        msg = f"there is no store at {file}; a worker or `perdure dev` creates it when it starts"
        raise StoreUnavailableError(msg)
    with engine.connect() as connection:
        found = _schema(connection)
    _refuse_unknown(address, found)
    if not found.pending:
        return
    if upgrade:
        if address.file is not None:
            with engine.connect() as connection:
                write_ahead(connection.exec_driver_sql)
        with (
            _upgrading,
            begin_writing(engine) as connection,
            _without_timeout(connection, address),
        ):
            lock_migrations(connection)
            found = _schema(connection)
            _refuse_unknown(address, found)
            if found.pending:
                _run_alembic(connection, found)
                _set_oldest(connection, found)
        return
    state = "no tables yet" if found.applied is None else f"the schema {found.applied}"
    msg = (
        f"the store {address} has {state}, and this release of perdure needs {found.pending[-1]}; run "
        "`perdure store migrate`, or start a worker or `perdure dev` of this release without PERDURE_MIGRATE=off"
    )
    raise StoreVersionError(msg)


def read_schema(url: str) -> Schema:
    """The revisions of the store at an address; a missing SQLite file has no tables yet.

    Raises:
        StoreConfigError: The address is not valid, or its driver is missing.
        StoreUnavailableError: The store cannot be reached.
    """
    address = Address(url)
    if address.file is not None and not address.file.exists():
        return Schema(None, None)
    engine = connect(address)
    try:
        with translate_errors(address), engine.connect() as connection:
            return _schema(connection)
    finally:
        engine.dispose()


def migrate(url: str) -> tuple[str, ...]:
    """Upgrade the store at an address to the schema of this release; returns the migrations that were run.

    Raises:
        StoreConfigError: The address is not valid, or its driver is missing.
        StoreError: A migration failed, and nothing was changed.
        StoreUnavailableError: The store cannot be reached.
        StoreVersionError: A newer release has removed something that this one needs.
    """
    before = read_schema(url)
    address = Address(url)
    engine = connect(address)
    try:
        with translate_errors(address):
            prepare(engine, address, upgrade=True)
    finally:
        engine.dispose()
    return before.pending


def _without_timeout(connection: Connection, address: Address) -> AbstractContextManager[None]:
    """A block without the timeout of statements: migrations, and waits for one, may take long."""
    if address.sqlite:
        return nullcontext()
    from perdure.store.postgresql import without_timeout  # noqa: PLC0415 - psycopg is an extra

    return without_timeout(connection)


def _run_alembic(connection: Connection, found: Schema) -> None:
    # Alembic is slow to import and needed only here, once in the life of a schema.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    if found.applied is not None and not inspect(connection).has_table(MIGRATIONS_TABLE):
        command.stamp(config, found.applied)  # a release with one row only made the tables
    command.upgrade(config, "head")


def _set_oldest(connection: Connection, found: Schema) -> None:
    """Write the oldest schema that a release must know, unless the store names a newer one already."""
    if not inspect(connection).has_table(REVISION_TABLE):
        # In Alembic's format: a release with one row only reads it by Alembic.
        connection.exec_driver_sql(
            f"CREATE TABLE {REVISION_TABLE} "
            f"(version_num VARCHAR(32) NOT NULL, CONSTRAINT {REVISION_TABLE}_pkc PRIMARY KEY (version_num))"
        )
    oldest = max(OLDEST_REVISION, found.oldest or "")
    connection.execute(delete(table(REVISION_TABLE)))
    connection.execute(insert(table(REVISION_TABLE, _version())).values(version_num=oldest))


def lock_migrations(connection: Connection) -> None:
    """Lock out other processes that make tables, until the transaction ends. SQLite has one writer anyway."""
    if connection.dialect.name != "sqlite":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")


def _schema(connection: Connection) -> Schema:
    tables = inspect(connection)
    if not tables.has_table(REVISION_TABLE):
        return Schema(None, None)
    oldest = _read_version(connection, REVISION_TABLE)
    applied = _read_version(connection, MIGRATIONS_TABLE) if tables.has_table(MIGRATIONS_TABLE) else oldest
    return Schema(applied, oldest)


def _read_version(connection: Connection, name: str) -> str | None:
    return connection.execute(select(_version()).select_from(table(name))).scalar_one_or_none()


def _version() -> ColumnClause[str]:
    return column("version_num", Text())


def _refuse_unknown(address: Address, found: Schema) -> None:
    if not found.is_known:
        msg = (
            f"the store {address} has the schema {found.applied}, for releases of perdure that know {found.oldest}, "
            f"and this one knows {KNOWN_REVISIONS[0]} to {KNOWN_REVISIONS[-1]}; upgrade perdure or use another store"
        )
        raise StoreVersionError(msg)
