"""Connections to PostgreSQL with a timeout for each answer. Needs the package psycopg, which is an extra.

Without it nothing on the client's side bounds a statement. A frozen server, or a proxy before a dead one, accepts what
it is sent and answers nothing, and neither TCP nor the server's own timeouts end that.
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


def _connect(
    _dialect: Dialect, _entry: ConnectionPoolEntry, arguments: list[str], named: dict[str, Any]
) -> AnsweringConnection:
    return AnsweringConnection.connect(*arguments, **named)


@contextmanager
def without_timeout(connection: Connection) -> Generator[None]:
    """Lift the timeout in this block, for example for a migration of large tables."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, AnsweringConnection), "the engine makes them"  # noqa: S101 - narrows the type
    driver.patience = None
    try:
        yield
    finally:
        del driver.patience
