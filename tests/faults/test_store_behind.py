"""A store restored from an older copy, and a worker that looks at another one: turns end, or are left alone."""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from temporalio.client import WorkflowExecutionStatus

from perdure import Agent
from perdure.store import NotFoundError, Store
from perdure.testing import ChatRequest, Reply, Script, ScriptedProvider, call, say
from tests.faults.waiting import AGENT, said
from tests.house import House, eventually
from tests.workflow.asking import COLOUR, DONE, asker, update, waiting

pytestmark = pytest.mark.deep


class Backup:
    """A copy of the store's file; restoring it writes the old content into the file that the worker has open."""

    def __init__(self, house: House) -> None:
        self._file = house.folder / "store.db"
        self._copy = house.folder / "copy.db"

    def take(self) -> None:
        self._between(self._file, self._copy)

    def restore(self) -> None:
        self._between(self._copy, self._file)

    def _between(self, source: Path, target: Path) -> None:
        with closing(sqlite3.connect(source, timeout=60)) as old, closing(sqlite3.connect(target, timeout=60)) as new:
            old.backup(new)


async def nothing_is_open(house: House) -> bool:
    return all(session.open_turn is None for session, _ in await house.store.sessions())


LOST = "the transcript store has lost what the turn had written to it, as after a restore from an older copy"


def losing(backup: Backup, *, take_at: int, restore_at: int) -> Callable[[ChatRequest], Reply]:
    """A model that calls a tool in each step, until the store is restored in the middle of one."""
    restored: list[bool] = []

    def answer(request: ChatRequest) -> Reply:
        if request.index == take_at and not restored:
            backup.take()
        if request.index == restore_at and not restored:
            backup.restore()
            restored.append(True)
        return say("done") if restored else call(("pay", {}))

    return answer


@pytest.mark.parametrize("take_at", [0, 1])
async def test_a_turn_whose_steps_are_lost_ends_with_a_result_and_the_session_goes_on(
    house: House, take_at: int
) -> None:
    model = losing(Backup(house), take_at=take_at, restore_at=2)
    async with ScriptedProvider(model) as provider, house.worker(AGENT):
        house.use(provider)
        handle = await house.start()
        result = await handle.result()
        assert (await handle.describe()).status is WorkflowExecutionStatus.COMPLETED
        assert (result["stop_reason"], result["reason_code"], result["turn"]) == ("error", "runtime.store_behind", 1)
        assert result["error"].startswith(LOST)
        assert result["steps"] == 2
        assert (await house.store.turn(house.session, 1)).result is not None
        assert await nothing_is_open(house)
        assert (await house.events())[-1]["type"] == "agent_end"
        again = await house.run(prompt="again")
    assert (again["stop_reason"], again["turn"], again["output"]) == ("finished", 2, "done")
    sequence = [line["seq"] for line in await house.events()]
    assert sequence == list(range(1, len(sequence) + 1))


async def test_a_turn_of_which_the_store_knows_nothing_any_more_has_a_result_all_the_same(house: House) -> None:
    """Temporal has it; its caller gets it."""
    backup = Backup(house)
    backup.take()
    async with ScriptedProvider(losing(backup, take_at=9, restore_at=1)) as provider, house.worker(AGENT):
        house.use(provider)
        turn = await house.client.start("tester", "go", session=house.session)
        result = await turn.result()
        assert (result.stop_reason, result.reason_code, result.turn) == ("error", "runtime.store_behind", 1)
        assert [envelope async for envelope in turn.events()] == []
        with pytest.raises(NotFoundError):
            await house.store.session(house.session)
        again = await house.run()
    assert (again["stop_reason"], again["turn"]) == ("finished", 1)


async def test_the_person_at_the_terminal_reads_why_and_what_to_do(house: House) -> None:
    backup = Backup(house)
    backup.take()
    command = [sys.executable, "-m", "perdure.cli", "run", "tester", "go", "--session", house.session]
    async with ScriptedProvider(losing(backup, take_at=9, restore_at=1)) as provider, house.worker(AGENT):
        house.use(provider)
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"perdure: {LOST}; send the message again")


@asynccontextmanager
async def elsewhere(house: House, *agents: Agent) -> AsyncIterator[Store]:
    """A worker on the same task queue that looks at a store of its own, in place of the right one."""
    right = house.store
    async with await Store.open(f"sqlite:///{house.folder / 'elsewhere.db'}", upgrade=True) as wrong:
        house.store = wrong
        try:
            async with house.worker(*agents):
                yield wrong
        finally:
            house.store = right


async def left_visibly(house: House, *parts: str) -> None:
    """Wait until the pending activity says why this worker does not take it."""
    handle = house.temporal.get_workflow_handle(house.session)

    async def shown() -> bool:
        pending = (await handle.describe()).raw_description.pending_activities
        return any(all(part in said(activity) for part in ("runtime.store_mismatch", *parts)) for activity in pending)

    await eventually(shown)


async def test_a_worker_on_another_store_leaves_the_turn_to_those_on_its_own(house: House) -> None:
    agent = asker()
    async with ScriptedProvider(Script(replies=(COLOUR, DONE))) as provider:
        house.use(provider)
        async with house.worker(agent):
            handle = await house.start()
            (question,) = await waiting(house)
        right = house.store.id
        async with elsewhere(house, agent) as wrong:
            await update(house, "answer", request=question["request_id"], value="red", by="ann")
            await left_visibly(house, f"({wrong.id}), the turn lives in the store {right}", "PERDURE_STORE_URL")
            assert await wrong.sessions() == ()
        async with house.worker(agent):
            result = await handle.result()
    assert (result["stop_reason"], provider.request_count) == ("finished", 2)
