"""Following over HTTP while the Temporal server or the store restarts: no event lost or repeated (S-47)."""

import asyncio
import os
import signal
from typing import Any

import httpx
import pytest

from perdure import Agent
from perdure.testing import Script, ScriptedProvider, faults, say
from tests.gateway import Door, gateway
from tests.house import WAIT_SECONDS, House, eventually

pytestmark = pytest.mark.deep

AGENT = Agent(name="tester", model="openai/scripted")
HELD = Script(replies=(say("done").after(faults.hang()),))
"""The first call of the model gets no answer; the one after it does."""


class Reader:
    """Somebody who follows over HTTP, and comes again after the last event seen until the stream says its end.

    Attributes:
        seen: The numbers of all events that came, in order.
    """

    def __init__(self, door: Door, session: str) -> None:
        self._door = door
        self._session = session
        self.seen: list[int] = []

    async def read(self) -> None:
        """Follow to the end."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not await self._is_ended():
                await asyncio.sleep(0.1)

    async def _is_ended(self) -> bool:
        place = {"Last-Event-ID": str(self.seen[-1] if self.seen else 0)}
        try:
            async with self._door.http.stream(
                "GET", f"/v1/sessions/{self._session}/events", headers=place, timeout=WAIT_SECONDS
            ) as stream:
                if stream.status_code == 204:
                    return True
                async for line in stream.aiter_lines():
                    if line.startswith("id: "):
                        self.seen.append(int(line.removeprefix("id: ")))
                    if line == "event: end":
                        return True
        except httpx.TransportError:
            return False
        return False

    async def has_begun(self) -> bool:
        return len(self.seen) > 1


async def test_a_server_that_is_killed_and_started_again(lasting: House) -> None:
    async with ScriptedProvider(HELD) as provider, lasting.worker(AGENT), gateway(lasting) as door:
        lasting.use(provider)
        handle = await lasting.start()
        await provider.wait_for_requests(1)
        reader = Reader(door, lasting.session)
        reading = asyncio.create_task(reader.read())
        await eventually(reader.has_begun)
        os.kill(lasting.server.pid or 0, signal.SIGKILL)
        await lasting.server.wait()
        away = await door.http.post("/v1/sessions", json={"agent": "tester", "prompt": "go"})
        assert (away.status_code, away.json()["code"]) == (503, "runtime.server_unavailable")
        await lasting.server.start()
        await provider.refuse()  # the attempt may have outlived the server, and hangs
        await provider.accept()
        await reading
        assert (await handle.result())["stop_reason"] == "finished"
    assert reader.seen == list(range(1, len(reader.seen) + 1))


async def test_a_store_that_is_stopped_and_started_again(fleet: House, postgresql: Any) -> None:
    async with ScriptedProvider(HELD) as provider, fleet.worker(AGENT), gateway(fleet) as door:
        fleet.use(provider)
        handle = await fleet.start()
        await provider.wait_for_requests(1)
        reader = Reader(door, fleet.session)
        reading = asyncio.create_task(reader.read())
        await eventually(reader.has_begun)
        await asyncio.to_thread(postgresql.stop)
        away = await door.http.get(f"/v1/sessions/{fleet.session}")
        assert (away.status_code, away.json()["code"]) == (503, "runtime.store_unavailable")
        await asyncio.to_thread(postgresql.ensure_postgres_running)
        await handle.signal("cancel", {"reason": "enough"})
        await reading
        assert (await handle.result())["stop_reason"] == "cancelled"
    assert reader.seen == list(range(1, len(reader.seen) + 1))
