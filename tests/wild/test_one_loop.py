"""Async tools of one process have one loop, in tests as in production.

Seen in users' test suites: a lock, a queue or a client of the module worked in the first test, and in the second one
it was "bound to a different event loop".
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import Agent, tool
from perdure.lanes import lanes
from perdure.lanes.bodies import Bodies, ProcessLoops
from perdure.lanes.lanes import wait_within
from perdure.testing import InMemoryRun, call, run_in_memory, say

NO_CONTEXT: Any = None

LOCK, CONDITION, QUEUE, SLOTS = asyncio.Lock(), asyncio.Condition(), asyncio.Queue[int](1), asyncio.Semaphore(1)
BARRIER = asyncio.Barrier(2)


async def _hold_lock() -> None:
    async with LOCK:
        await asyncio.sleep(0)


async def _hold_condition() -> None:
    async with CONDITION:
        await asyncio.sleep(0)


async def _fill_queue() -> None:
    await QUEUE.put(1)
    await asyncio.sleep(0)
    await QUEUE.get()


async def _hold_slot() -> None:
    async with SLOTS:
        await asyncio.sleep(0)


async def _meet() -> None:
    await BARRIER.wait()


SHARED: dict[str, Callable[[], Awaitable[None]]] = {
    "a lock": _hold_lock,
    "a condition": _hold_condition,
    "a queue": _fill_queue,
    "slots": _hold_slot,
    "a barrier": _meet,
}


def agent_with(code: Callable[[], Awaitable[None]]) -> Agent:
    @tool(timeout=timedelta(seconds=30))
    async def share() -> str:
        """Share."""
        await code()
        return "shared"

    return Agent(name="tester", model="openai/scripted", tools=[share])


async def results_of(run: InMemoryRun) -> list[object]:
    return [line.event.model_dump()["result"] for line in await run.events() if line.event.type == "tool_end"]


async def run_it(agent: Agent) -> list[object]:
    run = await run_in_memory(agent, "go", [call(("share", {}), ("share", {})), say("done")])
    return await results_of(run)


@pytest.mark.parametrize("what", SHARED)
async def test_what_a_module_shares_works_in_run_after_run(what: str) -> None:
    """Also of a test with a loop of its own, and of several runs at once."""
    agent = agent_with(SHARED[what])
    for _ in range(2):
        assert await run_it(agent) == ["shared", "shared"]
    assert await asyncio.to_thread(asyncio.run, run_it(agent)) == ["shared", "shared"]
    for results in await asyncio.gather(run_it(agent), run_it(agent)):
        assert results == ["shared", "shared"]


async def test_a_blocked_loop_is_left_and_ends_once_it_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """So often as tests like: a loop that nothing blocks any more does not count."""
    monkeypatch.setattr(lanes, "BLOCKED_SECONDS", 0.01)
    released, loops = threading.Event(), ProcessLoops()

    @tool
    async def block() -> str:
        """Block the loop."""
        released.wait(60)
        return "late"

    @tool
    async def look() -> str:
        """Look."""
        return threading.current_thread().name

    async def given_up() -> None:
        run = bodies.start(block, {}, NO_CONTEXT)
        with pytest.raises(TimeoutError, match="too late"):
            await wait_within(run, 0.01, who="block", late=TimeoutError("too late"), give_up=lambda: None)

    loops.tools.most = 1
    for _ in range(3):
        released.clear()
        bodies = Bodies(1, {}, loops)
        await given_up()
        assert await wait_within(
            bodies.start(look, {}, NO_CONTEXT), 60, who="look", late=TimeoutError(), give_up=lambda: None
        )
        left = loops.tools._loops[0]
        released.set()
        bodies.close()
        while left.task is not None:
            await asyncio.sleep(0)
    assert len(loops.tools._loops) == 2
    loops.tools.close()
    loops.hooks.close()


async def test_bodies_that_close_end_their_own_runs_and_no_others() -> None:
    """A turn that ends beside another one."""
    loops, began = ProcessLoops(), threading.Semaphore(0)

    @tool
    async def wait() -> str:
        """Wait."""
        began.release()
        await asyncio.Event().wait()
        return "never"

    first, second = Bodies(1, {}, loops), Bodies(1, {}, loops)
    ended, going = first.start(wait, {}, NO_CONTEXT), second.start(wait, {}, NO_CONTEXT)
    assert began.acquire(timeout=60)
    assert began.acquire(timeout=60)
    first.close()
    assert (ended.future.cancelled(), going.future.done()) == (True, False)
    second.close()
    loops.tools.close()
    loops.hooks.close()


async def test_a_tool_that_breaks_the_making_of_tasks_breaks_its_own_alone() -> None:
    """The loop is everybody's: the next call begins all the same."""
    loops = ProcessLoops()

    def refuse(*_: object, **__: object) -> Any:
        raise ZeroDivisionError

    @tool
    async def tamper() -> str:
        """Tamper with the loop."""
        asyncio.get_running_loop().set_task_factory(refuse)
        return "tampered"

    bodies = Bodies(1, {}, loops)
    for _ in range(3):
        run = bodies.start(tamper, {}, NO_CONTEXT)
        said = await wait_within(run, 60, who="tamper", late=TimeoutError(), give_up=lambda: None)
        assert said == "tampered"
    loops.tools._loops[-1].loop.set_task_factory(None)
    bodies.close()
    loops.tools.close()
    loops.hooks.close()
