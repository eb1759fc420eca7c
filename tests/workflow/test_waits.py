"""A turn that stands still says why, since when, and what to do: each cause, on the real server."""

import asyncio
import contextlib
import json
import re
import sqlite3
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner

from perdure import Agent, Delegate, RetryPolicy, tool
from perdure.cli.live import Printer, follow
from perdure.cli.main import cli
from perdure.client import Cause, SessionIdleError, TurnWait
from perdure.contracts.names import AGENT_TURN
from perdure.store import Store
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, faults, say
from perdure.worker.fleet_figures import FleetFigures
from tests.house import House, eventually
from tests.workflow.asking import PAY, asker, waiting
from tests.workflow.delegating import agent, asks, played

pytestmark = pytest.mark.deep


async def standing(house: House, cause: Cause, session: str = "") -> TurnWait:
    """Wait until the turn stands still for this cause."""

    async def there() -> TurnWait | None:
        wait = await house.client.waits_for(session or house.session)
        return wait if wait is not None and wait.cause is cause else None

    wait: TurnWait = await eventually(there, 40.0)
    return wait


@tool
def two(number: int = 2) -> str:
    """Two."""
    return str(number)


def other_two() -> Any:
    @tool(name="two")
    def changed(text: str) -> str:
        """Two."""
        return text

    return changed


def made(**settings: Any) -> Agent:
    return Agent(**{"name": "tester", "model": "openai/scripted", **settings})


@pytest.mark.parametrize("gone", [True, False])
async def test_a_turn_whose_tool_no_worker_has_names_it(house: House, gone: bool) -> None:
    async with ScriptedProvider(lambda request: say("done") if request.index else call(("two", {}))) as provider:
        house.use(provider)
        async with house.worker(made(tools=[two])):
            pass  # its definition is what the turn begins with
        release = made(tools=[two])
        handle = await begun(house, release, provider)
        async with house.worker(made(tools=[] if gone else [other_two()])):
            wait = await standing(house, Cause.VERSION)
            status = await house.client.status(house.session)
        async with house.worker(release):
            assert (await asyncio.wait_for(handle.result(), 60))["stop_reason"] == "finished"
    assert status.waits_for is not None
    assert (status.waits_for.text, wait.is_stuck) == (wait.text, True)
    arguments = "" if gone else " with the arguments"
    assert wait.text == f"no worker has tool 'two'{arguments} of this version of agent 'tester'"
    assert wait.missing is not None
    assert wait.missing.definition == release.definition.digest()


async def begun(house: House, release: Agent, provider: ScriptedProvider) -> Any:
    """Start a turn whose worker goes away when the model is asked."""
    handle = await house.start(release.name)
    async with house.worker(release):
        await provider.wait_for_requests(1)
    return handle


async def test_a_turn_that_no_worker_takes_names_the_queue(house: House) -> None:
    """Temporal alone is asked: there is no worker, and the turn is not in the store yet."""
    await house.start()
    wait = await standing(house, Cause.WORKER)
    assert wait.text == f"no worker polls the task queue {house.settings.task_queue!r}"
    assert wait.since is not None
    assert wait.is_stuck
    with pytest.raises(SessionIdleError, match=r"not held by any worker: it has waited .* s: no worker polls"):
        await house.client.status(house.session)
    assert await house.client.waits([house.session, "nobody"]) == {house.session: wait}


async def test_the_wait_for_a_provider_has_the_retry_and_the_status(house: House) -> None:
    house.environment.setenv("KEY_OF_WAITS", "sk-of-waits-0123456789")
    retry = RetryPolicy(base=timedelta(seconds=30), jitter=timedelta(0))
    async with ScriptedProvider(always=faults.status(429)) as provider:
        house.use(provider)
        async with house.worker(made(retry=retry, generate_params={"api_key": "${KEY_OF_WAITS}"})):
            handle = await house.start()
            wait = await standing(house, Cause.PROVIDER)
            assert await house.client.cancel(house.session)
            assert (await asyncio.wait_for(handle.result(), 60))["stop_reason"] == "cancelled"
    assert wait.text == "retry 1 of 8 after HTTP 429 of openai/scripted"
    assert wait.next_at is not None
    assert not wait.is_stuck
    assert await house.client.waits_for(house.session) is None


