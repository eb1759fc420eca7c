"""The log of a worker while Temporal or the store is away: JSON alone, and few lines, however much work waits."""

import asyncio
import json
import time
from collections import Counter
from typing import Any

import pytest

from perdure.testing import ScriptedProvider, faults, say
from tests.faults.test_server_restarts import kill
from tests.house import House, WorkerProcess, eventually

pytestmark = pytest.mark.deep

AGENTS = "tests.faults.agents_for_logs"
TURNS = 8
AWAY = 15.0
"""Seconds: the store is asked again each second for each turn, and the SDK tells of a call from its fifth try on."""


def lines_of(worker: WorkerProcess) -> list[dict[str, Any]]:
    """The lines of its log, each of which is JSON."""
    return [json.loads(line) for line in worker.log.read_text().splitlines()]


async def pass_by(seconds: float) -> None:
    """Let the outage last."""
    until = time.monotonic() + seconds

    async def passed() -> bool:
        return time.monotonic() > until

    await eventually(passed)


async def test_a_worker_without_its_server_writes_json_and_says_each_thing_once(lasting: House) -> None:
    async with ScriptedProvider(lambda _: say("done")) as provider:
        lasting.use(provider)
        worker = lasting.spawn_worker(AGENTS)
        await worker.polling()
        await kill(lasting)
        await pass_by(AWAY)
        await lasting.server.start()
        assert (await lasting.run())["stop_reason"] == "finished"
        await worker.stop()
    of_core = Counter(line["message"] for line in lines_of(worker) if line["logger"] == "temporalio.core")
    assert of_core
    assert max(of_core.values()) <= 2, of_core


async def test_answers_that_wait_for_the_store_are_a_few_lines(fleet: House, postgresql: Any) -> None:
    """Eight turns hold an answer; each of them tries to store it once a second."""
    async with ScriptedProvider(lambda _: say("done").after(faults.delay(3))) as provider:
        fleet.use(provider)
        worker = fleet.spawn_worker(AGENTS)
        await worker.polling()
        handles = [await fleet.start(session=f"{fleet.session}-{number}") for number in range(TURNS)]
        await provider.wait_for_requests(TURNS)
        await asyncio.to_thread(postgresql.stop)
        try:
            await pass_by(AWAY)
        finally:
            await asyncio.to_thread(postgresql.ensure_postgres_running)
        assert {(await handle.result())["stop_reason"] for handle in handles} == {"finished"}
        await worker.stop()
    told = [line for line in lines_of(worker) if "runtime.store_unavailable" in line["message"]]
    assert told
    assert len(told) <= TURNS, Counter(line["message"] for line in told)
    assert provider.request_count == TURNS
