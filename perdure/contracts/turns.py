"""A turn from the outside: what starts it, what it returns, how it is steered, stopped and looked at.

Long, because these values are what other services read and send, and each of their fields is explained.
"""

import operator
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, LiteralString, TypeVar, cast, overload

from pydantic import AfterValidator, Field, TypeAdapter, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError, to_json

from perdure.contracts.budgets import Budgets, Spent, Usage
from perdure.contracts.caller_tools import CallerTools
from perdure.contracts.checkpoints import CheckpointStatus, JobStatus, ResumeFrom
from perdure.contracts.conditions import StopConditions
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.files import InlineFiles, Parts, parts_field
from perdure.contracts.hooks import Decided, Rules
from perdure.contracts.input_requests import InputRequest, Reply, check_replies
from perdure.contracts.json_bounds import check_value, most_bytes, reads_as_null
from perdure.contracts.messages import History
from perdure.contracts.recordings import RECORDING_PATTERN
from perdure.contracts.sends import QueuedMessage, SendRequest, check_length
from perdure.contracts.tools import Delegated, DelegateReport, Todo, ToolOutcome
from perdure.contracts.traces import Traceparent
from perdure.contracts.turn_context import ContextData
from perdure.contracts.values import JsonValue, Label, PublicValue, Value, check_visible, refuse_unknown_fields
from perdure.contracts.waits import Pause, TurnWait
from perdure.contracts.wishes import Wishes

T = TypeVar("T")

MAX_DEFINITION_BYTES = 128 * 1024
"""Longest definition of an agent in a request, as JSON in UTF-8."""

MAX_OUTPUT_CHARACTERS = 100_000
"""Longest ``output`` in a result; the transcript in the store always holds the whole text."""


InlineDefinition = Annotated[dict[str, JsonValue], most_bytes(MAX_DEFINITION_BYTES)]
"""An agent as an object, in a request."""

Replies = Annotated[tuple[Reply, ...], AfterValidator(check_replies), Field(exclude_if=operator.not_)]
"""Replies to input requests that start a turn together."""


class StopReason(StrEnum):
    """Reason a turn ended."""

    FINISHED = "finished"
    """The agent's completion criterion was met."""
    MAX_STEPS_REACHED = "max_steps_reached"
    """The turn used all its generations; another message continues."""
    ERROR = "error"
    """A failure ended the turn; ``reason_code`` and ``error`` say which."""
    STALLED = "stalled"
    """The model answered with text only although a completion criterion is configured and was not met."""
    CANCELLED = "cancelled"
    """Somebody cancelled the turn."""
    BUDGET_EXHAUSTED = "budget_exhausted"
    """A budget of the turn was used up."""
    WAITING_FOR_INPUT = "waiting_for_input"
    """A person has to answer first, and the agent is set to stop for that; the answer starts the next turn."""

    @property
    def checkpoint_status(self) -> CheckpointStatus:
        """Status of the last checkpoint of a turn with this stop reason."""
        return _STATUSES[self][0]

    @property
    def job_status(self) -> JobStatus:
        """Status of a session whose last turn has this stop reason."""
        return _STATUSES[self][1]


_LIMIT = (CheckpointStatus.STOPPED_BY_EXCEEDED_MAX_STEPS, JobStatus.STOPPED_BY_MAX_STEPS)
_FAILURE = (CheckpointStatus.STOPPED_BY_ERROR, JobStatus.STOPPED_BY_ERROR)
_STATUSES = {
    StopReason.FINISHED: (CheckpointStatus.COMPLETED, JobStatus.COMPLETED),
    StopReason.MAX_STEPS_REACHED: _LIMIT,
    StopReason.BUDGET_EXHAUSTED: _LIMIT,
    StopReason.WAITING_FOR_INPUT: (
        CheckpointStatus.STOPPED_BY_INTERACTIVE_TOOL,
        JobStatus.STOPPED_BY_INTERACTIVE_TOOL,
    ),
    StopReason.ERROR: _FAILURE,
    StopReason.STALLED: _FAILURE,
    StopReason.CANCELLED: _FAILURE,
}


