"""Turns that the clock starts, on the real server; nobody waits for a clock: schedules are triggered."""

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from perdure import Agent
from perdure.client import RequestRefusedError, UnknownAgentError, UnknownScheduleError, UnknownSessionError
from perdure.client.schedules import Schedules
from perdure.contracts.schedules import ScheduleRun
from perdure.testing import Script, ScriptedProvider, call, say
from tests.house import House, eventually
from tests.workflow.bodies import Body, happened
from tests.workflow.test_people_doors import perdure

pytestmark = pytest.mark.deep

AGENT = Agent(name="tester", model="openai/scripted")
NIGHTLY: dict[str, Any] = {"cron": "0 7 * * 1-5", "agent": "tester", "prompt": "Summarise the day."}


async def ran(house: House, schedule: str, *states: str, tenant: str = "") -> tuple[ScheduleRun, ...]:
    """The schedule's runs, once they are in these states, the newest first."""

    async def there() -> tuple[ScheduleRun, ...] | None:
        runs = await house.client.schedules.of(tenant).runs(schedule)
        return runs if [run.state for run in runs] == [*states] else None

    found: tuple[ScheduleRun, ...] = await eventually(there)
    return found


async def test_a_schedule_starts_a_new_session_each_time(house: House) -> None:
    name = f"nightly-{house.session[-6:]}"
    async with ScriptedProvider(Script(replies=(say("one"), say("two")))) as provider, house.worker(AGENT):
        house.use(provider)
        schedules = house.client.schedules.of("acme")
        options = {"timezone": "Europe/Berlin", "max_steps": 3, "budgets": {"cost_usd": "0.5"}, "by": "ann"}
        added = await schedules.add(name, **NIGHTLY, **options, jitter=30)
        assert (added.cron, added.timezone, added.agent, added.tenant) == (
            "0 7 * * 1-5",
            "Europe/Berlin",
            "tester",
            "acme",
        )
        assert len(added.next_at) == 10
        assert {moment.hour for moment in added.next_at} == {7}, "the times are those of the schedule's zone"
        assert all(moment > datetime.now(UTC) for moment in added.next_at)
        assert {moment.weekday() for moment in added.next_at} <= {0, 1, 2, 3, 4}
        await schedules.trigger(name)
        (run,) = await ran(house, name, "ended", tenant="acme")
        assert run.session.startswith(f"{name}~r")
        assert (run.turn, run.stop_reason) == (1, "finished")
        assert (await schedules.get(name)).runs == 1
        session = await house.store.session(run.session)
        assert await house.store.tenant_of(session.session) == "acme"
        house.session = run.session
        (start,) = await house.events("agent_start")
        assert (start["prompt"], start["tenant"], start["by"]) == ("Summarise the day.", "acme", "ann")
        await schedules.remove(name)
    with pytest.raises(UnknownScheduleError, match="'perdure schedule list'"):
        await schedules.get(name)


async def test_a_schedule_sends_to_a_session_that_is_there_and_twice_is_once(house: House) -> None:
    """The run's id is the message's request id."""
    schedules, name = house.client.schedules, f"daily-{house.session[-6:]}"
    async with ScriptedProvider(Script(replies=(say("one"), say("two")))) as provider, house.worker(AGENT):
        house.use(provider)
        await house.run()
        await schedules.add(name, cron="@daily", session=house.session, prompt="And today?", by="cron")
        await schedules.trigger(name)
        (run,) = await ran(house, name, "ended")
        assert (run.session, run.turn, run.stop_reason) == (house.session, 2, "finished")
        knock = [found async for found in house.temporal.list_workflows('WorkflowType = "Knock"') if name in found.id]
        turn = await house.store.turn_by_request(house.session, knock[0].id)
        assert turn is not None
        again = await house.client.send(house.session, "And today?", request_id=knock[0].id)
        assert again.turn == 2
        await schedules.remove(name)


@pytest.mark.parametrize(
    ("when_busy", "state"), [("reject", "rejected"), ("queue", "ended"), ("steer", "ended"), ("interrupt", "ended")]
)
async def test_a_session_that_is_busy_gets_the_message_as_the_schedule_says(
    house: House, when_busy: str, state: str
) -> None:
    schedules, name, body = house.client.schedules, f"busy-{house.session[-6:]}", Body()
    agent = Agent(name="tester", model="openai/scripted", tools=[body.held()])
    script = Script(replies=(call(("held", {})), say("done"), say("later")))
    async with ScriptedProvider(script) as provider, house.worker(agent):
        house.use(provider)
        handle = await house.start()
        await happened(body.started)
        await schedules.add(name, cron="@daily", session=house.session, prompt="More.", when_busy=when_busy)
        await schedules.trigger(name)
        if state == "rejected":
            await ran(house, name, "rejected")
        else:
            await eventually(lambda: knocked(house, name))
        body.released.set()
        await handle.result()
        if state == "ended":
            (run,) = await ran(house, name, "ended")
            assert run.turn == (1 if when_busy == "steer" else 2)
        said = [line["content"] for line in await house.events("user_message")]
        assert said == (["More."] if when_busy == "steer" else [])
        await schedules.remove(name)


