"""The same exceptions out of tools that are served over MCP: the host reads what a worker's model would."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from mcp import Client
from mcp.types import CallToolResult, TextContent

from perdure import tool
from perdure.lanes import lanes
from perdure.mcp_server import as_mcp
from perdure.testing import call, say
from tests.memory import Run
from tests.wild.test_author_exceptions import RAISED, agent, made, tools

FORMS = ("sync", "of_loop", "in_a_task", "drawn", "checked", "method", "shut")


def text(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


def arguments(form: str) -> dict[str, Any]:
    return {"count": 1} if form == "checked" else {}


@tool
def add_up(first: int) -> int:
    """Add."""
    return first + 2


@pytest.mark.parametrize("kind", RAISED)
async def test_each_is_told_as_by_a_worker_and_the_server_goes_on(run: Run, kind: str) -> None:
    """S-78: one run a call."""
    runs: list[str] = []
    await run(agent(tools=tools(kind, runs)), call(*((form, arguments(form)) for form in FORMS)), say("done"))
    told = {end["tool"]: "{type}: {message}".format(**end["error"]) for end in await run.events("tool_end")}
    assert sorted(told) == sorted(FORMS)
    by_a_worker, count = dict(told), len(runs)
    async with asyncio.timeout(10), Client(as_mcp(*tools(kind, runs), add_up)) as client:
        for form in FORMS:
            result = await client.call_tool(form, arguments(form))
            assert (form, result.is_error, text(result)) == (form, True, by_a_worker[form])
            assert text(await client.call_tool("add_up", {"first": 40})) == "42"
    assert len(runs) == 2 * count


async def test_a_sentence_for_it_that_fails_itself_is_left_out() -> None:
    """S-78: whatever ``describe`` raises."""

    def describe(_: Exception) -> str:
        raise made("UnprintableOutcome")

    (body, *_) = tools("Outcome", [])
    async with asyncio.timeout(10), Client(as_mcp(body, describe=describe)) as client:
        result = await client.call_tool("sync")
        assert (result.is_error, text(result)) == (True, "Outcome: skipped")


async def test_a_tool_that_blocks_its_loop_is_given_up_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-78: the host is answered meanwhile, and the tool's end is told in the words of a worker."""
    monkeypatch.setattr(lanes, "BLOCKED_SECONDS", 0.01)
    released, blocking = threading.Event(), threading.Event()

    @tool(timeout=timedelta(seconds=0.2))
    async def block() -> str:
        """Block the loop."""
        blocking.set()
        released.wait(60)
        return "late"

    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    async with asyncio.timeout(60), Client(as_mcp(block, look, add_up)) as client:
        blocked = asyncio.create_task(client.call_tool("block"))
        await asyncio.to_thread(blocking.wait, 60)
        assert text(await client.call_tool("add_up", {"first": 40})) == "42"
        assert (
            text(await blocked)
            == "ToolTimeoutError: block ran longer than its time-out of 0.2 s; its effect is unknown"
        )
        assert text(await client.call_tool("look")) == "seen"
        released.set()


async def test_what_a_tool_leaves_running_ends_neither_the_host_nor_the_loop() -> None:
    """S-78: a task that exits."""

    async def leave() -> None:
        raise SystemExit(3)

    @tool
    async def spawn() -> str:
        """Spawn."""
        spawned.append(asyncio.create_task(leave()))
        return "spawned"

    spawned: list[asyncio.Task[None]] = []
    async with asyncio.timeout(60), Client(as_mcp(spawn, add_up)) as client:
        for _ in range(3):
            assert text(await client.call_tool("spawn")) == "spawned"
            assert text(await client.call_tool("add_up", {"first": 40})) == "42"
        while not all(task.done() for task in spawned):
            await asyncio.sleep(0)
    for task in spawned:
        assert isinstance(task.exception(), SystemExit)
