"""Events: the lines of a session's durable log, and the envelope that orders them.

Sequence number, session, turn, step and time stand in the envelope only; an event holds what is its own.

Long, because each of the thirty events is a class with its fields, and their other names stand beside them.
"""

import operator
from collections.abc import Collection, Iterable
from datetime import datetime
from decimal import Decimal
from difflib import get_close_matches
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError

from perdure.contracts.budgets import Usage
from perdure.contracts.checkpoints import ResumeFrom
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.files import Parts, ToolFiles, parts_field
from perdure.contracts.generations import CompactionTrigger
from perdure.contracts.hooks import (
    AnyReaction,
    Boundary,
    BudgetChanged,
    BudgetWarning,
    Decided,
    ModelFallback,
    ReactStep,
    StopConditionMet,
    TodosChanged,
)
from perdure.contracts.input_requests import DecidedRequest, InputRequest
from perdure.contracts.retries import RetryDetails
from perdure.contracts.tools import MaskedCall
from perdure.contracts.traces import TurnTrace
from perdure.contracts.turns import StopReason
from perdure.contracts.values import JsonValue, Value, json_object, replace, to_json_line


class CallEvent(Value):
    """Fields that the events of a tool call share: the call's id, and the wire name of its tool."""

    call_id: str
    tool: str


class DelegateStart(CallEvent):
    """A delegate begins to work on a call, in a session of its own."""

    type: Literal["delegate_start"] = "delegate_start"
    agent: str
    delegate: str
    """The session."""


class DelegateEnd(CallEvent):
    """A delegate has ended; its use, own delegates included, counts for the caller."""

    type: Literal["delegate_end"] = "delegate_end"
    agent: str
    delegate: str
    stop_reason: StopReason
    reason_code: str | None = None
    error: str | None = None
    steps: int
    usage: Usage
    cost_usd: Decimal


class AgentStart(Value):
    """A turn has begun; written by ``open_turn``.

    Attributes:
        prompt: The prompt; empty if the turn resumes from a checkpoint without one.
        context_window: The model's context window in tokens; None if unknown.
        resumed_from: The checkpoint that the request named to go on from.
        delegated_by: For a delegate's turn: the caller's session.
        parts: Images and files of the prompt.
        context: The starter's data for tools, hooks and instructions; no model reads it.
        tenant: The tenant of the turn.
        by: The starter, in its own words.
        trace: Where the turn stands in its trace; None if it is not traced.
        structured: Whether the turn's answer is JSON that fits a schema.
    """

    type: Literal["agent_start"] = "agent_start"
    agent: str
    model: str
    prompt: str
    definition: str
    context_window: int | None = None
    resumed_from: ResumeFrom | None = None
    delegated_by: str | None = None
    parts: Parts = parts_field()
    context: dict[str, JsonValue] = {}
    tenant: str = ""
    by: str = ""
    trace: TurnTrace | None = Field(default=None, exclude_if=lambda trace: trace is None)
    structured: bool = Field(default=False, exclude_if=operator.not_)


class UserMessageReceived(Value):
    """A message was taken into the running turn; a notice is a hook's or perdure's, and not the user's."""

    type: Literal["user_message"] = "user_message"
    content: str
    parts: Parts = parts_field()
    is_notice: bool = Field(default=False, exclude_if=operator.not_)


class GenerationStart(Value):
    """A model call is about to be sent; ``messages`` counts what the model reads."""

    type: Literal["generation_start"] = "generation_start"
    model: str
    messages: int


class GenerationWait(Value):
    """A model call waits because the provider limits the key; written once for a long wait.

    Attributes:
        ahead: Number of calls before this one.
        calls_per_second: Pace of this worker's calls to the provider with this key.
    """

    type: Literal["generation_wait"] = "generation_wait"
    model: str
    ahead: int
    calls_per_second: float | None = None


class GenerationAdapted(Value):
    """A provider refused a part of a call and has taken it without; later calls of the session go without it at once.

    A field that is None or empty leaves what an earlier event of the model has said as it was.

    Attributes:
        address: Digest of the address that the agent names for its model; empty for the provider's own.
        left_out: Ids of the artifacts of images and files that were refused.
        reasons: Whether the model's reasoning still goes back to it.
        most: Most images and files of one call.
        most_bytes: Largest sum of their bytes.
        most_characters: Longest text of one message; of a longer one its ends are shown.
        reason: What the provider said, without secrets, at most 500 characters.
    """

    type: Literal["generation_adapted"] = "generation_adapted"
    model: str
    address: str = ""
    left_out: tuple[str, ...] = ()
    reasons: bool = True
    most: int | None = None
    most_bytes: int | None = None
    most_characters: int | None = None
    reason: str = ""


