"""Schedules of a session that is erased: they go with it, and so do their messages if the histories are to go."""

from collections.abc import Callable

import pytest
from temporalio.service import RPCError

from perdure import Agent
from perdure.client import SessionErasedError
from perdure.contracts.ids import TEMPORAL_SCHEDULES
from perdure.testing import ChatRequest, Reply, ScriptedProvider, say
from tests.gateway import gateway, token_lines
from tests.house import House, eventually
from tests.workflow.delegating import DONE, asks, played, results_in
from tests.workflow.delegating import agent as delegating_agent
from tests.workflow.test_schedules import ran

AGENT = Agent(name="tester", model="openai/scripted")


async def knocks(house: House, *names: str) -> set[str]:
    """Which of these schedules have runs that Temporal still has."""
    query = f'WorkflowType = "Knock" AND TaskQueue = "{house.settings.task_queue}"'
    found = [run.id async for run in house.temporal.list_workflows(query)]
    return {name for name in names if any(f"knock:{name}~" in run for run in found)}


async def add_and_trigger(house: House, schedule: str, session: str) -> None:
    await house.client.schedules.add(schedule, cron="@daily", session=session, prompt="secret words", by="cron")
    await house.client.schedules.trigger(schedule)
    await ran(house, schedule, "ended")


@pytest.mark.deep  # a server takes half a minute to delete a history
async def test_an_erased_session_gets_no_more_messages_and_what_was_sent_is_deleted(house: House) -> None:
    """Its messages stood in the runs of the schedule, which went on; another session's schedule stays."""
    schedules, mine, other = house.client.schedules, f"mine-{house.session[-6:]}", f"other-{house.session[-6:]}"
    removed, elsewhere = f"removed-{house.session[-6:]}", f"{house.session}-other"
    async with ScriptedProvider(lambda _: say("one")) as provider, house.worker(AGENT):
        house.use(provider)
        await house.run()
        await (await house.client.start("tester", "go", session=elsewhere)).result()
        for schedule, session in ((mine, house.session), (removed, house.session), (other, elsewhere)):
            await add_and_trigger(house, schedule, session)
        await schedules.remove(removed)

        async def all_listed() -> bool:
            return await knocks(house, mine, removed, other) == {mine, removed, other}

        await eventually(all_listed)
        erased = await house.client.delete(house.session, histories=True)
        assert (erased.schedules, erased.histories) == ((mine,), 5)
        assert [schedule.id for schedule in await schedules.list()] == [other]

        async def gone() -> bool:
            return await knocks(house, mine, removed, other) == {other}

        await eventually(gone)
        await schedules.remove(other)


@pytest.mark.deep  # a server takes half a minute to delete a history
async def test_histories_that_were_kept_are_deleted_by_the_same_verb_once_more(house: House) -> None:
    """Nothing but Temporal knows of the schedule any more, as it was removed with the session."""
    name = f"mine-{house.session[-6:]}"
    async with ScriptedProvider(lambda _: say("one")) as provider, house.worker(AGENT):
        house.use(provider)
        await house.run()
        await add_and_trigger(house, name, house.session)
        first = await house.client.delete(house.session)
        assert (first.schedules, first.histories, await knocks(house, name)) == ((name,), 0, {name})
        again = await house.client.delete(house.session, histories=True)
        assert (again.schedules, again.histories, again.tombstone) == ((), 3, first.tombstone)
        with pytest.raises(SessionErasedError):
            await house.client.delete(house.session)

        async def gone() -> bool:
            return not await knocks(house, name)

        await eventually(gone)


@pytest.mark.deep  # a server takes half a minute to delete a history
async def test_the_servers_own_history_of_a_removed_schedule_goes_too(house: House) -> None:
    """It holds the message as the schedule had it."""
    name = f"mine-{house.session[-6:]}"
    async with ScriptedProvider(lambda _: say("one")) as provider, house.worker(AGENT):
        house.use(provider)
        await house.run()
        await add_and_trigger(house, name, house.session)
        own = house.temporal.get_workflow_handle(f"{TEMPORAL_SCHEDULES}{house.client.schedules._name(name)}")
        assert b"secret words" in (await own.fetch_history()).events[0].SerializeToString()
        await house.client.delete(house.session, histories=True)

        async def gone() -> bool:
            try:
                await own.fetch_history()
            except RPCError:
                return True
            return False

        await eventually(gone)


async def test_schedules_of_delegates_go_and_an_answer_over_http_names_them(house: House) -> None:
    """A delegate of a delegate is erased too, and named."""
    lead = delegating_agent("tester", delegates=["helper"])
    helper, clerk = delegating_agent("helper", delegates=["clerk"]), delegating_agent("clerk")
    lines, tokens = token_lines(ann=("", "admin"))

    def asking(tool: str) -> Callable[[ChatRequest], Reply]:
        return lambda request: DONE if results_in(request) else asks("one", tool=tool)

    answers = played(tester=asking("helper"), helper=asking("clerk"), clerk=lambda _: say("1"))
    async with ScriptedProvider(answers) as provider, house.worker(lead, helper, clerk):
        house.use(provider)
        await house.run()
        (below,) = [record.session for record, _ in await house.store.sessions(caller=house.session)]
        (deepest,) = [record.session for record, _ in await house.store.sessions(caller=below)]
        name = f"mine-{house.session[-6:]}"
        await house.client.schedules.add(name, cron="@daily", session=deepest, prompt="secret words")
        async with gateway(house, gateway_tokens=lines) as door, door.holder(tokens["ann"]) as ann:
            asked = {"Prefer": "respond-async, return=representation"}
            answer = await ann.delete(f"/v1/sessions/{house.session}", headers=asked)
            assert (answer.status_code, answer.headers["preference-applied"]) == (200, "return=representation")
            told = answer.json()
            assert (told["delegates"], told["schedules"], told["session"]) == ([below, deepest], [name], house.session)
            assert (await ann.get(f"/v1/schedules/{name}")).status_code == 404
            assert (await ann.delete(f"/v1/sessions/{house.session}")).status_code == 410
