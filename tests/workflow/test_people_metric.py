"""The metric of turns that wait for people: right on every worker, also on one that was not there when they began."""

import asyncio
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from perdure.contracts.names import Metric
from perdure.local_ports import find_free_port
from perdure.testing import Script, ScriptedProvider
from tests.house import WAIT_SECONDS, House, eventually
from tests.workflow.asking import COLOUR, DONE, update, waiting

pytestmark = pytest.mark.deep

AGENTS = "tests.workflow.agents_that_ask"


def read(address: str) -> dict[str, float]:
    """The metrics without labels on a worker's page; nothing while there is no page."""
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=WAIT_SECONDS) as reply:
            page = reply.read().decode()
    except urllib.error.URLError:
        return {}
    families = text_string_to_metric_families(page)
    return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}


async def says(address: str, turns: int) -> dict[str, float]:
    """Wait until the page says so many turns."""

    async def there() -> dict[str, float] | None:
        page = await asyncio.to_thread(read, address)
        return page if page.get(Metric.WAITING_FOR_INPUT) == turns else None

    page: dict[str, float] = await eventually(there)
    return page


async def test_a_turn_that_waits_is_counted_by_a_worker_that_began_after_it(house: House) -> None:
    """S-60: kill -9 loses no wait, and two workers that say the same are to be read with max()."""
    first, second, third = (f"127.0.0.1:{find_free_port()}" for _ in range(3))
    async with ScriptedProvider(Script(replies=(COLOUR, DONE))) as provider:
        house.use(provider)
        began = house.spawn_worker(AGENTS, PERDURE_METRICS_ADDRESS=first)
        await says(first, 0)
        handle = await house.start()
        (request,) = await waiting(house)
        await says(first, 1)
        began.kill()
        for address in (second, third):
            house.spawn_worker(AGENTS, PERDURE_METRICS_ADDRESS=address)
        before = await says(second, 1)
        after = await says(third, 1)
        assert 0 < before[Metric.WAITING_SECONDS] < after[Metric.WAITING_SECONDS]
        await update(house, "answer", request=request["request_id"], value="red", by="ann")
        async with asyncio.timeout(WAIT_SECONDS):
            await handle.result()
        page = await says(third, 0)
        assert page[Metric.WAITING_SECONDS] == 0
