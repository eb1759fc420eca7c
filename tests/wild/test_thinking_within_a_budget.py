"""Thinking beside a budget of money: what is left bounds thinking and answer together, and is never refused.

Seen in public trackers: ``max_tokens`` must be greater than ``thinking.budget_tokens``; a bound of under 16 tokens.
"""

from decimal import Decimal

import pytest
from pydantic import JsonValue

from perdure import Agent, Budgets, tool
from perdure.testing import call, run_in_memory, say

MODELS = (
    "anthropic/claude-sonnet-4-5",
    "anthropic/claude-opus-4-8",
    "bedrock/anthropic.claude-sonnet-4-5-20250929-v1:0",
    "vertex_ai/claude-sonnet-4-5@20250929",
    "gemini/gemini-2.5-pro",
    "gemini/gemini-3-pro-preview",
    "openai/gpt-5",
    "openai/gpt-5.4",
    "azure/gpt-5",
    "xai/grok-3-mini",
)


@tool
def look() -> str:
    """Look."""
    return "seen"


@pytest.mark.parametrize("effort", ["low", "high"])
@pytest.mark.parametrize("model", MODELS)
async def test_no_sum_that_is_left_makes_a_request_that_is_refused(model: str, effort: str) -> None:
    """S-30: the turn ends with an answer, or because nothing is left."""
    prices = {"input_cost_per_token": 3e-6, "output_cost_per_token": 15e-6}
    params: dict[str, JsonValue] = {"reasoning_effort": effort, **prices}
    for left in ("5", "0.1", "0.05", "0.02", "0.015", "0.005", "0.001"):
        budgets = Budgets(cost_usd=Decimal(left))
        agent = Agent(name="a", model=model, tools=[look], generate_params=params, budgets=budgets)
        run = await run_in_memory(agent, "Go.", [call(("look", {})), say("done")])
        assert [request.refusal for request in run.requests if request.refusal] == [], left
        assert run.result.reason_code in {None, "budget.cost_exhausted"}, (left, run.result.error)
