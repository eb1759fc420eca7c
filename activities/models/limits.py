"""Facts that a worker has learnt of models and addresses: the most tools that they take, and useless streams.

Kept in memory only: what is learnt again costs no more than one call.
"""

import logging
import re
import time
from collections.abc import Callable
from datetime import timedelta

from perdure.activities.models.forms import destination_of
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import ReasonCode
from perdure.llm.failures import FailureFacts, classify

logger = logging.getLogger("perdure.worker")


class ToolLimits:
    """The least number of tools that each model has refused, by model and address."""

    def __init__(self) -> None:
        self._refused: dict[tuple[str, str], int] = {}

    def are_exceeded(self, definition: AgentDefinition) -> bool:
        """Whether the agent has as many tools as its model is known to refuse."""
        refused = self._refused.get(destination_of(definition))
        return refused is not None and len(definition.tools) >= refused

    def learn(self, definition: AgentDefinition, facts: FailureFacts) -> bool:
        """Remember a call that failed because the agent has too many tools, or any; False if it failed otherwise."""
        count = len(definition.tools)
        if _TAKES_NONE.search(facts.text) is not None and facts.status in _REFUSALS:
            count = 1
        elif classify(facts) != ReasonCode.LLM_TOO_MANY_TOOLS:
            return False
        place = destination_of(definition)
        self._refused[place] = min(count, self._refused.get(place, count))
        return True

    def clear(self) -> None:
        """Forget every model."""
        self._refused.clear()


_TAKES_NONE = re.compile(
    r"(not|n't|that) support (the use of )?(tools?( use| calls?| calling)?|functions?( calls?| calling)?)\b"
    r"(?! (choice|in|use|call|stream))"
    r"|requires --enable-auto-tool-choice|(tools?( use)?|function calling) (is|are) not (supported|enabled)",
    re.IGNORECASE,
)
"""Words of refusals of every tool: Ollama's and OpenRouter's, Bedrock's, Google's of Gemma, and vLLM's.

Source: ollama/ollama#6027, louisho5/picobot#6, vLLM's serving_chat.py.
"""

_REFUSALS = frozenset({400, 404, 422})

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
        return self._until.get(destination_of(definition), 0.0) > self._monotonic()

    def add(self, definition: AgentDefinition, reason: object) -> None:
        """Ask the model for whole answers from now on for ``WHOLE_FOR``, and say so in the log."""
        if not self.has(definition):
            minutes = WHOLE_FOR.total_seconds() / 60
            logger.warning("%s is asked for whole answers for %g minutes: %s", definition.model, minutes, reason)
        self._until[destination_of(definition)] = self._monotonic() + WHOLE_FOR.total_seconds()

    def clear(self) -> None:
        """Forget every model."""
        self._until.clear()


WHOLE_ONLY = WholeOnly()
