"""A rollout that adds an agent or a delegate, and its roll-back: what a worker lacks waits for one that has it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
import temporalio.client
from click.testing import CliRunner

from perdure import Agent
from perdure.cli.main import cli
from perdure.client import Cause, TurnWait
from perdure.client.connect import DATA_CONVERTER
from perdure.client.worker_stores import worker_stores
from perdure.contracts.turns import CancelRequest
from perdure.testing import ScriptedProvider, say
from perdure.worker.app import build_store_worker
from perdure.worker.fleet_figures import FleetFigures
from tests.house import House, eventually
from tests.workflow.delegating import DONE, agent, asks, in_order, played, results_in

pytestmark = pytest.mark.deep

STARTS = 8


@asynccontextmanager
async def polling(house: House, *agents: Agent) -> AsyncIterator[None]:
    """A worker that tells its agents, as ``perdure worker`` does."""
    names = [agent.name for agent in agents]

    async def told() -> bool:
        found = await worker_stores(house.temporal, house.settings.task_queue)
        return any(all(worker.has(name) for name in names) for worker in found)

    own = await temporalio.client.Client.connect(house.server.address, data_converter=DATA_CONVERTER)  # one a worker
    digests = [agent.definition.digest() for agent in agents]
    telling = build_store_worker(own, house.settings, house.store, names, digests)
    async with house.worker(*agents, client=own), telling:
        await eventually(told)
        yield


async def standing(house: House) -> TurnWait:
    """Wait until the test's turn waits for a version."""

    async def there() -> TurnWait | None:
        wait = await house.client.waits_for(house.session)
        return wait if wait is not None and wait.cause is Cause.VERSION else None

    wait: TurnWait = await eventually(there, 40.0)
    return wait


async def test_both_versions_of_an_agent_are_listed_while_workers_of_both_poll(house: House) -> None:
    old, new = (Agent(name="tester", model="openai/scripted", description=text) for text in ("old", "new"))

    async def listed() -> dict[str, int]:
        lines = [json.loads(line) for line in (await told("agents", "--json")).splitlines()]
        return {line["description"]: len(line["workers"]) for line in lines}

    async with polling(house, old), polling(house, new):
        await eventually(lambda: both(listed))
        assert f"tester · openai/scripted · version {old.definition.digest()[:8]} · 1 worker" in await told("agents")


async def both(listed: Callable[[], Awaitable[dict[str, int]]]) -> bool:
    return await listed() == {"new": 1, "old": 1}


async def told(*arguments: str) -> str:
    """What a verb prints."""
    result = await asyncio.to_thread(CliRunner().invoke, cli, list(arguments), catch_exceptions=False)
    return result.output


async def test_every_start_of_an_agent_that_only_the_new_workers_have_is_carried_out(house: House) -> None:
    old, new = agent("old"), agent("newcomer")
    async with ScriptedProvider(lambda _: say("done")) as provider, polling(house, old), polling(house, old, new):
        house.use(provider)
        turns = [
            await house.client.start("newcomer", "go", session=f"{house.session}-{number}") for number in range(STARTS)
        ]
        results = await asyncio.wait_for(asyncio.gather(*(turn.result() for turn in turns)), 60)
    assert [result.output for result in results] == ["done"] * STARTS


async def test_an_agent_that_no_worker_that_polls_has_is_refused_with_a_sentence_that_says_so(house: House) -> None:
    async with polling(house, agent("old")):
        result = await house.run(agent="newcomer")
    assert result["reason_code"] == "request.unknown_agent"
    assert result["error"] == "no worker that polls has an agent 'newcomer'; this worker has: old"


async def test_a_message_to_an_agent_whose_worker_is_away_for_a_moment_waits_and_is_listed(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a worker that has ended the server still tells for a minute: a restart in place loses no message."""
    monkeypatch.setattr("perdure.worker.fleet_figures.STANDING_SECONDS", 0.2)
    old, new = agent("old"), agent("newcomer")
    async with ScriptedProvider(lambda _: say("done")) as provider, polling(house, old):
        refused = house.metrics.refused_versions
        house.use(provider)
        async with polling(house, old, new):
            await (await house.client.start("newcomer", "go", session=house.session)).result()
        handle = await house.start(None, "again")
        wait = await standing(house)
        assert wait.text == "no worker that was asked has agent 'newcomer'"
        figures = FleetFigures(house.store, house.temporal, house.settings, refused_versions=refused.names)
        for verb in (("list", "--needs-version"), ("list", "--stuck"), ("doctor",)):
            said = await told(*verb)
            assert wait.text in said, verb
            assert wait.advice in said, verb
        assert refused.names(timedelta(minutes=1)) == [house.session]
        assert (await figures.read()).without_version == 1
        async with polling(house, old, new):
            assert (await asyncio.wait_for(handle.result(), 60))["output"] == "done"


@pytest.mark.parametrize("ends", ["the worker comes back", "a cancel"])
async def test_a_delegate_that_a_roll_back_has_taken_away_is_waited_for(house: House, ends: str) -> None:
    """S-63: its work is part of the caller's, and never missing in silence."""
    before, lead, helper = agent("tester"), agent("tester", delegates=["helper"]), agent("helper")
    answers = played(tester=in_order(asks("one"), DONE), helper=lambda _: say("its work"))
    async with ScriptedProvider(answers) as provider:
        house.use(provider)
        handle = await house.start()
        async with polling(house, lead, helper):
            await provider.wait_for_requests(1)
        async with polling(house, before):
            wait = await standing(house)
            assert wait.text.endswith("no worker that was asked has agent 'helper', a delegate of agent 'tester'")
            assert wait.text in await told("list", "--needs-version")
            if ends == "a cancel":
                await handle.signal("cancel", CancelRequest())
                assert (await asyncio.wait_for(handle.result(), 60))["stop_reason"] == "cancelled"
                return
        async with polling(house, lead, helper):
            assert (await asyncio.wait_for(handle.result(), 60))["stop_reason"] == "finished"
        (read,) = results_in(provider.requests[-1].request)
    assert "its work" in read
