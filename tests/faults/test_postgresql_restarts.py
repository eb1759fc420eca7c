"""PostgreSQL that goes down in the middle of a turn and comes back: the turn waits, at each of its writes."""

import asyncio
from typing import Any

import pytest

from perdure import Agent, tool
from perdure.store import Store
from perdure.testing import Script, ScriptedProvider, call, say
from tests.faults.waiting import told, waiting_visibly
from tests.house import House

runs: list[str] = []


@tool
def pay() -> str:
    """Pay, which must never happen twice."""
    runs.append("pay")
    return "paid"


AGENT = Agent(name="tester", model="openai/scripted", tools=[pay])
SCRIPT = Script(replies=(call(("pay", {})), say("done")))


@pytest.mark.parametrize(
    "write", ["open_turn", "begin_generation", "finish_generation", "claim_call", "finish_call", "commit_turn"]
)
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
