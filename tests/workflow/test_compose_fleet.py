"""The services of deploy/compose.yaml as processes, on the real server and a real PostgreSQL."""

import asyncio
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import temporalio.client
from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest

from perdure.cli.server import EmbeddedServer
from perdure.gateway.callers import Scope
from perdure.gateway.tokens import make_token
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, say
from tests.compose import Fleet, Process
from tests.house import eventually
from tests.postgresql import postgresql_or_skip, url_of

pytestmark = pytest.mark.deep

WORKER, GATEWAY = 9464, 8234

AGENT = '''\
from perdure import Agent, tool


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


agent = Agent(name="adder", model="openai/scripted", instructions="Add.", tools=[add])
'''


def answer(request: ChatRequest) -> Reply:
    return (call(("add", {"a": 2, "b": 3})), say("5"))[request.index]


@pytest.fixture
def postgresql() -> Iterator[str]:
    server: Any = postgresql_or_skip()
    server.pgdata.chmod(0o711)  # its socket stands there, and processes without rights are to reach it
    yield url_of(server)
    server.cleanup()


@pytest.fixture
async def namespace(temporal: temporalio.client.Client) -> str:
    """A new namespace, which has no search attribute of ours."""
    name = f"compose-{uuid.uuid4().hex[:6]}"
    retention = Duration()
    retention.FromTimedelta(timedelta(days=1))
    request = RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=retention)
    await temporal.workflow_service.register_namespace(request, retry=True)
    return name


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Path]:
    """The folder with the agents; like the root of a container it cannot be written, and neither can a home in it."""
    folder = tmp_path / "agents"
    folder.mkdir()
    (folder / "agent.py").write_text(AGENT)
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)


async def wait_until_healthy(fleet: Fleet, process: Process, port: int) -> None:
    """Wait until the service is ready, which its health check says too."""

    async def is_ready() -> bool:
        if process.process.poll() is not None:
            pytest.fail(f"{process.name} ended with {process.process.returncode}:\n{process.log.read_text()}")
        status, _ = await asyncio.to_thread(process.get, port, "/readyz")
        return status == 200

    await eventually(is_ready)
    assert await asyncio.to_thread(fleet.is_healthy, process)


async def test_the_services_run_a_job_and_stop_within_their_grace(
    server: EmbeddedServer, namespace: str, postgresql: str, agents: Path, tmp_path: Path
) -> None:
    token, line = make_token("ann", "", [Scope.RUN, Scope.READ])
    (tmp_path / "tokens").write_text(line + "\n")
    async with ScriptedProvider(answer) as provider:
        fleet = Fleet(
            environment={
                "POSTGRES_PASSWORD": "pw",
                "GRAFANA_PASSWORD": "pw",
                "TEMPORAL_NAMESPACE": namespace,
                "OPENAI_API_KEY": "sk-scripted-0123456789",
                "OPENAI_BASE_URL": provider.url,
            },
            hosts={
                "temporal:7233": server.address,
                "postgresql://perdure:pw@postgres:5432/perdure": postgresql,
                "/run/secrets/gateway-tokens": str(tmp_path / "tokens"),
            },
            folder=tmp_path,
            agents=agents,
        )
        try:
            await run_fleet(fleet, token)
        finally:
            fleet.kill()
    assert [path.name for path in agents.rglob("*")] == ["agent.py"]


async def run_fleet(fleet: Fleet, token: str) -> None:
    migrate = fleet.start("migrate")
    await eventually(lambda: ended(migrate))
    assert migrate.process.returncode == 0, migrate.log.read_text()
    worker, gateway = (fleet.start(name) for name in ("worker", "gateway"))
    for process, port in ((worker, WORKER), (gateway, GATEWAY)):
        await wait_until_healthy(fleet, process, port)
    session = f"compose-{uuid.uuid4().hex[:6]}"
    async with httpx.AsyncClient(base_url=gateway.url(GATEWAY), timeout=90) as http:
        body = {"agent": "adder", "prompt": "2 + 3?", "session": session}
        assert (await http.post("/v1/sessions", json=body)).status_code == 401
        http.headers["Authorization"] = f"Bearer {token}"
        started = await http.post("/v1/sessions", json=body)
        assert started.status_code == 202, started.text
        turn = (await http.get(f"/v1/sessions/{session}/turns/1", headers={"Prefer": "wait=60"})).json()
    assert (turn["result"]["stop_reason"], turn["result"]["output"]) == ("finished", "5"), turn

    doctor = await asyncio.to_thread(fleet.execute, gateway, "perdure", "doctor", "--json")
    assert doctor.returncode == 0, doctor.stdout
    assert worker.get(WORKER, "/healthz")[0] == gateway.get(GATEWAY, "/healthz")[0] == 200
    await eventually(lambda: counts(worker, 'perdure_turns_ended_total{agent="adder"'))
    assert "perdure_http_requests_total" in gateway.get(GATEWAY, "/metrics")[1]
    for process in (gateway, worker):
        assert await asyncio.to_thread(process.stop) == 0, process.log.read_text()
        assert '"level": "error"' not in process.log.read_text()


async def ended(process: Process) -> bool:
    return process.process.poll() is not None


async def counts(process: Process, name: str) -> bool:
    return name in (await asyncio.to_thread(process.get, WORKER, "/metrics"))[1]