class GenerationRetry(RetryDetails):
    """A model call failed and will be sent again after the wait."""

    type: Literal["generation_retry"] = "generation_retry"
    failed_at: datetime
    """Time of the failure, by Temporal's clock."""
    counted_seconds: float = 0.0
    """Used part of the policy's ``max_time``: waits and failed calls since the first failure."""
    compaction: bool = False
    """Whether the call writes a summary; its retries count apart."""
    fallback: int = 0
    """Number of the fallback that failed; 0 is the agent's own model. The retries of each model count apart."""
    model: str = Field(default="", exclude_if=lambda name: not name)
    usage: Usage = Usage()
    """Tokens of an unusable answer that cost money; ``cost_usd`` is its known price."""
    cost_usd: Decimal = Decimal(0)


CONTENT_CHARACTERS = 30_000
"""Characters of an answer that its event has: the beginning of a longer one."""


class GenerationContent(Value):
    """The model's answer, before its tools run."""

    type: Literal["generation_content"] = "generation_content"
    content: str
    tool_calls: tuple[MaskedCall, ...] = ()


class GenerationEnd(Value):
    """A model call succeeded and its answer is stored; ``recorded`` marks an answer replayed from a recording."""

    type: Literal["generation_end"] = "generation_end"
    model: str
    finish_reason: str
    usage: Usage
    cost_usd: Decimal | None
    seconds: float
    recorded: bool = False


class GenerationStep(Value):
    """The step is durable: ``tip`` is its id, a checkpoint to resume or fork from."""

    type: Literal["generation_step"] = "generation_step"
    tip: str


class GenerationError(Value):
    """A call of ``model`` failed for good; ``usage`` and ``cost_usd`` are those of the last try."""

    type: Literal["generation_error"] = "generation_error"
    error: ErrorDetail
    model: str = Field(default="", exclude_if=lambda name: not name)
    usage: Usage = Usage()
    cost_usd: Decimal = Decimal(0)


class CompactionEvent(Value):
    """Earlier messages are replaced by a summary in what the model reads; the transcript keeps them.

    Attributes:
        reason: Why it was skipped, or how it failed; ``error`` is that failure.
        messages_before: Number of messages before the compaction, system prompt excepted.
        messages_after: Number of messages after it, summary included.
        summary: The first 30,000 characters of the summary.
    """

    type: Literal["compaction_event"] = "compaction_event"
    trigger: CompactionTrigger
    compaction_status: Literal["started", "completed", "skipped", "failed"]
    reason: str = ""
    error: ErrorDetail | None = None
    messages_before: int
    messages_after: int
    model: str = ""
    summary: str = ""
    usage: Usage = Usage()
    cost_usd: Decimal | None = None


class ToolStart(CallEvent):
    """A tool's body is about to run."""

    type: Literal["tool_start"] = "tool_start"
    arguments: str


class ToolProgress(CallEvent):
    """Progress of a running tool call; at most one event a second for each call, and one more at its end."""

    type: Literal["tool_progress"] = "tool_progress"
    progress: FiniteFloat
    total: FiniteFloat | None = None
    message: str = ""

    def __str__(self) -> str:
        """Text for people: ``3 of 10 pages read``."""
        done = f"{self.progress:,.10g}" if self.total is None else f"{self.progress:,.10g} of {self.total:,.10g}"
        return f"{done} {self.message}".rstrip()


class ToolRecovery(CallEvent):
    """Decision of a new attempt at a call whose last attempt was lost with its worker; written before it acts.

    Attributes:
        decision: The body runs again, the reconciler gave the result, or the model learns that nobody knows.
        reason: Reason for people.
        stopped: Whether the worker was not lost: a drain has cut the call off.
    """

    type: Literal["tool_recovery"] = "tool_recovery"
    decision: Literal["run_again", "result_found", "given_up"]
    reason: str
    stopped: bool = Field(default=False, exclude_if=lambda stopped: not stopped)


RESULT_CHARACTERS = 4_000
"""Longest result of a call in an event, in characters; the conversation holds the whole."""


class ToolEnd(CallEvent):
    """A tool call has a result for the model; ``error`` is set for an error result.

    Attributes:
        artifact: Id of the artifact with the whole output, if it was too long for the conversation.
        attachments: The images and files that the call gave.
        recorded: Whether the result was replayed from a recording, without running the body.
        traceback: Traceback of the tool's own exception: at most 4,000 characters, without secrets.
    """

    type: Literal["tool_end"] = "tool_end"
    result: str
    error: ErrorDetail | None = None
    artifact: str | None = None
    attachments: ToolFiles = ()
    seconds: float
    recorded: bool = False
    traceback: str | None = Field(default=None, exclude_if=lambda text: text is None)


