"""Words of other systems: each is taken where our setting is, and is our setting from then on."""

import re
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Budgets, RetryPolicy, Toolset, stop, tool_method
from perdure.agents.agent import AgentDefinitionError
from perdure.agents.context import ToolDefinitionError
from perdure.agents.data import InlineAgents, Registered
from perdure.contracts.agents import NO_TIMEOUT
from perdure.contracts.conditions import AnyCondition
from perdure.contracts.turns import TurnRequest
from perdure.worker.agents import AgentLoadError, load_agents

HEAD: dict[str, Any] = {"name": "tester", "model": "openai/scripted"}

SECOND = timedelta(seconds=1)


def policy(**words: Any) -> RetryPolicy:
    return RetryPolicy(**words)


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        ({"maxAttempts": 3, "baseDelay": 250}, {"max_retries": 2, "base": timedelta(milliseconds=250)}),
        ({"attempts": 1}, {"max_retries": 0}),
        ({"max_attempts": 9}, {"max_retries": 8}),
        ({"maxRetries": 5}, {"max_retries": 5}),
        ({"backoff_max_tries": 4, "backoff_max_time": 60}, {"max_retries": 4, "max_time": 60 * SECOND}),
        ({"backoff_base_factor": 2}, {"base": 2 * SECOND, "jitter": 2 * SECOND}),
        ({"backoff_base_factor": 2, "backoff_jitter": True}, {"base": 2 * SECOND, "jitter": 2 * SECOND}),
        ({"backoff_base_factor": 2, "backoff_jitter": False}, {"base": 2 * SECOND, "jitter": 0 * SECOND}),
        ({"backoff_jitter": True, "base": 3}, {"base": 3 * SECOND, "jitter": 3 * SECOND}),
        ({"backoff_base_factor": 2, "jitter": 1}, {"base": 2 * SECOND, "jitter": SECOND}),
    ],
)
def test_words_for_retries_are_the_policy_that_they_mean(words: dict[str, Any], ours: dict[str, Any]) -> None:
    """S-03 S-08 S-09: in the policy, in an object that stands for it, and of Dreadnode's on the agent itself."""
    expected = RetryPolicy(**ours)
    assert policy(**words) == expected
    assert Agent(**HEAD, retry=words).retry == expected
    assert InlineAgents(Registered([]), []).agent({**HEAD, "retry": words}).retry == expected
    if all(word.startswith("backoff_") for word in words):
        assert Agent(**HEAD, **words).retry == expected
        assert Agent(**HEAD, retry=RetryPolicy.dawn()).clone(**words).retry == expected


EIGHT: dict[str, Any] = {
    "max_cost_usd": "0.5",
    "max_llm_calls": 1,
    "max_tool_calls": 2,
    "max_behavior_calls": 3,
    "max_events": 4,
    "max_seconds": 5,
    "max_patches": 6,
    "max_depth": 7,
}


def test_the_eight_budgets_are_taken_under_their_names() -> None:
    """S-70: in code, on the agent, in a request's definition and for one turn."""
    expected = Budgets(
        cost_usd=Decimal("0.5"),
        llm_calls=1,
        tool_calls=2,
        behavior_calls=3,
        events=4,
        seconds=timedelta(seconds=5),
        patches=6,
        depth=7,
    )
    assert Budgets(**EIGHT) == expected
    assert Agent(**HEAD, budgets=EIGHT).budgets == expected
    assert Agent(**HEAD, **EIGHT).budgets == expected
    assert InlineAgents(Registered([]), []).agent({**HEAD, **EIGHT}).budgets == expected
    request = {"prompt": "go", "agent": "tester", "budgets": EIGHT}
    assert TurnRequest.model_validate(request).budgets == expected
    assert TurnRequest.model_validate_json(TurnRequest.model_validate(request).model_dump_json()).budgets == expected


DOTS = re.DOTALL | re.MULTILINE

SAME: list[tuple[AnyCondition, AnyCondition]] = [
    (stop.tool_use(tool_name="a", count=2), stop.tool_use("a", 2)),
    (stop.tool_error(tool_name="a"), stop.tool_error("a")),
    (stop.tool_output("x", tool_name="a"), stop.tool_output("x", "a")),
    (stop.elapsed_time(max_seconds=5), stop.elapsed_time(5)),
    (stop.generation_count(max_generations=5), stop.generation_count(5)),
    (stop.step_count(max_steps=5), stop.step_count(5)),
    (stop.no_new_tool_used(for_steps=5), stop.no_new_tool_used(5)),
    (stop.no_tool_calls(for_steps=5), stop.no_tool_calls(5)),
    (stop.no_tool_calls(), stop.no_tool_calls(1)),
    (stop.always(name="x"), stop.always().named("x")),
    (stop.estimated_cost(limit=1, name="x"), stop.estimated_cost(1).named("x")),
    (stop.output(re.compile("a.c", re.IGNORECASE)), stop.output("a.c", regex=True)),
    (stop.output(re.compile("a.c")), stop.output("a.c", regex=True, case_sensitive=True)),
    (stop.output(re.compile("a.c", DOTS)), stop.output("(?ms)a.c", regex=True, case_sensitive=True)),
    (stop.tool_output(re.compile("a"), "b"), stop.tool_output("a", "b", regex=True, case_sensitive=True)),
]


