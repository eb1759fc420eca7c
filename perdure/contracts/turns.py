"""A turn from the outside: what starts it, what it returns, how it is steered, stopped and looked at.

Long, because these values are what other services read and send, and each of their fields is explained.
"""

from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Literal, TypeVar, cast, overload

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError, to_json

from perdure.contracts.agents import TurnPolicy
from perdure.contracts.budgets import Budgets, Spent, Usage
from perdure.contracts.caller_tools import CallerTools
from perdure.contracts.checkpoints import CheckpointStatus, JobStatus, ResumeFrom
from perdure.contracts.conditions import StopConditions
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.files import InlineFiles, Parts, parts_field, refuse_files
from perdure.contracts.hooks import Decided, Rules
from perdure.contracts.input_requests import InputRequest, Reply
from perdure.contracts.json_bounds import check_value, reads_as_null
from perdure.contracts.messages import History
from perdure.contracts.recordings import RECORDING_PATTERN
from perdure.contracts.tools import Delegated, DelegateReport, PlannedCall, Todo, ToolOutcome
from perdure.contracts.traces import Traceparent
from perdure.contracts.turn_context import ContextData
from perdure.contracts.values import JsonValue, Label, PublicValue, Value, check_visible, refuse_unknown_fields
from perdure.contracts.waits import Pause, TurnWait
from perdure.contracts.wishes import Wishes

T = TypeVar("T")

MAX_PROMPT_BYTES = 128 * 1024
"""Longest prompt of a request, in UTF-8; it travels in Temporal payloads."""

MAX_DEFINITION_BYTES = 128 * 1024
"""Longest definition of an agent in a request, as JSON in UTF-8."""

MAX_WAITING_MESSAGES = 100
"""Messages that may wait at a running turn; they are carried in the workflow's state."""

MAX_WAITING_BYTES = 512 * 1024
"""Size of all messages that wait at a running turn, in UTF-8; one payload holds them when a turn rotates."""

MAX_OUTPUT_CHARACTERS = 100_000
"""Longest ``output`` in a result; the transcript in the store always holds the whole text."""


def _check_length(prompt: str) -> str:
    size = len(prompt.encode())
    if size > MAX_PROMPT_BYTES:
        msg = f"is {size:,} bytes, the limit is {MAX_PROMPT_BYTES:,}; let the agent read large input with a tool"
        raise ValueError(msg)
    return prompt


Prompt = Annotated[str, Field(min_length=1), AfterValidator(_check_length)]
"""Text that a person or a service sends to an agent: not empty, at most 128 KiB."""


