"""Generations and compactions: what the workflow asks for and what it gets back. The conversation is in neither."""

import hashlib
from decimal import Decimal
from typing import Literal

from pydantic import Field

from perdure.contracts.budgets import Paid, Usage
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.hooks import Decided
from perdure.contracts.sends import SendRequest
from perdure.contracts.tool_choice import ToolChoice
from perdure.contracts.tools import PlannedCall, ToolOutcome
from perdure.contracts.values import Value

CompactionTrigger = Literal["threshold", "overflow_recovery", "manual"]
"""Trigger of a compaction: the conversation's size, a provider that found it too long, or a person."""


CUT_OFF = "length"
"""finish_reason of an answer cut by our cost ceiling; an answer cut by the author's own limit fails."""


class StepRequest(Value):
    """Place of a model call in its session: the step that the call makes, or makes room for.

    Attributes:
        fallback: Number of the agent's fallback that is called, from 1; 0 is the agent's own model.
        store: The id of the store that the turn lives in.
        trace: The trace context of the turn's span; empty if the turn is not traced.
    """

    session: str
    turn: int
    step: int
    fallback: int = 0
    store: str = ""
    trace: str = ""

    def _key(self, *fields: str) -> bytes:
        """Fields that a step's id is made of; a request of the agent's own model has the key from before fallbacks."""
        named = {"session", "turn", "step", *fields, *(["fallback"] if self.fallback else [])}
        return self.model_dump_json(include=named).encode()


class Generate(StepRequest):
    """The input of the activity ``generate``.

    Attributes:
        parent: The step before; the chain of parents holds the conversation.
        call_ids: Calls whose results are new since the parent, in the order of the model's answer.
        failed: Results that only the workflow knows, for calls whose activity could not record one.
        steered: Messages that arrived while the turn ran.
        said: Messages of hooks; they stand before the steered ones.
        failures: Failed calls in a row that the model was told of, before this call.
        corrections: Answers of the turn so far that did not fit the agent's output schema.
        compacted: Whether the conversation was compacted for this step, or could not be: an overflowing context then
            ends the turn.
        decided: Decisions of the engine that the event log lacks.
        text_only: Whether the model is to answer with text, and no call.
        tool_choice: What the model has to call; None leaves it to the model, or to the agent's parameters.
        cost_left: Most US dollars that the call may cost, retries included; None means no limit.
    """

    parent: str
    definition: str
    call_ids: tuple[str, ...] = ()
    failed: tuple[ToolOutcome, ...] = ()
    steered: tuple[SendRequest, ...] = ()
    said: tuple[str, ...] = ()
    failures: int = 0
    corrections: int = 0
    compacted: bool = False
    decided: tuple[Decided, ...] = ()
    text_only: bool = False
    tool_choice: ToolChoice | None = Field(default=None, exclude_if=lambda choice: choice is None)
    cost_left: Decimal | None = None

    def step_id(self) -> str:
        """The id of the step this call makes: 32 hexadecimal digits over all that determines its input.

        Results of calls never change once they are recorded, and the definition's hash covers the model: so an answer
        stored under this id answers exactly this call, and a second attempt returns it instead of paying again.
        """
        # Not in the key that a request had before there were hooks, or a choice.
        more = (*(("said",) if self.said else ()), *(("tool_choice",) if self.tool_choice is not None else ()))
        key = self._key("parent", "definition", "call_ids", "steered", *more)
        return hashlib.sha256(key).hexdigest()[:32]


class Generation(Value):
    """The result of the activity ``generate``; the answer itself stands in the store, under ``tip``.

    Attributes:
        preview: The first 1,000 characters of the text.
        cost_usd: None if the model's price is unknown.
        retry_seconds: Wait before the next generation, after a failed call that the model is told of; the step then
            holds the failure in place of an answer.
        rejected: Why the answer does not fit the agent's output schema. Unless the corrections are used up, the step
            holds the reason as a message for the model too.
        retries: Calls that failed and were sent again, if a stop condition counts retries.
        matched: The stop conditions on texts that hold for the answer, by their place among them.
        failed: What calls have cost that failed and were sent again.
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
    failed: Paid = Paid()

    @property
    def is_told_failure(self) -> bool:
        """Whether the step holds a failure that the model is told of, and no answer."""
        return self.retry_seconds is not None


class Compact(StepRequest):
    """The input of the activity ``compact``.

    Attributes:
        parent: The last step that the compaction reads; calls without a result may stand at its end.
        guidance: A person's instructions for the summary.
        failure: For an overflow recovery: the error that ends the turn if nothing can be summarised.
        cost_left: Most US dollars that the call may cost; None means no limit.
    """

    parent: str
    definition: str
    trigger: CompactionTrigger
    guidance: str = ""
    failure: ErrorDetail | None = None
    cost_left: Decimal | None = None

    def step_id(self) -> str:
        """The id of the step that holds the summary: 32 hexadecimal digits over all that determines its input."""
        return hashlib.sha256(b"compact" + self._key("parent", "definition", "guidance")).hexdigest()[:32]


class Compacted(Value):
    """The result of the activity ``compact``; the summary itself stands in the store, under ``tip``.

    Attributes:
        tip: The step from which the conversation goes on; the parent if nothing was summarised.
        summarised: Number of messages that the summary replaces; 0 if nothing could be summarised.
        reason: Why nothing could be summarised.
        usage: Tokens of the call that wrote the summary.
        cost_usd: None if the model's price is unknown.
        failed: What calls have cost that failed and were sent again.
    """

    tip: str
    summarised: int = 0
    reason: str = ""
    usage: Usage = Usage()
    cost_usd: Decimal | None = None
    failed: Paid = Paid()
