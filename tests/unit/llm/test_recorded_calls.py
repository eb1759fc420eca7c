"""What makes two model calls the same recorded one: each field of a definition counts, or not, on purpose."""

from datetime import timedelta
from typing import Any

import pytest

from perdure.contracts.agents import AgentDefinition, Compaction
from perdure.contracts.budgets import Budgets
from perdure.contracts.input_requests import ApprovalPolicy, ApprovalRule
from perdure.contracts.retention import Retention
from perdure.contracts.retries import RetryPolicy
from perdure.contracts.tools import ToolDeclaration
from perdure.llm.recorded_calls import NOT_SENT, request_of_generation

SENT = {"model", "tools", "generate_params", "output_schema", "tool_mode"}
"""Fields that change what the model reads or how it answers: changing one makes a recording miss."""

LOOK = ToolDeclaration(name="look", description="Look.", parameters={}, reference="m:look")
AGENT = AgentDefinition(name="a", model="b/c", tools=(LOOK,))
UNSENT: dict[str, Any] = {
    "name": "other",
    "description": "Other.",
    "label": "Other",
    "tags": ("other",),
    "instructions_from": "m:told",
    "max_steps": 3,
    "max_running": 4,
    "generation_timeout": timedelta(seconds=1),
    "retry": RetryPolicy.dawn(),
    "on_tool_error": "feed_back",
    "on_unknown_tool": "abort",
    "finish_tool": "look",
    "budgets": Budgets(llm_calls=1),
    "compaction": Compaction(keep=2),
    "output_corrections": 2,
    "interactive": "stop",
    "approvals": ApprovalPolicy(rules=(ApprovalRule(tool="look", decision="ask"),)),
    "retention": Retention(events="30d"),
    "recording": "x",
    "wished": ("temperature",),
    "unwished": {"temperature": 1},
}


def test_every_field_of_a_definition_is_known_to_be_sent_or_not() -> None:
    """A new field fails here: is it part of what the model is asked? Then SENT here, else NOT_SENT in fixtures."""
    missing = AgentDefinition.model_fields.keys() - NOT_SENT - SENT
    assert not missing, f"say of {', '.join(sorted(missing))} whether a recording misses when it changes"
    assert not NOT_SENT & SENT


@pytest.mark.parametrize("field", sorted(UNSENT))
def test_what_reaches_no_provider_does_not_make_a_recording_miss(field: str) -> None:
    changed = AGENT.model_copy(update={field: UNSENT[field]})
    assert getattr(changed, field) != getattr(AGENT, field)
    assert request_of_generation(changed, []).digest == request_of_generation(AGENT, []).digest


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", "b/d"),
        ("tools", ()),
        ("tools", (LOOK.model_copy(update={"description": "Look there."}),)),
        ("generate_params", {"temperature": 0}),
        ("output_schema", {"type": "object"}),
    ],
)
def test_what_the_model_is_asked_makes_it_miss(field: str, value: object) -> None:
    assert (
        request_of_generation(AGENT.model_copy(update={field: value}), []).digest
        != request_of_generation(AGENT, []).digest
    )
