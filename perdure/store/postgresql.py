"""Connections to PostgreSQL with a timeout for each answer. Needs the package psycopg, which is an extra.

Without it nothing on the client's side bounds a statement. A frozen server, or a proxy before a dead one, accepts what
it is sent and answers nothing, and neither TCP nor the server's own timeouts end that.
"""

import difflib
import os
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from sqlalchemy import URL, Connection, Dialect, Engine, create_engine, event
from sqlalchemy.pool import ConnectionPoolEntry

from perdure.store.errors import StoreConfigError

T = TypeVar("T")

ANSWER_TIMEOUT = timedelta(seconds=20)
"""Longest silence of the server; shorter than the timeout of an activity that only writes to the store."""


class AnsweringConnection(psycopg.Connection[object]):
    """A connection whose statements fail, and which is closed, if the server is silent for longer than ``patience``."""

    patience: timedelta | None = ANSWER_TIMEOUT

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Carry out one exchange with the server."""
        bounded = gen if self.patience is None else self._bounded(gen, self.patience)
        return super().wait(bounded, interval) if timeout is None else super().wait(bounded, interval, timeout)

    def _bounded(self, gen: PQGen[T], patience: timedelta) -> PQGen[T]:
        heard = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                now = time.monotonic()
                if ready:
                    heard = now
                elif now - heard > patience.total_seconds():
                    self.close()
                    msg = f"the server has said nothing for {patience.total_seconds():g} s"
                    raise psycopg.OperationalError(msg)
                wanted = gen.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result


IDLE_TIMEOUT = timedelta(seconds=6)
"""Longest silence of a process in the middle of a transaction; shorter than the heartbeat after which another worker
takes its work over, so that the locks of a frozen process are free by then."""

_BEGIN = (
    f"BEGIN; SET LOCAL idle_in_transaction_session_timeout = '{IDLE_TIMEOUT.total_seconds():g}s'; "
    f"SET LOCAL statement_timeout = '{ANSWER_TIMEOUT.total_seconds():g}s'"
)
"""One exchange with the server. What it sets ends with the transaction, so it holds behind PgBouncer too."""


DEFAULTS = {
    "application_name": "perdure",
    # Finds idle pooled connections whose host is gone, or that a firewall has dropped.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
}
"""Default options of a connection; the address may override them."""

PREPARE = "prepare_threshold"
"""An option of the driver, not of libpq: executions before a statement is prepared on the server."""

_KNOWS_SYSTEM = 160000
"""The first release of PostgreSQL's client that takes ``sslrootcert=system``."""

_NUMBERS = (
    PREPARE,
    "connect_timeout",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
)


def make_engine(url: URL, *, connections: int, patience: timedelta) -> Engine:
    """An engine whose connections give up a silent server. Options in the address override the defaults.

    Raises:
        StoreConfigError: An option is unknown to PostgreSQL's client, or is not a number where one is needed.
    """
    options = _options(url)
    prepare = options.pop(PREPARE, None)
    arguments: dict[str, object] = {"connect_timeout": str(int(patience.total_seconds())), **DEFAULTS, **options}
    if _lacks_authorities(options):
        arguments["sslrootcert"] = "system"
    # A prepared statement belongs to one connection of the server. Behind PgBouncer in transaction mode the next
    # transaction may get another one, so nothing is prepared unless the address asks for it.
    arguments[PREPARE] = None if prepare is None else int(prepare)
    engine = create_engine(
        url,
        connect_args=arguments,
        pool_size=connections,
        max_overflow=0,
        pool_use_lifo=True,
        hide_parameters=True,
        # The driver begins no transactions: perdure does, with their timeouts, and what it only reads needs none.
        isolation_level="AUTOCOMMIT",
    )
    event.listen(engine, "do_connect", _connect)
    return engine


def _options(url: URL) -> dict[str, str]:
    """The options after the question mark, without repeated ones, which SQLAlchemy reads itself."""
    known = {PREPARE, *(option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults())}
    options: dict[str, str] = {}
    for name, value in url.query.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"; did you mean {near[0]}?" if near else "; take it out of the address"
            msg = f"the store's address has the option {name!r}, which PostgreSQL's client does not know{meant}"
            raise StoreConfigError(msg)
        if name in _NUMBERS and not (isinstance(value, str) and value.isascii() and value.isdigit()):
            msg = f"the store's address has the option {name}={value!r}, which is no whole number; write one"
            raise StoreConfigError(msg)
        if isinstance(value, str):
            options[name] = value
    return options


def _lacks_authorities(options: Mapping[str, str]) -> bool:
    """Whether the server's certificate is to be verified, and nobody says by which authorities: the system's then."""
    if options.get("sslmode", os.environ.get("PGSSLMODE")) != "verify-full" or psycopg.pq.version() < _KNOWS_SYSTEM:
        return False
    named = "sslrootcert" in options or "service" in options or "PGSSLROOTCERT" in os.environ
    return not named and not (Path.home() / ".postgresql/root.crt").exists()


def _connect(
    _dialect: Dialect, _entry: ConnectionPoolEntry, arguments: list[str], named: dict[str, Any]
) -> AnsweringConnection:
    return AnsweringConnection.connect(*arguments, **named)


def begin(connection: Connection) -> None:
    """Begin a transaction that the server ends if this process falls silent, and whose statements it bounds."""
    driver = _driver_of(connection)
    # Several statements in one exchange cannot be prepared, whatever the address asks for.
    threshold, driver.prepare_threshold = driver.prepare_threshold, None
    try:
        connection.exec_driver_sql(_BEGIN)
    finally:
        driver.prepare_threshold = threshold


@contextmanager
def without_timeout(connection: Connection) -> Generator[None]:
    """Lift the timeouts in this block, within a transaction, for example for a migration of large tables."""
    for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
        connection.exec_driver_sql(f"SET LOCAL {name} = 0")
    driver = _driver_of(connection)
    driver.patience = None
    try:
        yield
    finally:
        del driver.patience


def _driver_of(connection: Connection) -> AnsweringConnection:
    driver = connection.connection.driver_connection
    assert isinstance(driver, AnsweringConnection), "the engine makes them"  # noqa: S101 - narrows the type
    return driver
