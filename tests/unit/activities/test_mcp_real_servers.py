"""Servers that others wrote, of both protocol generations: five of them, and seven deeds with each.

No cell is left out. No server needs a tool that takes long: a stopped process answers no call.
"""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from perdure import HttpServerConfig, StdioServerConfig
from perdure.activities.mcp import server as mcp_server
from perdure.activities.mcp.failures import McpError
from perdure.contracts.errors import ReasonCode
from perdure.local_ports import find_free_port
from tests import npm_servers
from tests.house import WAIT_SECONDS, eventually
from tests.unit.activities.mcp_peers import worker_of
from tests.unit.activities.real_servers import FIVE, PATH, Deed, Tapped, tapped

pytestmark = pytest.mark.deep

SHORT = timedelta(seconds=0.2)
"""Of a call that no answer comes to, however long it is waited for."""


@pytest.fixture(scope="module", params=FIVE)
async def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Tapped]:
    """One of the servers, for all deeds; each leaves it so that it can be used."""
    async with tapped(request.param, tmp_path_factory.mktemp("real")) as connected:
        yield connected


@pytest.fixture(autouse=True)
def not_the_pace_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that a busy machine keeps from answering is not taken for one that hangs."""
    monkeypatch.setattr(mcp_server, "PROBE_SECONDS", WAIT_SECONDS)
    monkeypatch.setattr(mcp_server, "RECONNECT_PAUSE", 0.01)


async def works(real: Tapped) -> None:
    assert real.server.works.gives in await real.does(real.server.works)


async def test_list(real: Tapped) -> None:
    """S-75."""
    await real.worker.open()
    assert {f"real__{name}" for name in real.server.tools} <= real.worker.tools.keys()


async def test_call(real: Tapped) -> None:
    """S-75."""
    await works(real)


async def test_error(real: Tapped) -> None:
    """S-77: what the server says of it is in the model's error."""
    with pytest.raises(McpError, match=real.server.fails.gives) as caught:
        await real.does(real.server.fails)
    assert caught.value.code in {ReasonCode.TOOL_EXECUTION_ERROR, ReasonCode.TOOL_INVALID_INPUT}


async def test_time_out(real: Tapped) -> None:
    """S-75: the server is told, and is used again when it goes on."""
    pids, told = real.pids, len(real.told("notifications/cancelled"))
    async with real.stopped():
        with pytest.raises(McpError, match=r"ran longer than its time-out of 0\.2 s") as caught:
            await real.does(real.server.works, timeout=SHORT)
        await is_cancelled_at_the_server(real, told)
    assert caught.value.code == ReasonCode.TOOL_TIMEOUT
    await works(real)
    assert real.pids == pids


async def test_cancel(real: Tapped) -> None:
    """S-57: the server is told which call it is, and the connection stays."""
    pids, told = real.pids, len(real.told("notifications/cancelled"))
    async with real.stopped():
        running = await in_the_call(real, real.server.works)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await is_cancelled_at_the_server(real, told)
    await works(real)
    assert real.pids == pids


async def test_kill(real: Tapped) -> None:
    """S-77: a call that may be sent twice goes on with the server's next process."""
    pids = real.pids
    async with real.stopped() as pid:
        running = await in_the_call(real, real.server.works)
        real.kill(pid)
        assert real.server.works.gives in await running
    assert [*pids, real.pids[-1]] == real.pids
    assert len(real.pids) == len(pids) + 1


@pytest.mark.parametrize("real", [server for server in FIVE if server.id != "time"], indirect=True)
async def test_kill_in_a_call_that_may_not_be_sent_twice(real: Tapped) -> None:
    """S-77: it is not, and the model reads that its effect is unknown. The server of the time has no such tool."""
    unsafe = real.server.unsafe
    assert unsafe is not None
    async with real.stopped() as pid:
        running = await in_the_call(real, unsafe)
        real.kill(pid)
        with pytest.raises(McpError, match="its effect is unknown") as caught:
            await running
    assert caught.value.code == ReasonCode.TOOL_NETWORK_ERROR
    await works(real)
    assert len(real.told("tools/call", name=unsafe.tool, arguments=dict(unsafe.arguments))) == 1


