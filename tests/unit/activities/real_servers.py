"""Five MCP servers that others wrote, each behind a tap: what it is told is in a file, and its process in our hands."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import StdioServerConfig
from tests import npm_servers
from tests.house import WAIT_SECONDS, eventually
from tests.unit.activities.mcp_peers import Connected, worker_of

HERE = Path(sys.executable).parent
PATH = os.environ["PATH"]

TAP = 'echo "$$" >> "$0.pids"; exec "$@" < <(tee -a "$0")'
"""Becomes the server, so that its process is the one that the worker started; what it reads is copied to a file."""


@dataclass(frozen=True)
class Deed:
    """A call, and what is in its answer or its error."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    gives: str = ""


@dataclass(frozen=True)
class RealServer:
    """How a server is started, and what it is asked."""

    command: str
    tools: frozenset[str]
    works: Deed
    fails: Deed
    unsafe: Deed | None = None
    """A call of a tool that must not be called twice; the server of the time has none."""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])


def everything(_: Path) -> RealServer:
    """Of npm: the protocol's own test server."""
    return RealServer(
        command=npm_servers.command("everything"),
        tools=frozenset({"echo", "get-sum", "get-tiny-image", "trigger-long-running-operation"}),
        works=Deed("echo", {"message": "hi"}, "Echo: hi"),
        fails=Deed("echo", {"message": 1}, "expected string"),
        unsafe=Deed("toggle-simulated-logging"),
    )


def filesystem(folder: Path) -> RealServer:
    """Of npm: files in one folder."""
    (folder / "a.txt").write_text("on file")
    return RealServer(
        command=npm_servers.command("filesystem"),
        args=(str(folder),),
        tools=frozenset({"read_text_file", "write_file", "move_file", "search_files"}),
        works=Deed("read_text_file", {"path": str(folder / "a.txt")}, "on file"),
        fails=Deed("read_text_file", {"path": "/etc/passwd"}, "Access denied"),
        unsafe=Deed("move_file", {"source": str(folder / "a.txt"), "destination": str(folder / "b.txt")}),
    )


def memory(folder: Path) -> RealServer:
    """Of npm: what it is told, in a file."""
    known = {"type": "entity", "name": "Ada", "entityType": "person", "observations": ["counts"]}
    (folder / "memory.json").write_text(json.dumps(known))
    noted = {"entityName": "Bob", "contents": ["sings"]}
    return RealServer(
        command=npm_servers.command("memory"),
        env={"MEMORY_FILE_PATH": str(folder / "memory.json")},
        tools=frozenset({"create_entities", "read_graph", "search_nodes"}),
        works=Deed("read_graph", gives="counts"),
        fails=Deed("add_observations", {"observations": [noted]}, "Entity with name Bob not found"),
        unsafe=Deed("add_observations", {"observations": [{**noted, "entityName": "Ada"}]}),
    )


def clock(_: Path) -> RealServer:
    """Of PyPI: the time."""
    there = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    return RealServer(
        command=str(HERE / "mcp-server-time"),
        tools=frozenset({"get_current_time", "convert_time"}),
        works=Deed("convert_time", there, "21:00:00+09:00"),
        fails=Deed("get_current_time", {"timezone": "Nowhere"}, "Invalid timezone"),
    )


def git(folder: Path) -> RealServer:
    """Of PyPI: one repository."""
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / "a.txt").write_text("new")
    here = {"repo_path": str(folder)}
    return RealServer(
        command=str(HERE / "mcp-server-git"),
        tools=frozenset({"git_status", "git_commit", "git_log"}),
        works=Deed("git_status", here, "a.txt"),
        fails=Deed("git_show", {**here, "revision": "no-such-revision"}, "no-such-revision"),
        unsafe=Deed("git_commit", {**here, "message": "all"}),
    )


FIVE = (
    pytest.param(everything, id="everything", marks=npm_servers.installed),
    pytest.param(filesystem, id="filesystem", marks=npm_servers.installed),
    pytest.param(memory, id="memory", marks=npm_servers.installed),
    pytest.param(clock, id="time"),
    pytest.param(git, id="git"),
)


class Tapped:
    """A worker's connection to a real server."""

    def __init__(self, server: RealServer, worker: Connected, journal: Path) -> None:
        self.server = server
        self.worker = worker
        self._journal = journal

    @property
    def pids(self) -> list[int]:
        """The processes that the server has been so far; the last one is it now."""
        return [int(line) for line in Path(f"{self._journal}.pids").read_text().splitlines()]

    def told(self, method: str, **wanted: object) -> list[Any]:
        """The messages of a method that the server was sent, with these parameters."""
        whole, _, _ = self._journal.read_text().rpartition("\n")
        messages: list[Any] = [json.loads(line) for line in whole.splitlines()]
        named = [message for message in messages if message.get("method") == method]
        return [message for message in named if wanted.items() <= message.get("params", {}).items()]

    async def was_told(self, count: int, method: str, **wanted: object) -> list[Any]:
        """The messages, once there are so many of them."""

        async def there() -> list[Any] | None:
            found = self.told(method, **wanted)
            return found if len(found) >= count else None

        return list(await eventually(there))

    async def does(self, deed: Deed, **limits: timedelta) -> str:
        """Call, and give the answer's text."""
        name = f"real__{deed.tool}"
        declared = self.worker.tools[name]
        self.worker.tools[name] = declared.model_copy(update=limits)
        try:
            return (await self.worker.call(name, **deed.arguments)).text
        finally:
            self.worker.tools[name] = declared

    async def status_is(self, status: str) -> None:
        """Wait until operators see the server so."""

        async def seen() -> bool:
            return self.worker.status == status

        await eventually(seen)

    @staticmethod
    def kill(pid: int) -> None:
        """kill -9; a stopped process ends too."""
        os.kill(pid, signal.SIGKILL)

    @asynccontextmanager
    async def stopped(self) -> AsyncIterator[int]:
        """The server's process, which does nothing within the block: whatever it is asked, no answer comes."""
        pid = self.pids[-1]
        os.kill(pid, signal.SIGSTOP)
        try:
            await eventually(lambda: _has_state(pid, "T"))
            yield pid
        finally:
            with contextlib.suppress(ProcessLookupError):  # it was killed
                os.kill(pid, signal.SIGCONT)


@asynccontextmanager
async def tapped(made: Callable[[Path], RealServer], folder: Path) -> AsyncIterator[Tapped]:
    """The server, connected; no process of it is left after the block."""
    (folder / "own").mkdir()
    server, journal = made(folder / "own"), folder / "told"
    config = StdioServerConfig(
        name="real",
        command="bash",
        args=("-c", TAP, str(journal), server.command, *server.args),
        env=dict(server.env),
        init_timeout=timedelta(seconds=WAIT_SECONDS),
        call_timeout=timedelta(seconds=WAIT_SECONDS),
    )
    async with worker_of(config, folder=folder, PATH=PATH) as worker:
        await worker.open()
        real = Tapped(server, worker, journal)
        yield real
    await asyncio.gather(*(_has_ended(pid) for pid in real.pids))


async def _has_ended(pid: int) -> None:
    await eventually(lambda: _has_state(pid, "Z", ""))


async def _has_state(pid: int, *states: str) -> bool:
    """Whether a process is in one of the states; of one that is gone it is empty."""
    return await asyncio.to_thread(_state, pid) in states


def _state(pid: int) -> str:
    listed = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return listed.stdout.strip()[:1]
