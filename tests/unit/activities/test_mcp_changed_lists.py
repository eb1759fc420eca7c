"""A server that says in the middle of a turn that it has other tools now: the model learns it with its next result."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import HttpServerConfig
from perdure.activities.mcp import session_state
from perdure.activities.mcp.failures import McpError
from perdure.activities.mcp.session_state import ListChanges
from tests.unit.activities.mcp_peers import Connected, worker_of
from tests.unit.activities.mcp_scripted import EMPTY, Json, Reply, Scripted, error, event, result

CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
FAILED: Json = {"content": [{"type": "text", "text": "no such tool"}], "isError": True}
LINE = "[MCP server 'web' has changed its list of tools; the new list is yours from the next turn on]"


def answering(*messages: Any) -> Scripted:
    """A server that answers each call with these messages."""

    def answers(method: str, _: Json, __: str) -> Reply | None:
        return Reply("".join(map(event, messages)), events=True) if method == "tools/call" else None

    return Scripted(answers)


def config(at: Scripted) -> HttpServerConfig:
    return HttpServerConfig(name="web", url=at.url)


async def said(worker: Connected, session: str) -> str:
    try:
        return (await worker.call("web__pay", session=session)).text
    except McpError as failure:
        return str(failure)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (result(EMPTY), "done\n"),
        (result({"content": []}), ""),
        (result(FAILED), "no such tool\n"),
        (error(-32602, "no tool pay"), "MCP server 'web': no tool pay\n"),
    ],
    ids=["a result", "an empty result", "a failure", "a protocol error"],
)
async def test_a_changed_list_is_told_once_with_what_a_call_ends_with(answer: Json, text: str, tmp_path: Path) -> None:
    """S-75: the turn keeps its tools, so that the model would not know why they fail."""
    async with answering(CHANGED, answer).serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        await worker.open()
        assert await said(worker, "a") == f"{text}{LINE}"
        at.answers = lambda *_: None
        assert await said(worker, "a") == "done"


async def test_each_session_whose_turn_began_before_the_change_is_told(tmp_path: Path) -> None:
    """S-75: and none that has the new list."""
    async with Scripted().serving() as at, worker_of(config(at), folder=tmp_path) as worker:
        for session in ("a", "b", "c"):
            await worker.open(session)
        at.answers = answering(CHANGED, CHANGED, result(EMPTY)).answers
        assert await said(worker, "a") == f"done\n{LINE}"
        at.answers = lambda *_: None
        await worker.open("c")
        await worker.open("d")
        assert await asyncio.gather(*(said(worker, session) for session in "abcd")) == [
            "done",
            f"done\n{LINE}",
            "done",
            "done",
        ]


def test_the_oldest_sessions_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-75: a worker serves sessions without end."""
    monkeypatch.setattr(session_state, "MOST_SESSIONS", 2)
    changes = ListChanges()
    for session in ("a", "b", "a", "c"):
        changes.note_call(session)
    changes.note_change()
    assert [changes.is_news(session) for session in ("b", "c")] == [False, True]
