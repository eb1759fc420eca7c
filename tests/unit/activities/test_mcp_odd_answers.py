"""Servers whose lists and results have an odd part: the rest of them is used, and the odd part is told."""

import asyncio
import base64
import json
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from mcp_types import CallToolResult, ContentBlock, ImageContent, JSONRPCResponse, TextContent
from mcp_types.methods import parse_server_result

from perdure import HttpServerConfig
from perdure.activities.mcp import results, server
from perdure.activities.mcp.failures import McpError, McpUnavailableError
from perdure.activities.mcp.reading import mend_answer
from perdure.activities.mcp.results import read_result
from perdure.contracts.errors import ReasonCode
from tests.unit.activities.mcp_peers import worker_of
from tests.unit.activities.mcp_scripted import ANY, Json, Reply, Scripted, error, pipe, result

GOOD = {"name": "pay", "inputSchema": ANY}

ODD_TOOLS: dict[str, Any] = {
    "null for a schema": {"name": "odd", "inputSchema": None},
    "no schema": {"name": "odd"},
    "a list of properties": {"name": "odd", "inputSchema": {"type": "object", "properties": []}},
    "an output schema that is text": {"name": "odd", "inputSchema": ANY, "outputSchema": "a number"},
    "an output schema that is a list": {"name": "odd", "inputSchema": ANY, "outputSchema": [1]},
    "a schema of a text": {"name": "odd", "inputSchema": {"type": "string"}},
    "a schema that is true": {"name": "odd", "inputSchema": True},
    "required within properties": {
        "name": "odd",
        "inputSchema": {"type": "object", "properties": {"coin": {"type": "string"}, "required": ["coin"]}},
    },
    "a number for a description": {"name": "odd", "description": 7, "inputSchema": ANY},
    "an entry that is null": None,
    "an entry that is text": "odd",
    "no name": {"inputSchema": ANY},
    "a number for a name": {"name": 7, "inputSchema": ANY},
}

ODD_HINTS: dict[str, Json] = {
    "annotations": {"annotations": "read only"},
    "a hint": {"annotations": {"readOnlyHint": "perhaps"}},
    "icons": {"icons": "star.png"},
    "a title": {"title": 7},
    "meta": {"_meta": []},
    "nulls": {"description": None, "title": None, "annotations": None, "outputSchema": None, "icons": None},
    "what nobody knows": {"colour": {"deep": "red"}},
}

ODD_SCHEMAS: dict[str, Json] = {
    "no type": {"properties": {"a": {"type": "string"}}},
    "null for required": {"type": "object", "properties": {"a": {"type": "string"}}, "required": None},
    "null for properties": {"type": "object", "properties": None},
}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "RECONNECT_PAUSE", 0.01)


def config(at: Scripted, **settings: Any) -> HttpServerConfig:
    return HttpServerConfig(**{"name": "web", "url": at.url, **settings})


