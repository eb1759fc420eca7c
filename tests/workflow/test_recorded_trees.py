"""Recorded runs of agents with delegates and with hooks written in Python are replayed with no model behind them."""

import uuid

import pytest

from perdure import Continue, hook, spawn_agent, tool
from perdure.contracts.events import GenerationEnd
from perdure.testing import ChatRequest, Reply, call, say
from tests.house import House
from tests.workflow.delegating import DONE, agent, asks, in_order, played, query_of, results_in, transcript
from tests.workflow.recording import recorded, recordings, replaying, told

pytestmark = pytest.mark.deep


@tool
def look() -> str:
    """Look, which is something else each time."""
    return uuid.uuid4().hex


def helping(request: ChatRequest) -> Reply:
    """A delegate that looks, and then says what it saw; or that looks for ever."""
    looks = request.index == 0 or query_of(request) == "stare"
    return call(("look", {})) if looks else say(f"saw {results_in(request)[0]}")


async def test_delegates_are_replayed_from_the_recording_of_their_caller(house: House) -> None:
    """S-62 S-73: equal calls keep their several results, and one that has not finished does not."""
    agents = agent("tester", delegates=["helper"]), agent("helper", tools=[look], max_steps=2)
    answers = played(tester=in_order(asks("see", "see"), asks("stare"), DONE), helper=helping)
    first = await recorded(house, answers, *agents, recording="fix")
    read = [content for role, content in await transcript(house, house.session) if role == "tool"]
    assert read[0] != read[1]
    assert "max_steps_reached" in read[2]
    async with replaying(house, *agents) as again:
        second = await again.run(recording="fix")
        assert await told(again) == await told(house)
    assert {**second, "session": ""} == {**first, "session": ""}
    folder = recordings(house, "replay")
    assert [path.name for path in folder.iterdir()] == ["fix"]


async def test_a_clone_is_replayed(house: House) -> None:
    """S-64 S-73: it has its caller's name, and a recording of its own all the same."""
    lead = agent("tester", tools=[spawn_agent])

    def answers(request: ChatRequest) -> Reply:
        spawning = "I am tester" in request.system and request.index == 0
        return call(("spawn_agent", {"task": "find it"})) if spawning else say("found")

    first = await recorded(house, answers, lead)
    async with replaying(house, lead) as again:
        second = await again.run()
        assert await told(again) == await told(house)
    assert {**second, "session": ""} == {**first, "session": ""}


async def test_hooks_written_in_python_are_called_in_a_replay_as_they_were(house: House) -> None:
    """S-36 S-73: they are the agent's own code; what they want is not in the recording."""
    called: list[str] = []

    @hook("generation_end")
    def once(event: GenerationEnd) -> Continue | None:
        called.append(event.type)
        return Continue("and now in French") if len(called) % 2 else None

    lead = agent("tester", hooks=[once])
    first = await recorded(house, played(tester=in_order(say("yes"), say("oui"))), lead)
    assert len(called) == 2
    async with replaying(house, lead) as again:
        second = await again.run()
        assert await told(again) == await told(house)
    assert {**second, "session": ""} == {**first, "session": ""}
    assert (second["output"], len(called)) == ("oui", 4)
