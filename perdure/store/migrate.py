"""The schema's revision: checked by everyone who opens a store, brought up to date by workers."""

import threading
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from sqlalchemy import Connection, Engine, Select, Text, column, inspect, select, table
from sqlalchemy.exc import OperationalError

from perdure.store.database import BUSY_TIMEOUT, Address, begin_writing, create_file
from perdure.store.errors import StoreUnavailableError, StoreVersionError
from perdure.store.schema import KNOWN_REVISIONS, REVISION, REVISION_TABLE

MIGRATIONS = Path(__file__).parent / "migrations"
"""Alembic's folder: packaged, and run from here only."""

_ADVISORY_LOCK = 0x70657264
_BETWEEN_TRIES = 0.01
_REVISION: Select[str] = select(column("version_num", Text())).select_from(table(REVISION_TABLE))

_upgrading = threading.Lock()
"""Alembic keeps the running migration in module globals: two stores of one process take turns."""


def prepare(engine: Engine, address: Address, *, upgrade: bool) -> None:
    """Make sure that the schema is this release's, by upgrading it if that is asked for.

    Raises:
        StoreUnavailableError: The SQLite file is missing and may not be created.
        StoreVersionError: The schema is another one.
    """
    file = address.file
    if file is not None and upgrade and address.has_plain_file:
        create_file(file)
    if file is not None and not upgrade and not file.exists():
        msg = f"there is no store at {file}; a worker or `perdure dev` creates it when it starts"
        raise StoreUnavailableError(msg)
    with engine.connect() as connection:
        found = _revision(connection)
    if found == REVISION:
        return
    _refuse_unknown(address, found)
    if upgrade:
        _upgrade(engine, address)
        return
    state = "has no tables yet" if found is None else f"has the older schema {found}"
    msg = f"the store {address} {state}; a worker or `perdure dev` of this release sets it up when it starts"
    raise StoreVersionError(msg)


def _upgrade(engine: Engine, address: Address) -> None:
    if address.file is not None:
        _write_ahead(engine)
    with (
        _upgrading,
        begin_writing(engine) as connection,
        _without_timeout(connection, address),
    ):
        if not address.sqlite:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
        found = _revision(connection)
        if found == REVISION:
            return
        _refuse_unknown(address, found)
        _run_alembic(connection)


def _without_timeout(connection: Connection, address: Address) -> AbstractContextManager[None]:
    """For migrations, and those who wait for one."""
    if address.sqlite:
        return nullcontext()
    from perdure.store.postgresql import without_timeout  # noqa: PLC0415 - psycopg is an extra

    return without_timeout(connection)


def _run_alembic(connection: Connection) -> None:
    # Alembic is slow to import and needed only here, once in the life of a schema.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _write_ahead(engine: Engine) -> None:
    # SQLite refuses this switch at once, without its busy timeout, while another process makes it too.
    deadline = time.monotonic() + BUSY_TIMEOUT.total_seconds()
    while True:
        try:
            with engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        except OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_BETWEEN_TRIES)
        else:
            return


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(REVISION_TABLE):
        return None
    return connection.execute(_REVISION).scalar_one_or_none()


def _refuse_unknown(address: Address, found: str | None) -> None:
    if found is not None and found not in KNOWN_REVISIONS:
        msg = (
            f"the store {address} has the schema {found}, which this release of perdure does not know; "
            "upgrade perdure or use another store"
        )
        raise StoreVersionError(msg)
