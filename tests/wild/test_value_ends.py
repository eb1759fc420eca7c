"""Ends of turns beside an output type: by the answer, by a tool, by a condition, by a hook.

S-24: a turn has its value if its model gave one, and a true sentence if not.
"""

from typing import Any

import pytest
from pydantic import BaseModel

from perdure import Agent, Finish, HookContext, ToolContext, hook, stop, tool
from perdure.agents.agent import AgentDefinitionError
from perdure.contracts.turns import TurnResult
from perdure.testing import Reply, Script, call, run_in_memory, say


class Total(BaseModel):
    """What the agent works out."""

    total: int


@tool
def look() -> str:
    """Look."""
    return "three"


@tool
def enough(context: ToolContext) -> str:
    """Look for the last time."""
    context.stop_turn("enough")
    return "three"


@hook("tool_end")
def finish(context: HookContext) -> Finish:
    """End the turn."""
    del context
    return Finish(reason="done")


async def run(*replies: Reply, **settings: Any) -> TurnResult:
    """The result of a turn of an agent with an output type."""
    wanted = {"tools": [look, enough], "output_schema": Total, **settings}
    agent = Agent(name="tester", model="openai/scripted", **wanted)
    return (await run_in_memory(agent, "go", Script(replies=replies))).result


LOOK, ENOUGH, ANSWER = call(("look", {})), call(("enough", {})), say('{"total": 3}')


@pytest.mark.parametrize(
    ("replies", "settings", "stopped_by"),
    [
        ([ENOUGH], {}, "enough: enough"),
        ([LOOK], {"stop_conditions": [stop.tool_use("look").named("seen")]}, "seen"),
        ([LOOK], {"stop_conditions": [stop.generation_count(1).named("once")]}, "once"),
        ([LOOK], {"hooks": [finish]}, "finish: done"),
    ],
    ids=["stop_turn", "condition", "count", "hook"],
)
async def test_a_turn_that_is_stopped_before_its_answer_says_so(
    replies: list[Reply], settings: dict[str, Any], stopped_by: str
) -> None:
    result = await run(*replies, **settings)
    assert (result.stop_reason, result.value, result.stopped_by) == ("finished", None, stopped_by)
    with pytest.raises(ValueError, match=f"stopped by {stopped_by}, before the model gave an answer"):
        result.value_as(Total)


@pytest.mark.parametrize(
    ("settings", "end"),
    [
        ({}, "finished"),
        ({"stop_conditions": [stop.generation_count(2)]}, "finished"),
        ({"stop_conditions": [stop.generation_count(3)]}, "stalled"),
    ],
    ids=["alone", "condition", "no condition"],
)
async def test_a_turn_that_ends_with_its_answer_has_the_value(settings: dict[str, Any], end: str) -> None:
    """Also where a condition should have ended it, and has not."""
    result = await run(LOOK, ANSWER, **settings)
    assert (result.stop_reason, result.value_as(Total)) == (end, Total(total=3))


@pytest.mark.parametrize("settings", [{"finish_tool": "look"}, {"completion": "finish_tool"}])
def test_a_tool_cannot_end_the_turns_of_an_output_type(settings: dict[str, Any]) -> None:
    with pytest.raises(AgentDefinitionError, match="output_schema is for"):
        Agent(name="tester", model="openai/scripted", tools=[look], output_schema=Total, **settings)
