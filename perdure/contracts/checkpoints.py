"""Checkpoints: the steps of a session as places to go on from, and what is told of each."""

from decimal import Decimal
from enum import StrEnum

from pydantic import ConfigDict, Field

from perdure.contracts.budgets import Usage
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.messages import ToolMessage
from perdure.contracts.tools import PlannedCall
from perdure.contracts.values import Value


class CheckpointStatus(StrEnum):
    """Status of a checkpoint, in the words of Perstack."""

    INIT = "init"
    """It holds the prompt; the model has not answered yet."""
    PROCEEDING = "proceeding"
    """The turn went on from it, or is about to."""
    COMPLETED = "completed"
    """The turn finished at it."""
    STOPPED_BY_INTERACTIVE_TOOL = "stoppedByInteractiveTool"
    """Its calls wait for a person."""
    STOPPED_BY_DELEGATE = "stoppedByDelegate"
    """Its calls wait for delegates."""
    STOPPED_BY_EXCEEDED_MAX_STEPS = "stoppedByExceededMaxSteps"
    """The turn ended at it because its steps, or a budget, were used up."""
    STOPPED_BY_ERROR = "stoppedByError"
    """The turn ended at it by a failure, stalled or was cancelled."""


class JobStatus(StrEnum):
    """Status of a session, in the words of Perstack."""

    RUNNING = "running"
    COMPLETED = "completed"
    STOPPED_BY_MAX_STEPS = "stoppedByMaxSteps"
    STOPPED_BY_INTERACTIVE_TOOL = "stoppedByInteractiveTool"
    STOPPED_BY_ERROR = "stoppedByError"


class ResumeFrom(Value):
    """The checkpoint that a turn goes on from.

    Attributes:
        session: Of another session: the turn begins a new session, a fork. None is the turn's own session, which then
            goes on from there: what came after the checkpoint stays stored, but leaves the conversation.
        turn: None is the last turn. 0 is before the first message.
        step: The step of that turn, with the results of its calls. None is the turn's end.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    session: str | None = Field(default=None, min_length=1, max_length=200)
    turn: int | None = Field(default=None, ge=0)
    step: int | None = Field(default=None, ge=0)

    def __str__(self) -> str:
        """Text for people: ``job-1, turn 2, step 5``."""
        parts = (self.session, _format_number("turn", self.turn), _format_number("step", self.step))
        return ", ".join(part for part in parts if part) or "its end"


def _format_number(what: str, number: int | None) -> str | None:
    return None if number is None else f"{what} {number}"


class Checkpoint(Value):
    """A step as a place to resume or fork a session from; read from the store.

    Attributes:
        id: That of the step; ``generation_step`` events name it as ``tip``.
        step: The number of the generation in its turn; 0 holds the prompt.
        messages: How many messages a model reads here, the results of the calls left out.
        usage: Of the turn up to here.
        cost_usd: Of the turn up to here, without calls whose price is unknown.
        context_tokens: What the model call of this step read and wrote.
        context_window: Of the turn's model, in tokens; None if nothing is known about it.
        context_used: ``context_tokens`` as a share of the window.
        retries: How often the model call failed and was sent again.
        pending_calls: Calls that have no result yet.
        partial_results: The results that are there, while others are pending.
        error: What ended the turn here, if a failure did.
    """

    id: str
    session: str
    turn: int
    step: int
    status: CheckpointStatus
    agent: str
    model: str
    messages: int
    usage: Usage = Usage()
    cost_usd: Decimal = Decimal(0)
    context_tokens: int = 0
    context_window: int | None = None
    context_used: float | None = None
    retries: int = 0
    pending_calls: tuple[PlannedCall, ...] = ()
    partial_results: tuple[ToolMessage, ...] = ()
    error: ErrorDetail | None = None
