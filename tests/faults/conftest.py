"""Stores that a test may take away and bring back."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from perdure.client import Client
from perdure.settings import Settings
from perdure.store import Store
from tests.house import House
from tests.postgresql import postgresql_or_skip, url_of


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Any]:
    """A server that a test may stop and start."""
    server = postgresql_or_skip()
    yield server
    server.cleanup()


@pytest.fixture
async def fleet(house: House, postgresql: Any) -> AsyncIterator[House]:
    """A house whose store is PostgreSQL."""
    postgresql.ensure_postgres_running()
    url = url_of(postgresql)
    house.environment.setenv("PERDURE_STORE_URL", url)
    house.settings = Settings()
    async with await Store.open(url, upgrade=True) as store, await Client.connect(house.settings) as client:
        house.store, house.client = store, client
        yield house