class RunState(StrEnum):
    """The value of the search attribute ``PerdureState``; ``queued``, before a turn opens, stands in lists only."""

    RUNNING = "running"
    WAITING_FOR_INPUT = "waiting_for_input"
    PAUSED = "paused"
    QUEUED = "queued"
    ENDED = "ended"


_LEFT_OUT: tuple[object, ...] = (None, (), False)

_THAT_ASKED: LiteralString = "go on with the turn that asked; leave definition and history out"
_RESUMED: tuple[str, LiteralString, LiteralString] = (
    *("resume_from", "resumed"),
    "cannot be asked together with resume_from; send the one or the other",
)
_UNREAD: LiteralString = "takes no images and files, because no model reads the prompt; leave them out"

_APART: Mapping[str, Sequence[tuple[str, LiteralString, LiteralString]]] = {
    "replies": [("definition", "replied", _THAT_ASKED), ("history", "replied", _THAT_ASKED), _RESUMED],
    # The workflow reads the prompt beside replies, and has no store to put files into.
    "files": [("replies", "replied", "come with a message of their own, not beside replies; send them afterwards")],
    "context": [("replies", "replied", "is that of the turn that the replies go on with; leave it out")],
    "compact": [("parts", "unread", _UNREAD), ("files", "unread", _UNREAD), _RESUMED],
}
"""Fields of a request that stand beside some others not: the other one, then kind and text of the refusal."""


