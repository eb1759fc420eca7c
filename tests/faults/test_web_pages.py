"""A web page that somebody opens beside ``perdure dev`` reaches every port of this machine, and starts nothing."""

import http.client
from collections.abc import Mapping

import psutil  # type: ignore[import-untyped]
import pytest
import temporalio.client
from temporalio.client import WorkflowExecutionStatus

from perdure.cli.server import EmbeddedServer, ServerOptions
from perdure.local_ports import find_free_port
from tests.house import eventually

pytestmark = pytest.mark.deep

NAMESPACE = "/api/v1/namespaces/default"
WORKFLOW = b'{"workflowType": {"name": "AgentTurn"}, "taskQueue": {"name": "perdure"}}'
OTHER_SITE = {"Origin": "https://evil.example", "Content-Type": "text/plain"}
REBOUND = {"Host": "evil.example", "Content-Type": "application/json"}
"""A name of the page's own that leads to this machine (DNS rebinding): the browser takes the port for the same site."""


def ports(server: EmbeddedServer) -> set[int]:
    """All that the server's process listens on."""
    found = psutil.Process(server.pid).net_connections("tcp")
    return {int(connection.laddr.port) for connection in found if connection.status == psutil.CONN_LISTEN}


def ask(port: int, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str]:
    """Status and body; status 0 of a port that does not speak HTTP 1."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, WORKFLOW if method == "POST" else None, dict(headers))
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        connection.close()


async def http_api(server: EmbeddedServer) -> bool:
    """Whether the HTTP API listens already; it is the port that answers to this path with more than "not found"."""
    return any(ask(port, "GET", f"{NAMESPACE}/workflows", {})[0] in {200, 403} for port in ports(server))


@pytest.mark.parametrize("headers", [OTHER_SITE, REBOUND], ids=["another site", "a rebound name"])
async def test_no_port_of_the_server_starts_or_tells_anything(headers: Mapping[str, str]) -> None:
    """The HTTP API of the server refuses every host; gRPC is none of what a page can speak."""
    async with EmbeddedServer(ServerOptions(port=find_free_port())) as server:
        client = await temporalio.client.Client.connect(server.address)
        await client.start_workflow("Secret", "what was said", id="private", task_queue="nobody")
        await eventually(lambda: http_api(server))
        answers: dict[int, int] = {}
        for port in ports(server):
            answers[port], said = ask(port, "POST", f"{NAMESPACE}/workflows/by-a-page", headers)
            told = [ask(port, "GET", f"{NAMESPACE}/workflows{part}", headers) for part in ("", "/private/history")]
            assert not [status for status, _ in told if status == 200], port
            assert "private" not in said + "".join(body for _, body in told), port
        assert server.options.port in answers
        assert set(answers.values()) == {0, 403, 404}
        there = [execution.id async for execution in client.list_workflows()]
        assert there in ([], ["private"])  # what is listed may come a moment later
        description = await client.get_workflow_handle("private").describe()
        assert description.status is WorkflowExecutionStatus.RUNNING
        with pytest.raises(temporalio.service.RPCError, match="not found"):
            await client.get_workflow_handle("by-a-page").describe()


async def test_a_page_of_another_site_starts_nothing_by_the_port_of_the_ui() -> None:
    """It has no token of a form. A rebound name could read there: docs/temporal-ui.md says so."""
    async with EmbeddedServer(ServerOptions(port=find_free_port(), ui_port=find_free_port())) as server:
        client = await temporalio.client.Client.connect(server.address)
        status, said = ask(server.options.ui_port or 0, "POST", f"{NAMESPACE}/workflows/by-a-page", OTHER_SITE)
        assert (status, "csrf" in said) == (400, True)
        with pytest.raises(temporalio.service.RPCError, match="not found"):
            await client.get_workflow_handle("by-a-page").describe()