class ToolError(CallEvent):
    """A tool call failed in a way that its author did not expect, or never ran.

    Attributes:
        traceback: As in ``tool_end``.
    """

    type: Literal["tool_error"] = "tool_error"
    error: ErrorDetail
    traceback: str | None = Field(default=None, exclude_if=lambda text: text is None)


class ToolStep(CallEvent):
    """The result of a tool call is durable."""

    type: Literal["tool_step"] = "tool_step"


class UserInputRequired(InputRequest):
    """The turn waits for a reply, or ``stops`` for it: an answer, an approval, or the result of a call."""

    type: Literal["user_input_required"] = "user_input_required"
    stops: bool = Field(default=False, exclude_if=operator.not_)


class UserInputReceived(DecidedRequest):
    """The decision about an input request: who answered, approved or denied it, or that it expired."""

    type: Literal["user_input_received"] = "user_input_received"


class HookEnd(Value):
    """A hook written in Python was called with an event of its step, and has ended.

    Attributes:
        event: Type of the event; ``event_seq`` is its number in this log, 0 if it is not there (yet), and ``call_id``
            the id of its tool call, if it has one.
        reaction: Reaction of the hook; ``react_step`` holds what the turn does.
        error: Why the hook failed. With ``on_hook_error: ignore`` the turn goes on nevertheless.
    """

    type: Literal["hook_end"] = "hook_end"
    hook: str
    boundary: Boundary
    event: str
    event_seq: int = 0
    call_id: str = ""
    reaction: AnyReaction | None = None
    error: ErrorDetail | None = None
    seconds: float


class AgentStalled(Value):
    """The model answered with text only although a completion criterion is configured."""

    type: Literal["agent_stalled"] = "agent_stalled"


class AgentError(Value):
    """A failure ends the turn; the error's title names its place."""

    type: Literal["agent_error"] = "agent_error"
    error: ErrorDetail


class AgentEnd(Value):
    """The turn has ended: always the last event of its turn."""

    type: Literal["agent_end"] = "agent_end"
    stop_reason: StopReason
    reason_code: str | None
    error: str | None
    output: str
    steps: int
    usage: Usage
    cost_usd: Decimal
    unpriced_calls: int = 0
    value: JsonValue = None
    stopped_by: str | None = None
    """Tool, hook or condition that ended a finished turn before the model did."""
    exhausted_by: str | None = None
    """For a turn that ended ``budget_exhausted``: the budget, such as ``cost`` or ``llm_calls``."""


class Heartbeat(Value):
    """A sign of life for a reader when no event has come for the time it set; in no log, numbered as the last event."""

    type: Literal["heartbeat"] = "heartbeat"
    message: str = "nothing new"


class UnknownEvent(Value):
    """An event of a type, or with a content, that this release does not know, kept as it is.

    Attributes:
        name: The type that the event was written with. ``type`` is ``unknown``, so that a comparison of the types of
            events tells a type checker the class.
    """

    type: Literal["unknown"] = "unknown"
    name: str
    body: dict[str, JsonValue]


Event = (
    AgentStart
    | UserMessageReceived
    | GenerationStart
    | GenerationWait
    | GenerationAdapted
    | GenerationRetry
    | GenerationContent
    | GenerationEnd
    | GenerationStep
    | GenerationError
    | CompactionEvent
    | ToolStart
    | ToolRecovery
    | ToolProgress
    | ToolEnd
    | ToolError
    | ToolStep
    | DelegateStart
    | DelegateEnd
    | UserInputRequired
    | UserInputReceived
    | BudgetWarning
    | StopConditionMet
    | ReactStep
    | HookEnd
    | ModelFallback
    | TodosChanged
    | BudgetChanged
    | AgentStalled
    | AgentError
    | AgentEnd
)
"""Events that the log holds."""

AnyEvent = Event | Heartbeat | UnknownEvent
"""Events that readers may get."""

_EVENTS: TypeAdapter[Event | Heartbeat] = TypeAdapter(Annotated[Event | Heartbeat, Field(discriminator="type")])

EVENT_TYPES: dict[str, type[Event]] = {event.model_fields["type"].default: event for event in Event.__args__}
"""The classes of the events that the log may hold, by their types."""


Names = Literal["perdure", "dreadnode", "perstack"]
"""Whose names of event types: ours, those of the classes, as in Dreadnode, or Perstack's where it has one."""

_PERSTACK = {
    "agent_start": "startRun",
    "generation_start": "startGeneration",
    "generation_retry": "retry",
    "tool_start": "callTools",
    "tool_end": "finishToolCall",
    "tool_error": "finishToolCall",
    "delegate_start": "callDelegate",
    "user_input_required": "callInteractiveTool",
    "agent_error": "errorRun",
}
"""Names of events in Perstack's documents; the types without a name there keep ours."""

