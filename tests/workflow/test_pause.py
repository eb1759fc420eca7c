"""A session is paused and goes on: what runs finishes, nothing begins, and the time of the pause is nobody's."""

from datetime import timedelta
from typing import Any

import pytest

from perdure import Agent, Budgets, tool
from perdure.client import RequestRefusedError, SessionIdleError, updates
from perdure.contracts.turns import RunState
from perdure.contracts.waits import Cause
from perdure.testing import Script, ScriptedProvider, call, run_in_memory, say
from tests.house import House, eventually
from tests.workflow.asking import refusal, update
from tests.workflow.bodies import Body, happened
from tests.workflow.test_command_line import perdure

pytestmark = pytest.mark.deep

HELD = Script(replies=(call(("held", {})), *[say(f"answer {number}") for number in range(1, 9)]))


def agent(body: Body, **settings: Any) -> Agent:
    return Agent(name="tester", model="openai/scripted", tools=[body.held()], **settings)


async def stands_still(house: House) -> None:
    async def paused() -> bool:
        try:
            return (await house.client.status(house.session)).state is RunState.PAUSED
        except SessionIdleError:  # between two turns
            return False

    await eventually(paused)


async def test_a_paused_turn_finishes_what_runs_and_begins_nothing(house: House) -> None:
    """Another worker takes the pause over; status, waits and the search attribute say it."""
    body = Body()
    async with ScriptedProvider(HELD) as provider:
        house.use(provider)
        async with house.worker(agent(body)):
            turn = await house.client.start("tester", "go", session=house.session)
            await happened(body.started)
            assert await house.client.pause(house.session, "a move", by="ann")
            assert not await house.client.pause(house.session, "again")
            status = await house.client.status(house.session)
            assert status.paused is not None
            assert (status.state, status.paused.by, status.paused.reason) == (RunState.RUNNING, "ann", "a move")
            body.released.set()
            await stands_still(house)
            assert provider.request_count == 1
        async with house.worker(agent(body)):
            wait = await house.client.waits_for(house.session)
            assert wait is not None
            assert (wait.cause, wait.text) == (Cause.PAUSED, "the session is paused by ann: a move")
            assert wait.advice == f"'perdure unpause {house.session}' goes on"
            _, lines = await perdure("list")
            assert lines[0]["waits_for"]["cause"] == "paused"
            steered = await house.client.send(house.session, "be brief", when_busy="steer")
            assert steered.turn == 1
            code, lines = await perdure("unpause", house.session)
            assert (code, lines) == (0, [{"session": house.session, "paused": False, "changed": True}])
            assert (await turn.result()).output == "answer 1"
            assert provider.requests[-1].request.messages[-1]["content"] == "be brief"


async def test_a_cancel_ends_a_paused_turn_and_the_next_begins_paused(house: House) -> None:
    body = Body()
    async with ScriptedProvider(HELD) as provider, house.worker(agent(body)):
        house.use(provider)
        first = await house.client.start("tester", "go", session=house.session)
        await happened(body.started)
        await update(house, "pause")
        body.released.set()
        await stands_still(house)
        second = await house.client.send(house.session, "second")
        await first.cancel("enough")
        assert (await first.result()).stop_reason == "cancelled"
        await stands_still(house)
        assert provider.request_count == 1
        assert (await update(house, "unpause")) == {"turn": 2, "changed": True}
        assert (await second.result()).stop_reason == "finished"


async def test_an_idle_session_and_odd_requests_are_refused(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    body = Body()
    async with ScriptedProvider(HELD) as provider, house.worker(agent(body)):
        house.use(provider)
        await house.client.start("tester", "go", session=house.session)
        await happened(body.started)
        assert "reason" in await refusal(house, "pause", reason="two\nlines")
        assert "whatever" in await refusal(house, "pause", whatever=1)
        with pytest.raises(RequestRefusedError):
            await house.client.pause(house.session, "x" * 2000)
        body.released.set()
        await house.temporal.get_workflow_handle(house.session).result()
        monkeypatch.setattr(updates, "PAUSE", timedelta(days=1))  # nothing is tried again
        with pytest.raises(SessionIdleError, match="nothing to pause"):
            await house.client.pause(house.session)
        code, _ = await perdure("unpause", house.session, refused=True)
        assert code != 0


async def test_the_time_of_a_pause_counts_against_no_limit() -> None:
    """Of a turn in memory, whose clock is virtual: a day passes, and the budget is ten seconds."""

    def look() -> str:
        """Look."""
        return "good"

    paused: list[str] = []

    def pause(event: Any, turn: Any) -> None:
        if event.type == "tool_start" and not paused:
            paused.append(event.type)
            turn.pause("a move", seconds=86_400)

    looking = Agent(name="tester", model="openai/scripted", tools=[tool(look)], budgets=Budgets(seconds=10))
    script = Script(replies=(call(("look", {})), say("done")))
    run = await run_in_memory(looking, "go", script, on_event=pause)
    assert (run.result.stop_reason, run.result.output, paused) == ("finished", "done", ["tool_start"])
