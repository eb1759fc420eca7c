"""``perdure dev --reload`` with a real worker, and a job from a folder below it with no variable set."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from perdure.local_ports import find_free_port
from perdure.testing import Script, ScriptedProvider, say
from tests.contract.repository import ROOT
from tests.house import WAIT_SECONDS

pytestmark = pytest.mark.deep

AGENT = """
from perdure import Agent

agent = Agent(name="writer", model="openai/scripted")
"""
BROKEN = AGENT + "\nhalf of an edit\n"


class Said:
    """What a process prints, read until some words come."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def until(self, words: str) -> list[str]:
        assert self.process.stdout is not None
        lines: list[str] = []
        async with asyncio.timeout(WAIT_SECONDS):
            while line := (await self.process.stdout.readline()).decode():
                lines.append(line.rstrip())
                if words in line:
                    return lines
        raise AssertionError(lines)


@asynccontextmanager
async def started(*command: str, folder: Path, environment: dict[str, str]) -> AsyncIterator[Said]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "perdure.cli",
        *command,
        cwd=folder,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield Said(process)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(WAIT_SECONDS):
                await process.wait()


async def test_a_saved_file_gives_a_new_worker_unless_it_does_not_load(tmp_path: Path) -> None:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PERDURE_", "TEMPORAL_", "OPENAI_"))
    }
    file, below = tmp_path / "my_agent.py", tmp_path / "below"
    file.write_text(AGENT)
    below.mkdir()
    async with ScriptedProvider(Script(replies=(say("well done"),), repeat=True)) as provider:
        own = {"OPENAI_BASE_URL": provider.url, "OPENAI_API_KEY": "sk-scripted-0123456789", "PYTHONUNBUFFERED": "1"}
        environment = {**kept, **own, "PYTHONPATH": str(ROOT)}
        ports = ("--port", str(find_free_port()), "--metrics-port", str(find_free_port()))
        command = ("dev", "--agents", "my_agent.py", "--reload", "--headless", *ports)
        async with started(*command, folder=tmp_path, environment=environment) as dev:
            greeting = await dev.until("Ctrl+C")
            assert greeting[0] == "agents   writer · openai/scripted · no tools"
            assert not any(line.startswith("missing") for line in greeting)

            async with started("run", "writer", "go", folder=below, environment=environment) as job:
                await job.until("well done")
                assert await job.process.wait() == 0

            file.write_text(BROKEN)
            told = await dev.until("waiting for the next save")
            assert any("SyntaxError" in line and re.search(r"my_agent\.py(:|, line )6", line) for line in told), told
            assert told[-1].strip() == "the old worker goes on; waiting for the next save"

            file.write_text(AGENT.replace("writer", "poet"))
            told = await dev.until("a worker is ready")
            assert "agents   poet · openai/scripted · no tools" in told
            async with started("run", "poet", "go", folder=below, environment=environment) as job:
                await job.until("well done")
                assert await job.process.wait() == 0