async def test_reconnect(real: Tapped) -> None:
    """S-77: a server that was killed between two calls is started for the second."""
    await works(real)
    pids = real.pids
    real.kill(pids[-1])
    await real.status_is("disconnected")
    assert real.pids == pids
    await works(real)
    assert real.worker.status == "connected"
    assert len(real.pids) == len(pids) + 1


async def in_the_call(real: Tapped, deed: Deed) -> "asyncio.Task[str]":
    """A call that the server has been sent."""
    before = len(real.told("tools/call"))
    running = asyncio.create_task(real.does(deed))
    await real.was_told(before + 1, "tools/call")
    return running


async def is_cancelled_at_the_server(real: Tapped, before: int) -> None:
    """It is told so of the call that it was sent last, and of no other one."""
    *_, call = real.told("tools/call")
    *_, cancelled = await real.was_told(before + 1, "notifications/cancelled")
    assert cancelled["params"]["requestId"] == call["id"]
    assert len(real.told("notifications/cancelled")) == before + 1


@npm_servers.installed
async def test_everything_of_npm_gives_files_structure_and_progress(tmp_path: Path) -> None:
    """S-77."""
    config = StdioServerConfig(name="all", command=npm_servers.command("everything"))
    async with worker_of(config, folder=tmp_path, PATH=PATH) as worker:
        await worker.open()
        (image,) = (await worker.call("all__get-tiny-image")).attachments
        assert image.media_type == "image/png"
        structured = await worker.call("all__get-structured-content", location="New York")
        assert "temperature" in json.loads(structured.text)
        await worker.call("all__trigger-long-running-operation", duration=0.2, steps=2)
        assert [report[:2] for report in worker.progress] == [(1, 2), (2, 2)]


@npm_servers.installed
async def test_files_and_memory_of_npm_change_the_world(tmp_path: Path) -> None:
    """S-75: two servers of one agent."""
    shared = tmp_path / "shared"
    shared.mkdir()
    files = StdioServerConfig(name="files", command=npm_servers.command("filesystem"), args=(str(shared),))
    memory = StdioServerConfig(
        name="memory", command=npm_servers.command("memory"), env={"MEMORY_FILE_PATH": str(tmp_path / "memory.json")}
    )
    async with worker_of(files, memory, folder=tmp_path, PATH=PATH) as worker:
        await worker.open()
        await worker.call("files__write_file", path=str(shared / "a.txt"), content="written")
        assert (shared / "a.txt").read_text() == "written"
        entity = {"name": "Ada", "entityType": "person", "observations": ["counts"]}
        await worker.call("memory__create_entities", entities=[entity])
        assert "counts" in (await worker.call("memory__read_graph")).text


@npm_servers.installed
@pytest.mark.parametrize("transport", ["streamableHttp", "sse"])
async def test_everything_of_npm_behind_a_url(transport: str, tmp_path: Path) -> None:
    """S-75: over streamable HTTP with sessions, and over SSE by fallback."""
    port = find_free_port()
    path = "mcp" if transport == "streamableHttp" else "sse"
    process = started(transport, port, tmp_path / "log")
    try:
        await eventually(lambda: listens(port))
        config = HttpServerConfig(name="all", url=f"http://127.0.0.1:{port}/{path}")
        async with worker_of(config, folder=tmp_path) as worker:
            await worker.open()
            answered = (await worker.call("all__echo", message="hi")).text
            assert answered.partition("\n[MCP server 'all' has changed its list")[0] == "Echo: hi"
    finally:
        process.kill()
        process.wait()


def started(transport: str, port: int, log: Path) -> "subprocess.Popen[bytes]":
    """The server from npm behind a URL."""
    with log.open("wb") as file:
        return subprocess.Popen(
            [npm_servers.command("everything"), transport],
            env={"PATH": PATH, "PORT": str(port)},
            stdout=file,
            stderr=file,
        )


async def listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
