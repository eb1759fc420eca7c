"""The tutorial as a newcomer walks it: its files are saved, and its commands run in their order on one machine."""

import asyncio
import json
import os
import re
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from perdure.local_ports import find_free_port
from tests.contract.repository import ROOT
from tests.house import WAIT_SECONDS, eventually

pytestmark = pytest.mark.deep

PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
COMMANDS = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)).replace("\\\n", "")
FILES = re.findall(r"as `([\w.]+)`.*?```\w+\n(.*?)```", PAGE, re.DOTALL)
SERVERS = {"perdure.testing": "http://", "perdure dev": "ready; run a job", "perdure worker": ""}
"""What goes on in a terminal of its own, and what it says once it is ready."""


@asynccontextmanager
async def in_a_terminal(command: str, ready: str, folder: Path, environment: dict[str, str]) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_shell(
        f"exec env {command}", cwd=folder, env=environment, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stdout is not None
        said = ""
        async with asyncio.timeout(WAIT_SECONDS):
            while ready and ready not in said:
                line = await process.stdout.readline()
                assert line, f"{command} ended: {said}"
                said += line.decode()
        reading = asyncio.create_task(process.stdout.read())
        yield
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(WAIT_SECONDS):
            await reading
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def answers(url: str) -> bool:
    def ask() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=60) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    return await asyncio.to_thread(ask)


@pytest.mark.timeout(5 * WAIT_SECONDS)
async def test_the_files_and_commands_of_the_tutorial_lead_to_two_paid_bills(tmp_path: Path) -> None:
    assert [name for name, _ in FILES] == ["my_agent.py", "test_my_agent.py", "script.json", "Dockerfile"]
    for name, text in FILES:
        (tmp_path / name).write_text(text)
    ports = {port: str(find_free_port()) for port in ("8901", "8234", "9465", "7233", "9464", "8233")}
    own = ("PERDURE_", "TEMPORAL_", "OPENAI_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    bin_folder = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{Path(sys.executable).parent}"
    environment |= {"PATH": f"{bin_folder}{os.pathsep}{environment['PATH']}", "PYTHONUNBUFFERED": "1"}

    async def run(command: str) -> str:
        made = await asyncio.create_subprocess_shell(
            command, cwd=tmp_path, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(WAIT_SECONDS):
            told, _ = await made.communicate()
        return told.decode() if made.returncode == 0 else ""

    said: dict[str, str] = {}
    async with AsyncExitStack() as terminals:
        for line in COMMANDS.splitlines():
            command = line
            for port, free in ports.items():
                command = command.replace(port, free)
            server = next((name for name in SERVERS if name in line), None)
            if server == "perdure dev":
                command += f" --gateway-port {ports['8234']} --port {ports['7233']}"
                command += f" --ui-port {ports['8233']} --metrics-port {ports['9464']}"
            if server is not None:
                await terminals.enter_async_context(in_a_terminal(command, SERVERS[server], tmp_path, environment))
            elif line.strip():

                async def succeeds(command: str = command, line: str = line) -> bool:
                    said[line] = await run(command)
                    return bool(said[line]) and "nothing waits" not in said[line]

                await eventually(succeeds)  # what waits for a person does so once a worker has begun
            if server == "perdure worker":
                await eventually(lambda: answers(f"http://127.0.0.1:{ports['9465']}/readyz"))
        page = re.search(r"<(http://\S+/ui/\S+)>", PAGE)
        assert page is not None
        assert await answers(page[1].replace("8234", ports["8234"]))
    assert "Ann has 30 dollars." in said["perdure follow bill-16 --after 0"]
    *_, result = said.values()
    assert (json.loads(result)["result"]["stop_reason"]) == "finished"