class TurnRequest(Wishes):
    """Request of a caller to ``AgentTurn``: ``agent`` and ``prompt``, or ``resume_from`` in place of both.

    Attributes:
        agent: The agent's name; None is the agent of the session's last turn, or of the turn that is resumed from.
        definition: An agent of the request's own, as an object with the fields of ``Agent``; tools and MCP servers are
            named as the worker has them. Only a worker that allows it takes one. Later turns of the session keep it.
        history: A conversation in OpenAI's chat format with which a new session begins, or one that resumes from its
            own turn 0; its system prompt, if it has one, is left out, because the agent has its own.
        resume_from: The checkpoint to go on from, of this session or of another. Without a prompt nothing is added to
            the conversation, which then has to end with something that a model can answer.
        parts: The images and files that come with the prompt; perdure's client has put them into the store.
        files: Images and files with their bytes, from callers that cannot write into the store; ``open_turn`` does.
        request_id: Makes starting idempotent: the same id in the same session is the same turn.
        model: Another model for this turn, in the form ``provider/model``.
        turn: The number the caller expects this turn to have; another number is refused.
        stop_conditions: In place of the agent's.
        tools: Tools beside the agent's, for this turn: the caller runs them, and sends results by ``submit_result``.
        rules: Hook rules in place of the agent's; its hooks that are functions stay.
        tenant: On whose behalf the turn runs; copied into the search attribute ``PerdureTenant``. None given is that
            of the session's last turn.
        context: A JSON object of at most 16 KiB for tools, hooks and instructions; no model reads it. None is that of
            the session's last turn, if it has the same tenant.
        by: Who starts the turn, as the starter says; tools, hooks and instructions get it.
        recording: What a worker started with ``--record`` or ``--replay`` writes or reads; None is the recording of
            the session's last turn, or else the one of the agent's name.
        compact: Summarise the conversation and generate nothing; the prompt, which does not join it, says what to keep.
        replies: What is said to input requests of the session's last turn, which ended ``waiting_for_input``. The turn
            goes on with the settings of that one, except for what the request brings; the prompt may be empty, and is
            read behind the results.
        stop_for_results: Whether the turn ends ``waiting_for_input``, in place of waiting, once it needs nothing but
            results of its caller's tools; an agent that stops for everything, or for nothing, stays as it is.
        store: The id of the store that has the session: a worker that looks at another one leaves the turn.
        traceparent: The starter's W3C trace context, under which the turn's spans hang.
    """

    agent: str | None = Field(default=None, min_length=1, max_length=200)
    definition: InlineDefinition | None = None
    resume_from: ResumeFrom | None = None
    history: History = ()
    replies: Replies = ()
    prompt: Annotated[str, AfterValidator(check_length)] = Field(default="", validate_default=True)
    parts: Parts = parts_field()
    files: InlineFiles = parts_field()
    request_id: Label = ""
    model: Annotated[Label, Field(min_length=1)] | None = None
    max_steps: int | None = Field(default=None, ge=1)
    budgets: Annotated[Budgets, refuse_unknown_fields(Budgets)] | None = None
    stop_conditions: StopConditions | None = None
    rules: Rules | None = None
    tools: CallerTools = ()
    turn: int | None = Field(default=None, ge=1)
    tenant: Label = ""
    context: ContextData | None = None
    by: Label = ""
    recording: str | None = Field(default=None, pattern=RECORDING_PATTERN)
    compact: bool = False
    stop_for_results: bool = Field(default=False, exclude_if=operator.not_)
    store: Label = ""
    traceparent: Traceparent = ""

    @model_validator(mode="before")
    @classmethod
    def _is_within_bounds(cls, fields: T) -> T:
        if cls is TurnRequest:  # a turn that runs keeps what it was given
            check_value(fields)
        return fields

    @field_validator("prompt")
    @classmethod
    def _is_said(cls, prompt: str, others: ValidationInfo) -> str:
        if not prompt and others.data.get("resume_from") is None and not others.data.get("replies"):
            kind, message = "missing", "is needed, unless the turn resumes from a checkpoint or begins with replies"
            raise PydanticCustomError(kind, message)
        if prompt and cls is TurnRequest:  # an old run's may be blank; ``open_turn`` refuses a new one's
            check_visible(prompt)
        return prompt

    @field_validator("files")
    @classmethod
    def _come_with_a_prompt(cls, files: T, others: ValidationInfo) -> T:
        if files and not others.data.get("prompt"):
            kind, message = "unprompted", "need a prompt that says what is to be done with them"
            raise PydanticCustomError(kind, message)
        return files

    @field_validator("history")
    @classmethod
    def _begins_a_conversation(cls, history: T, others: ValidationInfo) -> T:
        origin = others.data.get("resume_from")
        if history and origin is not None and origin != ResumeFrom(turn=0):
            kind, message = "resumed", "begins a conversation: beside resume_from, that is turn 0 of the session itself"
            raise PydanticCustomError(kind, message)
        return history

    @field_validator(*_APART)
    @classmethod
    def _stands_alone(cls, value: T, others: ValidationInfo) -> T:
        for other, kind, message in _APART[str(others.field_name)]:
            if value not in _LEFT_OUT and others.data.get(other) not in _LEFT_OUT:
                raise PydanticCustomError(kind, message)
        return value


class Continuation(TurnRequest):
    """Request with which perdure itself starts the next turn, the next run of a turn, or a delegate's turn.

    Attributes:
        delegated: The call that a delegate's turn carries out; the caller's ledger holds the query.
        queued: Messages for the turns after this one.
        cancelled: Reason with which the turn ends as soon as it is open: it was cancelled while its message waited.
        replaces: The turn in whose place this one begins, where that turn began.
        paused: The pause of the session, which goes on in this turn.
        carried: State of a turn that rotated.
    """

    delegated: Delegated | None = None
    queued: tuple[QueuedMessage, ...] = ()
    cancelled: str | None = None
    replaces: int | None = None
    paused: Pause | None = None
    carried: JsonValue = None

    @model_validator(mode="before")
    @classmethod
    def _read_one_reply(cls, fields: object) -> object:
        """Read the input of older runs, whose prompt beside a reply was for people alone."""
        if not isinstance(fields, dict) or "reply" not in fields:
            return fields  # pyright: ignore[reportUnknownVariableType] - whatever came
        rest = dict(cast("dict[str, object]", fields))
        reply = rest.pop("reply")
        return rest if reply is None else {**rest, "prompt": "", "replies": [reply]}

    @property
    def own_fields(self) -> tuple[str, ...]:
        """Names of the fields that no caller may send and that are not at their defaults."""
        fields = type(self).model_fields
        own = fields.keys() - TurnRequest.model_fields.keys()
        return tuple(sorted(name for name in own if getattr(self, name) != fields[name].default))