async def test_a_caller_whose_delegate_waits_for_a_person_names_the_delegate_and_the_command(house: House) -> None:
    asking = asker(name="helper", instructions="I am helper.")
    lead = agent("tester", delegates=[Delegate(asking, interactive=True)])
    answers = played(tester=lambda _: asks("look"), helper=lambda _: PAY)
    async with ScriptedProvider(answers) as provider, house.worker(lead, asking):
        house.use(provider)
        handle = await house.start()
        wait = await standing(house, Cause.PERSON)
        (request,) = await (await house.client.attach(wait.session)).requests()
        await handle.terminate()
    assert wait.session.startswith(f"{house.session}.helper~d")
    assert wait.text == f'delegate {wait.session} waits: an approval of pay {{"amount": 7}}'
    assert wait.advice.startswith(f"perdure approve {wait.session} {request.request_id}")


async def test_a_turn_goes_on_while_its_model_thinks_and_waits_while_its_delegate_does(house: House) -> None:
    lead, helper = agent("tester", delegates=["helper"]), agent("helper")
    answers = played(tester=lambda _: asks("look"), helper=lambda _: say("1").after(faults.hang()))
    async with ScriptedProvider(answers) as provider, house.worker(lead, helper):
        house.use(provider)
        handle = await house.start()
        await provider.wait_for_requests(2)
        wait = await standing(house, Cause.DELEGATE)
        (delegate,) = [child.workflow_id for child in (await handle.describe()).raw_description.pending_children]
        assert await house.client.waits_for(delegate) is None
        status = await house.client.status(house.session)
        await handle.terminate()
    assert wait.text == f"delegates that work: {delegate}"
    assert status.waits_for is not None
    assert status.waits_for.cause is Cause.DELEGATE


