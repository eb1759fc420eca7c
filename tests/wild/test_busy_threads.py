"""More calls than threads, and a body that blocks the loop of the others.

Seen in public trackers of worker pools: a call's time-out runs while it waits in the pool's queue, so that it is given
up before it began, and then begins although it was given up.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest

from perdure import Agent, Toolset, tool, tool_method
from perdure.activities.toolbox.runner import CallContext
from perdure.contracts.values import JsonValue
from perdure.lanes import lanes
from perdure.lanes.bodies import Bodies
from perdure.lanes.lanes import NotBegunError, wait_within
from perdure.testing import call, say
from tests.memory import Run

pytestmark = pytest.mark.deep

SHORT = timedelta(seconds=1)
LATE = TimeoutError("late")


@pytest.fixture
def bodies() -> Iterator[Bodies]:
    made = Bodies(1)
    yield made
    made.close()


def context() -> CallContext:
    return CallContext(session="s", turn=1, call_id="c1", idempotency_key="s/1/c1")


def agent(*tools: Any) -> Agent:
    return Agent(name="tester", model="openai/scripted", tools=tools)


async def test_the_clock_of_a_call_starts_with_its_body(run: Run) -> None:
    """S-22: of 20 calls on 8 threads each runs once, and each has its result."""
    ran: list[int] = []

    @tool(timeout=SHORT)
    def work(number: int) -> str:
        ran.append(number)
        time.sleep(0.6)
        return "done"

    asked: list[tuple[str, JsonValue]] = [("work", {"number": number}) for number in range(20)]
    result = await run(agent(work), call(*asked), say("done"))
    assert result["stop_reason"] == "finished"
    assert [end["result"] for end in await run.events("tool_end")] == ["done"] * 20
    assert sorted(ran) == list(range(20))


async def test_a_body_that_blocks_the_loop_is_named_and_costs_no_other_its_time(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """S-22."""

    @tool(timeout=timedelta(seconds=10))
    async def block() -> str:
        time.sleep(2)  # noqa: ASYNC251 - the very mistake
        return "blocked"

    @tool(timeout=SHORT)
    async def quick() -> str:
        await asyncio.sleep(0)
        return "quick"

    result = await run(agent(block, quick), call(("block", {}), ("quick", {})), say("done"))
    assert result["stop_reason"] == "finished"
    assert {end["result"] for end in await run.events("tool_end")} == {"blocked", "quick"}
    assert "block blocks the loop of async tools, at test_busy_threads.py:" in caplog.text


async def test_what_was_given_up_before_it_began_never_begins(bodies: Bodies, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-22: and its error says that it did not run."""
    monkeypatch.setattr(lanes, "BEGIN_SECONDS", 0.05)
    goes_on, ran = threading.Event(), []

    @tool
    def hold() -> str:
        goes_on.wait(10)
        return "held"

    @tool
    def late() -> str:
        ran.append("late")
        return "late"

    held = bodies.start(hold, {}, context())
    with pytest.raises(NotBegunError, match=r"late did not run: all 1 threads for tools are taken, by hold \(1\)"):
        await wait_within(bodies.start(late, {}, context()), 5, who="late", late=LATE, give_up=lambda: None)
    goes_on.set()
    assert await wait_within(held, 5, who="hold", late=LATE, give_up=lambda: None) == "held"
    assert await wait_within(bodies.start(hold, {}, context()), 5, who="", late=LATE, give_up=lambda: None) == "held"
    assert ran == []


async def test_hooks_and_instructions_have_threads_and_a_loop_of_their_own(bodies: Bodies) -> None:
    """S-36: whatever tools do with theirs."""
    goes_on = threading.Event()

    @tool
    def hold() -> str:
        goes_on.wait(10)
        return ""

    @tool
    async def block() -> str:
        goes_on.wait(10)
        return ""

    async def react() -> str:
        return "reacted"

    held = [bodies.start(hold, {}, context()), bodies.start(block, {}, context())]
    for function in (lambda: "reacted", react):
        run = bodies.start_function("react", function, [])
        assert await wait_within(run, 5, who="react", late=LATE, give_up=lambda: None) == "reacted"
    goes_on.set()
    for run in held:
        await wait_within(run, 5, who="", late=LATE, give_up=lambda: None)


