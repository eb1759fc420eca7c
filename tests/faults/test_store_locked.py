"""A store that another process holds for a while: the turn waits, at each of its writes, and loses nothing."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure.store import Store
from perdure.testing import Script, ScriptedProvider, say
from tests.faults.waiting import AGENT, SCRIPT, WRITES, runs, told, waiting_visibly
from tests.house import House

pytestmark = pytest.mark.deep


class Lock:
    """Another process that writes to the same file."""

    def __init__(self, file: Path) -> None:
        self._connection = sqlite3.connect(file, isolation_level=None)
        self.taken = asyncio.Event()

    def take(self) -> None:
        if not self.taken.is_set():
            self._connection.execute("BEGIN IMMEDIATE")
            self.taken.set()

    def release(self) -> None:
        self._connection.execute("ROLLBACK")
        self._connection.close()


@pytest.fixture
async def impatient(house: House) -> AsyncIterator[House]:
    """A house whose store gives up a locked file soon, so that the test does not wait for it."""
    runs.clear()
    async with await Store.open(f"{house.settings.store_url}?timeout=0.1") as store:
        house.store = store
        yield house


@pytest.mark.parametrize("write", WRITES)
async def test_a_turn_waits_for_a_locked_store_and_goes_on(
    impatient: House, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    lock = Lock(impatient.folder / "store.db")
    original = getattr(Store, write)

    async def after_the_lock(store: Store, *given: Any, **named: Any) -> Any:
        lock.take()
        return await original(store, *given, **named)

    async with ScriptedProvider(SCRIPT) as provider, impatient.worker(AGENT):
        impatient.use(provider)
        monkeypatch.setattr(Store, write, after_the_lock)
        handle = await impatient.start()
        await lock.taken.wait()
        await waiting_visibly(impatient, "database is locked")
        lock.release()
        result = await handle.result()
        assert (result["stop_reason"], result["steps"]) == ("finished", 2)
        assert provider.request_count == 2
        assert told(provider) == ["paid"]
    assert runs == ["pay"]
    assert not await impatient.events("tool_error", "generation_error", "agent_error")


async def test_a_worker_that_is_stopped_while_it_waits_hands_over_at_once(
    impatient: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer it holds is lost with it, but not the time until its silence would be noticed."""
    lock = Lock(impatient.folder / "store.db")
    original = Store.finish_generation

    async def after_the_lock(store: Store, *given: Any) -> Any:
        lock.take()
        return await original(store, *given)

    impatient.settings = impatient.settings.model_copy(update={"shutdown_grace": timedelta(seconds=0.1)})
    async with ScriptedProvider(Script(replies=(say("done"),))) as provider:
        impatient.use(provider)
        monkeypatch.setattr(Store, "finish_generation", after_the_lock)
        async with impatient.worker(AGENT):
            handle = await impatient.start()
            await waiting_visibly(impatient, "database is locked")
        lock.release()
        async with impatient.worker(AGENT):
            result = await handle.result()
    assert result["stop_reason"] == "finished"
    history = await handle.fetch_history()
    attempts = [event.activity_task_started_event_attributes for event in history.events]
    (again,) = [attempt for attempt in attempts if attempt.attempt > 1]
    assert again.last_failure.application_failure_info.type == "runtime.worker_shutdown"
