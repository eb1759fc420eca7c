"""The store over both databases: SQLite in a file of its own, PostgreSQL in a database of its own."""

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from perdure.store import Store
from tests.postgresql import postgresql_or_skip, url_of


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """The address of a PostgreSQL server that lives as long as the test session."""
    server = postgresql_or_skip()
    yield url_of(server)
    server.cleanup()


@pytest.fixture
def postgresql_url(postgresql_server: str) -> Iterator[str]:
    """A fresh database."""
    name = f"test_{uuid.uuid4().hex}"
    address = make_url(postgresql_server).set(drivername="postgresql+psycopg")
    administration = create_engine(address, isolation_level="AUTOCOMMIT")
    with administration.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield address.set(drivername="postgresql", database=name).render_as_string(hide_password=False)
    with administration.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    administration.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database, of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store' / 'perdure.db'}"
    return str(request.getfixturevalue("postgresql_url"))


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    """An open store with the newest schema and nothing in it."""
    async with await Store.open(url, upgrade=True) as opened:
        yield opened
