"""Tools over MCP, called by the SDK's own client in both protocol generations."""

import asyncio
import logging
import sys
import threading
import typing
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Annotated, Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.server.mcpserver import MCPServer
from mcp.types import CallToolResult, TextContent

from perdure import ToolContext, ToolDefinitionError, tool
from perdure.mcp_server import McpMissingError, ServedCall, as_mcp
from tests.house import ROOT, WAIT_SECONDS

ERAS = ["legacy", "auto"]
Serve = Callable[..., Any]


@pytest.fixture(params=ERAS)
def serve(request: pytest.FixtureRequest) -> Serve:
    """A stock client of a server with these tools."""

    @asynccontextmanager
    async def serve(*tools: Any, **settings: Any) -> AsyncIterator[Client]:
        async with Client(as_mcp(*tools, **settings), mode=request.param) as client:
            yield client

    return serve


def text(result: CallToolResult) -> str:
    """The text of a result that has one."""
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


@tool(name="add-up", description="Add two numbers.")
def add_up(first: Annotated[int, "the first"], second: int = 2) -> int:
    return first + second


async def test_our_name_description_and_schema_are_what_a_client_lists(serve: Serve) -> None:
    """S-78."""
    async with serve(add_up) as client:
        (listed,) = (await client.list_tools()).tools
    assert (listed.name, listed.description) == ("add-up", "Add two numbers.")
    assert listed.input_schema == add_up.declaration.parameters
    assert listed.input_schema["properties"]["first"] == {"description": "the first", "type": "integer"}


async def test_a_result_is_text_and_structured_content(serve: Serve) -> None:
    """S-78: an object as it is, another value in an object, a text as a text."""

    async def point() -> dict[str, int]:
        """Say where."""
        return {"x": 1, "y": 2}

    def hello() -> str:
        """Greet."""
        return "grüezi"

    async with serve(add_up, point, hello) as client:
        sum_ = await client.call_tool("add-up", {"first": 40})
        where = await client.call_tool("point")
        greeting = await client.call_tool("hello", {})
    assert (text(sum_), sum_.structured_content, sum_.is_error) == ("42", {"result": 42}, False)
    assert (text(where), where.structured_content) == ('{"x":1,"y":2}', {"x": 1, "y": 2})
    assert (text(greeting), greeting.structured_content) == ("grüezi", None)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"first": "many"}, "InvalidInputError: the arguments do not fit the schema: first: Input should be a valid"),
        ({"first": 1, "third": 3}, "third: Extra inputs are not permitted"),
        ({}, "first: Field required"),
    ],
)
async def test_arguments_that_do_not_fit_are_an_error_result(serve: Serve, arguments: Any, problem: str) -> None:
    async with serve(add_up) as client:
        result = await client.call_tool("add-up", arguments)
    assert result.is_error
    assert problem in text(result)


async def test_an_unknown_tool_is_an_error_result(serve: Serve) -> None:
    async with serve(add_up) as client:
        result = await client.call_tool("subtract", {})
    assert (result.is_error, text(result)) == (True, "Unknown tool: subtract")


class LockedError(Exception):
    """The door is locked."""


def sync_with(error: BaseException, **settings: Any) -> Any:
    @tool(name="door", **settings)
    def door() -> None:
        raise error

    return door


def async_with(error: BaseException, **settings: Any) -> Any:
    @tool(name="door", **settings)
    async def door() -> None:
        raise error

    return door


@pytest.mark.parametrize("door", [sync_with, async_with])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (LockedError("ask the porter"), "LockedError: ask the porter"),
        (SystemExit(3), "BodyExitedError: the tool tried to end the process: SystemExit(3)"),
        (KeyboardInterrupt(), "BodyExitedError: the tool tried to end the process: KeyboardInterrupt()"),
        (asyncio.CancelledError(), "CancelledError: no message"),
    ],
)
async def test_whatever_a_tool_raises_is_an_error_result_and_the_server_goes_on(
    serve: Serve, door: Any, error: BaseException, told: str
) -> None:
    async with asyncio.timeout(WAIT_SECONDS), serve(door(error), add_up) as client:
        result = await client.call_tool("door", {})
        assert (result.is_error, text(result)) == (True, told)
        assert text(await client.call_tool("add-up", {"first": 1})) == "3"


