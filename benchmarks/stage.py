"""The processes of a benchmark: server, provider, floor and workers, each of its own, as in production."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import temporalio.client

from perdure.cli.server import EmbeddedServer, ServerOptions, spawn, stop_process
from perdure.client import Client
from perdure.client.connect import connect
from perdure.local_ports import find_free_port
from perdure.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 60.0


@dataclass
class Process:
    """A child and what can be read of it."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def cpu_seconds(self) -> float:
        """User and system time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def megabytes(self) -> float:
        """Resident memory."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1_000_000

    async def says(self, word: str) -> str:
        """Wait until the log has a line with the word, and return that line."""
        async with asyncio.timeout(START_SECONDS):
            while True:
                for line in self.log.read_text().splitlines():
                    if word in line:
                        return line
                if self.process.poll() is not None:
                    raise RuntimeError(self.log.read_text())
                await asyncio.sleep(0.02)

    def kill(self) -> None:
        """Kill -9."""
        self.process.kill()
        self.process.wait()


@dataclass
class Stage:
    """A running server with a provider; workers on demand."""

    folder: Path
    environment: dict[str, str]
    server: EmbeddedServer
    temporal: temporalio.client.Client
    client: Client
    settings: Settings
    started: list[Process] = field(default_factory=list)

    def start(self, *command: str, **environment: str) -> Process:
        """Start a Python module as a process of its own."""
        log = self.folder / f"{command[0]}-{len(self.started)}.log"
        with log.open("wb") as output:
            child = spawn([sys.executable, "-m", *command], output=output, env={**self.environment, **environment})
        self.started.append(Process(child, log))
        return self.started[-1]

    async def worker(self) -> Process:
        """A worker that polls."""
        process = self.start("perdure.worker", "--agents", "benchmarks.agents")
        await process.says('"polling"')
        return process


@asynccontextmanager
async def staged(folder: Path, *, on_file: bool = False) -> AsyncIterator[Stage]:
    """Start server and provider in the folder, and stop whatever was started in it."""
    os.chdir(ROOT)
    async with AsyncExitStack() as stack:
        db = folder / "temporal.db" if on_file else None
        server = await stack.enter_async_context(
            EmbeddedServer(ServerOptions(port=find_free_port(), db=db, dynamic_config={}, log=folder / "server.log"))
        )
        settings = Settings(store_url=f"sqlite:///{folder / 'store.db'}", metrics_address="")
        os.environ["TEMPORAL_ADDRESS"] = server.address
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PERDURE_STORE_URL": settings.store_url,
            "PERDURE_METRICS_ADDRESS": "",
            "OPENAI_API_KEY": "sk-scripted-0123456789",
        }
        client = await Client.connect(settings)
        stack.push_async_callback(client.close)
        temporal = await connect()
        stage = Stage(folder, environment, server, temporal, client, settings)

        async def stop_all() -> None:
            await asyncio.gather(*(stop_process(child.process, 5.0) for child in stage.started))

        stack.push_async_callback(stop_all)
        url = await stage.start("benchmarks.provider").says("http")
        stage.environment |= {"OPENAI_BASE_URL": url, "OPENAI_API_BASE": url}
        yield stage
