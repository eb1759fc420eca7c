"""A store that answers and refuses: each refusal counts by its cause, in the worker and in the gateway."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from sqlalchemy import event

from perdure.activities.telling.metrics import Metrics
from perdure.gateway.metrics import HttpMetrics
from perdure.gateway.problems import handle_errors
from perdure.store import Store, StoreUnavailableError
from perdure.store.errors import RefusalCause
from tests.chaos.databases import Databases
from tests.postgresql import postgresql_or_skip

pytestmark = pytest.mark.deep

NAME = "perdure_store_refusals_total"


@pytest.fixture(scope="module")
def databases() -> Iterator[Databases]:
    postgresql_or_skip()
    with Databases() as running:
        yield running


def counted(registry: CollectorRegistry) -> dict[str, float]:
    """The refusals so far by cause, without those that are 0."""
    found = {cause: registry.get_sample_value(NAME, {"cause": cause}) for cause in RefusalCause}
    assert None not in found.values(), "a first refusal is an increase only if there was a zero before"
    return {str(cause): value for cause, value in found.items() if value}


async def refused(store: Store) -> dict[str, float]:
    """What a worker counts of two writes that the store refuses."""
    registry = CollectorRegistry()
    store.tell_refusals(Metrics(registry).store_refused)
    assert counted(registry) == {}
    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            await store.check_writes()
    return counted(registry)


REFUSALS: dict[str, Callable[[Databases, str], AbstractContextManager[None]]] = {
    "read_only": Databases.read_only,
    "connections": Databases.crowded,
    "full": Databases.full,
    "other": Databases.away,
}
"""How PostgreSQL comes to refuse, by the cause that is counted."""


@pytest.mark.parametrize("cause", REFUSALS)
async def test_a_refusal_of_postgresql_counts_by_its_cause(databases: Databases, cause: str) -> None:
    url = databases.create()
    async with await Store.open(url, upgrade=True) as store:
        with REFUSALS[cause](databases, url):
            assert await refused(store) == {cause: 2}
        await store.check_writes()


async def test_a_read_counts_too_and_a_role_without_connections_by_its_cause(databases: Databases) -> None:
    """The worker's own connections are gone with the restart of a pool, and others have taken their places."""
    url = databases.create()
    async with await Store.open(url, upgrade=True) as store:
        registry = CollectorRegistry()
        store.tell_refusals(Metrics(registry).store_refused)
        with Databases.crowded(databases, url), pytest.raises(StoreUnavailableError):
            await store.agents()
        assert counted(registry) == {"connections": 1}


@contextmanager
def read_only(store: Store) -> Iterator[None]:
    """SQLite refuses each write, as of a file that its user may not write."""
    with limited(store, "PRAGMA query_only=ON", "PRAGMA query_only=OFF"):
        yield


@contextmanager
def full(store: Store) -> Iterator[None]:
    """SQLite itself reports that its space is used up."""
    with limited(store, "PRAGMA max_page_count=1", "PRAGMA max_page_count=1000000"):
        yield


@contextmanager
def limited(store: Store, limit: str, lift: str) -> Iterator[None]:
    """Each connection is limited when it is taken, until the block ends."""
    statement = limit

    def on_checkout(connection: Any, *_: object) -> None:
        connection.execute(statement)

    event.listen(store._database.engine, "checkout", on_checkout)
    try:
        yield
    finally:
        statement = lift


@pytest.mark.parametrize(("cause", "limit"), [("read_only", read_only), ("full", full)])
async def test_a_refusal_of_sqlite_counts_by_its_cause(
    tmp_path: Path, cause: str, limit: Callable[[Store], AbstractContextManager[None]]
) -> None:
    async with await Store.open(f"sqlite:///{tmp_path / 'store.db'}", upgrade=True) as store:
        with limit(store):
            assert await refused(store) == {cause: 2}
        await store.check_writes()


async def test_a_locked_file_counts_as_another_cause(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with await Store.open(f"sqlite:///{path}?timeout=0", upgrade=True) as store:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        assert await refused(store) == {"other": 2}
        holder.close()


async def test_a_gateway_counts_the_requests_that_the_store_refused(databases: Databases) -> None:
    """Its page has the cause, and the caller a 503."""
    url, app, metrics = databases.create(), FastAPI(), HttpMetrics()
    app.state.metrics = metrics
    handle_errors(app)
    async with await Store.open(url, upgrade=True) as store:
        app.post("/write")(store.check_writes)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
            with databases.read_only(url):
                assert (await http.post("/write")).status_code == httpx.codes.SERVICE_UNAVAILABLE
            assert counted(metrics.registry) == {"read_only": 1}
            assert (await http.post("/write")).status_code == httpx.codes.OK
    assert counted(metrics.registry) == {"read_only": 1}