class CancelRequest(Value):
    """The input of ``cancel``, which is an update and a signal. The update refuses what the signal has to ignore.

    Attributes:
        turn: The turn to stop: the running one, or one whose message waits. None is the running one.
        request_id: The turn to stop, by the id of its request.
        drop_queue: Whether all waiting messages are dropped: each gets its turn, which ends as cancelled.
    """

    reason: str = ""
    turn: int | None = None
    request_id: str | None = None
    drop_queue: bool = False


class CancelReceipt(PublicValue):
    """The result of the update ``cancel``.

    Attributes:
        turn: Number of the turn that the request named.
        stops: False if the turn was ending already, for another reason.
        dropped: Numbers of the turns whose waiting messages were dropped.
    """

    turn: int
    stops: bool = True
    dropped: tuple[int, ...] = ()


class OpenTurn(Value):
    """The input of the activity ``open_turn``.

    Attributes:
        run_started_at: Start of this Temporal run; an older run may not close the turn of a newer one.
        stopped: Whether the turn is stopped already: it opens to be recorded as that, and needs no slot.
    """

    session: str
    request: Continuation
    request_id: str
    run_started_at: datetime
    stopped: bool = False


class CommitTurn(Value):
    """The input of the activity ``commit_turn``: how the turn ended and what it still has to write.

    Attributes:
        call_ids: The calls of the last generation, in order; those without a result get an error result.
        failed: Results that only the workflow knows, for calls whose activity could not record one.
        steered: Messages that arrived too late for a generation; the transcript keeps them.
        said: Messages of hooks that came too late; they stand before the steered ones.
        aborted_step: Number of the generation that was cancelled, if one was.
        fallback: Number of the fallback at work; 0 is the agent's own model.
        history_bytes: Size of the current run's history so far.
        requests: Input requests at which the turn stops: their calls stay without a result until somebody replies.
        stopped_by: Tool, hook or condition that ended a finished turn before the model did.
        decided: Decisions of the engine that the event log lacks.
        delegated: The call that a delegate's turn carries out.
        todos: The agent's list.
        abandoned: Whether the turn's workflow is gone, for a delegate: the store alone then says how the turn ended.
        store: The id of the store that the turn lives in.
    """

    session: str
    turn: int
    tip: str
    stop_reason: StopReason
    error: ErrorDetail | None = None
    steps: int
    spent: Spent
    call_ids: tuple[str, ...] = ()
    failed: tuple[ToolOutcome, ...] = ()
    steered: tuple[SendRequest, ...] = ()
    said: tuple[str, ...] = ()
    aborted_step: int | None = None
    fallback: int = 0
    cancel_requested_at: datetime | None = None
    history_bytes: int = 0
    requests: tuple[InputRequest, ...] = ()
    stopped_by: str | None = None
    decided: tuple[Decided, ...] = ()
    delegated: Delegated | None = None
    todos: tuple[Todo, ...] = ()
    abandoned: bool = False
    store: str = ""


