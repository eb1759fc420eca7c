"""The same exceptions out of tools that are served over MCP: the host reads what a worker's model would."""

import asyncio
from typing import Any

import pytest
from mcp import Client
from mcp.types import CallToolResult, TextContent

from perdure import tool
from perdure.mcp_server import as_mcp
from perdure.testing import call, say
from tests.memory import Run
from tests.wild.test_author_exceptions import RAISED, agent, made, names_of, tools

FORMS = ("sync", "of_loop", "in_a_task", "drawn", "checked", "method", "shut")


def forms(kind: str) -> list[str]:
    """The forms of tools; a task that exits ends the loop, which is the host's here, and has one of its own there."""
    return [form for form in FORMS if form != "in_a_task" or names_of(kind) != ("BodyExitedError",)]


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
    await run(agent(tools=tools(kind, runs)), call(*((form, arguments(form)) for form in forms(kind))), say("done"))
    told = {end["tool"]: "{type}: {message}".format(**end["error"]) for end in await run.events("tool_end")}
    assert sorted(told) == sorted(forms(kind))
    by_a_worker, count = dict(told), len(runs)
    async with asyncio.timeout(10), Client(as_mcp(*tools(kind, runs), add_up)) as client:
        for form in forms(kind):
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
