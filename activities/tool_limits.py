"""Providers that refuse so many tools: remembered by the worker, so that it asks each of them once too often only.

A refusal costs nothing but its round trip, and is met again by a worker that has not met it. That is why it stands in
no store: a turn that goes on with another worker is none the worse for it.
"""

from datetime import UTC, datetime

from perdure.activities.failures import facts_of
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import ReasonCode
from perdure.llm.failures import classify


class ToolLimits:
    """The least number of tools that each model has refused, by the address it is asked at."""

    def __init__(self) -> None:
        self._refused: dict[tuple[str, str], int] = {}

    def are_exceeded(self, definition: AgentDefinition) -> bool:
        """Whether the agent's model is known to refuse as many tools as it has."""
        refused = self._refused.get(_place(definition))
        return refused is not None and len(definition.tools) >= refused

    def learn(self, definition: AgentDefinition, error: BaseException) -> bool:
        """Whether the call failed because the agent has too many tools, which is then remembered."""
        if classify(facts_of(error, datetime.now(UTC))) != ReasonCode.LLM_TOO_MANY_TOOLS:
            return False
        place, count = _place(definition), len(definition.tools)
        self._refused[place] = min(count, self._refused.get(place, count))
        return True


def _place(definition: AgentDefinition) -> tuple[str, str]:
    params = definition.generate_params
    return definition.model, str(params.get("api_base") or params.get("base_url") or "")
