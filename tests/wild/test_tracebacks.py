"""The traceback of an author's exception begins in the author's code, and has all that is below it."""

from collections.abc import Awaitable, Callable

import pytest

from perdure import Agent, tool
from perdure.agents.tool import Tool
from perdure.testing import Script, call, say
from tests.memory import Run


class LedgerError(Exception):
    """An exception of the agent's own module."""


def deep() -> None:
    """Fail below the tool's own body, with a cause."""
    try:
        _ = 7 / 0
    except ZeroDivisionError as error:
        raise LedgerError("no entry") from error


@tool(name="book")
def threaded() -> str:
    """Book."""
    deep()
    return "booked"


@tool(name="book")
async def awaited() -> str:
    """Book."""
    deep()
    return "booked"


@tool(name="book")
async def through_a_callback() -> str:
    """Book."""
    told: list[Callable[[], Awaitable[None]]] = []

    async def later() -> None:
        deep()

    told.append(later)
    await told[0]()
    return "booked"


@tool(name="book")
def into_perdure() -> str:
    """Book, by an agent that is none."""
    return Agent(name="", model="openai/scripted").name


@pytest.mark.parametrize("book", [threaded, awaited, through_a_callback], ids=["threaded", "awaited", "callback"])
async def test_a_traceback_begins_in_the_tool_and_has_its_causes(run: Run, book: Tool[[], object]) -> None:
    agent = Agent(name="tester", model="openai/scripted", tools=[book], on_tool_error="feed_back")
    await run(agent, script=Script(replies=(call(("book", {})), say("done"))))
    (event,) = await run.events("tool_end")
    lines = event["traceback"].splitlines()
    assert "ZeroDivisionError: division by zero" in lines
    frames = [line for line in lines if line.startswith("  File ")]
    assert all(__file__ in frame for frame in frames), frames
    assert [frame.rpartition(" in ")[2] for frame in frames][-1] == "deep"
    assert lines[-1] == f"{__name__}.LedgerError: no entry"


async def test_frames_of_perdure_below_the_tool_are_kept(run: Run) -> None:
    agent = Agent(name="tester", model="openai/scripted", tools=[into_perdure], on_tool_error="feed_back")
    await run(agent, script=Script(replies=(call(("book", {})), say("done"))))
    (event,) = await run.events("tool_end")
    _, _, own = event["traceback"].rpartition("Traceback (most recent call last):")
    frames = [line for line in own.splitlines() if line.startswith("  File ")]
    assert __file__ in frames[0]
    assert frames[0].endswith(" in into_perdure")
    assert any("perdure/agents/agent.py" in frame for frame in frames[1:])
