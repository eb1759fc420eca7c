"""Sessions that a server has ended: servers say so in many ways, and a new session begins whatever they say."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import HttpServerConfig
from perdure.activities.mcp import server
from perdure.activities.mcp.failures import McpError, McpUnavailableError
from perdure.contracts.errors import ReasonCode
from tests.unit.activities.mcp_peers import worker_of
from tests.unit.activities.mcp_scripted import Json, Reply, Scripted, error, event, result

REFUSALS: dict[str, Reply] = {
    "404 with a message": Reply(error(-32001, "Unknown Mcp-Session-Id header"), status=404),
    "404 in words that nobody knows": Reply(error(-32099, "Sitzung abgelaufen"), status=404),
    "404 without a body": Reply(status=404),
    "404 with a page": Reply("<html>Not Found</html>", status=404),
    "the SDK's own words": Reply(error(-32600, "Session has been terminated"), status=404),
    "200 with -32002": Reply(error(-32002, "Server not initialized")),
    "200 with -32005": Reply(error(-32005, "please connect again")),
    "200 without an id": Reply({"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "Invalid Request"}}),
    "400": Reply(error(-32000, "Bad Request: No valid session ID provided"), status=400),
    "400 in other words": Reply(error(-32010, "who are you?"), status=400),
    "410": Reply(error(-32000, "Gone"), status=410),
    "an event": Reply(event(error(-32001, "Session not found")), events=True),
    "an event that is no message": Reply(event({"error": "Session not found"}), events=True),
}

UNCLEAR: dict[str, Reply] = {
    "500": Reply(status=500),
    "500 with a message": Reply(error(-32603, "Internal error"), status=500),
    "200 with an internal error": Reply(error(-32603, "Internal error")),
}
"""Refusals that a call which was carried out may meet as well."""


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "RECONNECT_PAUSE", 0.01)


def refusing(at: Scripted, refusal: Reply) -> None:
    """Have the server refuse whatever comes in the sessions that it has begun so far."""
    ended = {f"S{number}" for number in range(1, at.session + 1)}
    at.answers = lambda method, _, session: refusal if session in ended and method != "initialize" else None


def config(at: Scripted, **settings: Any) -> HttpServerConfig:
    return HttpServerConfig(**{"name": "web", "url": at.url, **settings})


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS.keys())
async def test_a_call_in_a_session_that_has_ended_is_carried_out_once_in_a_new_one(
    refusal: Reply, tmp_path: Path
) -> None:
    """S-77."""
    async with Scripted().serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        refusing(at, refusal)
        assert (await worker.call("web__pay")).text == "done"
        assert (at.called, at.session) == (["pay"], 2)
        assert worker.status == "connected"


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS.keys())
async def test_calls_that_meet_the_end_of_a_session_together_are_carried_out_in_one_new_session(
    refusal: Reply, tmp_path: Path
) -> None:
    """S-77: each once, and the server is asked once whether the session lives."""
    async with Scripted().serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        refusing(at, refusal)
        results = await asyncio.gather(*(worker.call("web__pay", call_id=f"c1_{n}") for n in range(8)))
        assert [each.text for each in results] == ["done"] * 8
        assert (at.called, at.session) == (["pay"] * 8, 2)
        assert at.asked.count(("tools/list", "S1")) == 2
        assert worker.status == "connected"


@pytest.mark.parametrize("refusal", [REFUSALS["404 in words that nobody knows"], REFUSALS["410"]], ids=["404", "410"])
async def test_calls_in_a_session_that_held_state_are_all_told_that_it_is_lost(refusal: Reply, tmp_path: Path) -> None:
    """S-77: once, and the next call runs in a new session."""
    async with Scripted().serving() as at, worker_of(config(at, stateful=True), folder=tmp_path) as worker:
        await worker.open()
        await worker.call("web__pay", call_id="c0_0")
        refusing(at, refusal)
        lost = [worker.call("web__pay", call_id=f"c1_{n}") for n in range(8)]
        errors = await asyncio.gather(*lost, return_exceptions=True)
        assert [error.code for error in errors if isinstance(error, McpError)] == [ReasonCode.TOOL_STATE_LOST] * 8
        assert (await worker.call("web__pay", call_id="c2_0")).text == "done"
        assert (at.called, at.session) == (["pay"] * 2, 2)


@pytest.mark.parametrize("refusal", [*REFUSALS.values(), *UNCLEAR.values()], ids=[*REFUSALS, *UNCLEAR])
async def test_a_list_in_a_session_that_has_ended_comes_from_a_new_one(refusal: Reply, tmp_path: Path) -> None:
    """S-75: so no turn is refused."""
    async with Scripted().serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        refusing(at, refusal)
        await worker.open()
        assert (set(worker.tools), at.session) == ({"web__pay"}, 2)


@pytest.mark.parametrize("refusal", UNCLEAR.values(), ids=UNCLEAR.keys())
async def test_a_call_that_may_have_been_carried_out_is_not_sent_again_and_the_next_one_has_a_new_session(
    refusal: Reply, tmp_path: Path
) -> None:
    """S-77."""
    async with Scripted().serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        refusing(at, refusal)
        with pytest.raises(McpError, match="its effect is unknown"):
            await worker.call("web__pay")
        assert at.called == []
        assert (await worker.call("web__pay")).text == "done"
        assert (at.called, at.session) == (["pay"], 2)


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS.keys())
async def test_a_call_that_fails_in_a_session_that_lives_is_not_sent_again(refusal: Reply, tmp_path: Path) -> None:
    """S-77: a tool may deal in sessions of its own, and fail in the same words."""

    def refused(method: str, _: Json, __: str) -> Reply | None:
        return refusal if method == "tools/call" else None

    async with Scripted(refused).serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        with pytest.raises(McpError):
            await worker.call("web__pay")
        assert ([method for method, _ in at.asked].count("tools/call"), at.session) == (1, 1)


async def test_a_list_that_never_comes_is_asked_for_twice(tmp_path: Path) -> None:
    """S-75: over two sessions, and no more."""

    def refused(method: str, _: Json, __: str) -> Reply | None:
        return Reply(error(-32603, "no catalogue today")) if method == "tools/list" else None

    async with Scripted(refused).serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        with pytest.raises(McpUnavailableError, match="no catalogue today"):
            await worker.open()
        assert at.session == 2


async def test_a_list_that_cannot_be_read_is_asked_for_over_a_new_session(tmp_path: Path) -> None:
    """S-75."""

    def broken(method: str, _: Json, session: str) -> Reply | None:
        return Reply(result({"tools": "later"})) if (method, session) == ("tools/list", "S1") else None

    async with Scripted(broken).serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        assert worker.tools


async def test_what_others_keep_in_a_session_is_not_lost_for_a_list_that_failed(tmp_path: Path) -> None:
    """S-77: the server still knows the session."""
    async with Scripted().serving() as at, worker_of(config(at, stateful=True), folder=tmp_path) as worker:
        await worker.open()
        await worker.call("web__pay")
        at.answers = lambda method, *_: Reply(error(-32000, "too many requests")) if method == "tools/list" else None
        with pytest.raises(McpUnavailableError, match="too many requests"):
            await worker.open()
        assert (await worker.call("web__pay")).text == "done"
        assert at.session == 1