async def test_a_place_is_free_again_when_an_abandoned_thread_ends(
    bodies: Bodies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.lanes.bodies.PLACE_SECONDS", 0.05)
    goes_on = threading.Event()

    @tool
    def hold() -> str:
        goes_on.wait(10)
        return ""

    with pytest.raises(TimeoutError, match="late"):
        async with bodies.place(hold):
            await wait_within(bodies.start(hold, {}, context()), 0.01, who="", late=LATE, give_up=lambda: None)
    with pytest.raises(TimeoutError):
        async with bodies.place(hold):
            pytest.fail("the thread is not free")
    goes_on.set()
    monkeypatch.setattr("perdure.lanes.bodies.PLACE_SECONDS", 10)
    async with bodies.place(hold):
        pass


async def test_a_generator_is_drawn_within_the_time_out_and_no_further(run: Run) -> None:
    """S-22: slow or endless, as the result or inside it."""
    drawn: list[int] = []

    def endless() -> Iterator[int]:
        while True:
            time.sleep(0.01)
            drawn.append(1)
            yield 1

    @tool(timeout=SHORT, catch=True)
    def inside() -> Any:
        return {"items": [endless()]}

    @tool(timeout=SHORT, catch=True)
    async def of_loop() -> Any:
        return endless()

    result = await run(agent(inside, of_loop), call(("inside", {}), ("of_loop", {})), say("done"))
    assert result["stop_reason"] == "finished"
    assert [end["error"]["code"] for end in await run.events("tool_end")] == ["tool.timeout"] * 2
    async with asyncio.timeout(5):
        before = -1
        while before != len(drawn):
            before = len(drawn)
            await asyncio.sleep(0.1)


async def test_a_task_that_exits_does_not_stop_the_loop_of_tools(run: Run) -> None:
    """S-25: asyncio lets the exit through to whoever runs the loop."""

    async def leave() -> None:
        raise SystemExit(3)

    @tool
    async def spawn() -> str:
        task = asyncio.create_task(leave())
        await asyncio.wait([task])
        task.exception()
        return "spawned"

    result = await run(agent(spawn), call(("spawn", {})), call(("spawn", {})), say("done"))
    assert result["stop_reason"] == "finished"
    assert [end["result"] for end in await run.events("tool_end")] == ["spawned"] * 2


async def test_a_body_that_is_given_up_and_blocks_the_loop_is_left_behind(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """S-22: calls after it run at once, also of a toolset that was open, which opens anew."""
    goes_on, opened = threading.Event(), []

    class Desk(Toolset):
        @contextlib.asynccontextmanager
        async def lifespan(self) -> AsyncIterator[None]:
            opened.append(asyncio.get_running_loop())
            yield

        @tool_method
        async def work(self) -> str:
            return "worked" if asyncio.get_running_loop() is opened[-1] else "on a strange loop"

    @tool(timeout=SHORT, catch=True)
    async def block() -> str:
        goes_on.wait(60)
        return "blocked"

    given = agent(block, Desk())
    try:
        result = await run(
            given, call(("work", {})), call(("block", {})), call(("work", {}), ("work", {})), say("done")
        )
    finally:
        goes_on.set()
    assert result["stop_reason"] == "finished"
    ends = await run.events("tool_end")
    assert [end["error"]["code"] for end in ends if end["error"]] == ["tool.timeout"]
    assert [end["result"] for end in ends if end["tool"] == "work"] == ["worked"] * 3
    assert len(opened) == 2
    assert "async tools that come now run on a new loop" in caplog.text


async def test_what_waits_behind_a_blocked_loop_begins_once(run: Run) -> None:
    """S-22: on the new loop, whatever becomes of the old one."""
    goes_on, ran = threading.Event(), []

    @tool(timeout=SHORT, catch=True)
    async def block() -> str:
        goes_on.wait(60)
        return "blocked"

    @tool
    async def quick(number: int) -> str:
        ran.append(number)
        return "quick"

    asked: list[tuple[str, JsonValue]] = [("block", {})]
    asked += [("quick", {"number": number}) for number in range(5)]
    result = await run(agent(block, quick), call(*asked), call(("block", {}), ("quick", {"number": 5})), say("done"))
    goes_on.set()
    assert result["stop_reason"] == "finished"
    assert sorted(ran) == list(range(6))


async def test_a_toolset_that_blocks_as_it_opens_holds_up_no_other_for_good(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-22: an opening is no call, so that nobody knows when to give it up; others wait as long as for a first step."""
    monkeypatch.setattr(lanes, "BEGIN_SECONDS", 2 * lanes.BLOCKED_SECONDS)
    goes_on = threading.Event()

    class Shut(Toolset):
        @contextlib.asynccontextmanager
        async def lifespan(self) -> AsyncIterator[None]:
            goes_on.wait(60)
            yield

        @tool_method(timeout=SHORT, catch=True)
        async def work(self) -> str:
            return "worked"

    @tool
    async def quick() -> str:
        return "quick"

    try:
        result = await run(agent(quick, Shut()), call(("work", {})), call(("quick", {})), say("done"))
    finally:
        goes_on.set()
    assert result["stop_reason"] == "finished"
    assert [end["result"] for end in await run.events("tool_end") if not end["error"]] == ["quick"]


async def test_hooks_have_a_new_loop_too(bodies: Bodies) -> None:
    """S-36: and no more loops are left behind than there are threads."""
    goes_on = threading.Event()

    async def block() -> None:
        goes_on.wait(60)

    async def react() -> str:
        return "reacted"

    with pytest.raises(TimeoutError, match="late"):
        await wait_within(bodies.start_function("block", block, []), 0.1, who="", late=LATE, give_up=lambda: None)
    run = bodies.start_function("react", react, [])
    assert await wait_within(run, 5, who="", late=LATE, give_up=lambda: None) == "reacted"
    goes_on.set()
