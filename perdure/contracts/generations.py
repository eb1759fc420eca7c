"""Generations and compactions: what the workflow asks for and what it gets back. The conversation is in neither."""

import hashlib
from decimal import Decimal
from typing import Literal

from perdure.contracts.budgets import Usage
from perdure.contracts.decisions import Decided
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.tools import PlannedCall, ToolOutcome
from perdure.contracts.turns import SendRequest
from perdure.contracts.values import Value

CompactionTrigger = Literal["threshold", "overflow_recovery", "manual"]
"""What asks for a compaction: the conversation's size, a provider that found it too long, or a person."""


class StepRequest(Value):
    """Where in a session a model call belongs: the step that it makes, or makes room for."""

    session: str
    turn: int
    step: int


class Generate(StepRequest):
    """The input of the activity ``generate``.

    Attributes:
        parent: The step before; the conversation is what its chain of parents holds.
        call_ids: The calls whose results are new since the parent, in the order the model asked.
        failed: Results only the workflow knows, for calls whose activity could not record one.
        steered: Messages that came in while the turn ran.
        failures: Failed calls in a row before this one of which the model was told.
        corrections: Answers of the turn before this one that did not fit the agent's output schema.
        compacted: Whether the conversation was compacted for this step, or could not be: a context that is too long
            then ends the turn.
        decided: Decisions of the engine that the event log does not have yet.
    """

    parent: str
    definition: str
    call_ids: tuple[str, ...] = ()
    failed: tuple[ToolOutcome, ...] = ()
    steered: tuple[SendRequest, ...] = ()
    failures: int = 0
    corrections: int = 0
    compacted: bool = False
    decided: tuple[Decided, ...] = ()

    def step_id(self) -> str:
        """The id of the step this call makes: 32 hexadecimal digits over all that determines its input.

        Results of calls never change once they are recorded, and the definition's hash covers the model: so an answer
        stored under this id answers exactly this call, and a second attempt returns it instead of paying again.
        """
        key = self.model_dump_json(include={"session", "turn", "step", "parent", "definition", "call_ids", "steered"})
        return hashlib.sha256(key.encode()).hexdigest()[:32]


class Generation(Value):
    """The result of the activity ``generate``; the answer itself stands in the store, under ``tip``.

    Attributes:
        preview: The first 1,000 characters of the text.
        cost_usd: None if the model's price is unknown.
        retry_seconds: Set when the call failed and the model is told so: the step holds the failure in place of an
            answer, and the next generation begins after so long.
        rejected: Why the answer is none that the agent's output schema allows. Unless the corrections are used up, the
            step holds that as a message for the model too.
        retries: Calls that failed and were sent again, if a stop condition counts them.
        matched: The stop conditions on texts that hold for the answer, by their place among them.
    """

    tip: str
    preview: str = ""
    calls: tuple[PlannedCall, ...] = ()
    finish_reason: str = ""
    usage: Usage = Usage()
    cost_usd: Decimal | None = None
    retry_seconds: float | None = None
    rejected: ErrorDetail | None = None
    retries: int = 0
    matched: tuple[int, ...] = ()


class Compact(StepRequest):
    """The input of the activity ``compact``.

    Attributes:
        parent: The step up to which the conversation is looked at; calls without a result may stand at its end.
        guidance: What a person asked the summary to keep in mind.
        failure: Of an overflow recovery: what ends the turn if nothing can be summarised.
    """

    parent: str
    definition: str
    trigger: CompactionTrigger
    guidance: str = ""
    failure: ErrorDetail | None = None

    def step_id(self) -> str:
        """The id of the step that holds the summary: 32 hexadecimal digits over all that determines its input."""
        key = self.model_dump_json(include={"session", "turn", "step", "parent", "definition", "guidance"})
        return hashlib.sha256(b"compact" + key.encode()).hexdigest()[:32]


class Compacted(Value):
    """The result of the activity ``compact``; the summary itself stands in the store, under ``tip``.

    Attributes:
        tip: The step from which the conversation goes on; the parent if nothing was summarised.
        summarised: How many messages the summary stands for; 0 if there was nothing that could be summarised.
        reason: Why nothing was.
        usage: Of the call that wrote the summary.
        cost_usd: None if the model's price is unknown.
    """

    tip: str
    summarised: int = 0
    reason: str = ""
    usage: Usage = Usage()
    cost_usd: Decimal | None = None
