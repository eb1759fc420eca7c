"""Connections to PostgreSQL that do not wait for ever: importing this needs the package psycopg, which is an extra.

Nothing else bounds a statement on this side. A server that stands still, or a proxy before one that is gone, takes what
it is sent and says nothing, and neither TCP nor a time-out of the server's own ends that.
"""

import difflib
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from sqlalchemy import URL, Connection, Dialect, Engine, create_engine, event
from sqlalchemy.pool import ConnectionPoolEntry

from perdure.store.errors import StoreError

T = TypeVar("T")

ANSWER_TIMEOUT = timedelta(seconds=20)
"""A server that says nothing for so long is given up: less than an activity that only writes may take."""


class AnsweringConnection(psycopg.Connection[object]):
    """A connection whose statements fail when the server says nothing for too long; it is closed then."""

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


DEFAULTS = {
    "application_name": "perdure",
    # A pooled connection to a host that is gone, or that a firewall has forgotten, is found out while it is idle.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
}
"""Options of a connection unless the address has its own."""

PREPARE = "prepare_threshold"
"""The one option of an address that is the driver's own: executions before a statement is prepared on the server."""

_NUMBERS = (
    PREPARE,
    "connect_timeout",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
)


def make_engine(url: URL, *, connections: int, patience: timedelta) -> Engine:
    """An engine whose connections give up a silent server; the options of the address hold.

    Raises:
        StoreError: An option is none of PostgreSQL's client, or is no number where one is needed.
    """
    options = _options(url)
    prepare = options.pop(PREPARE, None)
    arguments: dict[str, object] = {"connect_timeout": str(int(patience.total_seconds())), **DEFAULTS, **options}
    # A statement that is prepared stays with one connection of the server. Behind PgBouncer in transaction mode the
    # next transaction may get another connection, so nothing is prepared unless the address asks for it.
    arguments[PREPARE] = None if prepare is None else int(prepare)
    engine = create_engine(
        url,
        connect_args=arguments,
        pool_size=connections,
        max_overflow=0,
        pool_use_lifo=True,
        hide_parameters=True,
    )
    event.listen(engine, "do_connect", _connect)
    return engine


def _options(url: URL) -> dict[str, str]:
    """The options behind the question mark, without those that are given several times: SQLAlchemy reads these."""
    known = {PREPARE, *(option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults())}
    options: dict[str, str] = {}
    for name, value in url.query.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"; did you mean {near[0]}?" if near else "; take it out of the address"
            msg = f"the store's address has the option {name!r}, which PostgreSQL's client does not know{meant}"
            raise StoreError(msg)
        if name in _NUMBERS and not (isinstance(value, str) and value.isascii() and value.isdigit()):
            msg = f"the store's address has the option {name}={value!r}, which is no whole number; write one"
            raise StoreError(msg)
        if isinstance(value, str):
            options[name] = value
    return options


def _connect(
    _dialect: Dialect, _entry: ConnectionPoolEntry, arguments: list[str], named: dict[str, Any]
) -> AnsweringConnection:
    return AnsweringConnection.connect(*arguments, **named)


@contextmanager
def without_timeout(connection: Connection) -> Generator[None]:
    """Let statements in this block take as long as they do: a migration of large tables does."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, AnsweringConnection), "the engine makes them"  # noqa: S101 - narrows the type
    driver.patience = None
    try:
        yield
    finally:
        del driver.patience
