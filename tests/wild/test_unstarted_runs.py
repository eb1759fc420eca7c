"""A run that a schedule was to start, and that nobody started: it is listed with the reason, and counted."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.client import ScheduleOverlapPolicy

from perdure import Agent
from perdure.client.schedules import Schedules
from perdure.client.unstarted import UnstartedRuns
from perdure.contracts.ids import Signed
from perdure.contracts.names import AGENT_TURN
from perdure.contracts.schedules import ScheduleRun
from perdure.settings import Settings
from perdure.testing import ScriptedProvider, say
from perdure.worker.fleet_figures import FleetFigures
from tests.house import House, eventually

AGENT = Agent(name="tester", model="openai/scripted")
AGE = timedelta(hours=1)


async def count(house: House, **changed: str) -> int:
    """The errands of schedules that failed, by a worker that has just started."""
    settings = Settings(**changed) if changed else house.settings  # type: ignore[arg-type]
    return (await FleetFigures(house.store, house.temporal, settings).read()).failed_errands["schedule"]


async def trigger(schedules: Schedules, name: str) -> None:
    """Trigger a schedule as a stock client does, which names the run by this second; perdure's own takes a free one."""
    await schedules._handle(name).trigger(overlap=ScheduleOverlapPolicy.ALLOW_ALL)


async def ids_of_runs(house: House, schedule: str, *, seconds: int = 60) -> list[str]:
    """The ids that triggers of acme's schedule will need from now on, a second each."""
    stem, now = await house.store.sign_id(Signed.RUN, "acme", schedule), datetime.now(UTC).replace(microsecond=0)
    times = (now + timedelta(seconds=second) for second in range(seconds))
    return [f"{stem}-{time.isoformat().replace('+00:00', 'Z')}" for time in times]


async def failed(house: House, schedule: str) -> ScheduleRun:
    """The only run of acme's schedule, once it has failed."""

    async def there() -> ScheduleRun | None:
        runs = await house.client.schedules.of("acme").runs(schedule)
        return runs[0] if [run.state for run in runs] == ["failed"] else None

    run: ScheduleRun = await eventually(there)
    return run


@pytest.mark.parametrize("sends_to", ["a new session", "a session"])
async def test_a_run_whose_id_is_taken_is_listed_with_the_reason_and_counted(house: House, sends_to: str) -> None:
    """T-04: Somebody holds the id through Temporal, past every door of perdure."""
    schedules, name = house.client.schedules.of("acme"), f"nightly-{house.session[-6:]}"
    whom, before = {"agent": "tester"}, ""
    async with ScriptedProvider(lambda _: say("2")) as provider, house.worker(AGENT):
        house.use(provider)
        if sends_to == "a session":
            await (await house.client.start("tester", "go", session=house.session, tenant="acme")).result()
            whom, before = {"session": house.session}, "knock:"
        await schedules.add(name, cron="0 7 1 1 *", prompt="x", **whom)
        assert await count(house) == 0
        taken = [f"{before}{session}" for session in await ids_of_runs(house, name)]
        strangers = await asyncio.gather(
            *(house.temporal.start_workflow(AGENT_TURN, {}, id=each, task_queue="nobodys") for each in taken)
        )
        await trigger(schedules, name)
        run = await failed(house, name)
        assert run.error is not None
        assert "another workflow had the id" in run.error
        (named,) = [each for each in taken if repr(each) in run.error]
        assert run.session == (house.session if sends_to == "a session" else named)
        assert await count(house) == 1
        assert await count(house, task_queue="another-fleet") == 0
        await asyncio.gather(*(stranger.terminate() for stranger in strangers))
        await schedules.remove(name)


@pytest.mark.parametrize("attributes", ["on", "off"])
async def test_a_run_whose_session_is_another_tenants_is_listed_as_refused_and_counted(
    house: House, attributes: str
) -> None:
    """T-04: Nothing of the other tenant's session is told."""
    schedules, name = house.client.schedules.of("acme"), f"nightly-{house.session[-6:]}"
    async with ScriptedProvider(lambda _: say("2")) as provider, house.worker(AGENT):
        house.use(provider)
        await schedules.add(name, cron="0 7 1 1 *", agent="tester", prompt="x")
        for session in await ids_of_runs(house, name):
            await house.store.claim_session(session, "evil")
        await trigger(schedules, name)
        run = await failed(house, name)
        assert (run.turn, run.stop_reason, run.reason_code) == (None, None, "request.invalid")
        assert "another tenant's" in (run.error or "")

        async def counted() -> bool:
            return await count(house, search_attributes=attributes) == 1

        await eventually(counted)
        await schedules.remove(name)


@pytest.mark.deep
async def test_a_worker_that_has_read_a_schedule_reads_it_again_once_it_has_come_to_its_time(house: House) -> None:
    schedules, name = house.client.schedules.of("acme"), f"once-{house.session[-6:]}"
    async with ScriptedProvider(lambda _: say("2")) as provider, house.worker(AGENT):
        house.use(provider)
        unstarted = UnstartedRuns(house.temporal, house.settings.task_queue)
        at = (datetime.now(UTC) + timedelta(seconds=8)).replace(microsecond=0)
        taken = f"{await house.store.sign_id(Signed.RUN, 'acme', name)}-{at.isoformat().replace('+00:00', 'Z')}"
        stranger = await house.temporal.start_workflow(AGENT_TURN, {}, id=taken, task_queue="nobodys")
        await schedules.add(name, at=at, agent="tester", prompt="x")
        assert await unstarted.count(AGE) == 0

        async def counted() -> bool:
            return await unstarted.count(AGE) == 1

        await eventually(counted)
        assert await unstarted.count(timedelta(0)) == 0
        await schedules.remove(name)
        await eventually(lambda: _is_gone(unstarted))
        await stranger.terminate()


async def _is_gone(unstarted: UnstartedRuns) -> bool:
    return await unstarted.count(AGE) == 0


async def test_of_two_triggers_within_a_second_one_says_why_nothing_was_started(house: House) -> None:
    """Of two within some milliseconds the server itself makes one."""
    schedules, name = house.client.schedules.of("acme"), f"twice-{house.session[-6:]}"
    async with ScriptedProvider(lambda _: say("2")) as provider, house.worker(AGENT):
        house.use(provider)
        await schedules.add(name, cron="0 7 1 1 *", agent="tester", prompt="x")

        async def twice() -> tuple[ScheduleRun, ...] | None:
            await trigger(schedules, name)
            await trigger(schedules, name)
            runs = await schedules.runs(name)
            return runs if {"ended", "failed"} <= {run.state for run in runs} else None

        runs: tuple[ScheduleRun, ...] = await eventually(twice)
        assert all("within one second" in (run.error or "") for run in runs if run.state == "failed")
        await schedules.remove(name)
