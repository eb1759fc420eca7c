"""Toolsets that open slowly, or never: no time of their calls passes, and a call that never began is told so.

Seen in public trackers of agent frameworks: a connection takes longer than a tool's time-out, so that a call is told as
done with an unknown effect although its body never ran, and its model asks for the same once more.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest

from perdure import Agent, Toolset, tool_method
from perdure.activities.toolbox.runner import CallContext
from perdure.agents import toolset
from perdure.agents.toolset import ToolsetError
from perdure.lanes import lanes
from perdure.lanes.bodies import Bodies
from perdure.lanes.lanes import wait_within
from perdure.mcp_server import as_mcp
from perdure.testing import call, say
from tests.memory import Run
from tests.wild.test_author_exceptions_over_mcp import text

SHORT = timedelta(milliseconds=20)
LONGER = 0.1
LATE = TimeoutError("late")


class Slow(Toolset):
    """It opens after a while, or once it is told to."""

    opens: Any = None

    @contextlib.asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        await (asyncio.sleep(LONGER) if self.opens is None else self.opens())
        yield

    @tool_method(timeout=SHORT, catch=True)
    def sync(self) -> str:
        return "worked"

    @tool_method(timeout=SHORT, catch=True)
    async def of_loop(self) -> str:
        return "worked"


@pytest.fixture
def bodies() -> Iterator[Bodies]:
    made = Bodies(1)
    yield made
    made.close()


def context() -> CallContext:
    return CallContext(session="s", turn=1, call_id="c1", idempotency_key="s/1/c1")


async def never() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("form", ["sync", "of_loop"])
async def test_the_clock_of_a_call_starts_once_its_toolset_is_open(run: Run, form: str) -> None:
    """S-22."""
    agent = Agent(name="tester", model="openai/scripted", tools=[Slow()])
    assert (await run(agent, call((form, {})), say("done")))["stop_reason"] == "finished"
    (end,) = await run.events("tool_end")
    assert (end["result"], end["error"]) == ("worked", None)


@pytest.mark.parametrize("form", ["sync", "of_loop"])
async def test_the_same_holds_over_mcp(form: str) -> None:
    """S-78."""
    mcp = pytest.importorskip("mcp")
    async with mcp.Client(as_mcp(Slow())) as client:
        assert text(await client.call_tool(form)) == "worked"


@pytest.mark.parametrize("form", ["sync", "of_loop"])
async def test_of_one_that_never_opens_the_model_reads_that_the_call_did_not_run(
    run: Run, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """S-22: and the turn goes on, as with whatever a worker lacks."""
    monkeypatch.setattr(toolset, "OPENING_SECONDS", LONGER)
    told = "the toolset Slow could not be entered: it has not opened within 0.1 s; the call did not run"
    agent = Agent(name="tester", model="openai/scripted", tools=[Slow(opens=never)])
    assert (await run(agent, call((form, {})), say("done")))["stop_reason"] == "finished"
    (end,) = await run.events("tool_end")
    assert end["error"]["message"] == told
    mcp = pytest.importorskip("mcp")
    async with mcp.Client(as_mcp(Slow(opens=never))) as client:
        assert text(await client.call_tool(form)) == f"ToolsetError: {told}"


async def test_others_of_the_loop_run_meanwhile_and_it_may_open_longer_than_a_call_waits_to_begin(
    bodies: Bodies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-22."""
    monkeypatch.setattr(lanes, "BEGIN_SECONDS", LONGER / 4)
    slow, quick = Slow(), Slow(opens=lambda: asyncio.sleep(0))
    waits = asyncio.create_task(
        wait_within(bodies.start(slow.of_loop, {}, context()), 5, who="", late=LATE, give_up=lambda: None)
    )
    run = bodies.start(quick.of_loop, {}, context())
    assert await wait_within(run, 5, who="", late=LATE, give_up=lambda: None) == "worked"
    assert not waits.done()
    assert await waits == "worked"


async def test_a_call_that_is_given_up_meanwhile_never_begins(bodies: Bodies) -> None:
    """S-58."""
    slow = Slow()
    given_up = bodies.start(slow.of_loop, {}, context())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(LONGER / 4):
            await wait_within(given_up, 5, who="", late=LATE, give_up=lambda: None)
    run = bodies.start(slow.of_loop, {}, context())
    assert await wait_within(run, 5, who="", late=LATE, give_up=lambda: None) == "worked"
    assert given_up.begun.cancelled()


async def test_an_opening_that_raises_is_told_at_once(bodies: Bodies) -> None:
    async def fail() -> None:
        raise GeneratorExit

    run = bodies.start(Slow(opens=fail).sync, {}, context())
    with pytest.raises(ToolsetError, match="could not be entered: GeneratorExit: no message"):
        await wait_within(run, 5, who="", late=LATE, give_up=lambda: None)
