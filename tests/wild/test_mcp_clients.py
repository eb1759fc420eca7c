"""Bug reports of other MCP clients and of servers that clients failed at, each tried on perdure.

Each test names where it was seen. Those whose name stands in ``test_mcp_lost_sessions`` and ``test_mcp_odd_answers``
under ``tests/unit/activities`` too are not repeated.
"""

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import HttpServerConfig
from perdure.activities.mcp import server
from perdure.activities.mcp.failures import McpError
from tests.unit.activities.mcp_peers import worker_of
from tests.unit.activities.mcp_scripted import ANY, EMPTY, GREETING, Json, Reply, Scripted, error, event, pipe, result


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "RECONNECT_PAUSE", 0.01)


def config(at: Scripted, **settings: Any) -> HttpServerConfig:
    return HttpServerConfig(**{"name": "web", "url": at.url, **settings})


def answering(method: str, reply: Reply) -> Scripted:
    """A server with this answer to a method."""
    return Scripted(lambda asked, _, __: reply if asked == method else None)


async def test_a_session_that_ended_behind_a_status_of_200_and_an_event(tmp_path: Path) -> None:
    """Seen at actionhero/keryx #503: the event is no message of JSON-RPC, only an object with an error."""
    gone = Reply(event({"error": "Session not found"}), events=True)
    async with Scripted().serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        at.answers = lambda method, _, session: gone if session == "S1" and method != "initialize" else None
        assert (await worker.call("web__pay")).text == "done"
        assert at.called == ["pay"]


