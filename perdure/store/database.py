"""Connections to databases: addresses, engines, transactions, the translation of failures, and the SQLite file."""

import os
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from threading import Timer
from typing import TypeVar

from sqlalchemy import Connection, Engine, StaticPool, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    StatementError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import ConnectionPoolEntry

from perdure.local_files import make_folder, open_private
from perdure.store.errors import StoreConfigError, StoreError, StoreUnavailableError
from perdure.store.outages import find_outage

T = TypeVar("T")

BUSY_TIMEOUT = timedelta(seconds=5)
"""Longest wait of a SQLite transaction for another process's, and of a new connection for its server."""

POSTGRESQL_CONNECTIONS = 8
"""Connections to PostgreSQL that one store holds, and threads that use them."""

OLDEST_SQLITE = (3, 35, 0)
"""The first that knows RETURNING, by its release notes of 12 March 2021."""

SQLITE_READERS = 3
"""Threads that read SQLite beside the one that writes."""

_BETWEEN_SWITCHES = 0.01
"""Seconds between two tries to switch a file to write-ahead logging."""

_SECRETS = ("password", "sslpassword", "passfile")

_PASSING = frozenset(
    {
        "42P01",  # no such table: it is being restored, or the role's search_path has changed
        "3F000",  # no such schema: the same
        "42501",  # insufficient privilege, until somebody grants it
        "26000",  # no such prepared statement: a pool gave another connection
        "42P05",  # duplicate prepared statement: the same
        "0A000",  # a cached plan whose table was changed
    }
)
"""SQLSTATEs of PostgreSQL about the database's state rather than the statement: waiting may help."""

_CAUSE_CHARACTERS = 300


