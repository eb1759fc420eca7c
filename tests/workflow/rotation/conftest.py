"""A server of each of these modules that asks for a fresh history after a few steps."""

from collections.abc import AsyncIterator

import pytest
import temporalio.client

from perdure.cli.server import EmbeddedServer, ServerOptions
from perdure.client.connect import DATA_CONVERTER
from perdure.local_ports import find_free_port
from tests.conftest import FAST

SUGGESTED_AFTER = 60
"""Events of a history after which the server suggests a fresh one: about five steps."""


@pytest.fixture(scope="module")
async def server(request: pytest.FixtureRequest) -> AsyncIterator[EmbeddedServer]:
    """A server that suggests a fresh history early, with what the module's ``LIMITS`` say beside."""
    more: dict[str, str] = getattr(request.module, "LIMITS", {})
    limits = {**FAST, "limit.historyCount.suggestContinueAsNew": str(SUGGESTED_AFTER), **more}
    async with EmbeddedServer(ServerOptions(port=find_free_port(), dynamic_config=limits)) as running:
        yield running


@pytest.fixture(scope="module")
async def temporal(server: EmbeddedServer) -> temporalio.client.Client:
    """A client of that server."""
    return await temporalio.client.Client.connect(server.address, data_converter=DATA_CONVERTER)