class TurnResult(PublicValue):
    """The result of a turn: the workflow's result and a row in the store.

    Attributes:
        error: One sentence on what went wrong; None if nothing did.
        output: The text of the last answer, at most 100,000 characters; a delegate's has its last calls with results.
        value: The answer as JSON that fits the agent's output schema; None without one, or if it was too long to keep.
        steps: Generations used.
        cost_usd: US dollars; the ``unpriced_calls``, model calls of unknown price, are not in it.
        turn: The number of the turn in its session, from 1; None if it was refused before it had one.
        requests: Open input requests of a turn that ended ``waiting_for_input``.
        stopped_by: Tool, hook or condition that ended a finished turn before the model did, as ``tool: reason``.
        delegated_steps: Generations of delegates, not counted in ``steps``; usage and cost include them.
        report: A delegate's report to its caller.
        exhausted_by: For a turn that ended ``budget_exhausted``: the budget, such as ``cost`` or ``llm_calls``.
        exception: ``exception.<Class>`` of a plain exception that ended the turn, raised by a hook, a tool or a bug: a
            second code beside ``reason_code``.
        todos: The agent's list; the session's next turn goes on with it.
        spent: The turn's use, delegates included; None for a refused turn.
    """

    session: str
    turn: int | None
    agent: str
    stop_reason: StopReason
    reason_code: str | None = None
    error: str | None = None
    output: str = ""
    steps: int = 0
    usage: Usage = Usage()
    cost_usd: Decimal = Decimal(0)
    unpriced_calls: int = 0
    value: JsonValue = None
    requests: tuple[InputRequest, ...] = ()
    stopped_by: str | None = None
    delegated_steps: int = 0
    report: DelegateReport | None = None
    exhausted_by: str | None = None
    exception: str | None = None
    todos: tuple[Todo, ...] = ()
    spent: Spent | None = None

    @overload
    def value_as(self, wanted: type[T]) -> T: ...

    @overload
    def value_as(self, wanted: TypeAdapter[T]) -> T: ...

    def value_as(self, wanted: type[T] | TypeAdapter[T]) -> T:
        """The value as an instance of a type: that of the agent's ``output_schema``, or another that the JSON fits.

        Args:
            wanted: A pydantic class, a dataclass, a type such as ``list[int]``, or a ``TypeAdapter`` of any other.

        Raises:
            ValueError: The turn has no value, or it does not fit (``pydantic.ValidationError``).
        """
        if self.value is None and not (self.stop_reason in {"finished", "stalled"} and reads_as_null(self.output)):
            stopped = f"it was stopped by {self.stopped_by}, before the model gave an answer that fits output_schema"
            none = stopped if self.stopped_by else "its agent has no output_schema, or it did not finish"
            told = f"turn {self.turn} of session {self.session} ended {self.stop_reason} without a value"
            raise ValueError(f"{told}: {self.error or none}")
        adapter: TypeAdapter[T] = wanted if isinstance(wanted, TypeAdapter) else TypeAdapter(wanted)
        return adapter.validate_json(to_json(self.value))

    @property
    def checkpoint_status(self) -> CheckpointStatus:
        """Status of the turn's last checkpoint."""
        return self.stop_reason.checkpoint_status

    @property
    def job_status(self) -> JobStatus:
        """Status of the session after the turn."""
        return self.stop_reason.job_status


class TurnStatus(PublicValue):
    """The result of the query ``status``."""

    session: str
    turn: int | None
    agent: str
    model: str
    state: RunState
    step: int
    max_steps: int
    activity: str
    """Current activity, for people: ``generate, step 4`` or ``tools: read_file, search``."""
    queued: int
    cancelling: bool
    spent: Spent
    requests: tuple[InputRequest, ...] = ()
    """Open input requests."""
    todos: tuple[Todo, ...] = ()
    """The agent's list."""
    paused: Pause | None = Field(default=None, exclude_if=lambda pause: pause is None)
    """The pause of the session, also while what runs is still finishing."""
    waits_for: TurnWait | None = Field(default=None, exclude_if=lambda wait: wait is None)
    """Reason the turn stands still, if it does; filled in by the client, because the workflow cannot know."""


class BudgetStatus(PublicValue):
    """The result of the query ``budget`` and of the update ``extend``: limits, and the use that counts against them."""

    max_steps: int
    steps: int
    limits: Budgets
    spent: Spent
