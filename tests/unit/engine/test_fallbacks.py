"""Which model goes on: pure decisions over the turn's state."""

from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import Agent, AgentWarning, Compaction, Fallback, RetryPolicy
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.generations import Compact, Compacted, Generate
from perdure.contracts.retries import HELPED
from perdure.engine.state import Context, Mailbox, Origin, TurnState
from tests.unit.engine.asked import next_action
from tests.unit.engine.opening import compacted, failed

AGENT = Agent(
    name="a",
    model="openai/first",
    retry=RetryPolicy(max_retries=5),
    generation_timeout=timedelta(seconds=60),
    generate_params={"temperature": 0.5, "api_base": "http://here"},
    compaction=Compaction(threshold=0.5, window=10_000, model="openai/writer"),
    fallback_models=[
        "openai/second",
        Fallback(
            model="anthropic/third",
            retry=RetryPolicy(max_retries=1),
            generation_timeout=timedelta(seconds=9),
            also_on=("llm.context_overflow",),
        ),
    ],
)


def state(**changes: object) -> TurnState:
    policy = AGENT.definition.policy(None, [2_000, None])
    origin = Origin(session="s", turn=1, definition="d", started_at=datetime(2026, 1, 1, tzinfo=UTC))
    fields: dict[str, Any] = {"policy": policy, **changes}
    return TurnState(origin=origin, tip="t", **fields)


def error(code: str = ReasonCode.LLM_QUOTA_EXHAUSTED, kind: str = "") -> ErrorDetail:
    return ErrorDetail(code=code, title="generation", message="no", type=kind)


def test_the_next_model_is_at_work_with_its_own_retries_time_and_window() -> None:
    second = failed(state(failures_in_row=3, context=Context(compacted_step=1)), error())
    assert (second.policy.model, second.policy.max_retries, second.fallback) == ("openai/second", 5, 1)
    assert second.policy.compaction is not None
    assert second.policy.compaction.above_tokens == 1_000
    assert (second.failures_in_row, second.context.compacted_step, second.ending) == (0, 0, None)
    third = failed(second, error())
    assert (third.policy.model, third.policy.max_retries) == ("anthropic/third", 1)
    assert third.policy.generation_timeout == timedelta(seconds=9)
    assert [one.key for one in third.decided] == ["0/decided/0/model_fallback", "0/decided/1/model_fallback"]
    assert failed(third, error()).ending is not None


def test_an_overflow_that_nothing_can_shorten_goes_to_the_model_that_is_for_it() -> None:
    """The next model is asked with the conversation as it is; without one that names the code, the turn ends."""
    overflow = error(ReasonCode.LLM_CONTEXT_OVERFLOW)
    second = state(
        context=Context(overflow=overflow), policy=AGENT.definition.policy(None, [2_000, None]).fallen_back()
    )
    third = compacted(second, Compacted(tip="t", summarised=0))
    assert (third.policy.model, third.context.overflow, third.ending) == ("anthropic/third", None, None)
    assert isinstance(next_action(third, Mailbox()), Generate)
    first = compacted(state(context=Context(overflow=overflow)), Compacted(tip="t", summarised=0))
    assert first.ending is not None
    assert first.ending.error == overflow


@pytest.mark.parametrize("code", sorted(set(ReasonCode) - HELPED - {ReasonCode.LLM_CONTEXT_OVERFLOW}))
def test_a_failure_that_is_not_the_providers_ends_the_turn(code: ReasonCode) -> None:
    ended = failed(state(), error(code))
    assert (ended.fallback, ended.ending is not None) == (0, True)


def test_an_unknown_model_is_the_providers_and_a_bad_request_is_not() -> None:
    assert failed(state(), error(ReasonCode.LLM_REQUEST_ERROR, "NotFoundError")).fallback == 1
    assert failed(state(), error(ReasonCode.LLM_REQUEST_ERROR, "BadRequestError")).fallback == 0


