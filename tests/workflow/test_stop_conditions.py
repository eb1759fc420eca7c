"""Stop conditions and warnings: what ends the turn is in its result and in the event log."""

import json
from decimal import Decimal
from typing import Any

import pytest

from perdure import Agent, Budgets, stop, tool
from perdure.contracts.conditions import AnyCondition
from perdure.testing import Script, call, say
from tests.memory import Run


@tool(catch=True)
def work(text: str) -> str:
    """Do some work."""
    if text == "fail":
        raise ValueError(text)
    return f"did {text}"


@tool
def other() -> str:
    """Do something else."""
    return "x" * 40_000 + "needle"


def agent(*conditions: AnyCondition, **settings: Any) -> Agent:
    return Agent(name="tester", model="openai/scripted", tools=[work, other], stop_conditions=conditions, **settings)


WORK, FAIL, OTHER = call(("work", {"text": "it"})), call(("work", {"text": "fail"})), call(("other", {}))

FIRED: dict[str, tuple[AnyCondition, list[Any], int]] = {
    "any_tool_use": (stop.any_tool_use(3), [WORK, FAIL, OTHER], 3),
    "tool_use": (stop.tool_use("work", 2), [WORK, OTHER, WORK], 3),
    "consecutive_errors": (stop.consecutive_errors(2), [FAIL, WORK, FAIL, FAIL], 4),
    "tool_error": (stop.tool_error(), [WORK, FAIL], 2),
    "token_usage": (stop.token_usage(1), [WORK], 1),
    "generation_count": (stop.generation_count(2), [WORK, WORK], 2),
    "step_count": (stop.step_count(3), [WORK, WORK, WORK], 3),
    "no_new_tool_used": (stop.no_new_tool_used(2), [WORK, OTHER, WORK, OTHER], 4),
    "no_tool_calls": (stop.no_tool_calls(), [WORK, say("done")], 2),
    "output": (stop.output("DONE"), [WORK, say("all done")], 2),
    "tool_output": (stop.tool_output("needle", "other"), [WORK, OTHER], 2),
    "combined": (stop.tool_use("work") & stop.tool_use("other") & ~stop.tool_error(), [WORK, OTHER], 2),
}


@pytest.mark.parametrize("name", FIRED)
async def test_a_condition_finishes_the_turn_and_its_last_results_are_kept(run: Run, name: str) -> None:
    """S-34: one scripted run for each; the model is not asked again."""
    condition, replies, steps = FIRED[name]
    script = Script(replies=(*replies, say("never said")))
    result = await run(agent(condition), script=script)
    assert len(run.requests) == steps
    assert (result["stop_reason"], result["steps"]) == ("finished", steps)
    met = await run.events("stop_condition_met")
    assert [line["condition"] for line in met] == [result["stopped_by"]]
    ended = [line["call_id"] for line in await run.events("tool_end")]
    answers = await run.events("generation_content")
    asked = [tool_call["call_id"] for line in answers for tool_call in line["tool_calls"]]
    assert ended == asked


async def test_a_condition_on_errors_finishes_the_turn_that_an_error_would_have_ended(run: Run) -> None:
    """S-34: Dreadnode's tool_error."""
    strict = work.with_(catch=False)
    tester = Agent(name="tester", model="openai/scripted", tools=[strict], stop_conditions=[stop.tool_error("work")])
    result = await run(tester, FAIL)
    assert (result["stop_reason"], result["error"], result["stopped_by"]) == (
        "finished",
        None,
        "tool_error(tool='work')",
    )


async def test_another_condition_does_not_hide_an_error_that_ends_the_turn(run: Run) -> None:
    """S-20."""
    strict = work.with_(catch=False)
    tester = Agent(name="tester", model="openai/scripted", tools=[strict], stop_conditions=[stop.step_count(1)])
    result = await run(tester, FAIL)
    assert (result["stop_reason"], result["reason_code"]) == ("error", "tool.execution_error")


async def test_text_without_a_call_stalls_the_turn_while_no_condition_holds(run: Run) -> None:
    """S-33: reported both as event and as stop reason."""
    result = await run(agent(stop.tool_use("work")), say("I am done"))
    assert (result["stop_reason"], result["stopped_by"]) == ("stalled", None)
    assert len(await run.events("agent_stalled")) == 1


async def test_conditions_come_in_as_json_from_another_service(run: Run) -> None:
    """S-34: in place of the agent's own, for this turn."""
    asked = json.loads('[{"type": "tool_use", "tool": "work", "count": 2, "name": "twice"}]')
    result = await run(agent(stop.step_count(1)), WORK, WORK, say("never said"), stop_conditions=asked)
    assert (result["stop_reason"], result["steps"], result["stopped_by"]) == ("finished", 2, "twice")


async def test_a_share_of_a_budget_is_warned_of_in_the_event_log_before_it_is_used_up(run: Run) -> None:
    """S-70."""
    budgets = Budgets(tool_calls=4, warn_at=(Decimal("0.5"), Decimal("0.75")))
    replies = (WORK, WORK, WORK, say("done"))
    result = await run(agent(budgets=budgets), *replies)
    assert result["stop_reason"] == "finished"
    assert [(line["dimension"], line["share"], line["used"]) for line in await run.events("budget_warning")] == [
        ("tool_calls", "0.5", "2 of 4 calls"),
        ("tool_calls", "0.75", "3 of 4 calls"),
    ]


async def test_the_budget_of_events_allows_exactly_so_many(run: Run) -> None:
    """S-70: an answer and its result are two."""
    result = await run(agent(budgets=Budgets(events=5)), WORK, WORK, WORK)
    assert (result["stop_reason"], result["reason_code"]) == ("budget_exhausted", "budget.events_exhausted")
    ends = [line["type"] for line in await run.events("generation_end", "tool_end")]
    assert ends[:5] == ["generation_end", "tool_end", "generation_end", "tool_end", "generation_end"]
    refused = await run.events("tool_end")
    assert [(line["error"] or {}).get("code") for line in refused] == [None, None, "budget.events_exhausted"]
