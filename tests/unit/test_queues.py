"""The names of keys and queues: what agents and settings say decides them, never an environment."""

import pytest
from pydantic import TypeAdapter, ValidationError

from perdure import Agent
from perdure.contracts.agents import Compaction
from perdure.contracts.queues import RateLimit, Role, Routing, TurnPriority, key_name, limited_key, role_of_queue
from perdure.contracts.retries import Fallback


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({}, "openai"),
        ({"temperature": 1}, "openai"),
        ({"api_key": "${TEAM_KEY}"}, "TEAM_KEY"),
        ({"api_base": "https://gpu.internal:8000/v1"}, "gpu.internal:8000"),
        ({"api_base": "${WHERE}", "api_key": "${TEAM_KEY}"}, "TEAM_KEY"),
        ({"api_base": "${WHERE}"}, "WHERE"),
    ],
)
def test_a_key_goes_by_its_variable_else_its_address_else_its_provider(params: dict[str, str], name: str) -> None:
    assert key_name("openai/gpt", dict(params)) == name


@pytest.mark.parametrize(("text", "rate"), [("a=5/s", 5), ("a=300/m", 5), ("a=1.5/h", 1.5 / 3600)])
def test_a_rate_is_calls_a_second_minute_or_hour(text: str, rate: float) -> None:
    assert RateLimit.parse(text).per_second == pytest.approx(rate)


@pytest.mark.parametrize("text", ["a", "a=5", "a=0/s", "a=5/d", "=5/s", "a b=5/s"])
def test_another_rate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="as in openai=50/s"):
        RateLimit.parse(text)


def test_each_model_of_a_turn_has_the_queue_of_its_own_key() -> None:
    agent = Agent(
        name="a",
        model="openai/gpt",
        generate_params={"api_key": "${TEAM_KEY}"},
        fallback_models=[Fallback(model="anthropic/claude")],
        compaction=Compaction(model="openai/small"),
    )
    limits = [RateLimit("anthropic", 1), RateLimit("TEAM_KEY", 1)]
    policy = agent.definition.policy(None, [None])
    routed = Routing("q", (), limits).route(policy, agent.definition)
    assert (routed.queue, routed.compaction_queue, routed.tool_queue) == (
        "q-models-TEAM_KEY",
        "q-models-TEAM_KEY",
        None,
    )
    assert routed.fallen_back().queue == "q-models-anthropic"
    split = Routing("q", (Role.TURNS,), limits[:1]).route(policy, agent.definition)
    assert (split.queue, split.compaction_queue, split.tool_queue) == ("q-models", "q-models", "q-tools")
    assert Routing("q").route(policy, agent.definition) is policy


def test_a_queue_says_which_role_polls_it() -> None:
    assert [role_of_queue("q", queue) for queue in ("q", "q-models", "q-models-a", "q-tools", "other")] == [
        Role.TURNS,
        Role.MODELS,
        Role.MODELS,
        Role.TOOLS,
        Role.TURNS,
    ]
    assert [limited_key("q", queue) for queue in ("q", "q-models", "q-models-a-b")] == [None, None, "a-b"]


@pytest.mark.parametrize("given", [4, 4.0])
def test_a_priority_is_a_whole_number_however_it_is_written(given: object) -> None:
    assert TypeAdapter(TurnPriority).validate_python(given) == 4


@pytest.mark.parametrize("given", [0, 6.0, 4.5, "4", True, float("nan"), float("inf")])
def test_another_priority_is_refused(given: object) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(TurnPriority).validate_python(given)
