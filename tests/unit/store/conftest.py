"""The store over both databases: SQLite in a file of its own, PostgreSQL in a database of its own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure.store import Store
from tests.new_store import make_sqlite


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database, of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store' / 'perdure.db'}"
    return str(request.getfixturevalue("postgresql_url"))


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store, of each kind in turn."""
    if request.param == "sqlite":
        make_sqlite(tmp_path / "store" / "perdure.db")
        return f"sqlite:///{tmp_path / 'store' / 'perdure.db'}"
    return str(request.getfixturevalue("postgresql_store_url"))


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    """An open store with the newest schema and nothing in it."""
    async with await Store.open(url, upgrade=True) as opened:
        yield opened
