"""PostgreSQL databases for sessions, which can be taken away for a while."""

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Engine, create_engine, make_url, text

from tests.postgresql import start_postgresql


class Databases:
    """One PostgreSQL server, started when the first database is asked for."""

    def __init__(self) -> None:
        self._server: Any = None
        self._engine: Engine | None = None

    def __enter__(self) -> "Databases":
        return self

    def __exit__(self, *_: object) -> None:
        if self._engine is not None:
            self._engine.dispose()
            self._server.cleanup()

    def create(self) -> str:
        """The address of a fresh database."""
        name = f"chaos_{uuid.uuid4().hex}"
        self._administer(f"CREATE DATABASE {name}")
        address = make_url(self._server.get_uri()).set(drivername="postgresql", database=name)
        return address.render_as_string(hide_password=False)

    @contextlib.contextmanager
    def away(self, url: str) -> Iterator[None]:
        """Cut every connection to the database, and let none in until the block ends."""
        name = make_url(url).database
        self._administer(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")
        self._administer(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        try:
            yield
        finally:
            self._administer(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true")

    def _administer(self, statement: str) -> None:
        with self._administration().connect() as connection:
            connection.execute(text(statement))

    def _administration(self) -> Engine:
        if self._engine is None:
            self._server = start_postgresql()
            address = make_url(self._server.get_uri()).set(drivername="postgresql+psycopg")
            self._engine = create_engine(address, isolation_level="AUTOCOMMIT")
        return self._engine
