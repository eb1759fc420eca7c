"""Servers that others wrote, of both protocol generations: listed, called, wrong, slow, cancelled, killed."""

import asyncio
import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from activities.mcp.failures import McpError
from perdure import HttpServerConfig, StdioServerConfig
from perdure.cli.server import free_port
from perdure.contracts.errors import ReasonCode
from tests import npm_servers
from tests.house import eventually
from tests.unit.activities.mcp_peers import Connected, worker_of

HERE = Path(sys.executable).parent
PATH = os.environ["PATH"]


def children(pid: int) -> list[int]:
    """The processes below one, and below these."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = {int(line.split()[0]): int(line.split()[1]) for line in listed.splitlines()}
    direct = [child for child, parent in parents.items() if parent == pid]
    return direct + [below for child in direct for below in children(child)]


def guarded() -> list[int]:
    """The servers of this process: below each guard."""
    own = subprocess.run(["ps", "-wweo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    guards = [int(line.split()[0]) for line in own.splitlines() if f"guard.py {os.getpid()} " in line]
    return [child for guard in guards for child in children(guard)]


def kill_servers() -> int:
    """kill -9 to each server of this process; gives their number."""
    pids = guarded()
    for pid in pids:
        os.kill(pid, 9)
    return len(pids)


async def status_is(worker: Connected, status: str) -> bool:
    return worker.status == status


@npm_servers.installed
async def test_everything_of_npm(tmp_path: Path) -> None:
    """S-75, S-77: of the older generation."""
    config = StdioServerConfig(
        name="all", command=npm_servers.command("everything"), call_timeout=timedelta(seconds=1.5)
    )
    async with worker_of(config, folder=tmp_path, PATH=PATH) as worker:
        await worker.open()
        assert len(worker.tools) >= 10
        assert (await worker.call("all__echo", message="hi")).text == "Echo: hi"
        with pytest.raises(McpError, match="expected string"):
            await worker.call("all__echo", message=1)
        (image,) = (await worker.call("all__get-tiny-image")).attachments
        assert image.media_type == "image/png"
        structured = await worker.call("all__get-structured-content", location="New York")
        assert "temperature" in json.loads(structured.text)
        with pytest.raises(McpError) as caught:
            await worker.call("all__trigger-long-running-operation", duration=30, steps=30)
        assert caught.value.code == ReasonCode.TOOL_TIMEOUT
        assert worker.progress[0][:2] == (1, 30)


@npm_servers.installed
async def test_a_killed_server_of_npm_is_started_again(tmp_path: Path) -> None:
    """S-77: its tools say that they may be called twice, so a call goes on with the new one."""
    config = StdioServerConfig(name="all", command=npm_servers.command("everything"))
    async with worker_of(config, folder=tmp_path, PATH=PATH) as worker:
        await worker.open()
        slow = asyncio.create_task(worker.call("all__trigger-long-running-operation", duration=3, steps=30))
        await eventually(lambda: progressed(worker))
        assert kill_servers() == 1
        assert "operation completed" in (await slow).text
        assert kill_servers() == 1
        await eventually(lambda: status_is(worker, "disconnected"))
        assert (await worker.call("all__echo", message="hi")).text == "Echo: hi"
    assert guarded() == []


@npm_servers.installed
async def test_files_and_memory_of_npm(tmp_path: Path) -> None:
    """S-75."""
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
        with pytest.raises(McpError, match="Access denied"):
            await worker.call("files__read_text_file", path="/etc/passwd")
        entity = {"name": "Ada", "entityType": "person", "observations": ["counts"]}
        await worker.call("memory__create_entities", entities=[entity])
        assert "counts" in (await worker.call("memory__read_graph")).text


@npm_servers.installed
@pytest.mark.parametrize("transport", ["streamableHttp", "sse"])
async def test_everything_of_npm_behind_a_url(transport: str, tmp_path: Path) -> None:
    """S-75: over streamable HTTP with sessions, and over SSE by fallback."""
    port = free_port()
    path = "mcp" if transport == "streamableHttp" else "sse"
    process = started(transport, port, tmp_path / "log")
    try:
        await eventually(lambda: listens(port))
        config = HttpServerConfig(name="all", url=f"http://127.0.0.1:{port}/{path}")
        async with worker_of(config, folder=tmp_path) as worker:
            await worker.open()
            assert (await worker.call("all__echo", message="hi")).text == "Echo: hi"
    finally:
        process.kill()
        process.wait()


async def test_time_and_git_of_pypi(tmp_path: Path) -> None:
    """S-75: of the newer generation."""
    repository = new_repository(tmp_path / "repository")
    clock = StdioServerConfig(name="time", command=str(HERE / "mcp-server-time"))
    git = StdioServerConfig(name="git", command=str(HERE / "mcp-server-git"), pick=("git_status",))
    async with worker_of(clock, git, folder=tmp_path, PATH=PATH) as worker:
        await worker.open()
        now = json.loads((await worker.call("time__get_current_time", timezone="Europe/Paris")).text)
        assert now["timezone"] == "Europe/Paris"
        with pytest.raises(McpError, match="Invalid timezone"):
            await worker.call("time__get_current_time", timezone="Nowhere")
        assert "a.txt" in (await worker.call("git__git_status", repo_path=str(repository))).text
        assert [name for name in worker.tools if name.startswith("git__")] == ["git__git_status"]


def started(transport: str, port: int, log: Path) -> "subprocess.Popen[bytes]":
    """The server from npm behind a URL."""
    with log.open("wb") as file:
        return subprocess.Popen(
            [npm_servers.command("everything"), transport],
            env={"PATH": PATH, "PORT": str(port)},
            stdout=file,
            stderr=file,
        )


def new_repository(folder: Path) -> Path:
    """A git repository with one new file."""
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / "a.txt").write_text("new")
    return folder


async def progressed(worker: Connected) -> bool:
    return bool(worker.progress)


async def listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