async def test_an_error_that_the_tool_does_not_catch_is_logged_with_its_traceback(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(sync_with(LockedError("no"), catch=[LockedError])) as client:
        assert (await client.call_tool("door", {})).is_error
    assert caplog.records == []
    async with serve(sync_with(LockedError("no"))) as client:
        assert (await client.call_tool("door", {})).is_error
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "Traceback" in record.getMessage()
    assert "LockedError: no" in record.getMessage()


async def test_an_expected_error_is_its_sentence_alone(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    async with serve(sync_with(LockedError("no")), describe=lambda error: f"the door says {error}") as client:
        assert text(await client.call_tool("door", {})) == "the door says no"
    assert caplog.records == []


async def test_masked_arguments_are_in_no_text(
    serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOUSE_TOKEN", "tok-of-the-house")

    @tool(masked=["pin"])
    def enter(pin: str, password: str, word: str) -> str:
        if word == "please":
            return f"{pin} {password} {word} tok-of-the-house"
        raise LockedError(f"{pin} and {password} are wrong, tok-of-the-house is not")

    secrets = {"pin": "open-sesame-4711", "password": "correct horse battery"}
    async with serve(enter) as client:
        polite = await client.call_tool("enter", {**secrets, "word": "please"})
        rude = await client.call_tool("enter", {**secrets, "word": "now"})
    assert text(polite) == "*** *** please ***"
    assert text(rude) == "LockedError: *** and *** are wrong, *** is not"
    for secret in [*secrets.values(), "tok-of-the-house"]:
        assert secret not in caplog.text


async def test_a_long_result_is_cut_where_the_tool_says(serve: Serve) -> None:
    @tool(truncate=200)
    def count() -> list[int]:
        return list(range(1000))

    async with serve(count) as client:
        result = await client.call_tool("count", {})
    assert len(text(result)) <= 200
    assert "characters left out" in text(result)
    assert result.structured_content is None


async def test_a_tool_that_runs_too_long_is_stopped_and_the_client_told(serve: Serve) -> None:
    ended = threading.Event()

    @tool(timeout=timedelta(seconds=1))
    def slow(context: ToolContext) -> None:
        if context.wait(WAIT_SECONDS):
            ended.set()

    async with asyncio.timeout(WAIT_SECONDS), serve(slow) as client:
        result = await client.call_tool("slow", {})
        assert "slow ran longer than its time-out of 1 s; its effect is unknown" in text(result)
        assert await asyncio.to_thread(ended.wait, WAIT_SECONDS)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_client_that_cancels_sets_the_flag_of_the_call(serve: Serve, is_async: bool) -> None:
    began, ended = threading.Event(), threading.Event()
    seen: list[ToolContext] = []

    @tool(name="slow")
    def on_a_thread(context: ToolContext) -> None:
        seen.append(context)
        began.set()
        context.wait(WAIT_SECONDS)
        ended.set()

    @tool(name="slow")
    async def on_the_loop(context: ToolContext) -> None:
        seen.append(context)
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with asyncio.timeout(WAIT_SECONDS), serve(on_the_loop if is_async else on_a_thread) as client:
        (listed,) = (await client.list_tools()).tools
        assert listed.input_schema["properties"] == {}
        call = asyncio.create_task(client.call_tool("slow", {}))
        assert await asyncio.to_thread(began.wait, WAIT_SECONDS)
        assert not seen[0].cancelled
        call.cancel()
        assert await asyncio.to_thread(ended.wait, WAIT_SECONDS)
        with pytest.raises(asyncio.CancelledError):
            await call
        assert seen[0].cancelled


async def test_blocking_tools_run_side_by_side(serve: Serve) -> None:
    """Each waits for the other; one at a time would never end."""
    both = threading.Barrier(2)

    @tool
    def meet() -> bool:
        both.wait(WAIT_SECONDS)
        return True

    async with asyncio.timeout(WAIT_SECONDS), serve(meet) as client:
        results = await asyncio.gather(client.call_tool("meet", {}), client.call_tool("meet", {}))
    assert [text(result) for result in results] == ["true", "true"]


async def test_a_tool_reports_its_progress_to_a_client_that_asks(serve: Serve) -> None:
    @tool
    async def bake(context: ToolContext) -> str:
        assert isinstance(context, ServedCall)
        await context.report(1, 2, "half done")
        return "bread"

    told: list[tuple[float, float | None, str | None]] = []

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))

    async with serve(bake) as client:
        assert text(await client.call_tool("bake", {}, progress_callback=listen)) == "bread"
        assert text(await client.call_tool("bake", {})) == "bread"
    assert told == [(1, 2, "half done")]


async def test_tools_that_are_added_to_the_server_are_served_beside_ours() -> None:
    server = as_mcp(add_up, name="house")
    assert isinstance(server, MCPServer)

    @server.tool()
    def theirs() -> str:
        return "by the SDK"

    async with Client(server) as client:
        assert client.server_info is not None
        assert client.server_info.name == "house"
        assert [listed.name for listed in (await client.list_tools()).tools] == ["add-up", "theirs"]
        assert text(await client.call_tool("theirs", {})) == "by the SDK"


def guess() -> str:
    """Ask for a number."""
    return "7"


@pytest.mark.parametrize(
    ("tools", "named"),
    [
        ((add_up, add_up), "two tools are called 'add-up'"),
        ((5,), "5 is no tool; write a function"),
        ((tool(interactive=True)(guess),), "tool 'guess' needs a person's answer"),
        ((tool(requires_approval=True)(guess),), "tool 'guess' needs a person's answer or approval"),
    ],
)
def test_what_cannot_be_served_is_named(tools: Any, named: str) -> None:
    with pytest.raises(ToolDefinitionError, match=named):
        as_mcp(*tools)


def test_without_the_sdk_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(typing.cast("dict[str, Any]", sys.modules), "mcp.server.mcpserver", None)
    with pytest.raises(McpMissingError, match=r"^the MCP SDK is not installed; .* pip install 'perdure\[mcp\]'$"):
        as_mcp(add_up)


@pytest.mark.deep
@pytest.mark.parametrize("era", ERAS)
async def test_a_stock_client_calls_our_tools_over_stdio(era: str) -> None:
    """S-78: what a tool prints does not reach the protocol, and a tool that exits does not end the server."""
    child = StdioServerParameters(command=sys.executable, args=["-m", "tests.unit.tools_over_mcp"], cwd=ROOT)
    async with asyncio.timeout(WAIT_SECONDS), Client(child, mode=era) as client:
        assert "word_count" in {listed.name for listed in (await client.list_tools()).tools}
        assert (await client.call_tool("word_count", {"text": "one two"})).structured_content == {"result": 2}
        assert (await client.call_tool("leave", {})).is_error
        assert text(await client.call_tool("shout", {"text": "still here"})) == "STILL HERE"
