"""A worker is killed at each point of a call: how often bodies ran in the world outside, and what the model reads.

One turn for each point; its answer calls a tool of each kind. When each call of each turn has come to its point, the
worker is killed with all of them in hand, and another one goes on.
"""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHandle

from perdure.contracts.names import AGENT_TURN
from perdure.contracts.values import JsonValue
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, say
from tests.house import WAIT_SECONDS, House, WorkerProcess, eventually
from tests.workflow.agents_for_effects import CALLS, POINTS, point_of
from tests.workflow.killing import lines_of, read, result_of

pytestmark = pytest.mark.deep

AGENTS = "tests.workflow.agents_for_effects"
SAFE = CALLS[0]

LOST = "the worker was lost while the tool ran, so its effect is unknown"
ADVICE = "; look at what it did before it runs again"
CANNOT_TELL = "a check could not tell whether it happened: the post office keeps no list"
FAILED = "the check whether it happened failed: ConnectionError: no answer from the port"


def answer(request: ChatRequest) -> Reply:
    """A call of each tool; the safe one's server is told whose call it is, and whether to hold it."""
    if request.index:
        return say("done")
    session = str(request.messages[-1]["content"])
    calls: dict[str, JsonValue] = {name: {} for name in CALLS}
    calls[SAFE] = {"session": session, "held": point_of(session) == "in the body"}
    return call(*calls.items())


@dataclass(frozen=True)
class Row:
    """What is true of a tool after its worker was killed at a point: runs outside, and what the model reads."""

    runs: int
    read: str | dict[str, str]


def unknown(message: str) -> dict[str, str]:
    return {"code": "tool.effect_unknown", "type": "", "message": message}


def after(runs: int, idempotent: int, unsafe: dict[str, str] | None, found: str | None) -> dict[str, Row]:
    """The rows of one point: runs of unsafe bodies, of idempotent ones, and what the model reads of the others."""

    def row(name: str, told: str | dict[str, str] | None = None) -> Row:
        return Row(runs, told or f"{name}: done")

    happened = {name: f'{{"found":"{name}"}}' if found else None for name in ("book", "book_async")}
    booked = {name: Row(1, told or f"{name}: done") for name, told in happened.items()}
    return {
        "peer__whoami": Row(idempotent, "a number"),
        "put": Row(idempotent, "put: done"),
        "put_async": Row(idempotent, "put_async: done"),
        "pay": row("pay", unsafe),
        "pay_async": row("pay_async", unsafe),
        **booked,
        "send": row("send", unsafe and unknown(f"{LOST}: {CANNOT_TELL}{ADVICE}")),
        "ship": row("ship", unsafe and unknown(f"{LOST}: {FAILED}{ADVICE}")),
    }


UNCLAIMED = after(runs=1, idempotent=1, unsafe=None, found=None)
NOT_BEGUN = after(runs=0, idempotent=1, unsafe=unknown(LOST + ADVICE), found=None)
BEGUN = after(runs=1, idempotent=2, unsafe=unknown(LOST + ADVICE), found="by the reconciler")
RECORDED = after(runs=1, idempotent=1, unsafe=None, found=None)

TABLE = dict(zip(POINTS, (UNCLAIMED, NOT_BEGUN, BEGUN, BEGUN, BEGUN, RECORDED), strict=True))


class World:
    """The turns whose worker is killed, and what they leave outside."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.lines = lines_of(house)
        self.journal = house.folder / "journal"
        self.journal.touch()
        self.sessions = {point: f"{house.session}.{number}" for number, point in enumerate(POINTS)}
        house.environment.setenv("MCP_JOURNAL", str(self.journal))

    def worker(self) -> WorkerProcess:
        """A worker as an operator starts it."""
        return self.house.spawn_worker(AGENTS)

    def doomed_worker(self, ends_with: signal.Signals) -> WorkerProcess:
        """A worker that gets this signal when all calls have met."""
        return self.house.spawn_worker(AGENTS, main="tests.workflow.worker_at_a_point", SIGNAL=ends_with.name)

    async def start(self) -> list[WorkflowHandle[Any, Any]]:
        """Start a turn for each point."""
        temporal, queue = self.house.temporal, self.house.settings.task_queue
        return [
            await temporal.start_workflow(
                AGENT_TURN, {"agent": "tester", "prompt": session}, id=session, task_queue=queue
            )
            for session in self.sessions.values()
        ]

    def runs(self) -> dict[str, dict[str, int]]:
        """How often each body ran at each point."""
        counted: dict[str, Counter[str]] = {session: Counter() for session in self.sessions.values()}
        for line in read(self.lines):
            name, key = line.split()
            counted[key.partition("/")[0]][name] += 1
        for line in read(self.journal):
            if line.startswith("call whoami "):
                counted[line.split()[-1]][SAFE] += 1
        return {point: {name: counted[session][name] for name in CALLS} for point, session in self.sessions.items()}

    def let_go(self) -> None:
        """The server answers the call that it holds."""
        Path(f"{self.journal}.go on").touch()

    async def events(self, *types: str) -> dict[str, list[Mapping[str, Any]]]:
        """The events of each turn."""
        found: dict[str, list[Mapping[str, Any]]] = {}
        for point, session in self.sessions.items():
            envelopes = await self.house.store.events(session)
            found[point] = [envelope.line() for envelope in envelopes if not types or envelope.event.type in types]
        return found

    async def has_one_key_for_each_call(self) -> None:
        """Each attempt of a call saw the same idempotency key."""
        starts = await self.events("tool_start")
        keys = {f"{line['tool']} {line['session']}/1/{line['call_id']}" for lines in starts.values() for line in lines}
        assert set(read(self.lines)) <= keys
        assert all(len(lines) == len(CALLS) for lines in starts.values())


def read_by_the_model(request: ChatRequest) -> dict[str, str | dict[str, str]]:
    """The tools' results, by name; of an error the JSON."""
    names = {
        tool_call["id"]: tool_call["function"]["name"] for message in request.messages for tool_call in _calls(message)
    }
    return {names[m["tool_call_id"]]: _plain(str(m["content"])) for m in request.messages if m["role"] == "tool"}


