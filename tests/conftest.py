"""What every test gets: the real Temporal server, a store, a scripted model behind real HTTP, and a worker."""

from collections.abc import AsyncIterator
from pathlib import Path

import hypothesis
import pytest
import temporalio.client

from perdure.cli.server import EmbeddedServer, ServerOptions, free_port
from perdure.client.connect import DATA_CONVERTER
from tests.house import ROOT, House, become_a_user

pytest_plugins = ["tests.plugins.no_skips", "perdure.testing.pytest_plugin"]

hypothesis.settings.register_profile("no_clock", deadline=None)  # a busy machine is slow, not wrong
hypothesis.settings.load_profile("no_clock")

FAST = {"history.timerProcessorMaxTimeShift": '"1ms"'}
"""Timers of tests may be short: by default the server rounds each up to a second."""

QUICK = {"contract", "unit"}
"""Folders whose files take seconds: they come last, so that the processes of a run end together."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest."""
    items.sort(key=lambda item: item.path.relative_to(ROOT / "tests").parts[0] in QUICK)


@pytest.fixture(scope="session")
async def server() -> AsyncIterator[EmbeddedServer]:
    """The real server, in memory, one for each process of the test run."""
    async with EmbeddedServer(ServerOptions(port=free_port(), dynamic_config=FAST)) as running:
        yield running


@pytest.fixture(scope="session")
async def temporal(server: EmbeddedServer) -> temporalio.client.Client:
    """A client of the real server."""
    return await temporalio.client.Client.connect(server.address, data_converter=DATA_CONVERTER)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, server: EmbeddedServer) -> pytest.MonkeyPatch:
    """The environment of a user of this server, without anything of the developer's own."""
    become_a_user(monkeypatch, server)
    return monkeypatch


@pytest.fixture
async def house(
    environment: pytest.MonkeyPatch,
    server: EmbeddedServer,
    temporal: temporalio.client.Client,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> AsyncIterator[House]:
    """A store, a task queue and a client for one test; see :class:`tests.house.House`."""
    async with House.built(
        name=request.node.name, server=server, temporal=temporal, environment=environment, folder=tmp_path
    ) as built:
        yield built


@pytest.fixture
async def lasting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[House]:
    """A house whose server keeps its executions in a file, so that it can be killed."""
    options = ServerOptions(port=free_port(), db=tmp_path / "temporal.db", dynamic_config=FAST)
    async with EmbeddedServer(options) as server:
        become_a_user(monkeypatch, server)
        temporal = await temporalio.client.Client.connect(server.address, data_converter=DATA_CONVERTER)
        async with House.built(
            name=request.node.name, server=server, temporal=temporal, environment=monkeypatch, folder=tmp_path
        ) as house:
            yield house