_PERSTACK_ENDS = {
    StopReason.FINISHED: "completeRun",
    StopReason.MAX_STEPS_REACHED: "stopRunByExceededMaxSteps",
    StopReason.WAITING_FOR_INPUT: "stopRunByInteractiveTool",
}
"""Names of a turn's end in Perstack; the ends that it does not have, or names by their error, keep our name."""

PERSTACK_NAMES: dict[str, str] = {
    **{name: kind for kind, name in _PERSTACK.items()},
    **dict.fromkeys(_PERSTACK_ENDS.values(), "agent_end"),
    "stopRunByError": "agent_error",  # its code calls so what its documents call errorRun
}
"""The types by Perstack's names."""


def name_of(event: "AnyEvent", names: Names) -> str:
    """The name of the event's type."""
    if isinstance(event, UnknownEvent):
        return event.name
    if names == "perstack":
        found = _PERSTACK_ENDS.get(event.stop_reason) if isinstance(event, AgentEnd) else _PERSTACK.get(event.type)
        return found or event.type
    if names == "dreadnode":
        return type(event).__name__
    return event.type


def load_event(body: dict[str, JsonValue]) -> "AnyEvent":
    """The event of a stored body; of an unknown type, or another release's form of a known one, as it is."""
    try:
        return _EVENTS.validate_python(body)
    except ValidationError:
        return UnknownEvent(name=str(body.get("type", "")), body=body)


class NewEvent(Value):
    """An event on its way into the log, which takes each key once a session."""

    key: str
    turn: int
    step: int
    event: Event


def to_events(turn: int, decided: Iterable[Decided]) -> list[NewEvent]:
    """Decisions of the engine, ready for the log."""
    return [
        NewEvent(key=f"{turn}/{decision.key}", turn=turn, step=decision.step, event=decision.event)
        for decision in decided
    ]


class Envelope(Value):
    """An event in the log. ``seq`` is gapless and increasing in its session, from 1.

    Attributes:
        replayed: Whether the event stood in the log before its reader began to follow. A mark of the reading: it is
            written nowhere, and the event is the same one with it.
    """

    seq: int
    session: str
    turn: int
    step: int
    at: datetime
    event: AnyEvent
    replayed: bool = Field(default=False, exclude=True)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Envelope) or other.replayed == self.replayed:
            return super().__eq__(other)
        return super().__eq__(replace(other, replayed=self.replayed))

    __hash__ = Value.__hash__

    def line(self, names: Names = "perdure") -> dict[str, JsonValue]:
        """The event as one flat JSON object, the form of ``--json`` and of the HTTP stream; types by those names."""
        event = self.event
        body = dict(event.body) if isinstance(event, UnknownEvent) else event.model_dump(mode="json")
        about: dict[str, JsonValue] = {
            "seq": self.seq,
            "type": name_of(event, names),
            "session": self.session,
            "turn": self.turn,
            "step": self.step,
            "at": self.at.isoformat(),
        }
        return {**about, **{name: value for name, value in body.items() if name not in about}}

    def to_json(self, names: Names = "perdure") -> str:
        """The event as one line of JSON: what ``perdure follow --json`` prints for it."""
        return to_json_line({**self.line(names), **({"replayed": True} if self.replayed else {})})

    @classmethod
    def from_json(cls, line: str | bytes) -> Self:
        """The event of such a line, if its type goes by our name.

        Raises:
            ValueError: The line is not the JSON object of an event.
        """
        body = json_object(line)
        about = {name: body[name] for name in ("seq", "session", "turn", "step", "at", "replayed") if name in body}
        return cls.model_validate({**about, "event": load_event(body)})


_ALIASES = {
    **{event.__name__: kind for kind, event in EVENT_TYPES.items()},
    **PERSTACK_NAMES,
}
"""Other names of the types: our classes, and Perstack's."""

_ALL_NAMES: tuple[Names, ...] = get_args(Names)


def event_type(name: str) -> str:
    """The type of the events that are meant: by the type itself, its class, or Perstack's name.

    Raises:
        ValueError: There is no such type; the message has the nearest name and all types.
    """
    kind = _ALIASES.get(name, name)
    if kind in EVENT_TYPES:
        return kind
    near = get_close_matches(name, [*EVENT_TYPES, *_ALIASES], n=1)
    guess = f"; did you mean {near[0]!r}? The" if near else "; the"
    msg = f"there is no event type {name!r}{guess} types are {', '.join(EVENT_TYPES)}"
    raise ValueError(msg)


def is_called(event: AnyEvent, chosen: Collection[str]) -> bool:
    """Whether one of the names is the event's, whoever calls it so."""
    if event.type == "agent_error" and "stopRunByError" in chosen:
        return True
    return any(name_of(event, names) in chosen for names in _ALL_NAMES)
