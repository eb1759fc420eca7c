"""PostgreSQL that goes down in the middle of a turn and comes back: the turn waits, at each of its writes."""

import asyncio
from typing import Any

import pytest

from perdure.store import Store
from perdure.testing import ScriptedProvider
from tests.faults.waiting import AGENT, SCRIPT, WRITES, runs, told, waiting_visibly
from tests.house import House

pytestmark = pytest.mark.deep


@pytest.mark.parametrize("write", WRITES)
async def test_a_turn_waits_for_a_stopped_server_and_goes_on(
    fleet: House, postgresql: Any, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    runs.clear()
    stopped = asyncio.Event()
    original = getattr(Store, write)

    async def after_the_stop(store: Store, *given: Any, **named: Any) -> Any:
        if not stopped.is_set():
            await asyncio.to_thread(postgresql.stop)
            stopped.set()
        return await original(store, *given, **named)

    async with ScriptedProvider(SCRIPT) as provider, fleet.worker(AGENT):
        fleet.use(provider)
        monkeypatch.setattr(Store, write, after_the_stop)
        handle = await fleet.start()
        await stopped.wait()
        await waiting_visibly(fleet)
        await asyncio.to_thread(postgresql.ensure_postgres_running)
        result = await handle.result()
        assert (result["stop_reason"], result["steps"]) == ("finished", 2)
        assert provider.request_count == 2
        assert told(provider) == ["paid"]
    assert runs == ["pay"]
    assert not await fleet.events("tool_error", "generation_error", "agent_error")
