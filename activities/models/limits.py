"""Facts that a worker has learnt of models and addresses: most tools, forms of requests, and useless streams.

Kept in memory only: what is learnt again costs no more than one call.
"""

import logging
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import Enum, auto

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


class Form(Enum):
    """A form of requests that a model wants at an address, and that nothing but its refusal tells."""

    SHORT_IDS = auto()
    """Ids of calls of nine letters and digits."""

    COMPLETION_CEILING = auto()
    """``max_completion_tokens`` in place of the ``max_tokens`` that a budget added."""


_ASKED_FOR = {
    Form.SHORT_IDS: re.compile(r"tool.?call.?id\b.{0,200}\blength of 9\b", re.IGNORECASE | re.DOTALL),
    Form.COMPLETION_CEILING: re.compile(r"\bmax_tokens\b.{0,200}\bmax_completion_tokens\b", re.DOTALL),
}
"""Words of refusals: of mistral-common, also in vLLM, and of OpenAI's API, also at Azure's deployments of any name."""

_REFUSALS = frozenset({400, 422})


class Forms:
    """The forms that models have asked for, by model and address."""

    def __init__(self) -> None:
        self._wanted: set[tuple[tuple[str, str], Form]] = set()

    def has(self, definition: AgentDefinition, form: Form) -> bool:
        """Whether the agent's model has asked for the form."""
        return (_destination_of(definition), form) in self._wanted

    def learn(self, definition: AgentDefinition, error: BaseException, *, has_ceiling: bool) -> bool:
        """Remember a refusal that asks for a form which the call did not have; False if it is none."""
        facts = facts_of(error, datetime.now(UTC))
        if facts.status not in _REFUSALS:
            return False
        possible = {Form.SHORT_IDS, *([Form.COMPLETION_CEILING] if has_ceiling else [])}
        new = {
            form
            for form in possible
            if not self.has(definition, form) and _ASKED_FOR[form].search(facts.text) is not None
        }
        self._wanted |= {(_destination_of(definition), form) for form in new}
        return bool(new)

    def clear(self) -> None:
        """Forget every model."""
        self._wanted.clear()


FORMS = Forms()


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
