"""Servers behind a URL at the limits: many calls at once, long results, silence; each failure says why."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest
from starlette.types import ASGIApp

from perdure import HttpServerConfig
from perdure.activities.mcp.failures import ConnectionLostError, McpError, McpUnavailableError, describe_failure
from perdure.contracts.errors import ReasonCode
from tests.house import WAIT_SECONDS, eventually
from tests.unit.activities.mcp_http import Web, older, web
from tests.unit.activities.mcp_peers import Connected, worker_of

MANY = 150
"""More than HTTP clients have connections, unless they are told otherwise."""

MEGABYTES = 2 * 1024 * 1024
"""Characters of a result; the SDK takes half of it in one event."""


def app_of(kind: str, at: Web, *, as_json: bool = False) -> ASGIApp:
    server = at.server()
    if kind == "sse":
        return server.sse_app(sse_path="/mcp")
    app = server.streamable_http_app(json_response=as_json)
    return older(app) if kind == "older" else app


def config(at: Web) -> HttpServerConfig:
    return HttpServerConfig(name="web", url=f"{at.url}/mcp")


@asynccontextmanager
async def connected(kind: str, at: Web, folder: Path) -> AsyncIterator[Connected]:
    """A worker that has greeted the server; all within the longest wait of tests."""
    async with (
        asyncio.timeout(WAIT_SECONDS),
        at.serving(app_of(kind, at)),
        worker_of(config(at), folder=folder) as worker,
    ):
        await worker.open()
        yield worker


@pytest.mark.parametrize("kind", ["newer", "older"])
async def test_as_many_calls_run_at_once_as_a_worker_makes(kind: str, tmp_path: Path) -> None:
    """S-75: the server has begun all of them before any ends; none waits for a connection."""
    async with connected(kind, web(), tmp_path) as worker:
        results = await asyncio.gather(*(worker.call("web__meet", parties=MANY) for _ in range(MANY)))
        assert [result.text for result in results] == ["met"] * MANY


@pytest.mark.parametrize("kind", ["newer", "older", "sse"])
async def test_a_long_result_is_whole_and_ends_no_other_call(kind: str, tmp_path: Path) -> None:
    """S-77: over each transport."""
    at = web()
    async with connected(kind, at, tmp_path) as worker:
        waits = asyncio.create_task(worker.call("web__meet", parties=2))

        async def begun() -> bool:
            return at.running == 1

        await eventually(begun)
        assert (await worker.call("web__big", characters=MEGABYTES)).text == "x" * MEGABYTES
        assert (await worker.call("web__meet", parties=2)).text == "met"
        assert (await waits).text == "met"


@pytest.mark.parametrize(
    ("kind", "as_json"), [("newer", False), ("newer", True), ("older", False), ("older", True), ("sse", False)]
)
async def test_a_server_that_is_silent_for_too_long_is_told_with_the_setting(
    kind: str, as_json: bool, tmp_path: Path
) -> None:
    """S-77: whichever request meets the silence."""
    at = web()
    brief = config(at).model_copy(update={"sse_read_timeout": timedelta(seconds=0.5)})
    async with at.serving(app_of(kind, at, as_json=as_json)), worker_of(brief, folder=tmp_path) as worker:

        async def opened() -> bool:
            try:
                await worker.open()
            except McpUnavailableError:  # on a machine that is busy, the greeting may be too slow
                return False
            return True

        await eventually(opened)
        with pytest.raises(McpError, match=r"ReadTimeout: .* longer than sse_read_timeout \(0\.5 s\)") as caught:
            await worker.call("web__slow")
        assert caught.value.code == ReasonCode.TOOL_NETWORK_ERROR


def test_a_failure_that_says_nothing_is_told_by_its_kind() -> None:
    """S-77: a cause is never empty."""
    assert describe_failure(httpx2.PoolTimeout("")) == "PoolTimeout"
    assert describe_failure(OSError("no route")) == "OSError: no route"
    assert describe_failure(ConnectionLostError("Connection closed", unsent=False)) == "Connection closed"
