"""Servers behind a URL that break, refuse or change in the middle of calls: no call is carried out twice."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import HttpServerConfig
from perdure.activities.mcp import server
from perdure.activities.mcp.failures import McpError
from tests.house import eventually
from tests.unit.activities.mcp_bare import Answer, Bare, Generation
from tests.unit.activities.mcp_peers import Connected, worker_of

BOTH: list[Generation] = ["newer", "older"]
ERROR = {"code": -32600, "message": "the browser session ended after the payment was made"}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "RECONNECT_PAUSE", 0.01)


def config(at: Bare, **settings: Any) -> HttpServerConfig:
    return HttpServerConfig(**{"name": "web", "url": at.url, **settings})


async def begun(at: Bare, worker: Connected) -> "asyncio.Task[Any]":
    """A call that the server is carrying out."""

    async def there() -> bool:
        return "slow" in at.calls

    call = asyncio.create_task(worker.call("web__slow"))
    await eventually(there)
    return call


async def test_a_call_that_runs_is_not_sent_again_because_another_one_could_not_be_sent(tmp_path: Path) -> None:
    """S-77: the session of both breaks; only what was not sent can be sent again."""
    async with Bare("older").serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        runs = await begun(at, worker)
        at.refuse()
        with pytest.raises(McpError, match="MCP server 'web'"):
            await worker.call("web__fast")
        await at.listen()
        with pytest.raises(McpError, match="broke during slow, its effect is unknown"):
            await runs
        assert (await worker.call("web__fast")).text == "fast"
        assert at.calls == ["slow", "fast"]


@pytest.mark.parametrize("generation", BOTH)
async def test_a_result_that_has_come_needs_no_further_request(generation: Generation, tmp_path: Path) -> None:
    """S-77: also of a tool that this worker has not listed; whatever happens to the server then, it is kept."""
    async with Bare(generation).serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        at.leaves = True
        assert (await worker.call("web__fast")).text == "fast"
        at.leaves = False
        await at.listen()
        async with worker_of(config(at), folder=tmp_path) as another:
            another.tools = worker.tools
            at.asked.clear()
            assert (await another.call("web__fast")).text == "fast"
    assert "tools/list" not in at.asked
    assert at.asked[-1] == "tools/call"


@pytest.mark.parametrize("generation", BOTH)
async def test_a_result_outside_the_tools_own_schema_is_read_and_marked(generation: Generation, tmp_path: Path) -> None:
    """S-77: by the schema that was listed; the call had its effect, so it is no error."""
    async with Bare(generation).serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        text = (await worker.call("web__typed")).text
        assert text.startswith("typed\n[unstructured: ")
        assert "'no number' is not of type 'integer'" in text


@pytest.mark.parametrize("generation", BOTH)
@pytest.mark.parametrize(
    "answer", [(200, {"error": ERROR}), (400, {"error": ERROR}), (500, None), (404, {"error": ERROR})]
)
async def test_a_refusal_of_a_call_that_was_carried_out_does_not_repeat_it(
    answer: Answer, generation: Generation, tmp_path: Path
) -> None:
    """S-77: what reads like a session that ended may be the tool's own affair."""
    async with Bare(generation).serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        at.refusal = answer
        with pytest.raises(McpError, match=r"browser session|HTTP 500"):
            await worker.call("web__refused")
        assert at.calls == ["refused"]


@pytest.mark.parametrize("generation", BOTH)
async def test_a_refusal_of_one_call_ends_no_other(generation: Generation, tmp_path: Path) -> None:
    """S-76: 403 is about a tool, and no login."""
    async with Bare(generation).serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        runs = await begun(at, worker)
        with pytest.raises(McpError, match="HTTP 403"):
            await worker.call("web__refused")
        assert worker.status == "connected"
        at.refusal = (401, None)
        with pytest.raises(McpError, match="wants a login"):
            await worker.call("web__refused")
        assert worker.status == "needs_auth"
        at.may_end.set()
        assert (await runs).text == "slow"
        await worker.open()
        assert worker.status == "connected"
        assert at.calls.count("slow") == 1


async def test_a_session_that_the_server_forgot_is_begun_anew(tmp_path: Path) -> None:
    """S-77: it refused the call before it looked at it, so the call is sent again."""
    async with Bare("older").serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        at.session = "S2"
        assert (await worker.call("web__fast")).text == "fast"
        assert at.calls == ["fast"]


@pytest.mark.parametrize("lists_first", [True, False])
async def test_a_server_that_was_rolled_back_is_greeted_anew(lists_first: bool, tmp_path: Path) -> None:
    """S-75: neither a turn nor a call is lost by it."""
    async with Bare("newer").serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        at.generation = "older"
        if lists_first:
            await worker.open()
        assert (await worker.call("web__fast")).text == "fast"
        assert at.calls == ["fast"]


async def test_a_stream_that_ended_while_nothing_was_asked_costs_no_call(tmp_path: Path) -> None:
    """S-77: nothing was sent, so the call is."""
    brief = timedelta(seconds=0.3)
    async with Bare("sse").serving() as at, worker_of(config(at, sse_read_timeout=brief), folder=tmp_path) as worker:
        await worker.open()

        async def idle() -> bool:
            return not at.streams

        await eventually(idle)
        assert (await worker.call("web__fast")).text == "fast"
        assert at.calls == ["fast"]
