"""Many sessions are cancelled at once, by a filter; what is not meant goes on."""

import asyncio

import pytest

from perdure import Agent
from perdure.client import RequestRefusedError
from perdure.contracts.turns import RunState
from perdure.testing import Script, ScriptedProvider, call, say
from tests.house import House, eventually
from tests.workflow.bodies import Body
from tests.workflow.test_command_line import perdure

pytestmark = pytest.mark.deep

HELD = Script(replies=(call(("held", {})), *[say(f"answer {number}") for number in range(1, 9)]))


async def running(house: House, *sessions: tuple[str, str, str]) -> None:
    """Turns that stand in their tool: session, agent and tenant of each."""
    for session, agent, tenant in sessions:
        await house.client.start(agent, "go", session=session, tenant=tenant)

    async def in_the_tool() -> bool:
        listed = await house.store.sessions(state=RunState.RUNNING)
        starts = [await house.store.events(session.session) for session, _ in listed]
        return len(listed) == len(sessions) and all(
            any(envelope.event.type == "tool_start" for envelope in log) for log in starts
        )

    await eventually(in_the_tool)


async def state_of(house: House, session: str) -> str:
    last = (await house.store.turns(session))[-1]
    return "running" if last.result is None else last.result.stop_reason


async def test_a_filter_cancels_what_it_means_and_nothing_else(house: House) -> None:
    """A dry run changes nothing; messages that wait are dropped too; a session that begins meanwhile is left alone."""
    body = Body()
    tester, other = (Agent(name=name, model="openai/scripted", tools=[body.held()]) for name in ("tester", "other"))
    async with ScriptedProvider(HELD) as provider, house.worker(tester, other):
        house.use(provider)
        await running(house, ("a", "tester", ""), ("b", "tester", "acme"), ("c", "other", "acme"))
        await house.client.send("b", "next")
        found = await house.client.cancel_all(agent="tester")
        assert {(each.session, each.turn, each.outcome) for each in found} == {
            ("a", 1, "would_cancel"),
            ("b", 1, "would_cancel"),
        }
        assert [await state_of(house, session) for session in "abc"] == ["running"] * 3
        code, lines = await perdure("cancel", "--all", "--tenant", "acme", "--dry-run")
        assert (code, {line["session"] for line in lines}) == (0, {"b", "c"})
        done = await house.client.cancel_all("a bad release", agent="tester", tenant="acme", dry_run=False)
        assert [(each.session, each.outcome, each.error) for each in done] == [("b", "cancelled", "")]
        await (await house.client.attach("b", 2)).result()
        turns = [turn.result for turn in await house.store.turns("b")]
        assert [result.error for result in turns if result is not None] == ["Operation aborted: a bad release"] * 2
        assert [await state_of(house, session) for session in "ac"] == ["running"] * 2
        code, lines = await perdure("cancel", "--all", "--reason", "night")
        assert (code, {(line["session"], line["outcome"]) for line in lines}) == (
            0,
            {("a", "cancelled"), ("c", "cancelled")},
        )
        for session in "ac":
            await (await house.client.attach(session, 1)).result()
        assert await house.client.cancel_all(dry_run=False) == []
    assert [await state_of(house, session) for session in "ac"] == ["cancelled"] * 2


async def test_a_turn_that_begins_after_the_list_is_not_stopped(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn that was listed has ended by the time of its cancel, and another one of its session runs."""
    body = Body()
    async with (
        ScriptedProvider(HELD) as provider,
        house.worker(Agent(name="tester", model="openai/scripted", tools=[body.held()])),
    ):
        house.use(provider)
        await running(house, (house.session, "tester", ""))
        second = await house.client.send(house.session, "second")
        listed, cancel = asyncio.Event(), house.client._runs.cancel

        async def late(*arguments: object) -> bool:
            body.released.set()
            await (await house.client.attach(house.session, 1)).result()
            listed.set()
            return await cancel(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(house.client._runs, "cancel", late)
        (outcome,) = await house.client.cancel_all(dry_run=False, drop_queue=False)
        assert (outcome.turn, outcome.outcome) == (1, "ended")
        assert (await second.result()).stop_reason == "finished"


async def test_bad_filters_are_refused_and_nothing_is_cancelled(house: House) -> None:
    with pytest.raises(RequestRefusedError, match="state: a session that has ended has no turn to cancel"):
        await house.client.cancel_all(state=RunState.ENDED)
    for wrong in (["--all", "s"], ["--all", "--turn", "2"], [], ["s", "--dry-run"], ["s", "--agent", "a"]):
        code, _ = await perdure("cancel", *wrong, refused=True)
        assert code == 2