@pytest.mark.parametrize(("theirs", "ours"), SAME)
def test_keywords_of_stop_factories_make_the_same_condition(theirs: AnyCondition, ours: AnyCondition) -> None:
    """S-34."""
    assert theirs == ours
    assert type(ours).model_validate_json(theirs.model_dump_json()) == ours


def test_a_condition_that_is_data_takes_the_keywords_too(tmp_path: Path) -> None:
    file = tmp_path / "agents.yaml"
    text = """
name: one
model: openai/x
label: The One
tags: [a, b]
backoff_max_tries: 2
budgets: {max_depth: 1}
stop_conditions:
  - {type: no_tool_calls, for_steps: 3}
"""
    file.write_text(text, encoding="utf-8")
    (loaded,) = load_agents([str(file)]).values()
    assert loaded.stop_conditions == (stop.no_tool_calls(3),)
    assert (loaded.budgets.depth, loaded.retry.max_retries, loaded.label, loaded.tags) == (1, 2, "The One", ("a", "b"))
    assert (loaded.definition.label, loaded.definition.tags) == ("The One", ("a", "b"))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: policy(max_retries=2, maxAttempts=3), "max_retries and maxAttempts are two names of one setting"),
        (lambda: policy(attempts=2, maxRetries=3), "attempts and maxRetries are two names of one setting; write one"),
        (lambda: policy(attempts=0), "RetryPolicy: write 1 or more attempts: the first call is one (got 0)"),
        (lambda: policy(attempts="many"), "RetryPolicy: max_retries: Input should be a valid integer"),
        (lambda: Budgets(**{"cost_usd": 1, **EIGHT}), "cost_usd and max_cost_usd are two names of one setting"),
        (lambda: Agent(**HEAD, retry=policy(), backoff_jitter=True), "retry and backoff_jitter are two names of one"),
        (lambda: Agent(**HEAD, max_steps=3, maxSteps=3), "agent 'tester': max_steps and maxSteps are two names"),
        (lambda: Agent(**HEAD, backoff_max_tries=-1), "agent 'tester': retry.max_retries: Input should be greater"),
        (lambda: stop.tool_use("a", tool_name="b"), "ToolUse: tool and tool_name are two names of one setting"),
        (stop.step_count, "StepCount: count: Field required"),
        (lambda: stop.output(re.compile("a"), exact=True), "exact and regex exclude each other"),
        (lambda: stop.output(re.compile("a", re.VERBOSE)), "has (?x) or (?#…), which are not taken"),
        (lambda: Budgets(**{**EIGHT, "max_cost": 1}), "Budgets has no field max_cost; its fields are cost_usd"),
    ],
)
def test_two_names_of_one_setting_and_words_that_say_nothing_are_refused(make: Any, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as refusal:
        make()
    assert "\n" not in str(refusal.value)


def test_a_file_with_two_names_of_one_setting_has_its_line(tmp_path: Path) -> None:
    file = tmp_path / "agents.yaml"
    file.write_text("name: one\nmodel: openai/x\nretry:\n  attempts: 2\n  max_retries: 3\n", encoding="utf-8")
    with pytest.raises(AgentLoadError, match=r"agents\.yaml:3: agent 'one': retry: max_retries and attempts are two"):
        load_agents([str(file)])


def test_no_instructions_and_no_time_out_may_be_none() -> None:
    agent = Agent(**HEAD, instructions=None, generation_timeout=None)
    assert (agent.instructions, agent.generation_timeout) == ("", NO_TIMEOUT)
    assert agent.clone(max_steps=3).generation_timeout == NO_TIMEOUT
    with pytest.raises(
        AgentDefinitionError, match="agent 'tester': instructions: write a text, several in a list, or a function"
    ):
        Agent(**HEAD, instructions=3)  # type: ignore[arg-type]


class Desk(Toolset):
    @tool_method(variants=["view", "edit"])
    def look(self) -> str:
        return "seen"

    @tool_method(variants=["edit"])
    def write(self) -> str:
        return "written"


def test_a_toolset_gives_the_tools_of_any_variant() -> None:
    """S-29."""
    desk = Desk(variant="view")
    assert [made.name for made in desk.get_tools()] == ["look"]
    assert [made.name for made in desk.get_tools("edit")] == ["look", "write"]
    assert [made.name for made in desk.get_tools(variant="all")] == ["look", "write"]
    assert desk.get_tools("view") == desk.tools
    with pytest.raises(ToolDefinitionError, match="toolset Desk has no variant 'none'; it has all, edit, view"):
        desk.get_tools("none")