def test_a_further_code_holds_for_the_fallback_that_names_it_alone() -> None:
    """The order is kept: the second is not for it, so the third is not reached."""
    overflow = error(ReasonCode.LLM_CONTEXT_OVERFLOW)
    assert failed(state(context=Context(compacted_step=1)), overflow).fallback == 0
    second = failed(state(), error())
    assert failed(replace(second, context=Context(compacted_step=1)), overflow).fallback == 2


def test_a_summary_that_cannot_be_written_is_written_by_the_next_model() -> None:
    overflowing = state(context=Context(overflow=error(ReasonCode.LLM_CONTEXT_OVERFLOW)))
    fallen = compacted(overflowing, error())
    action = next_action(fallen, Mailbox())
    assert isinstance(action, Compact)
    assert (action.fallback, action.trigger) == (1, "overflow_recovery")


def test_the_step_of_another_model_is_another_step() -> None:
    """And that of the agent's own model has the id it had before there were fallbacks."""
    action = next_action(state(), Mailbox())
    assert isinstance(action, Generate)
    assert "fallback" not in action.model_dump(exclude_defaults=True)
    other = next_action(failed(state(), error()), Mailbox())
    assert isinstance(other, Generate)
    assert other.fallback == 1
    assert other.step_id() != action.step_id()
    assert action.step_id() == "52642add152d6ff4d5e825cb55878d59"


def test_a_definition_with_a_fallback_at_work_keeps_what_is_not_of_a_model() -> None:
    second, third = AGENT.definition.using(1), AGENT.definition.using(2)
    assert second.generate_params == {"temperature": 0.5, "api_base": "http://here"}
    assert third.generate_params == {"temperature": 0.5}
    assert (third.name, third.retry.max_retries, second.retry.max_retries) == ("a", 1, 5)
    assert second.compaction.model is None
    assert AGENT.definition.using(0) == AGENT.definition


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("seed", 1), ("logit_bias", {"1": 2}), ("logprobs", True), ("service_tier", "flex"), ("thinking", {})),
        *(("extra_body", {"a": 1}), ("extra_headers", {"a": "b"}), ("api_base", "http://here"), ("num_ctx", 9)),
        ("input_cost_per_token", 0.1),
    ],
)
def test_a_fallback_of_another_provider_is_called_without_what_only_the_first_one_knows(name: str, value: Any) -> None:
    """Anthropic refuses a seed: found out in the outage that the fallback was for."""
    params = {name: value, "temperature": 0.5, "reasoning_effort": "low"}
    quiet = name in {"extra_headers", "api_base", "input_cost_per_token"}  # which are of one model anyway
    with nullcontext() if quiet else pytest.warns(AgentWarning, match=f"'anthropic/third' is called without {name}, "):
        agent = Agent(
            name="a",
            model="openai/first",
            generate_params=params,
            fallback_models=[
                *("openai/second", "anthropic/third"),
                Fallback(model="gemini/x", generate_params={"top_k": 1}),
            ],
        ).definition
    assert agent.using(1).generate_params == params
    assert agent.using(2).generate_params == {"temperature": 0.5, "reasoning_effort": "low"}
    assert agent.using(3).generate_params == {"top_k": 1}
    assert agent.changes_of_model("mistral/x")["generate_params"] == agent.using(2).generate_params
    assert agent.lost_parameters("anthropic/third") == {name}


@pytest.mark.parametrize("code", ["llm.schema_violation", "tool.timeout", "llm.auth_error"])
def test_a_code_that_no_model_can_help_with_is_refused(code: str) -> None:
    with pytest.raises(ValueError, match=r"Fallback: also_on: '.*' is none of llm\.content_filtered"):
        Fallback(model="openai/x", also_on=(code,))
    assert Fallback(model="openai/x", also_on=("llm.mine",)).also_on == ("llm.mine",)