class Address:
    """A database's address; its text shows no secrets."""

    def __init__(self, url: str, setting: str = "PERDURE_STORE_URL") -> None:
        """Parse the address; ``setting`` is the variable that a refusal names.

        Raises:
            StoreConfigError: It is not a URL, or of a database that perdure does not support.
        """
        fix = f"set {setting} to sqlite:///FILE or postgresql://…"
        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError):
            # The text itself is not repeated: it may hold a password.
            msg = f"the store's address is not a URL; {fix}"
            raise StoreConfigError(msg) from None
        if parsed.drivername in ("postgresql", "postgres"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.drivername not in ("postgresql+psycopg", "sqlite", "sqlite+pysqlite"):
            msg = f"the store cannot be a {parsed.drivername} database; {fix}"
            raise StoreConfigError(msg)
        self.url: URL = parsed
        self.sqlite: bool = parsed.get_backend_name() == "sqlite"
        self.in_memory: bool = self.sqlite and parsed.database in (None, "", ":memory:")

    @property
    def file(self) -> Path | None:
        """The SQLite file, if it is one."""
        return Path(str(self.url.database)) if self.sqlite and not self.in_memory else None

    @property
    def has_plain_file(self) -> bool:
        """Whether the address names a file by its path, and not by a SQLite URI."""
        return self.file is not None and "uri" not in self.url.query

    def __str__(self) -> str:
        """The address without its secrets."""
        return self.url.difference_update_query(_SECRETS).render_as_string(hide_password=True)

    @property
    def public_url(self) -> str:
        """The address for other processes of this machine: without secrets, and with a file's absolute path."""
        url = URL.create(
            self.url.drivername,
            username=self.url.username,
            host=self.url.host,
            port=self.url.port,
            database=str(self.file.absolute()) if self.file is not None and self.has_plain_file else self.url.database,
            query=self.url.query,
        )
        return url.difference_update_query(_SECRETS).render_as_string()

    @property
    def has_secrets(self) -> bool:
        """Whether the address holds what :attr:`public_url` leaves out."""
        return self.url.password is not None or any(name in self.url.query for name in _SECRETS)

    def redact(self, text: str) -> str:
        """The text with the address's secrets taken out."""
        for secret in (self.url.password, *(self.url.query.get(name) for name in _SECRETS)):
            if isinstance(secret, str) and secret:
                text = text.replace(secret, "***")
        return text


def connect(address: Address) -> Engine:
    """An engine for the address; nothing is opened yet.

    Raises:
        StoreConfigError: The driver is not installed or too old, or the address has an option that it does not take.
    """
    if not address.sqlite:
        try:
            from perdure.store.postgresql import make_engine  # noqa: PLC0415 - psycopg is an extra
        except ModuleNotFoundError as error:
            msg = f"the store {address} needs the package psycopg, which is not installed"
            raise StoreConfigError(msg) from error
        return make_engine(address.url, connections=POSTGRESQL_CONNECTIONS, patience=BUSY_TIMEOUT)
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        needed = ".".join(map(str, OLDEST_SQLITE))
        msg = (
            f"the store {address} needs SQLite {needed} or newer, and this Python has {sqlite3.sqlite_version}; "
            "run perdure with another Python, or set PERDURE_STORE_URL to postgresql://…"
        )
        raise StoreConfigError(msg)
    # With None, perdure begins transactions itself: the driver would begin them too late, and only before writes.
    arguments: dict[str, object] = {"isolation_level": None, "check_same_thread": False}
    if "timeout" not in address.url.query:
        arguments["timeout"] = BUSY_TIMEOUT.total_seconds()
    if address.in_memory:
        # A database in memory lives as long as its one connection.
        engine = create_engine(address.url, connect_args=arguments, poolclass=StaticPool, hide_parameters=True)
    else:
        engine = create_engine(
            address.url,
            connect_args=arguments,
            pool_size=SQLITE_READERS + 1,
            max_overflow=0,
            hide_parameters=True,
        )
    event.listen(engine, "connect", _set_pragmas)
    return engine


def _set_pragmas(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous=NORMAL")
    # What is wiped is overwritten too. Only then is a masked argument gone from the file.
    cursor.execute("PRAGMA secure_delete=ON")
    cursor.close()


@contextmanager
def begin_writing(engine: Engine) -> Generator[Connection]:
    """A transaction that writes. Begun here rather than by an event listener, which would slow down each statement."""
    with engine.begin() as connection:
        if connection.dialect.name == "sqlite":
            # A reader that becomes a writer fails at once if another one writes; BEGIN IMMEDIATE waits instead.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            from perdure.store.postgresql import begin  # noqa: PLC0415 - psycopg is an extra

            begin(connection)
        yield connection


@contextmanager
def translate_errors(address: Address, kind: str = "store") -> Generator[None]:
    """Turn database exceptions in this block into the store's own; ``kind`` is the database's name in their texts.

    Raises:
        StoreUnavailableError: The database cannot be reached, is locked, full, damaged, or lacks tables or rights.
        StoreError: The database refused a value or a statement.
    """
    try:
        yield
    except (IntegrityError, DataError, ProgrammingError, NotSupportedError) as error:
        if getattr(error.orig, "sqlstate", None) in _PASSING:
            raise _unusable(kind, address, error) from None
        msg = f"the {kind} {address} refused a statement: {_cause(address, error)}"
        raise StoreError(msg) from error
    except (DBAPIError, PoolTimeoutError, OSError) as error:
        # Drivers repeat parts of the address in their own text, so the chain ends here.
        raise _unusable(kind, address, error) from None
    except StatementError as error:
        if isinstance(error.orig, StoreError):  # raised by a column that seals or opens
            raise error.orig from None
        raise


def _unusable(kind: str, address: Address, error: BaseException) -> StoreUnavailableError:
    origin = error.orig if isinstance(error, DBAPIError) else error
    outage = find_outage(getattr(origin, "sqlstate", None), str(origin))
    text = f"the {kind} {address} cannot be used: {_cause(address, error)}"
    return StoreUnavailableError(text, fix=outage.fix, cause=outage.cause)


def _cause(address: Address, error: BaseException) -> str:
    origin = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    lines = address.redact(str(origin)).strip().splitlines()
    return lines[0].rstrip(".")[:_CAUSE_CHARACTERS] if lines else type(origin).__name__


_PARTS = ("", "-wal", "-shm")
"""Suffixes of the files of a SQLite store while it is open."""

_BLINK_MS = 50
_WIPED = "perdure_wiped"
_TRUNCATE = "PRAGMA wal_checkpoint(TRUNCATE)"

FIRST_RETRY, LONGEST_RETRY = 0.1, 10.0
"""Seconds until the write-ahead log is truncated that a reader needed; doubled after each try."""


def create_file(path: Path) -> None:
    """Make an empty file and its folder, for their owner alone. SQLite gives ``-wal`` and ``-shm`` the same mode."""
    make_folder(path.absolute().parent)
    os.close(open_private(str(path), os.O_RDWR | os.O_CREAT))


def write_ahead(execute: Callable[[str], object]) -> None:
    """Switch a SQLite file to write-ahead logging (WAL), so that readers do not wait for writers.

    Args:
        execute: Executes a statement on a connection to the file.

    Raises:
        OperationalError: The file was locked for ``BUSY_TIMEOUT``; the driver's, or SQLAlchemy's.
    """
    # SQLite refuses this switch at once, without its busy timeout, while another connection makes it too.
    deadline = time.monotonic() + BUSY_TIMEOUT.total_seconds()
    while True:
        try:
            execute("PRAGMA journal_mode=WAL")
        except (OperationalError, sqlite3.OperationalError):
            if time.monotonic() > deadline:
                raise
            time.sleep(_BETWEEN_SWITCHES)
        else:
            return


class SqliteFile:
    """The file of a SQLite store, with ``-wal`` and ``-shm`` while it is open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parts = [Path(f"{path.absolute()}{ending}") for ending in _PARTS]
        self._opened: dict[Path, tuple[int, int]] = {}
        self._wiped, self._shortened = 1, 0  # a process that was killed may have wiped something, too
        self._retry: Timer | None = None
        self._is_closed = False

    def require_same(self) -> None:
        """Refuse to write if the file was deleted or replaced since it was opened.

        A connection goes on writing to a deleted file, where nobody would ever see it.

        Raises:
            StoreUnavailableError: The file, its ``-wal`` or its ``-shm`` was deleted or replaced.
        """
        for part in self._parts:
            now: tuple[int, int] | None = None
            with suppress(FileNotFoundError):
                there = part.stat()
                now = there.st_dev, there.st_ino
            before = self._opened.get(part) if now is None else self._opened.setdefault(part, now)
            if now != before:
                msg = (
                    f"the file {part} was deleted or replaced while this process had it open, so nothing more is "
                    f"written; put back what was there, or stop all that use {self.path} and start them again"
                )
                raise StoreUnavailableError(msg)

    def note_wiped(self) -> None:
        """Note a committed transaction that has wiped content (see :func:`mark_wiped`)."""
        self._wiped += 1

    def shorten_log(self, engine: Engine, wait: float = FIRST_RETRY) -> None:
        """Truncate the write-ahead log if it may still hold wiped content; where a reader needs it, later."""
        wiped = self._wiped
        if wiped == self._shortened:
            return
        try:
            with engine.connect() as connection, _wait_briefly(connection):
                busy, _, _ = connection.exec_driver_sql(_TRUNCATE).one()
        except DBAPIError:  # for example a full disk; the write itself is committed
            busy = True
        if not busy:
            self._shortened = wiped
        elif self._retry is None and not self._is_closed:
            self._retry = Timer(wait, self._shorten_again, (engine, min(2 * wait, LONGEST_RETRY)))
            self._retry.daemon = True
            self._retry.start()

    def _shorten_again(self, engine: Engine, wait: float) -> None:
        self._retry = None
        with suppress(StoreUnavailableError):  # every write is refused then, too
            self.require_same()
            self.shorten_log(engine, wait)

    def close(self) -> None:
        """Try no more: with the last connection SQLite folds the log into the file."""
        self._is_closed = True
        if (retry := self._retry) is not None:
            retry.cancel()
            retry.join()


def mark_wiped(connection: Connection) -> None:
    """Mark this transaction as one that wipes content which nobody may read any more."""
    connection.info[_WIPED] = True


@contextmanager
def _wait_briefly(connection: Connection) -> Generator[None]:
    """Wait for readers only ``_BLINK_MS``: writers of this process queue behind this."""
    patience = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
    connection.exec_driver_sql(f"PRAGMA busy_timeout={_BLINK_MS}")
    try:
        yield
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout={patience}")


class Database:
    """This process's connections to a database, and the transactions over them.

    Attributes:
        engine: Begins no transaction by itself: a read is one statement, or reads rows that never change.
        file: The file of a SQLite database, if its address has a path.
    """

    def __init__(self, address: Address) -> None:
        """Prepare for the address without opening it.

        Raises:
            StoreConfigError: The driver is not installed, or the address has an option that it does not take.
        """
        self.engine = connect(address)
        self.file = SqliteFile(address.file) if address.file is not None and address.has_plain_file else None

    def read(self, work: Callable[[Connection], T]) -> T:
        """Do work that only reads; once more if the connection has died since its last use."""

        def read_once() -> T:
            with self.engine.connect() as connection:
                return work(connection)

        try:
            return read_once()
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
            return read_once()

    def write(self, work: Callable[[Connection], T], *, is_idempotent: bool = False) -> T:
        """Do work in one transaction; once more if the connection has died since its last use.

        If the commit itself was cut off, nobody knows whether it took effect: only idempotent work is then done again.
        """
        committing = False

        def write_once() -> T:
            nonlocal committing
            with begin_writing(self.engine) as connection:
                if self.file is not None:
                    self.file.require_same()
                result = work(connection)
                has_wiped = connection.info.pop(_WIPED, False)
                committing = True
            if self.file is not None and has_wiped:
                self.file.note_wiped()
            return result

        try:
            return write_once()
        except DBAPIError as error:
            # A pooled connection may have died since its last use; no ping comes before each use, so this finds out.
            if not error.connection_invalidated or (committing and not is_idempotent):
                raise
            return write_once()

    def shorten_log(self) -> None:
        """Truncate the write-ahead log of a SQLite file if it may still hold wiped content."""
        if self.file is not None:
            self.file.shorten_log(self.engine)

    def close(self) -> None:
        """Close all connections."""
        if self.file is not None:
            self.file.close()
        self.engine.dispose()
