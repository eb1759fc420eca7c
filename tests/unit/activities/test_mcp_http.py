"""Servers behind a URL: both protocol generations, SSE where a server has only that, restarts and refusals."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp

from perdure import AgentDefinitionError, HttpServerConfig
from perdure.activities.mcp.failures import McpError, McpUnavailableError
from perdure.contracts.errors import ReasonCode
from tests.house import eventually
from tests.unit.activities.mcp_http import Web, older, refusing, web
from tests.unit.activities.mcp_peers import agent, worker_of


def app_of(kind: str, at: Web) -> ASGIApp:
    server = at.server()
    if kind == "sse":
        return server.sse_app(sse_path="/mcp")
    app = server.streamable_http_app()
    return older(app) if kind == "older" else app


def config(at: Web, **settings: Any) -> HttpServerConfig:
    return HttpServerConfig(**{"name": "web", "url": f"{at.url}/mcp", **settings})


@pytest.mark.parametrize("kind", ["newer", "older", "sse"])
async def test_each_kind_of_server_is_listed_called_and_cancelled(kind: str, tmp_path: Path) -> None:
    """S-75: SSE is found by the refusal of the newer transport."""
    at = web()
    async with at.serving(app_of(kind, at)), worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        assert set(worker.tools) == {"web__big", "web__echo", "web__meet", "web__slow", "web__weather"}
        assert (await worker.call("web__echo", text="hi")).text == "echo: hi"
        assert worker.status == "connected"
        call = asyncio.create_task(worker.call("web__slow"))
        await eventually(lambda: reached(at, 1))
        call.cancel()
        await asyncio.wait([call])
        await eventually(lambda: reached(at, 0))
        assert at.cancelled == 1


@pytest.mark.parametrize("kind", ["newer", "older"])
async def test_a_call_that_takes_too_long_ends_on_both_sides(kind: str, tmp_path: Path) -> None:
    """S-75."""
    at = web()
    limited = config(at, call_timeout=timedelta(seconds=0.5))
    async with at.serving(app_of(kind, at)), worker_of(limited, folder=tmp_path) as worker:
        await worker.open()
        with pytest.raises(McpError, match=r"longer than its time-out of 0\.5 s") as caught:
            await worker.call("web__slow")
        assert caught.value.code == ReasonCode.TOOL_TIMEOUT
        await eventually(lambda: reached(at, 0))


@pytest.mark.parametrize("kind", ["newer", "older"])
async def test_fifty_calls_run_side_by_side(kind: str, tmp_path: Path) -> None:
    """The server has begun all of them before any ends."""
    at = web()
    async with at.serving(app_of(kind, at)), worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        calls = [asyncio.create_task(worker.call("web__slow")) for _ in range(50)]
        await eventually(lambda: reached(at, 50))
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)


@pytest.mark.parametrize("kind", ["newer", "older"])
async def test_a_server_that_was_started_anew_is_found_again(kind: str, tmp_path: Path) -> None:
    """S-77: it refuses the session that it does not know, so the call is sent again."""
    at = web()
    async with worker_of(config(at), folder=tmp_path) as worker:
        async with at.serving(app_of(kind, at)):
            await worker.open()
        async with at.serving(app_of(kind, at)):
            assert (await worker.call("web__echo", text="hi")).text == "echo: hi"


@pytest.mark.parametrize("kind", ["newer", "older"])
async def test_a_server_that_is_gone_is_told_in_a_sentence(kind: str, tmp_path: Path) -> None:
    """S-77."""
    at = web()
    async with worker_of(config(at), folder=tmp_path) as worker:
        async with at.serving(app_of(kind, at)):
            await worker.open()
        with pytest.raises(McpError, match="MCP server 'web'") as caught:
            await worker.call("web__echo", text="hi")
        assert caught.value.code == ReasonCode.TOOL_NETWORK_ERROR
        async with at.serving(app_of(kind, at)):
            assert (await worker.call("web__echo", text="hi")).text == "echo: hi"


async def test_structured_content_reaches_the_model_once(tmp_path: Path) -> None:
    """S-77."""
    at = web()
    async with at.serving(app_of("newer", at)), worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        text = (await worker.call("web__weather", city="Rome")).text
        assert text.count("Rome") == 1
        assert "degrees" in text


async def test_headers_refer_to_the_environment(tmp_path: Path) -> None:
    """S-78."""
    at = web()
    settings = config(at, headers={"Authorization": "Bearer ${TOKEN_OF_MINE}"})
    async with at.serving(app_of("newer", at)), worker_of(settings, folder=tmp_path, TOKEN_OF_MINE="abc") as worker:
        await worker.open()
        await worker.call("web__echo", text="hi")
    assert {headers["authorization"] for _, _, headers in at.requests} == {"Bearer abc"}


@pytest.mark.parametrize(
    ("status", "state", "said"),
    [(401, "needs_auth", "wants a login"), (403, "needs_auth", "wants a login"), (503, "failed", "HTTP 503")],
)
async def test_a_server_that_refuses_has_a_state_and_a_sentence(
    status: int, state: str, said: str, tmp_path: Path
) -> None:
    """S-75, S-76: nobody is asked for a login."""
    at = web()
    async with at.serving(refusing(status)), worker_of(config(at), folder=tmp_path) as worker:
        with pytest.raises(McpUnavailableError, match=said):
            await worker.open()
        assert worker.status == state


async def test_a_server_that_is_not_there_has_a_state_and_a_sentence(tmp_path: Path) -> None:
    """S-75."""
    at = web()
    async with worker_of(config(at), folder=tmp_path) as worker:
        with pytest.raises(McpUnavailableError, match=r"MCP server 'web' cannot be used: .*ConnectError"):
            await worker.open()
        assert worker.status == "failed"


async def test_a_disabled_server_has_no_tools_and_is_not_asked(tmp_path: Path) -> None:
    """S-75."""
    at = web()
    async with worker_of(config(at, enabled=False), folder=tmp_path) as worker:
        await worker.open()
        assert worker.tools == {}
        assert worker.servers.troubles() == []


@pytest.mark.parametrize("url", ["host/mcp", "ftp://host", "https://me:secret@host/mcp"])
def test_a_url_that_cannot_be_used_is_refused_where_the_agent_is_defined(url: str) -> None:
    """One clear line, without the password in it."""
    with pytest.raises((AgentDefinitionError, ValueError), match="url") as caught:
        agent(HttpServerConfig(name="web", url=url))
    assert "for example" in str(caught.value) or "credentials" in str(caught.value)


async def reached(at: Web, running: int) -> bool:
    return at.running == running