async def test_a_turn_whose_store_is_away_says_so(house: House) -> None:
    async with (
        await Store.open(f"{house.settings.store_url}?timeout=0.1") as house.store,
        ScriptedProvider(lambda _: say("done").after(faults.delay(1.0))) as provider,
        house.worker(made()),
    ):
        house.use(provider)
        handle = await house.start()
        await provider.wait_for_requests(1)
        with contextlib.closing(sqlite3.connect(house.folder / "store.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            wait = await standing(house, Cause.STORE)
        assert (await asyncio.wait_for(handle.result(), 60))["stop_reason"] == "finished"
    assert "locked" in wait.text
    assert wait.is_stuck


async def seen(notes: list[str]) -> bool:
    return bool(notes)


async def told(*arguments: str) -> str:
    """What a verb prints, on both its streams."""
    result = await asyncio.to_thread(CliRunner().invoke, cli, list(arguments), catch_exceptions=False)
    return result.output


async def test_a_workers_page_counts_the_turns_that_no_worker_can_carry_on(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ``list --needs-version`` lists and an alert watches."""
    monkeypatch.setattr("perdure.worker.fleet_figures.STANDING_SECONDS", 0.2)
    figures = FleetFigures(house.store, house.temporal, house.settings)

    async def counted(turns: int) -> bool:
        return (await figures.read()).without_version == turns

    async with ScriptedProvider(lambda request: say("done") if request.index else call(("two", {}))) as provider:
        house.use(provider)
        release = made(tools=[two])
        handle = await begun(house, release, provider)
        async with house.worker(made()):
            await eventually(lambda: counted(1))
        async with house.worker(release):
            assert (await asyncio.wait_for(handle.result(), 60))["stop_reason"] == "finished"
        await eventually(lambda: counted(0))


async def test_turns_that_stand_for_longer_hide_none_that_a_worker_has_refused(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporal is asked about a few only: of a fleet, most wait for something else, and have for longer."""
    monkeypatch.setattr("perdure.worker.fleet_figures.STANDING_SECONDS", 0.2)
    monkeypatch.setattr("perdure.worker.fleet_figures.MOST_STANDING", 1)
    retry = RetryPolicy(base=timedelta(minutes=1), jitter=timedelta(0))

    def answer(request: ChatRequest) -> Reply:
        if request.model == "away":
            return say("at last").after(faults.status(500))
        return say("done") if request.index else call(("two", {}))

    waits = Agent(name="waits", model="openai/away", retry=retry)
    async with ScriptedProvider(answer) as provider:
        house.use(provider)
        release = made(tools=[two])
        async with house.worker(waits):
            older = f"{house.session}-older"
            await house.client.start("waits", "go", session=older)
            await standing(house, Cause.PROVIDER, older)
        async with house.worker(release):
            turn = await house.client.start(release.name, "go", session=house.session)
            await provider.wait_for_requests(2)
        async with house.worker(made(), waits):
            refused = house.metrics.refused_versions
            figures = FleetFigures(house.store, house.temporal, house.settings, refused_versions=refused.names)

            async def counted(turns: int) -> bool:
                return (await figures.read()).without_version == turns

            await eventually(lambda: counted(1))
            await house.client.cancel(house.session)
            assert (await asyncio.wait_for(turn.result(), 60)).stop_reason == "cancelled"
            await eventually(lambda: counted(0))
            await house.client.cancel(older)


async def test_the_verbs_say_what_a_turn_waits_for(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """One mechanism behind all: ``follow``, ``list``, ``show`` and ``doctor``, as text and as JSON."""
    monkeypatch.setattr("perdure.cli.live.LOOK", timedelta(milliseconds=200))
    async with ScriptedProvider(lambda request: say("done") if request.index else call(("two", {}))) as provider:
        house.use(provider)
        release = made(tools=[two])
        handle = await begun(house, release, provider)
        async with house.worker(made()):
            wait = await standing(house, Cause.VERSION)
            for arguments in (("list",), ("show", house.session), ("doctor",)):
                assert wait.text in await told(*arguments), arguments
            for flag in ("--stuck", "--needs-version"):
                assert f"{wait.text} (attempt" in (line := await told("list", flag))
                assert wait.advice in line
            for as_json in (("list", "--json"), ("show", house.session, "--json")):
                said = json.loads((await told(*as_json)).splitlines()[0])["waits_for"]
                assert (said["cause"], said["missing"]["definition"]) == ("version", release.definition.digest())
            notes: list[str] = []
            monkeypatch.setattr(Printer, "note", lambda _, text: notes.append(text))
            turn = await house.client.attach(house.session)
            printer = Printer(as_json=True)
            following = asyncio.create_task(follow(turn, printer, cancels=False, client=house.client))
            await eventually(lambda: seen(notes))
        async with house.worker(release):
            assert (await asyncio.wait_for(handle.result(), 60))["stop_reason"] == "finished"
            assert await following == 0
        assert wait.text in notes[0]
        assert wait.advice in notes[0]
        assert await told("list", "--stuck") == "no such sessions\n"
        assert '"waits_for": null' in await told("show", house.session, "--json")


async def test_a_turn_that_is_not_in_the_store_yet_is_shown_and_diagnosed(house: House) -> None:
    await house.start()
    wait = await standing(house, Cause.WORKER)
    assert wait.text in (shown := await told("show", house.session))
    assert f"{house.session} · not opened yet · has waited" in shown
    diagnosis = await told("doctor")
    assert f"✗ turns: {house.session} has waited" in diagnosis
    assert wait.text in diagnosis
    for flags in ((), ("--stuck",)):
        assert f"{house.session}: not opened yet, has waited" in await told("list", *flags)
    line = json.loads(await told("list", "--json"))
    assert (line["session"], line["turn"], line["waits_for"]["cause"]) == (house.session, None, "worker")
    assert "not opened yet" in await told("list", "--agent", "tester")
    assert "not opened yet" not in await told("list", "--agent", "another")


async def test_the_verbs_say_what_a_person_is_asked_also_without_a_worker(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of a request that never became a turn, why it was refused."""
    async with ScriptedProvider(lambda _: PAY) as provider, house.worker(asker()):
        house.use(provider)
        handle = await house.start()
        (request,) = await waiting(house)
        queue, unknown = house.settings.task_queue, {"agent": "nobody", "prompt": "go"}
        refused = f"{house.session}-refused"
        await house.temporal.execute_workflow(AGENT_TURN, unknown, id=refused, task_queue=queue)
        wait = await standing(house, Cause.PERSON)
        assert "· turns: waiting: person 1" in await told("doctor")
        assert f"no turn of session {refused!r} was opened: " in await told("show", refused)
    reply = f"perdure approve {house.session} {request['request_id']}"
    for session in (wait, json.loads(await told("list", "--json"))["waits_for"]):
        advice = session.advice if isinstance(session, TurnWait) else session["advice"]
        assert advice.startswith(reply)
    assert f"has waited 0 s: {wait.text}; {reply}" in re.sub(r"waited \d+ s", "waited 0 s", await told("list"))
    assert reply in await told("show", house.session)
    monkeypatch.setattr("perdure.cli.live.LOOK", timedelta(milliseconds=200))
    notes: list[str] = []
    monkeypatch.setattr(Printer, "note", lambda _, text: notes.append(text))
    turn = await house.client.attach(house.session)
    following = asyncio.create_task(follow(turn, Printer(as_json=False), cancels=False, client=house.client))
    await eventually(lambda: seen(notes))
    assert notes[0].endswith(f"; start a worker; perdure show {house.session} has the request")
    await handle.terminate()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
