"""A session is erased: nothing of it is left to be found, forks keep what they stand on, its id answers "erased"."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, func, select

from perdure import Agent, Retention, tool
from perdure.client import SessionBusyError, SessionErasedError
from perdure.client.sessions import Sessions
from perdure.store import schema
from perdure.store.keys import erase
from perdure.testing import Script, ScriptedProvider, call, say
from tests.gateway import gateway, token_lines
from tests.house import House, eventually
from tests.workflow.bodies import Body, happened
from tests.workflow.delegating import DONE, asks, in_order, played
from tests.workflow.delegating import agent as delegating_agent
from tests.workflow.test_command_line import perdure

TABLES = (
    schema.sessions,
    schema.turns,
    schema.steps,
    schema.events,
    schema.tool_calls,
    schema.artifacts,
    schema.requests,
    schema.watches,
)


@tool
def look() -> str:
    """Look at something."""
    return "good"


LOOKER = Agent(name="tester", model="openai/scripted", tools=[look])
LOOKS = Script(replies=(call(("look", {})), say("one"), say("two"), say("three")))


async def rows(house: House, session: str) -> int:
    """Rows of all tables that bear the session's id."""

    def count(connection: Connection) -> int:
        found = [
            connection.execute(select(func.count()).where(table.c.session == session)).scalar_one() for table in TABLES
        ]
        return sum(found)

    return await house.store.read("rows", count)


@pytest.mark.deep
async def test_an_erased_session_is_gone_and_its_id_is_never_given_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In many slices; an erasure that was cut off goes on when it is asked for again. Whoever asks is told."""
    monkeypatch.setattr(erase, "SLICE", 3)
    async with ScriptedProvider(LOOKS) as provider, house.worker(LOOKER):
        house.use(provider)
        await house.run()
        await (await house.client.send(house.session, "more")).result()
        erasure = await house.store.begin_erasure(house.session)
        assert await house.store.erase_slice(erasure)
        assert await rows(house, house.session) > 5
        code, lines = await perdure("delete", house.session)
        assert (code, lines[0]["kept_steps"], lines[0]["tombstone"]["session"]) == (0, 0, house.session)
        assert await rows(house, house.session) == 0
        erased = f"{house.session!r} was erased on request .*tombstone {lines[0]['tombstone']['id']}.*not given again"
        for asked in (
            house.client.delete(house.session),
            house.client.start("tester", "anew", session=house.session),
            house.client.transcript(house.session),
        ):
            with pytest.raises(SessionErasedError, match=erased):
                await asked
        refused = await house.run()  # by its id, past the client
        assert (refused["reason_code"], refused["turn"]) == ("session.erased", None)
        assert await rows(house, house.session) == 0


async def test_a_session_whose_turn_runs_is_not_erased(house: House) -> None:
    body = Body()
    script = Script(replies=(call(("held", {})), say("done")))
    async with (
        ScriptedProvider(script) as provider,
        house.worker(Agent(name="tester", model="openai/scripted", tools=[body.held()])),
    ):
        house.use(provider)
        turn = await house.client.start("tester", "go", session=house.session)
        await happened(body.started)
        before = await rows(house, house.session)
        with pytest.raises(SessionBusyError, match="end it with 'perdure cancel"):
            await house.client.delete(house.session)
        assert await rows(house, house.session) == before
        body.released.set()
        assert (await turn.result()).output == "done"


async def test_a_fork_keeps_the_steps_it_stands_on_and_no_other(house: House) -> None:
    """They bear a name that no session has."""
    fork = f"{house.session}-fork"
    async with ScriptedProvider(LOOKS) as provider, house.worker(LOOKER):
        house.use(provider)
        await house.run()
        await (await house.client.fork(house.session, "aside", into=fork)).result()
        await (await house.client.send(house.session, "more")).result()
        conversation = await house.client.transcript(fork)
        erased = await house.client.delete(house.session)
        assert erased.kept_steps == 3
        assert await rows(house, house.session) == 0
        assert await house.client.transcript(fork) == conversation
        assert len((await house.client.trajectory(fork)).steps) >= 4
        assert (await (await house.client.send(fork, "on")).result()).output == "three"
        await house.client.delete(fork)
        assert await rows(house, fork) == 0


@pytest.mark.parametrize("swept", [False, True], ids=["with events", "events swept before"])
async def test_delegates_are_erased_with_their_caller_and_histories_if_asked_for(house: House, swept: bool) -> None:
    """S-94: on the real server; also after the sweep that the page of retention shows."""
    lead, helper = delegating_agent("tester", delegates=["helper"]), delegating_agent("helper")
    answers = played(tester=in_order(asks("one"), DONE), helper=lambda _: say("1"))
    async with ScriptedProvider(answers) as provider, house.worker(lead, helper):
        house.use(provider)
        await house.run()
        (below,) = [record.session for record, _ in await house.store.sessions(caller=house.session)]

        async def is_listed() -> bool:
            query = f'WorkflowId IN ("{house.session}", "{below}") AND ExecutionStatus = "Completed"'
            return len([run async for run in house.temporal.list_workflows(query)]) == 2

        await eventually(is_listed)
        later = datetime.now(UTC) + timedelta(days=31)
        for session in (house.session, below) if swept else ():
            assert (await house.store.trim_session(session, Retention(events="30d"), later)).events > 0
        erased = await house.client.delete(house.session, histories=True)
        assert erased.tombstone.delegates == (below,)
        assert (erased.delegates, erased.histories) == ((below,), 2)
        assert await rows(house, house.session) == await rows(house, below) == 0
    assert await house.store.sessions() == ()


async def test_a_delegate_that_runs_is_named_and_the_same_call_erases_it_later(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-94: over HTTP by an answer with a body in place of 204."""
    lead, helper = delegating_agent("tester", delegates=["helper"]), delegating_agent("helper")
    answers = played(tester=in_order(asks("one"), DONE), helper=lambda _: say("1"))
    lines, tokens = token_lines(ann=("", "admin"))
    wait, running = Sessions.wait_until_idle, set[str]()

    async def busy(sessions: Sessions, session: str) -> None:
        if session in running:
            raise SessionBusyError(f"a turn of session {session!r} runs")
        await wait(sessions, session)

    monkeypatch.setattr(Sessions, "wait_until_idle", busy)
    async with ScriptedProvider(answers) as provider, house.worker(lead, helper):
        house.use(provider)
        await house.run()
        (below,) = [record.session for record, _ in await house.store.sessions(caller=house.session)]
        running.add(below)
        left = [{"session": below, "why": f"a turn of session {below!r} runs"}]
        async with gateway(house, gateway_tokens=lines) as door, door.holder(tokens["ann"]) as ann:
            answer = await ann.delete(f"/v1/sessions/{house.session}")
            assert (answer.status_code, answer.json()["not_erased"]) == (200, left)
            assert "preference-applied" not in answer.headers
        running.clear()
        again = await house.client.delete(house.session)
        assert (again.not_erased, again.delegates) == ((), (below,))
        assert await rows(house, below) == 0
