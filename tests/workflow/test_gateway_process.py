"""``perdure gateway`` as operators and ``perdure dev`` start it: it serves, stops well, and is replaced."""

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from perdure import Agent
from perdure.cli.main import cli
from perdure.gateway.tokens import hash_of
from perdure.local_ports import find_free_port
from tests.gateway import gateway
from tests.house import House, eventually

pytestmark = pytest.mark.deep

AGENT = Agent(name="tester", model="openai/scripted", instructions="Add.")


async def answers(http: httpx.AsyncClient, path: str = "/readyz") -> bool:
    try:
        return (await http.get(path)).status_code == 200
    except httpx.TransportError:
        return False


async def test_a_gateway_serves_until_sigterm_and_its_log_is_json(house: House) -> None:
    await house.store.register_agents([AGENT.definition])
    port = find_free_port()
    command = (sys.executable, "-m", "perdure.cli", "gateway", "--address", f"127.0.0.1:{port}")
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=dict(os.environ)
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            await eventually(lambda: answers(http))
            body = {"agent": "tester", "prompt": "go", "session": house.session}
            assert (await http.post("/v1/sessions", json=body)).status_code == 202
            joining = asyncio.create_task(
                http.get(f"/v1/sessions/{house.session}/turns/1", headers={"Prefer": "wait=60"})
            )
            await asyncio.gather(*(http.get("/v1/agents") for _ in range(3)))
            process.send_signal(signal.SIGTERM)
            joined = await joining  # which a stop answers at once, and does not cut
            assert (joined.status_code, joined.json()["state"]) == (200, "running")
        out, err = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
    assert (process.returncode, out.decode().strip()) == (0, f"gateway  http://127.0.0.1:{port}")
    lines = [json.loads(line) for line in err.decode().splitlines()]
    audited = [line for line in lines if line["logger"] == "perdure.audit"]
    assert (audited[0]["who"], audited[0]["action"], audited[0]["session"]) == ("local", "start_session", house.session)
    await house.temporal.get_workflow_handle(house.session).terminate()


async def test_the_doctor_asks_the_gateway_that_is_configured(house: House) -> None:
    """And says nothing of one where none is."""

    async def checked() -> dict[str, Any] | None:
        report = await asyncio.to_thread(CliRunner().invoke, cli, ["doctor", "--json"])
        checks = {check["check"]: check for check in json.loads(report.stdout)["checks"]}
        return checks.get("gateway")

    assert await checked() is None
    async with gateway(house) as door:
        house.environment.setenv("PERDURE_GATEWAY_ADDRESS", door.url.removeprefix("http://"))
        found = await checked()
        assert found is not None
        assert (found["ok"], found["text"]) == (True, f"{door.url} is ready")
    gone = await checked()
    assert gone is not None
    assert (gone["ok"], "perdure gateway" in gone["fix"]) == (False, True)


def test_other_machines_are_not_let_in_without_tokens(house: House) -> None:
    refused = CliRunner().invoke(cli, ["gateway", "--address", "0.0.0.0:8234"])
    assert (refused.exit_code, "no tokens are configured" in refused.output) == (2, True)


def test_a_token_is_shown_once_and_its_line_holds_the_hash(house: House) -> None:
    made = CliRunner().invoke(cli, ["gateway", "token", "ann", "--tenant", "acme", "--scope", "read", "--scope", "run"])
    assert made.exit_code == 0
    token = re.search(r"pdr_[\w-]+", made.stderr)
    assert token is not None
    assert token[0] not in made.stdout
    line = json.loads(made.stdout)
    assert line == {"name": "ann", "tenant": "acme", "scopes": ["read", "run"], "sha256": hash_of(token[0])}


AGENT_FILE = 'from perdure import Agent\n\nagent = Agent(name="tester", model="openai/scripted", instructions="Add.")\n'


async def test_dev_starts_a_gateway_and_another_one_when_it_dies(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its death harms neither the server nor the worker."""
    for name in ("TEMPORAL_ADDRESS", "PERDURE_STORE_URL"):
        environment.delenv(name, raising=False)
    (tmp_path / "my_agent.py").write_text(AGENT_FILE)
    server, metrics, port = find_free_port(), find_free_port(), find_free_port()
    options = ("--headless", "--port", str(server), "--metrics-port", str(metrics), "--gateway-port", str(port))
    root = str(Path(__file__).parents[2])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "perdure.cli", "dev", "--agents", "my_agent.py", *options),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root, "PYTHONUNBUFFERED": "1"},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            assert process.stdout is not None
            async with asyncio.timeout(90):
                said = b""
                while b"ready; run a job" not in said:
                    said += await process.stdout.readline()
            assert await answers(http)  # at once
            assert [agent["name"] for agent in (await http.get("/v1/agents")).json()["items"]] == ["tester"]
            (first,) = children_of(process.pid, "gateway")
            (worker,) = children_of(process.pid, "perdure.worker")
            os.kill(first, signal.SIGKILL)
            await eventually(lambda: is_replaced(process.pid, first))
            await eventually(lambda: answers(http))
            assert children_of(process.pid, "perdure.worker") == [worker]
        process.send_signal(signal.SIGINT)
        out, _ = await asyncio.wait_for(process.communicate(), 90)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0
    assert f"gateway  http://127.0.0.1:{port}, its page at http://127.0.0.1:{port}/ui" in said.decode()
    assert "the gateway was killed (SIGKILL)" in out.decode()


async def is_replaced(parent: int, dead: int) -> bool:
    return children_of(parent, "gateway") not in ([], [dead])


def children_of(parent: int, word: str) -> list[int]:
    """The children of a process whose command line has the word."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_text().split("\0")
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z" and word in command:
            found.append(int(stat.parent.name))
    return found