async def test_a_session_that_ended_with_an_error_that_has_no_id(tmp_path: Path) -> None:
    """Seen at aklivity/zilla #2525: 200 with "Invalid Request" and a null id, to which no request could be found."""
    gone = Reply({"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "Invalid Request"}})
    async with Scripted().serving() as at, worker_of(config(at), folder=tmp_path) as worker, asyncio.timeout(120):
        await worker.open()
        at.answers = lambda method, _, session: gone if session == "S1" and method != "initialize" else None
        assert (await worker.call("web__pay")).text == "done"


async def test_a_cursor_that_does_not_advance(tmp_path: Path) -> None:
    """Seen at DeusData/codebase-memory-mcp #1247: the same tools and the same cursor, for ever."""
    page = {"tools": [{"name": "a", "inputSchema": ANY}, {"name": "b", "inputSchema": ANY}], "nextCursor": "8"}
    served = answering("tools/list", Reply(result(page)))
    async with served.serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        assert set(worker.tools) == {"web__a", "web__b"}


async def test_null_for_the_required_names_and_an_entry_that_is_null(tmp_path: Path) -> None:
    """Seen at anthropics/claude-code #44364 and cognizant-ai-lab/neuro-san #1341: all tools of the server were lost."""
    schema: Json = {"type": "object", "properties": {}, "required": None}
    listed = [{"name": "a", "inputSchema": schema}, None, {"name": "b", "inputSchema": {"$ref": "#/x", "x": {}}}]
    async with Scripted(tools=listed).serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        assert set(worker.tools) == {"web__a", "web__b"}


async def test_an_output_schema_without_structured_content(tmp_path: Path) -> None:
    """Seen at cristianuibar/bricks-mcp #45 and NousResearch/hermes-agent #101330: the result was thrown away."""
    listed = [{"name": "pay", "inputSchema": ANY, "outputSchema": {"type": "object", "required": ["id"]}}]
    async with Scripted(tools=listed).serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        assert (await worker.call("web__pay")).text.startswith("done\n[unstructured: ")


@pytest.mark.parametrize(
    "sign", ['data: {"type": "heartbeat"}', "data: ping", "event: ping\ndata: {}", ": ping", "data:"]
)
async def test_signs_of_life_in_a_stream(sign: str, tmp_path: Path) -> None:
    """Seen at PhilflowIO/dav-mcp #31 and modelcontextprotocol/python-sdk #1146: they were taken for the answer."""
    stream = f"{sign}\n\n{event(result(EMPTY))}"
    served = answering("tools/call", Reply(stream, events=True))
    async with served.serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        assert (await worker.call("web__pay")).text == "done"


async def test_an_answer_that_is_cut_off_in_a_stream(tmp_path: Path) -> None:
    """Seen at modelcontextprotocol/python-sdk #1144: the client waited for ever."""
    cut = Reply(event('{"jsonrpc": "2.0", "id": $ID, "result": {"content": [{"ty'), events=True)
    served = answering("tools/call", cut)
    async with served.serving() as at, worker_of(config(at), folder=tmp_path) as worker, asyncio.timeout(120):
        await worker.open()
        with pytest.raises(
            McpError, match="cannot be read as a message of the protocol; the effect of the call is unknown"
        ):
            await worker.call("web__pay")


@pytest.mark.deep
@pytest.mark.parametrize("said", ["before\u2028after\u2029 and\x85 more", "half a character: \ud83d!"])
@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_characters_that_break_lines_and_halves_of_characters(said: str, transport: str, tmp_path: Path) -> None:
    """Seen at anthropics/claude-agent-sdk-typescript #137 and MemPalace/mempalace #503."""
    sent = {"content": [{"type": "text", "text": said}]}
    raw = json.dumps(result(sent), ensure_ascii="\ud83d" in said)
    async with Scripted(lambda method, _, __: Reply(raw) if method == "tools/call" else None).serving() as at:
        odd = pipe(tmp_path, {"tools/call": raw}, name="web") if transport == "stdio" else config(at)
        async with worker_of(odd, folder=tmp_path) as worker, asyncio.timeout(120):
            await worker.open()
            assert (await worker.call("web__pay")).text == said.replace("\ud83d", "\N{REPLACEMENT CHARACTER}")


@pytest.mark.parametrize("number", ['"$ID"', "0", "null", '"no such"'])
async def test_answers_over_http_with_another_id_than_asked(number: str, tmp_path: Path) -> None:
    """Seen at radareorg/radare2-mcp #68 and modelcontextprotocol/python-sdk #192: the call hung."""
    raw = f'{{"jsonrpc": "2.0", "id": {number}, "result": {json.dumps(EMPTY)}}}'
    served = answering("tools/call", Reply(raw))
    async with served.serving() as at, worker_of(config(at), folder=tmp_path) as worker, asyncio.timeout(120):
        await worker.open()
        assert (await worker.call("web__pay")).text == "done"


@pytest.mark.deep
async def test_an_answer_that_comes_after_its_time_is_no_answer_to_the_next_call(tmp_path: Path) -> None:
    """Seen at GEMISIS/leviath #830: from then on each call read the answer to the one before."""
    late = [result({"content": [{"type": "text", "text": "late"}]}), result(EMPTY)]
    answers = {"tools/call": [json.dumps(late[0]).replace('"$ID"', "99"), late[1]]}
    async with worker_of(pipe(tmp_path, answers, name="web"), folder=tmp_path) as worker, asyncio.timeout(120):
        await worker.open()
        assert [(await worker.call("web__pay")).text for _ in range(2)] == ["done", "done"]


@pytest.mark.parametrize(
    "greeting",
    [
        {**GREETING, "serverInfo": {"name": "scripted"}},
        {"protocolVersion": "2025-06-18", "capabilities": {}},
        {**GREETING, "capabilities": None, "instructions": None},
    ],
    ids=["no version", "no name", "nulls"],
)
async def test_a_greeting_that_leaves_something_out(greeting: Json, tmp_path: Path) -> None:
    """Seen at asciimoo/hister #363: the client refused to connect."""
    served = answering("initialize", Reply(result(greeting)))
    async with served.serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        assert (await worker.call("web__pay")).text == "done"


async def test_a_result_without_content(tmp_path: Path) -> None:
    """Seen at cloudflare/mcp-server-cloudflare #12: what the tool did was lost."""
    served = answering("tools/call", Reply(result({"toolResult": {"content": []}})))
    async with served.serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        await worker.call("web__pay")


@pytest.mark.deep
@pytest.mark.parametrize(
    "line", ["Server version 1.2", "[INFO] {started}", '{"level": "info", "msg": "hi"}', "[]", "7"]
)
async def test_lines_of_a_log_on_standard_output(line: str, tmp_path: Path) -> None:
    """Seen at microsoft/azure-devops-mcp #147 and editor-code-assistant/eca #298: the client failed at the first."""
    answers = {"initialize": [line, result(GREETING)], "tools/call": [line, result(EMPTY)]}
    odd = pipe(tmp_path, answers, name="web", init_timeout=timedelta(seconds=10))
    async with worker_of(odd, folder=tmp_path) as worker, asyncio.timeout(120):
        await worker.open()
        assert (await worker.call("web__pay")).text == "done"


async def test_an_error_of_a_later_page(tmp_path: Path) -> None:
    """Seen beside PrefectHQ/fastmcp #5025: to some servers an empty cursor is the end, and asking for it a mistake."""

    def page(method: str, params: Json, _: str) -> Reply | None:
        if method != "tools/list":
            return None
        if params.get("cursor") is not None:
            return Reply(error(-32602, "Invalid cursor"))
        return Reply(result({"tools": [{"name": "a", "inputSchema": ANY}], "nextCursor": ""}))

    async with Scripted(page).serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        assert set(worker.tools) == {"web__a"}
