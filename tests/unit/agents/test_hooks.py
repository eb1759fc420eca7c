"""The hook decorator and hook rules: what can be a hook, and what an author is told of what cannot."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from perdure import (
    Agent,
    AgentDefinitionError,
    Continue,
    Fail,
    Finish,
    HookContext,
    HookDefinitionError,
    HookRule,
    Retry,
    RetryWithFeedback,
    StepEnd,
    hook,
    stop,
    tool,
)
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.events import GenerationEnd, HookEnd, ToolEnd
from perdure.contracts.hooks import EVENTS_AT, HOOK_EVENTS, AnyReaction, ReactStep
from perdure.contracts.turns import TurnRequest

WRONG: Any = "agent_end"


def look(event: Any) -> None:
    """Look."""


def test_a_hook_says_what_it_is_for_as_data() -> None:
    """S-36: the declaration is frozen with the agent."""
    made = hook("tool_end", GenerationEnd, StepEnd, when=stop.step_count(2), tool="w*", timeout=timedelta(seconds=2))(
        look
    )
    assert made.declaration.on == ("tool_end", "generation_end", "step_end")
    assert made.declaration.reference.endswith("test_hooks:look")
    assert (made.name, made.declaration.is_about("work"), made.declaration.is_about("other")) == ("look", True, False)
    rule = HookRule(name="rule", on="tool_error", reaction=Retry())
    agent = Agent(name="a", model="p/m", hooks=[made, rule], on_hook_error="ignore")
    again = AgentDefinition.model_validate_json(agent.definition.canonical())
    assert again == agent.definition
    assert [declared.name for declared in again.hooks] == ["look", "rule"]
    assert (agent.hook("look"), agent.hook("rule")) == (made, None)
    assert agent.clone(name="b").hooks == agent.hooks


def test_a_decorated_function_can_be_called_as_before() -> None:
    @hook("tool_end")  # type: ignore[arg-type]
    def double(event: int) -> object:
        return 2 * event

    assert double(4) == 8


def no_event() -> None: ...


def too_many(event: Any, context: HookContext, more: Any) -> None: ...


def all_of_them(*events: Any) -> None: ...


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: hook()(look), "name the events: @hook('tool_end'); they are agent_start"),
        (lambda: hook(look)(look), "name the events: @hook('tool_end')"),  # type: ignore[arg-type]
        (lambda: hook("tool_ends")(look), "a hook cannot be on 'tool_ends'; did you mean 'tool_end'? The"),  # type: ignore[arg-type]
        (lambda: hook(ReactStep)(look), "no hook can be on 'react_step': hooks would react to their own reactions"),
        (lambda: hook(HookEnd)(look), "no hook can be on 'hook_end'"),
        (lambda: hook("heartbeat")(look), "a hook cannot be on 'heartbeat'; the events are"),  # type: ignore[arg-type]
        (lambda: hook("tool_end")(no_event), "hook 'no_event' takes the event, and a HookContext if"),  # type: ignore[arg-type]
        (lambda: hook("tool_end")(too_many), "hook 'too_many' takes the event"),  # type: ignore[arg-type]
        (lambda: hook("tool_end")(all_of_them), "hook 'all_of_them' takes the event"),
        (lambda: hook("tool_end")("look"), "hook 'look': decorate a function"),  # type: ignore[arg-type]
        (lambda: hook("tool_end", timeout=timedelta(0))(look), "hook 'look': "),
    ],
)
def test_what_cannot_be_a_hook_is_refused_in_one_line(make: Any, told: str) -> None:
    with pytest.raises(HookDefinitionError) as refusal:
        make()
    assert told in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("hooks", "told"),
    [
        ([look], "look is no hook; decorate the function with @hook('tool_end'), or write a HookRule"),
        ([hook("tool_end")(look), hook("step_end")(look)], "has two hooks named look; give one another name"),
    ],
)
def test_an_agent_refuses_hooks_that_are_none_or_share_a_name(hooks: list[Any], told: str) -> None:
    with pytest.raises(AgentDefinitionError, match=f".*{told.split(';')[0]}"):
        Agent(name="a", model="p/m", hooks=hooks).definition  # noqa: B018 - made when it is asked for


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Finish("a", "b"), "takes from 1 to 2 positional arguments but 3 were given"),  # type: ignore[call-arg]
        (lambda: RetryWithFeedback(""), "RetryWithFeedback: feedback: String should have at least 1 character"),
        (lambda: Fail(3), "Fail: reason: Input should be a valid string (got 3)"),  # type: ignore[arg-type]
        (lambda: Continue("x" * 70_000), "Continue: its messages are 70,000 bytes, the limit is 65,536"),
        (
            lambda: HookRule(name="r", on=WRONG, reaction=Finish()),
            "HookRule: on.0: Input should be 'agent_start'",
        ),
        (lambda: HookRule(name="r", on=(), reaction=Finish()), "HookRule: on: Tuple should have at least 1 item"),
    ],
)
def test_what_cannot_be_a_reaction_or_a_rule_is_refused_in_one_line(make: Any, told: str) -> None:
    with pytest.raises((ValueError, TypeError)) as refusal:
        make()
    assert told in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "reaction",
    [Finish("a"), Fail("a"), Retry(["a", "b"]), Retry(), RetryWithFeedback("a"), Continue("a", feedback="b")],
)
def test_a_reaction_is_the_same_after_a_payload(reaction: AnyReaction) -> None:
    adapter: TypeAdapter[AnyReaction] = TypeAdapter(AnyReaction)
    assert adapter.validate_json(adapter.dump_json(reaction)) == reaction


def test_every_event_that_a_hook_can_be_on_is_looked_at_somewhere() -> None:
    """S-36: a name that is accepted is called."""
    assert set(HOOK_EVENTS) == set[str]().union(*EVENTS_AT.values())


def test_a_rule_of_a_request_names_its_mistake() -> None:
    with pytest.raises(ValidationError, match="reaction"):
        HookRule.model_validate({"name": "r", "on": ["tool_end"], "reaction": {"type": "again"}})
    misspelt = {"name": "r", "on": ["tool_end"], "reaction": {"type": "finish"}, "tims": 1}
    with pytest.raises(ValidationError, match="HookRule has no field tims"):
        TurnRequest.model_validate({"agent": "a", "prompt": "go", "rules": [misspelt]})


def test_a_tool_may_not_be_named_like_the_activity_that_calls_hooks() -> None:
    @tool
    def run_hooks() -> str:
        return ToolEnd.__name__

    with pytest.raises(AgentDefinitionError, match="a tool may not be named 'run_hooks'"):
        Agent(name="a", model="p/m", tools=[run_hooks])
