"""What every test gets: the real Temporal server, a store, a scripted model behind real HTTP, and a worker.

Fixtures import what they need themselves: a worker's libraries take five seconds, and most tests need none of them.
"""

import gc
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    import temporalio.client
    from temporalio.testing import WorkflowEnvironment

    from perdure.cli.server import EmbeddedServer
    from tests.house import House
    from tests.memory import Run
    from tests.new_store import PostgresqlServer
    from tests.unit.activities.calls import Way

pytest_plugins = [
    *(f"tests.plugins.{name}" for name in ("cpu", "judges", "lanes", "no_skips", "outcomes")),
    "perdure.testing.pytest_plugin",
]

hypothesis.settings.register_profile("no_clock", deadline=None)  # a busy machine is slow, not wrong
hypothesis.settings.load_profile("no_clock")

FAST = {"history.timerProcessorMaxTimeShift": '"1ms"'}
"""Timers of tests may be short: by default the server rounds each up to a second."""


def pytest_collection_finish() -> None:
    """Spare each full collection of garbage the half million objects that the imports have made: half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _forget_what_was_learnt() -> "Iterator[None]":
    """Leave no test what a worker of an earlier one has learnt of a provider; nothing is imported for it."""
    yield
    if (limits := sys.modules.get("perdure.activities.models.limits")) is not None:
        limits.WHOLE_ONLY.clear()
        limits.TOOL_LIMITS.clear()
    if (forms := sys.modules.get("perdure.activities.models.forms")) is not None:
        forms.FORMS.clear()


@pytest.fixture(scope="session")
async def server() -> "AsyncIterator[EmbeddedServer]":
    """The real server, in memory, one for each process of the test run."""
    from perdure.cli.server import EmbeddedServer, ServerOptions  # noqa: PLC0415 - see above
    from perdure.local_ports import find_free_port  # noqa: PLC0415 - see above
    from tests.plugins.lanes import excused  # noqa: PLC0415 - see above

    running = EmbeddedServer(ServerOptions(port=find_free_port(), dynamic_config=FAST))
    with excused():
        await running.start()
    yield running
    with excused():
        await running.stop()


@pytest.fixture(scope="session")
async def temporal(server: "EmbeddedServer") -> "temporalio.client.Client":
    """A client of the real server."""
    import temporalio.client  # noqa: PLC0415 - see above

    from perdure.client.connect import DATA_CONVERTER  # noqa: PLC0415 - see above

    return await temporalio.client.Client.connect(server.address, data_converter=DATA_CONVERTER)


@pytest.fixture
async def skipping() -> "AsyncIterator[WorkflowEnvironment]":
    """The server whose clock jumps over every wait; it knows no search attributes."""
    from temporalio.testing import WorkflowEnvironment  # noqa: PLC0415 - see above

    from perdure.client.connect import DATA_CONVERTER  # noqa: PLC0415 - see above

    binary = str(Path(sys.executable).with_name("temporal-test-server"))
    environment = await WorkflowEnvironment.start_time_skipping(
        test_server_existing_path=binary, data_converter=DATA_CONVERTER
    )
    async with environment:
        yield environment


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """The address of a PostgreSQL server that lives as long as the test session."""
    from tests.plugins.lanes import excused  # noqa: PLC0415 - see above
    from tests.postgresql import postgresql_or_skip, url_of  # noqa: PLC0415 - see above

    with excused():
        server = postgresql_or_skip()
    yield url_of(server)
    with excused():
        server.cleanup()


@pytest.fixture(scope="session")
def postgresql_databases(postgresql_server: str) -> "Iterator[PostgresqlServer]":
    """Makes databases on that server."""
    from tests.new_store import PostgresqlServer  # noqa: PLC0415 - see above

    server = PostgresqlServer(postgresql_server)
    yield server
    server.close()


@pytest.fixture
def postgresql_url(postgresql_databases: "PostgresqlServer") -> Iterator[str]:
    """An empty database."""
    with postgresql_databases.database(has_store=False) as url:
        yield url


@pytest.fixture
def postgresql_store_url(postgresql_databases: "PostgresqlServer") -> Iterator[str]:
    """A database with an empty store."""
    with postgresql_databases.database(has_store=True) as url:
        yield url


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, server: "EmbeddedServer") -> pytest.MonkeyPatch:
    """The environment of a user of this server, without anything of the developer's own."""
    from tests.house import become_a_user  # noqa: PLC0415 - see above

    become_a_user(monkeypatch, server.address)
    return monkeypatch


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> "Run":
    """A function that runs turns in memory, with the model's answers behind the agent; see :mod:`tests.memory`."""
    from tests.house import become_a_user  # noqa: PLC0415 - see above
    from tests.memory import Run  # noqa: PLC0415 - see above

    become_a_user(monkeypatch, "127.0.0.1:1")
    return Run(monkeypatch)


@pytest.fixture(params=["openai", "anthropic"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> "Way":
    """Each wire of a model call in turn, with a key for it; see :mod:`tests.unit.activities.calls`."""
    from tests.unit.activities.calls import Way, take  # noqa: PLC0415 - see above

    taken = Way(request.param)
    take(taken, monkeypatch)
    return taken


@pytest.fixture
async def house(
    environment: pytest.MonkeyPatch,
    server: "EmbeddedServer",
    temporal: "temporalio.client.Client",
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> "AsyncIterator[House]":
    """A store, a task queue and a client for one test; see :class:`tests.house.House`."""
    from tests.house import House  # noqa: PLC0415 - see above

    async with House.built(
        name=request.node.name, server=server, temporal=temporal, environment=environment, folder=tmp_path
    ) as built:
        yield built


@pytest.fixture(params=["sqlite", "postgresql"])
async def home(
    environment: pytest.MonkeyPatch,
    server: "EmbeddedServer",
    temporal: "temporalio.client.Client",
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> "AsyncIterator[House]":
    """A house on a store of each kind in turn, which nobody else uses."""
    from tests.house import House  # noqa: PLC0415 - see above

    url = request.getfixturevalue("postgresql_store_url") if request.param == "postgresql" else None
    async with House.built(
        name=request.node.name,
        server=server,
        temporal=temporal,
        environment=environment,
        folder=tmp_path,
        store_url=url,
    ) as built:
        yield built


@pytest.fixture
async def lasting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> "AsyncIterator[House]":
    """A house whose server keeps its executions in a file, so that it can be killed."""
    import temporalio.client  # noqa: PLC0415 - see above

    from perdure.cli.server import EmbeddedServer, ServerOptions  # noqa: PLC0415 - see above
    from perdure.client.connect import DATA_CONVERTER  # noqa: PLC0415 - see above
    from perdure.local_ports import find_free_port  # noqa: PLC0415 - see above
    from tests.house import House, become_a_user  # noqa: PLC0415 - see above

    options = ServerOptions(port=find_free_port(), db=tmp_path / "temporal.db", dynamic_config=FAST)
    async with EmbeddedServer(options) as server:
        become_a_user(monkeypatch, server.address)
        temporal = await temporalio.client.Client.connect(server.address, data_converter=DATA_CONVERTER)
        async with House.built(
            name=request.node.name, server=server, temporal=temporal, environment=monkeypatch, folder=tmp_path
        ) as house:
            yield house
