"""What a tool gives beside text, and tools that need a turn, over MCP: seen by the SDK's own client."""

import asyncio
import base64
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.types import BlobResourceContents, EmbeddedResource, ImageContent, TextContent, TextResourceContents

from perdure import File, Image, ToolContext, ToolDefinitionError, ask_user, read_output, spawn_agent, todo, tool
from perdure.agents.delegates import await_delegate
from perdure.agents.files import MAX_BYTES
from perdure.agents.skills import skill
from perdure.mcp_server import as_mcp
from tests.house import ROOT, WAIT_SECONDS

PNG = b"\x89PNG\r\n\x1a\n"
Serve = Callable[..., Any]


@pytest.fixture(params=["legacy", "auto"])
def serve(request: pytest.FixtureRequest) -> Serve:
    """A stock client of a server with these tools, in each protocol generation."""

    @asynccontextmanager
    async def serve(*tools: Any) -> AsyncIterator[Client]:
        async with Client(as_mcp(*tools), mode=request.param) as client:
            yield client

    return serve


def giving(value: object, **settings: Any) -> Any:
    """A tool that returns it."""
    return tool(name="give", **settings)(lambda: value)


def seen(result: Any) -> list[tuple[str, ...]]:
    """The blocks of a result: kind, media type and content; of a resource the end of its address too."""
    assert not result.is_error
    return [_seen(block) for block in result.content]


def _seen(block: object) -> tuple[str, ...]:
    match block:
        case TextContent():
            return ("text", block.text)
        case ImageContent():
            return ("image", block.mime_type, block.data)
        case EmbeddedResource(resource=TextResourceContents() as resource):
            return ("text file", str(resource.mime_type), resource.text, resource.uri.rpartition("/")[2])
        case EmbeddedResource(resource=BlobResourceContents() as resource):
            return ("file", str(resource.mime_type), resource.blob, resource.uri.rpartition("/")[2])
        case _:
            raise AssertionError(block)


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


IMAGE = ("image", "image/png", base64_of(PNG))
TABLE = ("text file", "text/csv", "a,b", "my%20table.csv")
RAW = ("file", "application/octet-stream", base64_of(b"\xff"), "raw")

GIVEN: dict[str, tuple[object, list[tuple[str, ...]]]] = {
    "image": (Image(PNG), [IMAGE]),
    "text file": (File("my table.csv", "a,b", "text/csv"), [TABLE]),
    "file": (File("raw", b"\xff"), [RAW]),
    "no UTF-8": (File("odd.txt", b"\xff", "text/plain"), [("file", "text/plain", base64_of(b"\xff"), "odd.txt")]),
    "name": (
        File("../ü?\ud83d.pdf", b"%", "application/pdf"),
        [("file", "application/pdf", "JQ==", "..%2F%C3%BC%3F%EF%BF%BD.pdf")],
    ),
    "list": (
        ["here:", Image(PNG), {"n": 1}, File("raw", b"\xff"), [Image(PNG)]],
        [("text", "here:"), IMAGE, ("text", '{"n":1}'), RAW, ("text", '["[image, image/png, 8 bytes]"]'), IMAGE],
    ),
    "tuple": ((Image(PNG, "image/jpeg"), "there"), [("image", "image/jpeg", base64_of(PNG)), ("text", "there")]),
    "object": (
        {"n": 1, "of": [Image(PNG), File("raw", b"\xff")]},
        [
            ("text", '{"n":1,"of":["[image, image/png, 8 bytes]","[file raw, application/octet-stream, 1 bytes]"]}'),
            IMAGE,
            RAW,
        ],
    ),
}


@pytest.mark.parametrize("kind", GIVEN)
async def test_images_and_files_are_blocks_of_their_own_and_the_rest_is_text(serve: Serve, kind: str) -> None:
    """S-78: and no structured content, for which many hosts drop the blocks."""
    value, blocks = GIVEN[kind]
    async with serve(giving(value)) as client:
        result = await client.call_tool("give")
    assert seen(result) == blocks
    assert result.structured_content is None


