"""A disk that is full: the turn waits until there is space, shows why, and pays for nothing twice."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import event

from perdure import Agent
from perdure.testing import ChatRequest, Reply, ScriptedProvider, say
from tests.faults.waiting import waiting_visibly
from tests.house import House

pytestmark = pytest.mark.deep

AGENT = Agent(name="tester", model="openai/scripted")
LONG = "long answer " * 20_000
FULL = 1
PLENTY = 1_000_000


class Disk:
    """The space of the store's file, in pages; SQLite itself reports that it is used up."""

    def __init__(self) -> None:
        self.pages = PLENTY

    def limit(self, connection: Any, *_: object) -> None:
        connection.execute(f"PRAGMA max_page_count={self.pages}")


@pytest.fixture
def disk(house: House) -> Iterator[Disk]:
    """The disk of the house's store."""
    limited = Disk()
    event.listen(house.store._database.engine, "checkout", limited.limit)
    yield limited
    event.remove(house.store._database.engine, "checkout", limited.limit)


async def test_an_answer_that_finds_the_disk_full_is_kept_until_there_is_space(house: House, disk: Disk) -> None:
    def fill_and_answer(_: ChatRequest) -> Reply:
        disk.pages = FULL
        return say(LONG)

    async with ScriptedProvider(fill_and_answer) as provider, house.worker(AGENT):
        house.use(provider)
        handle = await house.start()
        await waiting_visibly(house, "database or disk is full")
        disk.pages = PLENTY
        result = await handle.result()
        assert provider.request_count == 1
    assert (result["stop_reason"], result["steps"]) == ("finished", 1)
    assert len(await house.events("generation_step")) == 1


async def test_a_turn_that_begins_on_a_full_disk_waits(house: House, disk: Disk) -> None:
    async with ScriptedProvider(lambda _: say("done")) as provider, house.worker(AGENT):
        house.use(provider)
        disk.pages = FULL
        handle = await house.start(prompt="x" * 100_000)
        await waiting_visibly(house, "database or disk is full")
        disk.pages = PLENTY
        result = await handle.result()
    assert result["stop_reason"] == "finished"
    assert [line["seq"] for line in await house.events()] == list(range(1, len(await house.events()) + 1))
