"""Connections to PostgreSQL that do not wait for ever: importing this needs the package psycopg, which is an extra.

Nothing else bounds a statement on this side. A server that stands still, or a proxy before one that is gone, takes what
it is sent and says nothing, and neither TCP nor a time-out of the server's own ends that.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from sqlalchemy import Connection, Dialect, Engine, event
from sqlalchemy.pool import ConnectionPoolEntry

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


def use_answering_connections(engine: Engine) -> None:
    """Have the engine's connections give up a silent server."""
    event.listen(engine, "do_connect", _connect)


def _connect(
    _dialect: Dialect, _entry: ConnectionPoolEntry, arguments: list[str], named: dict[str, Any]
) -> AnsweringConnection:
    return AnsweringConnection.connect(*arguments, **named)


@contextmanager
def patiently(connection: Connection) -> Generator[None]:
    """Let statements in this block take as long as they do: a migration of large tables does."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, AnsweringConnection), "the engine makes them"  # noqa: S101 - narrows the type
    driver.patience = None
    try:
        yield
    finally:
        del driver.patience