async def test_files_of_one_name_have_addresses_of_their_own(serve: Serve) -> None:
    """S-78: in one result and in another."""
    async with serve(giving([File("a", "x"), File("a", "y")])) as client:
        results = [await client.call_tool("give") for _ in range(2)]
    assert len({block.resource.uri for result in results for block in result.content}) == 4


async def test_a_file_that_is_too_large_is_an_error_result(serve: Serve) -> None:
    """S-78: one read from a path is cut there, so that it must not be sent."""
    async with serve(giving(File("large.bin", bytes(MAX_BYTES + 1)))) as client:
        result = await client.call_tool("give")
    assert result.is_error
    assert result.content[0].text.startswith("InvalidOutputError: file large.bin has more than 10,000,000 bytes")


async def test_masked_values_are_in_no_text_file_and_no_name(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-78."""
    monkeypatch.setenv("HOUSE_TOKEN", "tok-of-the-house")

    @tool(masked=["pin"])
    def write(pin: str) -> list[object]:
        return [File(f"{pin}.txt", f"{pin} tok-of-the-house", "text/plain"), f"saved {pin}"]

    async with serve(write) as client:
        result = await client.call_tool("write", {"pin": "open-sesame-4711"})
    assert seen(result) == [("text file", "text/plain", "*** ***", "%2A%2A%2A.txt"), ("text", "saved ***")]


async def test_what_is_cut_keeps_its_images_and_files(serve: Serve) -> None:
    """S-78: the text is cut as in a turn."""
    async with serve(giving(["x" * 500, Image(PNG), "y" * 500], truncate=200)) as client:
        first, *rest = seen(await client.call_tool("give"))
    async with serve(giving(Image(PNG), truncate=5)) as client:
        assert seen(await client.call_tool("give")) == [IMAGE]
    assert len(first[1]) <= 200
    assert "characters left out" in first[1]
    assert rest == [IMAGE]


async def test_a_long_result_is_sent_whole_as_nothing_could_read_on_in_it(serve: Serve) -> None:
    """S-78: there is no store to offload it to."""
    async with serve(giving(["x" * 100_000])) as client:
        result = await client.call_tool("give")
    assert seen(result) == [("text", f'["{"x" * 100_000}"]')]
    assert result.structured_content == {"result": ["x" * 100_000]}


async def test_an_idempotent_tool_is_listed_as_one(serve: Serve) -> None:
    """S-78: as perdure's own client of MCP reads it."""
    async with serve(giving(1, idempotent=True), tool(name="other")(lambda: 1)) as client:
        idempotent, other = (await client.list_tools()).tools
    assert idempotent.annotations is not None
    assert idempotent.annotations.idempotent_hint is True
    assert other.annotations is None


async def test_a_tool_that_asks_the_turn_to_end_has_that_in_its_result(serve: Serve) -> None:
    """S-78: nothing ends here, so the reader is told; the first reason counts, and a failed call asks for nothing."""

    @tool(masked=["pin"])
    def close(pin: str, fails: bool, context: ToolContext) -> dict[str, int]:
        context.stop_turn(f"closed\nwith {pin}")
        context.stop_turn("once more")
        if fails:
            raise ValueError("stuck")
        return {"doors": 2}

    async with serve(close) as client:
        closed = await client.call_tool("close", {"pin": "open-sesame-4711", "fails": False})
        stuck = await client.call_tool("close", {"pin": "open-sesame-4711", "fails": True})
    assert seen(closed) == [("text", '{"doors":2}'), ("text", "[close asks you to stop here: closed with ***]")]
    assert closed.structured_content is None
    assert (stuck.is_error, [block.text for block in stuck.content]) == (True, ["ValueError: stuck"])


async def test_artifacts_are_not_found_outside_a_session(serve: Serve) -> None:
    """S-78."""

    @tool
    def read(context: ToolContext) -> str:
        return context.read_artifact("art_1").text

    async with serve(read) as client:
        result = await client.call_tool("read")
    assert result.is_error
    assert result.content[0].text == (
        "InvalidInputError: there is no artifact 'art_1': a call over MCP has no session that could have one"
    )


def leaving() -> Iterator[int]:
    yield 1
    raise SystemExit(3)


def loop() -> object:
    found: list[object] = []
    found.append(found)
    return found


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "object": (
        lambda: object(),  # noqa: PLW0108 - a class is no tool
        "InvalidOutputError: the tool returned a object that cannot be written as JSON: a object has no",
    ),
    "function in a list": (lambda: [len, Image(PNG)], "a builtin_function_or_method has no JSON form"),
    "bytes": (lambda: b"\xff", "invalid utf-8 sequence of 1 bytes from index 0; return perdure.Image or perdure.File"),
    "loop": (loop, "Circular reference detected"),
    "end of the process": (lambda: leaving(), "SystemExit"),  # noqa: PLW0108 - nor is a generator
}


