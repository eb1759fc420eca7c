"""What ``perdure mcp --http`` keeps of its clients' sessions: of no session for good, and never more than so many."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
import uvicorn

from perdure import mcp_server
from perdure.cli import mcp
from perdure.mcp_server import as_mcp, as_web_application

GREETING = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "host", "version": "1"}},
}
ACCEPTED = {"accept": "application/json, text/event-stream"}


def hello() -> str:
    """Say hello."""
    return "hello"


@pytest.fixture
def idle() -> float:
    """Seconds after which a session that nobody uses is closed."""
    return mcp_server.IDLE_SECONDS


@pytest.fixture
async def host(monkeypatch: pytest.MonkeyPatch, idle: float) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server that keeps two sessions at most."""
    monkeypatch.setattr(mcp_server, "MOST_SESSIONS", 2)
    monkeypatch.setattr(mcp_server, "IDLE_SECONDS", idle)
    listener = mcp.bind_socket("127.0.0.1:0", allow_remote=False)
    app = as_web_application(as_mcp(hello), "127.0.0.1")
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", headers=ACCEPTED) as client:
        yield client
    server.should_exit = True
    await serving


async def greeted(host: httpx.AsyncClient) -> httpx.Response:
    return await host.post("/mcp", json=GREETING)


async def asked(host: httpx.AsyncClient, session: str) -> int:
    request = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    return (await host.post("/mcp", json=request, headers={"mcp-session-id": session})).status_code


async def test_no_more_than_so_many_sessions_are_kept_and_one_that_is_deleted_makes_room(
    host: httpx.AsyncClient,
) -> None:
    """S-78: whoever reaches the port cannot fill the memory."""
    first, second = await greeted(host), await greeted(host)
    assert [first.status_code, second.status_code, (await greeted(host)).status_code] == [200, 200, 503]
    session = first.headers["mcp-session-id"]
    assert await asked(host, session) == 200
    assert (await host.delete("/mcp", headers={"mcp-session-id": session})).status_code == 200
    assert await asked(host, session) == 404
    assert (await greeted(host)).status_code == 200


@pytest.mark.parametrize("idle", [0.2])
async def test_a_session_that_nobody_uses_is_closed_and_makes_room(host: httpx.AsyncClient) -> None:
    """S-78: its client begins a new one, as the protocol says."""
    sessions = [(await greeted(host)).headers["mcp-session-id"] for _ in range(2)]
    async with asyncio.timeout(120):
        while (last := await greeted(host)).status_code != 200:
            assert last.status_code == 503
            await asyncio.sleep(0.02)
    assert 404 in [await asked(host, session) for session in sessions]