def _small(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    size = len(to_json(value))
    if size > MAX_DEFINITION_BYTES:
        msg = f"is {size:,} bytes, the limit is {MAX_DEFINITION_BYTES:,}"
        raise ValueError(msg)
    return value


InlineDefinition = Annotated[dict[str, JsonValue], AfterValidator(_small)]
"""An agent as an object, in a request."""


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


WhenBusy = Literal["reject", "queue", "steer", "interrupt", "rollback"]
"""Fate of a message for a session whose turn runs. On an idle session each of them starts the next turn.

``reject`` refuses the message. ``queue`` lets the message wait for its turn, behind those that wait already. ``steer``
puts the message into the running turn, before its next generation. ``interrupt`` cancels the running turn and those
that wait: the message is the next turn. ``rollback`` does the same, and the message takes the place of the running
turn's: its turn begins where the running one began.
"""


class SendRequest(Value):
    """The input of the update ``send``: a message for a session that may be busy.

    Attributes:
        request_id: The same id is the same message: sending it twice is harmless.
        when_busy: What becomes of the message while a turn runs. ``"steer": true`` is a short form of ``steer``.
        parts: The images and files that come with it; perdure's client has put them into the store.
        context: Context of the next turn, in place of the session's.
        by: The sender.
        traceparent: The sender's W3C trace context, for the spans of the turn that the message begins.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: Prompt
    request_id: Label = ""
    when_busy: WhenBusy = "queue"
    parts: Parts = parts_field()
    context: ContextData | None = None
    by: Label = ""
    traceparent: Traceparent = ""

    @model_validator(mode="before")
    @classmethod
    def _read_short_form(cls, fields: object) -> object:
        if not isinstance(fields, dict) or "steer" not in fields:
            return fields  # pyright: ignore[reportUnknownVariableType] - whatever came
        rest = dict(cast("dict[str, object]", fields))
        steer = rest.pop("steer")
        if not isinstance(steer, bool):
            kind, message = "steer", 'steer: is true or false; or name one of when_busy, as in "when_busy": "steer"'
            raise PydanticCustomError(kind, message)
        if steer and rest.setdefault("when_busy", "steer") != "steer":
            kind, message = "steer", "steer, when_busy: say different things; leave steer out"
            raise PydanticCustomError(kind, message)
        return rest

    @model_validator(mode="before")
    @classmethod
    def _without_files(cls, fields: T) -> T:
        refuse_files(fields, "use 'perdure send SESSION PROMPT --attach FILE', or start the next turn with them")
        return fields

    @field_validator("context")
    @classmethod
    def _not_into_a_running_turn(cls, context: T, others: ValidationInfo) -> T:
        if context is not None and others.data.get("when_busy") == "steer":
            kind, message = "steered", "is frozen in the running turn; send it without steer, for the next turn"
            raise PydanticCustomError(kind, message)
        return context


class QueuedMessage(SendRequest):
    """A message that waits for its turn.

    Attributes:
        cancelled: Reason with which the message's turn ends as soon as it is open; None for a turn that is carried out.
        replaces: The turn that was rolled back for the message, which begins where that turn began.
    """

    cancelled: str | None = None
    replaces: int | None = None


class SendReceipt(PublicValue):
    """The result of the update ``send``: the turn that takes the message."""

    turn: int


class TurnRequest(Wishes):
    """Request of a caller to ``AgentTurn``: ``agent`` and ``prompt``, or ``resume_from`` in place of both.

    Attributes:
        agent: The agent's name; None is the agent of the session's last turn, or of the turn that is resumed from.
        definition: An agent of the request's own, as an object with the fields of ``Agent``; tools and MCP servers are
            named as the worker has them. Only a worker that allows it takes one. Later turns of the session keep it.
        history: A conversation in OpenAI's chat format with which a new session begins; its system prompt, if it has
            one, is left out, because the agent has its own.
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
        reply: What a person says to an input request of the session's last turn, which ended ``waiting_for_input``.
            The prompt then does not join the conversation.
        store: The id of the store that has the session: a worker that looks at another one leaves the turn.
        traceparent: The starter's W3C trace context, under which the turn's spans hang.
    """

    agent: str | None = Field(default=None, min_length=1, max_length=200)
    definition: InlineDefinition | None = None
    resume_from: ResumeFrom | None = None
    history: History = ()
    prompt: Annotated[str, AfterValidator(_check_length)] = Field(default="", validate_default=True)
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
    reply: Reply | None = None
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
        if not prompt and others.data.get("resume_from") is None:
            kind, message = "missing", "is needed, unless the turn resumes from a checkpoint"
            raise PydanticCustomError(kind, message)
        if prompt and cls is TurnRequest:  # an old run's may be blank; ``open_turn`` refuses a new one's
            check_visible(prompt)
        return prompt

    @field_validator("reply")
    @classmethod
    def _goes_on_with_its_turn(cls, reply: T, others: ValidationInfo) -> T:
        if reply is not None and others.data.get("context") is not None:
            kind, message = "replied", "goes on with the context of its turn; leave context out"
            raise PydanticCustomError(kind, message)
        return reply

    @field_validator("files")
    @classmethod
    def _come_with_a_prompt(cls, files: T, others: ValidationInfo) -> T:
        if files and not others.data.get("prompt"):
            kind, message = "unprompted", "need a prompt that says what is to be done with them"
            raise PydanticCustomError(kind, message)
        return files

    @field_validator("compact", "reply")
    @classmethod
    def _comes_without_files(cls, other: T, others: ValidationInfo) -> T:
        if other and (others.data.get("parts") or others.data.get("files")):
            kind, message = "unread", "takes no images and files, because no model reads the prompt; leave them out"
            raise PydanticCustomError(kind, message)
        return other

    @field_validator("compact", "reply", "history")
    @classmethod
    def _not_resumed(cls, other: T, others: ValidationInfo) -> T:
        if other and others.data.get("resume_from") is not None:
            kind, message = "resumed", "cannot be asked together with resume_from; send the one or the other"
            raise PydanticCustomError(kind, message)
        return other


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


class StoredOpening(Value):
    """The store's record of a turn that has been opened, at this attempt or an earlier one.

    Attributes:
        tip: The id of the step that holds the prompt; the first generation's parent.
        definition: The hash of the frozen definition.
        ended: The recorded result, when the same request was carried out before.
        todos: The agent's list when the session's last turn ended, or at the checkpoint.
        earlier: Spending of the session's earlier turns, their steps among the ``delegated_steps``; for an agent whose
            budgets count over the session.
        said: Texts of hooks from the turn before, which stopped for people; the next generation reads them.
        store: The id of the store that holds the turn; a worker that looks at another one leaves its activities.
        seed: The turn's secret, which the ids of its delegates are made of; empty if an earlier release opened it.
        tokens: Tokens that the session's last answer read and wrote; 0 if that is unknown.
        tokens_left: Tokens of the first answer after the last compaction, if there was one.
    """

    turn: int
    tip: str
    definition: str
    ended: "TurnResult | None" = None
    todos: tuple[Todo, ...] = ()
    earlier: Spent = Spent()
    said: tuple[str, ...] = ()
    store: str = ""
    seed: str = ""
    tokens: int = 0
    tokens_left: int = 0


class OpenedTurn(StoredOpening):
    """The result of the activity ``open_turn``: the stored opening with the policy that the workflow decides by.

    Attributes:
        search_attributes: Whether the cluster knows our search attributes, so that they can be set.
        fails_workflow: Whether an error closes the workflow as Failed, a cancel as Canceled.
        moves: Whether the turn, bound to a version of the workers, moves to another one by a rotation.
        last_turn: The number of the session's last turn, if that turn is a later one.
        asking: For a turn that a reply starts: the calls that wait for a person; ``call_ids`` names all of the answer.
        expires_at: Time until which the waiting approvals can be given.
        tenant: The tenant of the turn, if the request names none.
        trace: The trace context of the turn's span; empty if the turn is not traced.
    """

    policy: TurnPolicy
    search_attributes: bool = False
    fails_workflow: bool = False
    moves: bool = False
    last_turn: int = 0
    asking: tuple[PlannedCall, ...] = ()
    call_ids: tuple[str, ...] = ()
    expires_at: datetime | None = None
    tenant: str = ""
    trace: str = ""


class Refusal(Value):
    """Second detail of the error of a request that ``open_turn`` refused."""

    fails_workflow: bool


class CommitTurn(Value):
    """The input of the activity ``commit_turn``: how the turn ended and what it still has to write.

    Attributes:
        call_ids: The calls of the last generation, in order; those without a result get an error result.
        failed: Results that only the workflow knows, for calls whose activity could not record one.
        steered: Messages that arrived too late for a generation; the transcript keeps them.
        said: Messages of hooks that came too late; they stand before the steered ones.
        aborted_step: Number of the generation that was cancelled, if one was.
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
