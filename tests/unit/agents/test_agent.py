"""An agent is checked where it is defined, and frozen by a hash of everything that decides its behaviour."""

from datetime import timedelta
from typing import Any

import pytest

from perdure import Agent, AgentDefinitionError, Budgets, RetryPolicy, tool
from perdure.contracts.agents import AgentDefinition


@tool
def look(where: str) -> str:
    """Look."""
    return where


@tool(name="generate")
def named_like_ours() -> str:
    """Generate."""
    return ""


def agent(**settings: Any) -> Agent:
    return Agent(**{"name": "tester", "model": "openai/scripted", "tools": [look], **settings})


def test_defaults_are_the_documented_ones() -> None:
    made = agent()
    assert (made.max_steps, made.on_tool_error, made.generation_timeout) == (1000, "abort", timedelta(seconds=600))
    assert made.on_unknown_tool == "feed_back"
    assert made.retry == RetryPolicy.dreadnode()


def test_instructions_lose_their_indentation() -> None:
    assert agent(instructions="One.\n    Two.\n      Three.").instructions == "One.\nTwo.\n  Three."


def test_a_plain_function_becomes_a_tool() -> None:
    def count(text: str) -> int:
        """Count."""
        return len(text)

    assert [made.name for made in agent(tools=[look, count]).tools] == ["look", "count"]