async def knocked(house: House, name: str) -> bool:
    """Whether the schedule's knock is over."""
    query = 'WorkflowType = "Knock" AND ExecutionStatus = "Completed"'
    return any([name in run.id async for run in house.temporal.list_workflows(query)])


async def test_a_schedule_is_changed_paused_and_listed_by_its_tenant_alone(house: House) -> None:
    tenants = [f"{house.session}-{name}" for name in ("ours", "theirs")]
    ours, theirs = map(house.client.schedules.of, tenants)
    await ours.add("nightly", **NIGHTLY, note="for Ann")
    await theirs.add("nightly", **{**NIGHTLY, "prompt": "Another's."})
    changed = await ours.update("nightly", cron=None, at=datetime.now(UTC) + timedelta(days=2), prompt="Once.")
    assert (changed.cron, changed.prompt, changed.agent, changed.note) == (None, "Once.", "tester", "for Ann")
    assert len(changed.next_at) == 1
    paused = await ours.pause("nightly", "holidays")
    assert (paused.paused, paused.reason, paused.note) == (True, "holidays", "for Ann")
    assert (await ours.update("nightly", max_steps=7)).paused
    assert not (await ours.unpause("nightly")).paused

    async def listed() -> bool:
        return [known.id for known in await ours.list()] == ["nightly"]

    await eventually(listed)
    (known,) = await ours.list()
    assert (known.prompt, known.max_steps) == ("Once.", 7)
    await ours.remove("nightly")
    assert (await theirs.get("nightly")).prompt == "Another's."
    await theirs.remove("nightly")
    for method in (ours.get, ours.pause, ours.unpause, ours.trigger, ours.remove, ours.runs, ours.update):
        with pytest.raises(UnknownScheduleError):
            await method("nightly")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"cron": "every day"}, "cron: 'every day' has 2 fields; write five"),
        ({"cron": "99 7 * * *"}, "cron: "),
        ({"cron": "0 7 * * * *"}, "has 6 fields"),
        ({"cron": "CRON_TZ=UTC 0 7 * * *"}, "the zone as timezone"),
        ({"timezone": "Mars/Olympus"}, "there is no time zone 'Mars/Olympus'; write one"),
        ({"at": "2001-01-01T00:00"}, "cron for again and again, or at for once"),
        ({"cron": None, "at": "2001-01-01T00:00"}, "is in the past; write a time"),
        ({"cron": None}, "say when"),
        ({"session": "s"}, "say for whom"),
        ({"agent": None}, "say for whom"),
        ({"agent": None, "session": "s", "max_steps": 3}, "max_steps is for a new session"),
        ({"when_busy": "steer"}, "is for a session that is there"),
        ({"prompt": ""}, "prompt: "),
        ({"promt": "typo"}, "promt: "),
        ({"context": {"a": "x" * 20_000}}, "context: "),
    ],
)
async def test_what_cannot_be_a_schedule_is_refused_in_one_line_and_nothing_is_made(
    house: House, wrong: dict[str, Any], said: str
) -> None:
    schedules = house.client.schedules.of(house.session)
    with pytest.raises(RequestRefusedError) as refused:
        await schedules.add("nightly", **{**NIGHTLY, **wrong})
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    with pytest.raises(UnknownScheduleError):
        await schedules.get("nightly")


async def test_whom_a_schedule_is_for_must_be_there(house: House) -> None:
    schedules = house.client.schedules.of("acme")
    async with ScriptedProvider(Script(replies=(say("one"),))) as provider, house.worker(AGENT):
        house.use(provider)
        await house.run()
        with pytest.raises(UnknownAgentError, match="nobody"):
            await schedules.add("nightly", **{**NIGHTLY, "agent": "nobody"})
        for session in ("nowhere", house.session):  # the second is another tenant's
            with pytest.raises(UnknownSessionError):
                await schedules.add("nightly", cron="@daily", session=session, prompt="go")
        await schedules.add("nightly", **NIGHTLY)
        with pytest.raises(RequestRefusedError, match="there is a schedule 'nightly'"):
            await schedules.add("nightly", **NIGHTLY)
        await schedules.remove("nightly")


