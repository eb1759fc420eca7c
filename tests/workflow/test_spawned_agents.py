"""Clones of an agent for single tasks: their own instructions and cap, a fresh conversation, and nothing to spawn."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from perdure import Agent, spawn_agent, tool
from perdure.agents.delegates import CLONE_TYPES
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, faults, say
from tests.house import House
from tests.memory import Run
from tests.workflow.delegating import DONE, agent, children, query_of, results_in


@tool
def look() -> str:
    """Look."""
    return "looked"


def lead(**settings: Any) -> Agent:
    return agent("tester", tools=[spawn_agent, look], **settings)


def spawn(task: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    return "spawn_agent", {"task": task, **arguments}


def is_clone(request: ChatRequest) -> bool:
    return "I am tester" not in request.system


def playing(first: Reply, clone: Reply, last: Reply = DONE) -> Callable[[ChatRequest], Reply]:
    def answer(request: ChatRequest) -> Reply:
        return clone if is_clone(request) else (first, last)[request.index]

    return answer


async def test_a_clone_has_its_types_instructions_the_task_alone_and_no_spawner(run: Run) -> None:
    """S-64."""
    asked = call(spawn("find it", agent_type="explore", custom_instructions="Be brief."))
    result = await run(lead(), script=playing(asked, say("found")))
    (clone,) = [made.request for made in run.requests if is_clone(made.request)]
    (read,) = results_in(run.requests[-1].request)
    assert clone.system == f"{CLONE_TYPES['explore'].instructions}\n\nBe brief."
    assert (query_of(clone), len(clone.messages)) == ("find it", 2)
    assert [tool["function"]["name"] for tool in clone.tools] == ["look"]  # type: ignore[index, call-overload]
    told = json.loads(read)
    tokens = told.pop("tokens")
    assert told == {"name": "spawn_agent", "task": "find it", "steps": 1, "result": "found"}
    assert tokens > 0
    assert (result["stop_reason"], result["steps"], result["delegated_steps"]) == ("finished", 2, 1)


@pytest.mark.parametrize(("kind", "cap"), [("explore", 20), ("plan", 15), ("test", 25), ("review", 15)])
async def test_each_type_has_its_cap_of_steps_and_passing_it_comes_back_as_text(run: Run, kind: str, cap: int) -> None:
    """S-64."""
    asked = call(spawn("go on for ever", agent_type=kind))
    result = await run(lead(), script=playing(asked, call(("look", {}))))
    (read,) = results_in(run.requests[-1].request)
    assert (result["stop_reason"], result["delegated_steps"]) == ("finished", cap)
    assert f"max_steps_reached after {cap} steps" in json.loads(read)["error"]["message"]


async def test_general_is_the_type_when_none_is_named_and_several_work_at_once(house: House) -> None:
    """S-64: caps of 30."""
    asked = call(spawn("one"), spawn("two"))
    hanging = say("late").after(faults.hang())
    async with ScriptedProvider(playing(asked, hanging)) as provider, house.worker(lead()):
        house.use(provider)
        handle = await house.start()
        await provider.wait_for_requests(3)
        for session, turn in await children(house):
            definition = await house.store.definition(turn.definition)
            assert (definition.max_steps, session.agent) == (30, "tester")
        await handle.signal("cancel", {})
        assert (await handle.result())["stop_reason"] == "cancelled"


async def test_a_type_that_there_is_not_is_told_to_the_model_and_starts_nothing(run: Run) -> None:
    """S-64: a failure is text, never raised."""
    asked = call(spawn("one", agent_type="poet"))
    result = await run(lead(), script=playing(asked, DONE))
    (read,) = results_in(run.requests[-1].request)
    assert result["stop_reason"] == "finished"
    assert "agent_type" in read
    assert await children(run) == []


async def test_how_the_caller_finishes_does_not_bind_a_clone(run: Run) -> None:
    """S-64: text ends it, whatever the caller's finish tool or output schema is."""
    asked = call(spawn("one"))
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    answers = playing(asked, say("found"), say('{"n": 1}'))
    result = await run(lead(output_schema=schema), script=answers)
    assert (result["stop_reason"], result["value"]) == ("finished", {"n": 1})
    ((_, turn),) = await children(run)
    assert turn.result is not None
    assert turn.result.stop_reason == "finished"