def test_the_hash_covers_everything_and_survives_json() -> None:
    first = agent().definition
    assert AgentDefinition.model_validate_json(first.canonical()).digest() == first.digest()
    for changed in (
        agent(instructions="other"),
        agent(max_steps=2),
        agent(model="openai/other"),
        agent(retry=RetryPolicy.dawn()),
        agent(tools=[look.with_(idempotent=True)]),
    ):
        assert changed.definition.digest() != first.digest()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_steps": -1}, "agent 'tester': max_steps: Input should be greater than or equal to 1 (got -1)"),
        ({"max_steps": 0}, "max_steps"),
        ({"generation_timeout": timedelta(seconds=-1)}, "generation_timeout"),
        ({"idle_timeout": 0}, "agent 'tester': idle_timeout: Input should be greater than 0"),
        (
            {"idle_timeout": 60, "stream_idle_timeout": 90},
            "stream_idle_timeout: it is longer than idle_timeout (60 s), which bounds every silence; raise that one",
        ),
        ({"model": "gpt-5"}, "agent 'tester': model: write it as provider/model, for example openai/gpt-5-mini"),
        ({"name": "no spaces"}, "name"),
        ({"finish_tool": "absent"}, "finish_tool 'absent' is not among the tools of agent 'tester'"),
        ({"tools": [look, look]}, "two tools named look; rename one"),
        ({"tools": [named_like_ours]}, "may not be named 'generate'"),
        ({"tools": ["look"]}, "tools"),
        (
            {"retry": {"max_retries": -1}},
            "agent 'tester': retry.max_retries: Input should be greater than or equal to 0",
        ),
        (
            {"retry": {"max_tries": 3}},
            "retry: RetryPolicy has no field max_tries; its fields are max_retries, max_time",
        ),
        ({"budgets": {"cost": 5}}, "budgets: Budgets has no field cost"),
        ({"compaction": {"threshold": 75}}, "compaction.threshold: Input should be less than or equal to 1"),
        ({"compaction": {"keep": 1}}, "compaction.keep"),
        ({"output_schema": {"type": "objekt"}}, "output_schema: this is no JSON schema: at $.type: 'objekt' is not"),
        ({"output_schema": {"$ref": "#/definitions/A", "$defs": {}}}, "$ref '#/definitions/A' leads nowhere"),
        ({"output_schema": {"items": {"$ref": "https://example.org/s.json"}}}, "leads nowhere in the schema"),
        ({"output_schema": {"$dynamicRef": "#node"}}, "$dynamicRef '#node' leads nowhere in the schema"),
        ({"output_schema": {"allOf": [{"$ref": "#/allOf/first"}]}}, "$ref '#/allOf/first' leads nowhere"),
        ({"output_schema": "object"}, "output_schema"),
        ({"output_corrections": -1}, "output_corrections"),
        ({"output_corrections": 1}, "output_corrections: there is no output_schema that an answer could miss"),
        ({"output_schema": {}, "finish_tool": "look", "tools": [look]}, "output_schema is for answers in text"),
        (
            {"generate_params": {"api_key": "sk-live-0123"}},
            "agent 'tester': generate_params: api_key would be stored as it stands; write '${NAME}' and set NAME in "
            "the worker's environment",
        ),
        ({"generate_params": {"api_base": "https://me:0123@host/v1"}}, "generate_params: api_base would be stored"),
        ({"generate_params": {"api_base": "https://host/v1?api-key=01234567"}}, "api_base would be stored"),
        ({"generate_params": {"api_key": "sk-live-0123 ${TEAM}"}}, "generate_params: api_key would be stored"),
        ({"generate_params": {"headers": {"Helicone-Auth": "Bearer 0123456789"}}}, "Helicone-Auth would be stored"),
        ({"generate_params": {"zen_api_key": "0123456789"}}, "zen_api_key would be stored"),
        ({"generate_params": {"api_key": b"0123456789"}}, "agent 'tester': generate_params"),
        (
            {"generate_params": {"extra_headers": {"X-Api-Key": "0123456789"}}},
            "generate_params: X-Api-Key would be stored",
        ),
        ({"generate_params": {"vertex_credentials": '{"private_key": "0123"}'}}, "vertex_credentials would be stored"),
        (
            {"fallback_models": [{"model": "a/b", "generate_params": {"aws_secret_access_key": "0123456789"}}]},
            "fallback_models: a/b: aws_secret_access_key would be stored",
        ),
        ({"colour": "red"}, "colour: there is no such setting; the settings are name, model, instructions"),
        ({"max_step": 3}, "max_step: there is no such setting; did you mean 'max_steps'?"),
        ({"system_prompt": "x"}, "system_prompt: there is no such setting; did you mean 'instructions'?"),
        ({"output_type": str}, "output_type: there is no such setting; did you mean 'output_schema'?"),
        ({"temperature": 0}, "temperature: there is no such setting; did you mean 'generate_params'?"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused_in_one_line_with_its_name(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(AgentDefinitionError) as refusal:
        agent(**settings)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert "0123" not in str(refusal.value)


@pytest.mark.parametrize(
    "params",
    [
        {"api_key": "${LOCAL_KEY}", "extra_headers": {"Authorization": "Bearer ${LOCAL_TOKEN}", "X-Team": "search"}},
        {"vertex_credentials": "/etc/keys/vertex.json", "max_tokens": 12, "metadata": {"api_key": "of no call"}},
        {"aws_access_key_id": "AKIA0123456789ABCDEF", "api_base": "http://localhost:8000/v1", "api_key": "EMPTY"},
        {"api_base": "https://${USER}:${PASSWORD}@host/v1?api-key=${KEY}&api-version=2026-01-01"},
        {"prompt_cache_key": "customer-0123456789", "extra_headers": {"Idempotency-Key": "0123456789"}},
        {"vertex_credentials": "/var/run/secrets/gcp/token"},
    ],
    ids=["references", "a file", "what is no secret", "an address", "keys that open nothing", "a path"],
)
def test_what_says_where_a_call_goes_without_a_secret_is_taken(params: dict[str, Any]) -> None:
    assert agent(generate_params=params).definition.generate_params == params


def test_a_misspelt_knob_is_refused_where_it_is_written() -> None:
    """What is read from a newer release keeps its unknown fields to itself; what is written in code is a mistake."""
    with pytest.raises(ValueError, match="RetryPolicy has no field max_tries"):
        RetryPolicy(max_tries=3)  # type: ignore[call-arg]
    assert RetryPolicy.model_validate({"max_tries": 3}) == RetryPolicy()
    assert RetryPolicy.dawn().max_retries == 2


@pytest.mark.parametrize(
    "limit", [{"cost_usd": -1}, {"cost_usd": 0}, {"llm_calls": 0}, {"tool_calls": -1}, {"seconds": timedelta(0)}]
)
def test_a_budget_of_less_than_nothing_is_refused(limit: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(limit))):
        Budgets(**limit)


@pytest.mark.parametrize(
    "knob",
    [
        {"max_retries": -1},
        {"base": timedelta(seconds=-1)},
        {"jitter": timedelta(seconds=-1)},
        {"max_time": timedelta(seconds=-1)},
        {"cap": timedelta(milliseconds=1)},
    ],
)
def test_a_retry_knob_out_of_range_is_refused(knob: dict[str, Any]) -> None:
    """B1 R4: all knobs are at least 0, and a cap below the base is a contradiction."""
    with pytest.raises(ValueError, match=next(iter(knob))):
        RetryPolicy(**knob)


@pytest.mark.parametrize("name", ["run", "run_sync", "invoke"])
def test_an_agent_is_no_thing_that_runs(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"an agent has no {name}; .*run_in_memory.*perdure run tester"):
        getattr(agent(), name)
    assert not hasattr(agent(), "nothing")