async def test_the_command_line_does_it_all(house: House) -> None:
    name = f"weekly-{house.session[-6:]}"
    async with ScriptedProvider(Script(replies=(say("one"),))) as provider, house.worker(AGENT):
        house.use(provider)
        given = ("--cron", "0 7 * * 1", "--agent", "tester", "--max-cost-usd", "0.5", "--json")
        code, output, errors = await perdure("schedule", "add", name, "Summarise.", *given)
        assert (code, errors) == (0, "")
        assert json.loads(output)["budgets"]["cost_usd"] == "0.5"
        code, output, _ = await perdure("schedule", "update", name, "--timezone", "Europe/Berlin", "--jitter", "60")
        assert (code, f"{name}: 0 7 * * 1 Europe/Berlin, a new session of tester, active" in output) == (0, True)
        assert (await perdure("schedule", "update", name))[0] == 2
        assert (await perdure("schedule", "pause", name, "--note", "holidays"))[1] == f"{name} is paused\n"
        assert "paused (holidays)" in (await perdure("schedule", "show", name))[1]
        assert re.search(r"goes on; next at \S+T07:0\d:\d\d\+0[12]:00", (await perdure("schedule", "unpause", name))[1])
        assert re.search(r"^  \S+T07:0\d:\d\d\+0[12]:00$", (await perdure("schedule", "show", name))[1], re.MULTILINE)
        assert (await perdure("schedule", "trigger", name))[0] == 0
        await ran(house, name, "ended")
        assert "finished" in (await perdure("schedule", "runs", name))[1]
        assert name in (await perdure("schedule", "list"))[1]
        assert (await perdure("schedule", "remove", name))[1] == f"{name} is removed\n"
    code, _, errors = await perdure("schedule", "show", name)
    assert (code, errors.count("\n")) == (2, 1)


async def test_a_schedule_for_once_runs_once(house: House) -> None:
    schedules, name = house.client.schedules, f"once-{house.session[-6:]}"
    async with ScriptedProvider(Script(replies=(say("one"), say("two")))) as provider, house.worker(AGENT):
        house.use(provider)
        soon = datetime.now(UTC) + timedelta(seconds=2)
        await schedules.add(name, at=soon, agent="tester", prompt="Once.")
        (run,) = await ran(house, name, "ended")
        assert run.started_at >= soon.replace(microsecond=0)
        over = await schedules.get(name)
        assert (over.runs, over.next_at) == (1, ())
        await schedules.remove(name)


async def test_a_schedule_whose_session_is_gone_pauses_itself(house: House) -> None:
    schedules, name = house.client.schedules, f"gone-{house.session[-6:]}"
    async with ScriptedProvider(Script(replies=(say("one"),))) as provider, house.worker(AGENT):
        house.use(provider)
        await house.run()
        await schedules.add(name, cron="@daily", session=house.session, prompt="Still there?", note="every day")
        change = text("UPDATE sessions SET tenant = 'another'")
        await house.store.write("give_away", lambda connection: connection.execute(change).close())
        await schedules.trigger(name)
        (run,) = await ran(house, name, "failed")
        assert "there is no session" in str(run.error)

        async def paused() -> bool:
            return (await schedules.get(name)).paused

        await eventually(paused)
        gone = await schedules.get(name)
        assert (gone.note, "workflow failure" in gone.reason) == ("every day", True)
        await schedules.remove(name)


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one after the other"])
async def test_two_triggers_in_one_second_are_two_runs(house: House, at_once: bool) -> None:
    """Temporal names a run by the second it is for, and leaves out the second one of a name without a word."""
    name = f"often-{house.session[-6:]}"
    async with ScriptedProvider(Script(replies=(say("one"),) * 3)) as provider, house.worker(AGENT):
        house.use(provider)
        schedules = house.client.schedules
        await schedules.add(name, **NIGHTLY)
        if at_once:
            await asyncio.gather(*(schedules.trigger(name) for _ in range(3)))
        else:
            for _ in range(3):
                await schedules.trigger(name)
        runs = await ran(house, name, "ended", "ended", "ended")
        assert len({run.session for run in runs}) == 3
        assert (await schedules.get(name)).runs == 3


async def test_triggers_at_several_gateways_at_once_are_as_many_runs(house: House) -> None:
    name = f"often-{house.session[-6:]}"
    async with ScriptedProvider(lambda _: say("one")) as provider, house.worker(AGENT):
        house.use(provider)
        await house.client.schedules.add(name, **NIGHTLY)
        gateways = [Schedules(house.client._sessions) for _ in range(8)]
        await asyncio.gather(*(schedules.trigger(name) for schedules in gateways))
        await ran(house, name, *["ended"] * 8)


async def test_two_triggers_of_a_message_in_one_second_are_two_messages(house: House) -> None:
    """The second waits until the first is in the session."""
    name = f"twice-{house.session[-6:]}"
    async with ScriptedProvider(Script(replies=(say("hello"),) * 4)) as provider, house.worker(AGENT):
        house.use(provider)
        await (await house.client.start("tester", "Begin.", session=house.session)).result()
        schedules = house.client.schedules
        await schedules.add(name, cron="0 7 * * *", session=house.session, prompt="And now?")
        for _ in range(3):
            await schedules.trigger(name)
        runs = await ran(house, name, "ended", "ended", "ended")
        assert {run.session for run in runs} == {house.session}