@pytest.mark.parametrize("kind", BAD)
async def test_a_result_without_a_json_form_is_an_error_result_with_its_cause(serve: Serve, kind: str) -> None:
    """S-78 S-25."""
    make, cause = BAD[kind]
    async with asyncio.timeout(WAIT_SECONDS), serve(tool(name="give")(make)) as client:
        result = await client.call_tool("give")
        assert result.is_error
        assert cause in result.content[0].text
        assert (await client.call_tool("give")).is_error


async def test_a_result_that_takes_too_long_to_read_is_an_error_result(serve: Serve) -> None:
    """S-78: of a generator, reading is running it."""
    gate = threading.Event()

    def numbers() -> Iterator[int]:
        gate.wait(WAIT_SECONDS)
        yield 1

    async with serve(giving(numbers(), timeout=timedelta(milliseconds=50))) as client:
        result = await client.call_tool("give")
    gate.set()
    assert "give ran longer than its time-out of 0.05 s" in result.content[0].text


async def test_half_a_character_in_a_value_is_replaced(serve: Serve) -> None:
    """S-78."""
    async with serve(giving({"a": "\ud83d"})) as client:
        assert (await client.call_tool("give")).structured_content == {"a": "\ufffd"}


NOT_HERE = [
    (read_output, "tool 'read_output' reads the artifacts of a session, and over MCP there is none; leave it out"),
    (read_output.with_(name="more"), "tool 'more' reads the artifacts of a session"),
    (todo, "tool 'todo' is carried out by the turn that it is called in, and over MCP there is none; leave it out"),
    (spawn_agent, "tool 'spawn_agent' is carried out by the turn that it is called in"),
    (await_delegate, "tool 'await_delegate' is carried out by the turn that it is called in"),
    (skill, "tool 'skill' is carried out by the turn that it is called in"),
    (ask_user, "tool 'ask_user' needs a person's answer or approval, which only a turn waits for; leave it out"),
]


@pytest.mark.parametrize(("given", "told"), NOT_HERE)
def test_tools_that_need_a_turn_are_refused_when_the_server_is_made(given: Any, told: str) -> None:
    """S-78: in one line."""
    with pytest.raises(ToolDefinitionError) as refused:
        as_mcp(given)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.deep
@pytest.mark.parametrize("era", ["legacy", "auto"])
async def test_blocks_and_deep_values_arrive_over_the_wire(era: str) -> None:
    """S-78: a client parses nothing that is nested deeper than about 200, so such a value is text alone."""
    child = StdioServerParameters(command=sys.executable, args=["-m", "tests.unit.tools_over_mcp"], cwd=ROOT)
    async with asyncio.timeout(WAIT_SECONDS), Client(child, mode=era) as client:
        plotted = await client.call_tool("plot")
        results = [await client.call_tool("nested", {"depth": depth}) for depth in (100, 101, 253)]
    assert seen(plotted) == [("text", "here:"), ("image", "image/png", base64_of(b"\x89PNG")), TABLE, RAW]
    assert [len(seen(result)[0][1]) for result in results] == [202, 204, 508]
    assert [result.structured_content is None for result in results] == [False, True, True]
