"""A store that was restored from an older copy: found, brought up to date, and told to who goes on."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from perdure import Agent
from perdure.cli.main import cli
from perdure.client import Client
from perdure.settings import Settings
from perdure.store import Store
from perdure.testing import ChatRequest, Reply, ScriptedProvider, faults, say
from tests.house import House

pytestmark = pytest.mark.deep

AGENT = Agent(name="tester", model="openai/scripted")
NOTE = "the record of this conversation was restored from an older copy"
FOUND = "the store is older than what Temporal knows, as after a restore"


async def perdure(*arguments: str) -> str:
    """What a verb prints."""
    return (await asyncio.to_thread(CliRunner().invoke, cli, list(arguments), prog_name="perdure")).output


def back_up(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
        one.backup(other)


def answer(request: ChatRequest) -> Reply:
    slow = request.messages[-1]["content"] == "slow"
    return say("done").after(faults.delay(2.0)) if slow else say("done")


def said_in(provider: ScriptedProvider) -> str:
    """All texts of the last request that the model got."""
    return str(provider.requests[-1].request.messages)


@asynccontextmanager
async def restored(house: House, backup: Path) -> AsyncIterator[Client]:
    """The house with the copy as its store."""
    house.environment.setenv("PERDURE_STORE_URL", f"sqlite:///{backup}")
    house.settings = Settings()
    async with (
        await Store.open(house.settings.store_url) as house.store,
        await Client.connect(house.settings) as client,
    ):
        yield client


@pytest.mark.parametrize("reconciled", [True, False], ids=["reconciled", "at once"])
async def test_after_a_restore_jobs_end_and_who_goes_on_is_told(house: House, reconciled: bool) -> None:
    backup = house.folder / "backup.db"
    at_work, ended, newer = (f"{house.session}-{name}" for name in ("at-work", "ended", "newer"))
    async with ScriptedProvider(answer) as provider:
        house.use(provider)
        async with house.worker(AGENT):
            await (await house.client.start("tester", "go", session=ended)).result()
            turn = await house.client.start("tester", "slow", session=at_work)
            await provider.wait_for_requests(2)
            back_up(house.folder / "store.db", backup)
            assert FOUND not in await perdure("doctor")
            await turn.result()
            await (await house.client.send(ended, "more")).result()
            await (await house.client.start("tester", "go", session=newer)).result()
            assert "the store has all that Temporal knows of" in await perdure("store", "reconcile")
        async with restored(house, backup) as client:
            seen = await perdure("doctor")
            assert f"{FOUND}: 1 turns that have ended are open in it ({at_work})" in seen
            assert f"1 ended turns of its sessions are missing ({ended}); 1 sessions are missing ({newer})" in seen
            if reconciled:
                planned = await perdure("store", "reconcile", "--dry-run")
                assert f"would be closed: turn 1 of session {at_work}" in planned
                done = await perdure("store", "reconcile")
                assert done.splitlines() == [
                    f"closed: turn 1 of session {at_work}",
                    f"added: turn 2 of session {ended}",
                    f"missing: turn 1 of session {newer}",
                ]
                assert await perdure("store", "reconcile") == f"missing: turn 1 of session {newer}\n"
                listed = await perdure("list")
                assert listed.count("error (runtime.store_behind)") == 2
                assert "running" not in listed
            async with house.worker(AGENT):
                for session in (at_work, ended) if reconciled else (at_work,):
                    turn = await client.send(session, "and then?")
                    assert NOTE in await turn.notice()
                    result = await turn.result()
                    assert (result.stop_reason, result.turn) == ("finished", 3 if session == ended else 2)
                    assert NOTE in said_in(provider)
                newest = await client.send(at_work, "and now?")
                assert await newest.notice() == ""
                await newest.result()
                behind = (await house.store.turn(at_work, 1)).result
    assert behind is not None
    assert (behind.error or "").endswith("(Temporal knows that it ended as finished after 1 steps)")
