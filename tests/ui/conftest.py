"""One embedded server with its UI, prepared jobs on it, and a browser, for all tests of the pages."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import temporalio.client

from perdure.cli.server import EmbeddedServer, ServerOptions
from perdure.client.connect import DATA_CONVERTER
from perdure.local_ports import find_free_port
from tests.conftest import FAST
from tests.house import House, become_a_user
from tests.ui.browser import Browser, Page
from tests.ui.jobs import Jobs, prepared

PICTURES = "PERDURE_UI_SCREENSHOTS"
"""Names a folder in which the screenshots are kept."""


@pytest.fixture(scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    """Headless Chromium; without one on the PATH the tests are skipped."""
    folder = tmp_path_factory.mktemp("browser")
    pictures = Path(os.environ.get(PICTURES) or folder / "pictures")
    async with Browser.launched(folder / "profile", pictures) as browser:
        yield browser


@asynccontextmanager
async def house_of(name: str, folder: Path, ui_port: int | None) -> AsyncIterator[House]:
    """A house on a server of its own, for all tests of a module."""
    options = ServerOptions(port=find_free_port(), ui_port=ui_port, dynamic_config=FAST)
    async with EmbeddedServer(options) as server:
        with pytest.MonkeyPatch.context() as environment:
            become_a_user(environment, server.address)
            temporal = await temporalio.client.Client.connect(server.address, data_converter=DATA_CONVERTER)
            async with House.built(
                name=name, server=server, temporal=temporal, environment=environment, folder=folder
            ) as house:
                yield house


@pytest.fixture(scope="module")
async def jobs(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Jobs]:
    """The jobs; asked for after the browser, so that nothing is prepared in vain."""
    async with house_of("ui", tmp_path_factory.mktemp("jobs"), find_free_port()) as house, prepared(house) as jobs:
        yield jobs


@pytest.fixture(scope="module")
async def page(browser: Browser, jobs: Jobs) -> AsyncIterator[Page]:
    """A tab with the UI, in which every test follows its own links."""
    async with browser.page(f"{jobs.house.server.ui_url}/namespaces/default/workflows") as page:
        await page.shows("Workflow ID")
        yield page
