"""Limits that a worker has learnt of models and addresses: the most tools, and whose streams are no answers.

Kept in memory only: what is learnt again costs no more than one call.
"""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from perdure.activities.models.failures import facts_of
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import ReasonCode
from perdure.llm.failures import classify

logger = logging.getLogger("perdure.worker")


class ToolLimits:
    """The least number of tools that each model has refused, by model and address."""

    def __init__(self) -> None:
        self._refused: dict[tuple[str, str], int] = {}

    def are_exceeded(self, definition: AgentDefinition) -> bool:
        """Whether the agent has as many tools as its model is known to refuse."""
        refused = self._refused.get(_destination_of(definition))
        return refused is not None and len(definition.tools) >= refused

    def learn(self, definition: AgentDefinition, error: BaseException) -> bool:
        """Remember a call that failed because the agent has too many tools; False if it failed otherwise."""
        if classify(facts_of(error, datetime.now(UTC))) != ReasonCode.LLM_TOO_MANY_TOOLS:
            return False
        place, count = _destination_of(definition), len(definition.tools)
        self._refused[place] = min(count, self._refused.get(place, count))
        return True


def _destination_of(definition: AgentDefinition) -> tuple[str, str]:
    params = definition.generate_params
    return definition.model, str(params.get("api_base") or params.get("base_url") or "")


TOOL_LIMITS = ToolLimits()

WHOLE_FOR = timedelta(minutes=10)
"""Time for which a model is asked for whole answers, after a stream that ended in good order and was no answer."""


class WholeOnly:
    """Models, with their addresses, that are asked for whole answers for a while, although somebody watches."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._until: dict[tuple[str, str], float] = {}

    def has(self, definition: AgentDefinition) -> bool:
        """Whether the agent's model is asked for whole answers at the moment."""
        return self._until.get(_destination_of(definition), 0.0) > self._monotonic()

    def add(self, definition: AgentDefinition, reason: object) -> None:
        """Ask the model for whole answers from now on for ``WHOLE_FOR``, and say so in the log."""
        if not self.has(definition):
            minutes = WHOLE_FOR.total_seconds() / 60
            logger.warning("%s is asked for whole answers for %g minutes: %s", definition.model, minutes, reason)
        self._until[_destination_of(definition)] = self._monotonic() + WHOLE_FOR.total_seconds()

    def clear(self) -> None:
        """Forget every model."""
        self._until.clear()


WHOLE_ONLY = WholeOnly()