@pytest.mark.parametrize("odd", ODD_TOOLS.values(), ids=ODD_TOOLS.keys())
async def test_a_tool_that_cannot_be_used_is_left_out_and_named(
    odd: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S-75: no other tool is lost for it, and the log says it once."""
    async with Scripted(tools=[odd, GOOD]).serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        await worker.open()
        assert set(worker.tools) == {"web__pay"}
        (line,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
        named = "odd" if isinstance(odd, dict) and odd.get("name") == "odd" else "number 1"
        assert line.startswith(f"MCP server 'web': its tool '{named}' cannot be used: ")


async def test_a_tool_that_the_agent_does_not_use_is_no_matter_to_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S-75: one that it picks is refused with the reason."""
    tools = [{"name": "odd"}, GOOD]
    async with Scripted(tools=tools).serving() as at:
        async with worker_of(config(at, omit=["odd"]), folder=tmp_path) as worker:
            await worker.open()
        assert not caplog.records
        async with worker_of(config(at, pick=["odd", "pay"]), folder=tmp_path) as worker:
            with pytest.raises(McpUnavailableError, match=r"'odd' cannot be used: inputSchema"):
                await worker.open()


@pytest.mark.parametrize("hints", ODD_HINTS.values(), ids=ODD_HINTS.keys())
async def test_a_tool_is_used_without_hints_that_cannot_be_read(hints: Json, tmp_path: Path) -> None:
    """S-75."""
    async with Scripted(tools=[{**GOOD, **hints}]).serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        assert set(worker.tools) == {"web__pay"}


@pytest.mark.parametrize("schema", ODD_SCHEMAS.values(), ids=ODD_SCHEMAS.keys())
async def test_a_schema_whose_meaning_is_clear_is_used(schema: Json, tmp_path: Path) -> None:
    """S-75."""
    tools = [{"name": "pay", "inputSchema": schema}]
    async with Scripted(tools=tools).serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        assert worker.tools["web__pay"].parameters["type"] == "object"


@pytest.mark.parametrize("listed", [None, []])
async def test_a_server_without_tools_has_none(listed: object, tmp_path: Path) -> None:
    """S-75: an empty list is null in some languages."""

    def nothing(method: str, _: Json, __: str) -> Reply | None:
        return Reply(result({"tools": listed})) if method == "tools/list" else None

    async with Scripted(nothing).serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        assert worker.tools == {}


def paged(pages: dict[Any, Json]) -> Scripted:
    """A server with these pages of tools, by their cursors."""

    def page(method: str, params: Json, _: str) -> Reply | None:
        if method != "tools/list":
            return None
        cursor = params.get("cursor")
        return Reply(result(pages[cursor]) if cursor in pages else error(-32602, f"unknown cursor {cursor!r}"))

    return Scripted(page)


def tools(*names: str) -> list[Json]:
    return [{"name": name, "inputSchema": ANY} for name in names]


CIRCLES: dict[str, tuple[dict[Any, Json], int]] = {
    "a cursor that does not advance": (
        {None: {"tools": tools("a"), "nextCursor": "x"}, "x": {"tools": tools("b"), "nextCursor": "x"}},
        2,
    ),
    "one page again and again": (
        {None: {"tools": tools("a", "b"), "nextCursor": "x"}, "x": {"tools": tools("a", "b"), "nextCursor": "x"}},
        2,
    ),
    "two cursors in turn": (
        {
            None: {"tools": tools("a"), "nextCursor": "x"},
            "x": {"tools": tools("b"), "nextCursor": "y"},
            "y": {"tools": tools("a"), "nextCursor": "x"},
        },
        3,
    ),
    "empty cursors": (
        {None: {"tools": tools("a"), "nextCursor": ""}, "": {"tools": tools("a", "b"), "nextCursor": ""}},
        2,
    ),
}


@pytest.mark.parametrize(("pages", "requests"), CIRCLES.values(), ids=CIRCLES.keys())
async def test_a_list_that_goes_round_in_a_circle_ends_at_the_first_cursor_that_comes_again(
    pages: dict[Any, Json], requests: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S-75: what came is kept, and the log says it."""
    async with paged(pages).serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        assert set(worker.tools) == {"web__a", "web__b"}
        assert [method for method, _ in at.asked].count("tools/list") == requests
        assert "its list of tools goes round in a circle" in caplog.text


@pytest.mark.parametrize(
    "pages",
    [
        {None: {"tools": tools("a"), "nextCursor": ""}, "": {"tools": tools("b")}},
        {None: {"tools": tools("a", "b"), "nextCursor": ""}},
        {None: {"tools": tools("a"), "nextCursor": 2}, "2": {"tools": tools("b"), "nextCursor": None}},
        {None: {"tools": tools("a", "b"), "nextCursor": False}},
    ],
    ids=["an empty cursor", "an empty cursor for the end", "a number", "false"],
)
async def test_odd_cursors_lose_no_tool(
    pages: dict[Any, Json], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S-75."""
    async with paged(pages).serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        assert set(worker.tools) == {"web__a", "web__b"}
        assert not caplog.records


PICTURE = {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"}

BLOCKS: dict[str, tuple[Any, str]] = {
    "an unknown type": (
        {"type": "chart", "points": [1, 2]},
        'first\n[a block of type \'chart\' that cannot be read: {"type": "chart", "points": [1, 2]}]\nlast',
    ),
    "a null text": ({"type": "text", "text": None}, "first\n[a block of text without text]\nlast"),
    "no text": ({"type": "text"}, "first\n[a block of text without text]\nlast"),
    "a text without a type": ({"text": "middle"}, "first\nmiddle\nlast"),
    "a number for a text": ({"type": "text", "text": 7}, "first\n7\nlast"),
    "null": (None, "first\n[a part of the result is no block: null]\nlast"),
    "plain text": ("middle", "first\nmiddle\nlast"),
    "an image without data": (
        {"type": "image", "mimeType": "image/png"},
        'first\n[a block of type \'image\' that cannot be read: {"type": "image", "mimeType": "image/png"}]\nlast',
    ),
    "an image in no base64": (
        {"type": "image", "data": "no picture!", "mimeType": "image/png"},
        "first\n[image, image/png: the server sent no base64]\nlast",
    ),
    "odd annotations": ({"type": "text", "text": "middle", "annotations": "old"}, "first\nmiddle\nlast"),
    "a null annotation": ({"type": "text", "text": "middle", "annotations": None}, "first\nmiddle\nlast"),
}


@pytest.mark.parametrize(("block", "said"), BLOCKS.values(), ids=BLOCKS.keys())
async def test_one_odd_block_of_a_result_costs_no_other(block: object, said: str, tmp_path: Path) -> None:
    """S-77: a word stands in its place."""
    first, last = ({"type": "text", "text": text} for text in ("first", "last"))
    async with Scripted().serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        at.result = {"content": [first, block, last, PICTURE]}
        read = await worker.call("web__pay")
        assert read.text.partition("\n[image, image/png, 5 bytes")[0] == said
        assert [attachment.data for attachment in read.attachments] == [b"hello"]


RESULTS: dict[str, tuple[Any, str]] = {
    "no content": ({}, ""),
    "null for content": ({"content": None}, ""),
    "text for content": ({"content": "paid"}, "paid"),
    "one block for content": ({"content": {"type": "text", "text": "paid"}}, "paid"),
    "text": ("paid", "paid"),
    "null": (None, ""),
    "a list of blocks": ([{"type": "text", "text": "paid"}], "paid"),
    "a list as structured content": ({"content": [], "structuredContent": [1, 2]}, "[1,2]"),
    "null for the error": ({"content": [{"type": "text", "text": "paid"}], "isError": None}, "paid"),
    "text for the error": ({"content": [{"type": "text", "text": "paid"}], "isError": "false"}, "paid"),
    "meta that is a list": ({"content": [{"type": "text", "text": "paid"}], "_meta": []}, "paid"),
}


@pytest.mark.deep
@pytest.mark.parametrize(("sent", "said"), RESULTS.values(), ids=RESULTS.keys())
@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_a_result_of_an_odd_form_is_read(sent: object, said: str, transport: str, tmp_path: Path) -> None:
    """S-77: the call was carried out."""
    async with Scripted().serving() as at:
        at.result = sent
        odd = pipe(tmp_path, {"tools/call": result(sent)}, name="web") if transport == "stdio" else config(at)
        async with worker_of(odd, folder=tmp_path) as worker, asyncio.timeout(120):
            await worker.open()
            assert (await worker.call("web__pay")).text == said


TYPED = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (
            {"content": [{"type": "text", "text": "order 7 was placed"}]},
            "order 7 was placed\n"
            "[unstructured: the tool has an output schema, and the server sent no structured content]",
        ),
        (
            {"content": [{"type": "text", "text": "order 7 was placed"}], "structuredContent": {"n": "seven"}},
            "order 7 was placed\n"
            "[unstructured: the tool has an output schema that this does not fit: 'seven' is not of type 'integer']",
        ),
        (
            {"content": [], "structuredContent": {"order": 7}},
            '{"order":7}\n'
            "[unstructured: the tool has an output schema that this does not fit: 'n' is a required property]",
        ),
        (
            {"content": [], "structuredContent": [7]},
            "[7]\n[unstructured: the tool has an output schema, and the server sent no structured content]",
        ),
        ({"content": [{"type": "text", "text": "7"}], "structuredContent": {"n": 7}}, "7"),
    ],
    ids=["none", "another shape", "no text", "a list", "as promised"],
)
async def test_a_result_beside_its_output_schema_is_read_as_it_came_and_marked(
    sent: Json, said: str, tmp_path: Path
) -> None:
    """S-77: an error would have the order placed twice."""
    listed = [{"name": "pay", "inputSchema": ANY, "outputSchema": TYPED}]
    async with Scripted(tools=listed).serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        at.result = sent
        await worker.open()
        assert (await worker.call("web__pay")).text == said


ERRORS: dict[str, tuple[Any, str]] = {
    "data": (error(-32000, "failed", data={"field": "amount", "why": "negative"}), '"why":"negative"'),
    "text as data": (error(-32000, "failed", data="amount is negative"), "failed (amount is negative)"),
    "long data": (error(-32000, "failed", data="x" * 100_000), "…)"),
    "a null message": (error(-32000, None), "it did not say why (code -32000)"),
    "a null message with data": (error(-32000, None, data="the cause"), "the cause"),
    "no message": ({"jsonrpc": "2.0", "id": "$ID", "error": {"code": -32000}}, "did not say why"),
    "a message that is an object": (error(-32000, {"en": "no funds"}), "no funds"),
    "no code": ({"jsonrpc": "2.0", "id": "$ID", "error": {"message": "no funds"}}, "no funds"),
    "a text for a code": (error("E42", "no funds"), "no funds"),
    "a text for the error": ({"jsonrpc": "2.0", "id": "$ID", "error": "no funds"}, "no funds"),
    "no version": ({"id": "$ID", "error": {"code": 1, "message": "no funds"}}, "no funds"),
    "a null result beside it": (
        {"jsonrpc": "2.0", "id": "$ID", "result": None, "error": {"code": 1, "message": "no funds"}},
        "no funds",
    ),
    "half a character": (json.dumps(error(1, "no funds \ud83d")), "no funds"),
    "no id": ({"jsonrpc": "2.0", "id": None, "error": {"code": 1, "message": "no funds"}}, "no funds"),
    "a batch": ([error(1, "no funds")], "no funds"),
}


@pytest.mark.deep
@pytest.mark.parametrize(("sent", "said"), ERRORS.values(), ids=ERRORS.keys())
@pytest.mark.parametrize("transport", ["http", "events", "stdio"])
async def test_an_error_of_a_server_is_told_at_once_with_what_it_says(
    sent: object, said: str, transport: str, tmp_path: Path
) -> None:
    """S-77: also if it is odd."""

    def refused(method: str, _: Json, __: str) -> Reply | None:
        if method != "tools/call":
            return None
        text = sent if isinstance(sent, str) else json.dumps(sent)
        return Reply(f"event: message\ndata: {text}\n\n", events=True) if transport == "events" else Reply(text)

    limit = timedelta(seconds=20)
    async with Scripted(refused).serving() as at, asyncio.timeout(120):
        web = config(at, call_timeout=limit)
        odd = pipe(tmp_path, {"tools/call": sent}, name="web", call_timeout=limit) if transport == "stdio" else web
        async with worker_of(odd, folder=tmp_path) as worker:
            await worker.open()
            with pytest.raises(McpError) as caught:
                await worker.call("web__pay")
        assert caught.value.code == ReasonCode.TOOL_EXECUTION_ERROR
        assert said in str(caught.value)
        assert len(str(caught.value)) < 5_000


@pytest.mark.parametrize("version", ["2024-11-05", "2025-06-18", "2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("kind", [None, "", "done", 0, True, [], {"text": "a"}])
def test_a_result_of_no_known_kind_is_complete(kind: object, version: str) -> None:
    """S-77: the call was carried out. Only a kind of the newer generation may be one of an extension."""
    sent = {"content": [{"type": "text", "text": "paid"}], "resultType": kind, "ttlMs": None}
    answer = mend_answer(JSONRPCResponse(jsonrpc="2.0", id=1, result=sent), "tools/call", version)
    assert isinstance(answer, JSONRPCResponse)
    if isinstance(kind, str) and version == "2026-07-28":
        assert answer.result["resultType"] == kind
    else:
        assert isinstance(parse_server_result("tools/call", version, answer.result), CallToolResult)


def test_images_and_files_that_are_too_large_are_left_out_of_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-77: the call had its effect, so the rest is read, and the text says what is missing."""
    monkeypatch.setattr(results, "MAX_BYTES", 5)
    monkeypatch.setattr(results, "MAX_ALL_BYTES", 12)
    sizes = (6, 5, 5, 5, 2)
    images = [
        ImageContent(type="image", data=base64.b64encode(bytes(size)).decode(), mime_type="image/png") for size in sizes
    ]
    read = read_result(CallToolResult(content=[TextContent(type="text", text="paid"), *images]), "c1")
    assert [len(attachment.data) for attachment in read.attachments] == [5, 5, 2]
    first, *lines = read.text.splitlines()
    assert first == "paid"
    assert [", too large and left out: one may have 5 bytes" in line for line in lines] == [
        True, False, False, True, False
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_a_failure_in_blank_text_is_told_in_words(text: str) -> None:
    """S-77."""
    sent = CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)
    with pytest.raises(McpError, match="the tool failed and did not say why"):
        read_result(sent, "c1")


@pytest.mark.parametrize("text", ["", " ", "\n", "\u00a0\t"])
@pytest.mark.parametrize(
    ("error", "image"), [(False, False), (False, True), (True, False)], ids=["alone", "beside an image", "an error"]
)
def test_blank_text_does_not_hide_the_structured_content_beside_it(text: str, error: bool, image: bool) -> None:
    """S-77."""
    picture: list[ContentBlock] = [ImageContent(type="image", data="aGVsbG8=", mime_type="image/png")] * image
    content: list[ContentBlock] = [TextContent(type="text", text=text), *picture]
    sent = CallToolResult(content=content, structured_content={"order": 7}, is_error=error)
    if error:
        with pytest.raises(McpError, match=r'^{"order":7}$'):
            read_result(sent, "c1")
        return
    read = read_result(sent, "c1")
    assert read.text.endswith('{"order":7}')
    assert len(read.text.splitlines()) == 1 + image


@pytest.mark.parametrize(
    "data", ["-_-_", "+/+/", "+/ +/\n", "data:image/png;base64,+/+/"], ids=["of URLs", "plain", "with spaces", "a URL"]
)
def test_base64_is_read_in_each_of_its_spellings(data: str) -> None:
    """S-77: bytes that cannot be read would be dropped in silence."""
    sent = CallToolResult(content=[ImageContent(type="image", data=data, mime_type="image/png")])
    (attachment,) = read_result(sent, "c1").attachments
    assert attachment.data == b"\xfb\xff\xbf"
