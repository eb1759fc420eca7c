"""A machine sleeps while tools run: the worker that comes back still runs their bodies, and no effect is unknown."""

import asyncio
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHandle

from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, say
from tests.house import House, WorkerProcess, eventually
from tests.workflow.cancelling import cancel
from tests.workflow.killing import has_lines, lines_of, read, read_by_the_model, result_of

pytestmark = pytest.mark.deep

AGENTS = "tests.workflow.agents_that_sleep"
TOOLS = ("pay", "pay_async", "put", "book", "peer__hold")
BODIES = TOOLS[:4]
ASLEEP = 12.0
"""Seconds that the machine sleeps: longer than a worker may be silent before the server takes it for lost."""


def answer(request: ChatRequest) -> Reply:
    return say("done") if request.index else call(*((name, {}) for name in TOOLS))


class Bed:
    """A turn whose five tools run, and the worker that runs them."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.lines = lines_of(house)
        self.journal = house.folder / "journal"
        self.journal.touch()
        house.environment.setenv("MCP_JOURNAL", str(self.journal))
        self.worker: WorkerProcess
        self.handle: WorkflowHandle[Any, Any]

    async def start(self) -> None:
        """Start the turn, and wait until all five bodies run."""
        self.worker = self.house.spawn_worker(AGENTS)
        await self.worker.polling()
        self.handle = await self.house.start()
        await has_lines(self.lines, len(BODIES))
        await has_lines(self.journal, 3)  # it started, listed its tools, and was called

    async def given_up(self) -> bool:
        """Whether the server has given all the attempts up."""
        pending = (await self.handle.describe()).raw_description.pending_activities
        return len(pending) == len(TOOLS) and all(activity.attempt > 1 for activity in pending)

    def wake(self) -> None:
        """Let the worker go on."""
        os.kill(self.worker.process.pid, signal.SIGCONT)

    def freeze(self) -> None:
        """Stop the worker where it is."""
        os.kill(self.worker.process.pid, signal.SIGSTOP)

    def let_go(self) -> None:
        """Let the bodies end."""
        Path(f"{self.journal}.go on").touch()

    def effects(self) -> Counter[str]:
        """What happened outside, and how often."""
        called = [line for line in read(self.journal) if line.startswith("call ")]
        return Counter([*(line.split()[0] for line in read(self.lines)), *called])

    async def woke_well(self, provider: ScriptedProvider) -> None:
        """Each call was made once, and the model read its result."""
        result = await result_of(self.handle)
        assert (result["stop_reason"], result["steps"]) == ("finished", 2)
        assert read_by_the_model(provider) == [*(f"{name}: done" for name in BODIES), "hold: {}"]
        assert self.effects() == {**dict.fromkeys(BODIES, 1), "call hold": 1}
        assert await self.house.events("tool_recovery") == []
        assert sorted(line["tool"] for line in await self.house.events("tool_end")) == sorted(TOOLS)


async def test_calls_of_a_worker_that_was_taken_for_lost_end_in_it(house: House) -> None:
    """S-31: the next attempts come to the process whose bodies still run, and wait for them."""
    bed = Bed(house)
    async with ScriptedProvider(answer) as provider:
        house.use(provider)
        await bed.start()
        bed.freeze()
        await eventually(bed.given_up)
        bed.wake()
        await eventually(lambda: _attempts_wait(bed))
        bed.let_go()
        await bed.woke_well(provider)


async def test_calls_that_end_as_the_worker_comes_back_have_their_results(house: House) -> None:
    """S-31: no next attempt may have come by then; what the body gave is recorded all the same."""
    bed = Bed(house)
    async with ScriptedProvider(answer) as provider:
        house.use(provider)
        await bed.start()
        bed.freeze()
        await eventually(bed.given_up)
        bed.let_go()
        bed.wake()
        await bed.woke_well(provider)


async def test_a_machine_that_sleeps_leaves_no_effect_unknown(lasting: House) -> None:
    """S-31: server and worker stand still together, as on a laptop whose lid is closed."""
    bed = Bed(lasting)
    async with ScriptedProvider(answer) as provider:
        lasting.use(provider)
        await bed.start()
        machine = (bed.worker.process.pid, lasting.server.pid or 0)
        for pid in machine:
            os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(ASLEEP)  # the fault itself
        for pid in machine:
            os.kill(pid, signal.SIGCONT)
        await eventually(lambda: _attempts_wait(bed, at_least=1))
        bed.let_go()
        await bed.woke_well(provider)


@pytest.mark.parametrize("joined", [False, True])
async def test_a_cancel_reaches_bodies_whose_first_attempts_were_lost(house: House, joined: bool) -> None:
    """S-57: whether the next attempts wait for them already or not."""
    bed = Bed(house)
    async with ScriptedProvider(answer) as provider:
        house.use(provider)
        await bed.start()
        bed.freeze()
        await eventually(bed.given_up)
        if joined:
            bed.wake()
            await eventually(lambda: _attempts_wait(bed))
        await cancel(bed.handle, "signal")
        bed.wake()
        result = await result_of(bed.handle)
        assert result["stop_reason"] == "cancelled"
        await has_lines(bed.lines, 2 * len(BODIES))
    assert bed.effects() == {**dict.fromkeys(BODIES, 1), **{f"stopped-{name}": 1 for name in BODIES}, "call hold": 1}


async def _attempts_wait(bed: Bed, at_least: int = 2) -> bool:
    """Whether an attempt at each call beats again."""
    woken = time.time() - 3
    pending = (await bed.handle.describe()).raw_description.pending_activities
    return len(pending) == len(TOOLS) and all(
        activity.attempt >= at_least and activity.last_heartbeat_time.ToSeconds() >= woken for activity in pending
    )