def _calls(message: Any) -> list[Any]:
    return list(message.get("tool_calls") or ())


def _plain(content: str) -> str | dict[str, str]:
    if content.isdigit():
        return "a number"
    if content.startswith('{"error":'):
        error: dict[str, str] = json.loads(content)["error"]
        return error
    return content


async def went_on(world: World, provider: ScriptedProvider, handles: list[WorkflowHandle[Any, Any]]) -> None:
    """All turns have finished, and all is as the table says."""
    results = [await result_of(handle) for handle in handles]
    assert {(result["stop_reason"], result["steps"]) for result in results} == {("finished", 2)}
    assert world.runs() == {point: {name: row.runs for name, row in rows.items()} for point, rows in TABLE.items()}
    points = {line["call_id"]: point for point, lines in (await world.events("tool_start")).items() for line in lines}
    heard = {
        points[_calls(request.request.messages[-1 - len(CALLS)])[0]["id"]]: read_by_the_model(request.request)
        for request in provider.requests
        if request.request.index == 1
    }
    assert heard == {point: {name: row.read for name, row in rows.items()} for point, rows in TABLE.items()}
    await world.has_one_key_for_each_call()
    for lines in (await world.events("tool_end")).values():
        assert sorted(line["tool"] for line in lines) == sorted(CALLS)


async def test_a_killed_worker_runs_no_body_too_often_and_the_model_reads_the_truth(home: House) -> None:
    """S-31 S-80: at each point, for each kind of tool, over each store."""
    world = World(home)
    async with ScriptedProvider(answer) as provider:
        home.use(provider)
        first = world.doomed_worker(signal.SIGKILL)
        handles = await world.start()
        assert await asyncio.to_thread(first.process.wait, WAIT_SECONDS) == -signal.SIGKILL
        world.worker()
        await went_on(world, provider, handles)
    recoveries = await world.events("tool_recovery")
    assert not recoveries["before claim_call"]
    assert not recoveries["after finish_call"]
    assert _decisions(recoveries["after claim_call"])["book"] == (
        "run_again",
        "its reconciler found that it did not happen",
    )
    assert _decisions(recoveries["in the body"]) == {
        "peer__whoami": ("run_again", "the tool is idempotent"),
        "put": ("run_again", "the tool is idempotent"),
        "put_async": ("run_again", "the tool is idempotent"),
        "pay": ("given_up", "the tool may have run, and is not idempotent"),
        "pay_async": ("given_up", "the tool may have run, and is not idempotent"),
        "book": ("result_found", "its reconciler found that it happened"),
        "book_async": ("result_found", "its reconciler found that it happened"),
        "send": ("given_up", CANNOT_TELL),
        "ship": ("given_up", FAILED),
    }


async def test_a_frozen_worker_that_goes_on_changes_nothing_any_more(house: House) -> None:
    """S-31: it runs no body that it had only claimed, commits no result, and writes no event."""
    world = World(house)
    async with ScriptedProvider(answer) as provider:
        house.use(provider)
        first = world.doomed_worker(signal.SIGSTOP)
        handles = await world.start()
        await eventually(lambda: _is_stopped(first))
        world.worker()
        await went_on(world, provider, handles)
        before = (world.runs(), await world.events())
        world.let_go()
        os.kill(first.process.pid, signal.SIGCONT)
        assert await first.stop() == 0
        assert (world.runs(), await world.events()) == before


async def _is_stopped(worker: WorkerProcess) -> bool:
    return Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _decisions(lines: list[Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    return {line["tool"]: (line["decision"], line["reason"]) for line in lines}
