"""Values that the store takes and returns. All are frozen."""

import base64
from datetime import datetime
from decimal import Decimal
from typing import Literal, NamedTuple, TypedDict

from pydantic import TypeAdapter

from perdure.contracts.budgets import Usage
from perdure.contracts.checkpoints import JobStatus
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.events import Event
from perdure.contracts.files import TEXT, FilePart
from perdure.contracts.input_requests import InputRequest, call_id_of
from perdure.contracts.messages import AssistantMessage, Message, ToolMessage
from perdure.contracts.openings import StoredOpening
from perdure.contracts.server_questions import ServerQuestion
from perdure.contracts.tools import PlannedCall, Todo
from perdure.contracts.turns import RunState, StopReason, TurnResult
from perdure.contracts.values import Value

BASE64 = ";base64"
"""Suffix of the media type of an artifact whose text is bytes in base64."""


class Written(NamedTuple):
    """An event that a committed transaction has written, with the agent of its turn and the tenant of its session."""

    session: str
    agent: str
    tenant: str
    event: Event


class StepRecord(Value):
    """An immutable step: the new part of a conversation since its parent.

    Attributes:
        id: Made by ``Generate.step_id``; for step 0 (the prompt) and closing steps, by the store.
        step: Number of the generation in its turn; 0 holds the prompt.
        parent: Id of the step before; None at the root of a conversation.
        messages: New tool results and user messages, then the model's answer.
        calls: The calls of the answer, with masked arguments.
        summarised: For a compaction: number of messages that its summary replaces; ``messages`` then holds the whole
            conversation, and the parents hold the replaced messages.
        model: The model that was called; empty if none was, or if only its turn's row knows it.
    """

    id: str
    session: str
    turn: int
    step: int
    parent: str | None
    messages: tuple[Message, ...]
    calls: tuple[PlannedCall, ...] = ()
    finish_reason: str = ""
    usage: Usage = Usage()
    cost_usd: Decimal | None = None
    summarised: int | None = None
    model: str = ""

    @property
    def added(self) -> tuple[Message, ...]:
        """Messages that the step adds to the transcript; a compaction adds none."""
        return self.messages if self.summarised is None else ()

    @property
    def is_checkpoint(self) -> bool:
        """Whether a turn can resume from the step; False for the step that closes a turn with the last results."""
        answers = any(isinstance(message, AssistantMessage) for message in self.messages)
        return self.step == 0 or answers or self.finish_reason != "" or self.summarised is not None


class LedgerCall(Value):
    """A tool call as ``finish_generation`` enters it in the ledger.

    Attributes:
        arguments: The raw JSON text; wiped when the call ends if ``masked``.
        rejected: Error of a call that never runs; its row begins as ended.
    """

    call_id: str
    tool: str
    arguments: str
    masked: bool = False
    rejected: ErrorDetail | None = None


class Begun(Value):
    """Result of ``begin_generation``: the stored answer, or the results that the model has not read yet.

    Attributes:
        is_watched: Whether somebody follows the session's deltas.
    """

    answer: StepRecord | None
    results: tuple[ToolMessage, ...] = ()
    is_watched: bool = False


RERUN = "tool_rerun/"
"""Prefix of the keys of events about a call's further runs, numbered from 1; the ledger has the number."""


class DelegateSpent(Value):
    """Use of a delegate that has ended, its own delegates included, in the row of its call."""

    steps: int
    usage: Usage
    cost_usd: Decimal


_todos: TypeAdapter[tuple[Todo, ...]] = TypeAdapter(tuple[Todo, ...])


def todos_to_json(todos: tuple[Todo, ...]) -> str:
    """Todos as a row has them."""
    return _todos.dump_json(todos).decode()


def todos_from_json(text: str) -> tuple[Todo, ...]:
    """Todos of a row."""
    return _todos.validate_json(text)


class Claim(Value):
    """Answer of the ledger to an attempt that claims a call.

    Attributes:
        state: ``free``: the attempt holds the call now, and its body may run, with ``arguments``. ``committed``: the
            call has its result, ``message``. ``uncertain``: another attempt holds it, so the body may have run.
        aborted: Whether the call ended in a way that ends the turn: ``tool_error`` stands in the log.
        held_by: For an uncertain call: the claimant. An attempt that takes the call over names the claimant, and gets
            the call only while that claimant holds it.
        runs: For an uncertain call: number of times that its body began.
        asked: What the call's MCP server asked in place of a result, as the activity keeps it.
    """

    state: Literal["free", "committed", "uncertain"]
    arguments: str = "{}"
    message: ToolMessage | None = None
    aborted: bool = False
    held_by: str | None = None
    runs: int = 0
    asked: str = ""


class ClaimedTurn(StoredOpening):
    """A turn that ``open_turn`` has claimed; ``first`` is False if an earlier attempt had done so."""

    first: bool


class TurnBefore(Value):
    """An earlier turn that a new one goes on from; ``definition`` is the hash of its frozen agent."""

    session: str
    turn: int
    agent: str
    definition: str


class MeantTurn(Value):
    """An open turn that a block fits."""

    session: str
    turn: int
    agent: str


def _with_question(call: PlannedCall, request: InputRequest | None) -> PlannedCall:
    if request is None or request.needs == call.needs:
        return call
    number = int(request.request_id.partition("~")[2] or 1)
    asked = ServerQuestion(number=number, text=request.question, form=request.form, options=request.options)
    return call.with_question(asked)


class SessionBefore(Value):
    """State of a session when a turn is about to open.

    Attributes:
        last: The session's last turn; None for a new session.
        begun: The turn that the same request began at an earlier attempt.
        source: The turn whose agent and context the new turn keeps: the last one, or that of a checkpoint.
        calls: For a turn that a reply starts: the calls of the answer at which the turn before stopped for people.
        waiting: Ids of the calls that still wait for a person.
        requests: Input requests of those calls.
        cut_off: The number of the turn before this one, if Temporal has ended its workflow before it could end.
    """

    last: TurnBefore | None = None
    begun: TurnBefore | None = None
    source: TurnBefore | None = None
    calls: tuple[PlannedCall, ...] = ()
    waiting: frozenset[str] = frozenset()
    requests: tuple[InputRequest, ...] = ()
    cut_off: int | None = None

    @property
    def waiting_calls(self) -> tuple[PlannedCall, ...]:
        """The calls that still wait for a person, those of MCP servers with the question that these asked."""
        requests = {call_id_of(request.request_id): request for request in self.requests}
        return tuple(
            _with_question(call, requests.get(call.call_id)) for call in self.calls if call.call_id in self.waiting
        )

    @property
    def number(self) -> int:
        """Number of the turn that is about to open."""
        if self.begun is not None:
            return self.begun.turn
        return 1 if self.last is None else self.last.turn + 1


class Committed(Value):
    """A recorded result; ``first`` tells whether this commit recorded it, ``tenant`` whose session it is."""

    result: TurnResult
    first: bool
    started_at: datetime
    ended_at: datetime
    tenant: str = ""


class RegisteredAgent(Value):
    """An agent that some worker has loaded."""

    name: str
    model: str
    description: str
    tools: tuple[str, ...]
    definition: str
    seen_at: datetime


class SessionRecord(Value):
    """A session and its state.

    Attributes:
        turn: Number of the last turn; 0 before the first.
        open_turn: Number of the running turn, if any.
        head: Last step of the last ended turn.
        tip: Last step of the open turn.
        waiting: For a listed session: whether its open turn waits for a person.
        queued: For a listed session: whether its next turn waits for a slot.
        tenant: The tenant of the session's first turn.
        caller: For a delegate's session: the session that called it.
    """

    session: str
    agent: str
    turn: int
    open_turn: int | None
    head: str | None
    tip: str | None
    last_seq: int
    created_at: datetime
    updated_at: datetime
    waiting: bool = False
    tenant: str = ""
    queued: bool = False
    caller: str | None = None

    @property
    def state(self) -> RunState:
        """The session's state in a list."""
        if self.queued:
            return RunState.QUEUED
        if self.open_turn is None:
            return RunState.ENDED
        return RunState.WAITING_FOR_INPUT if self.waiting else RunState.RUNNING


class QueuedTurn(Value):
    """A turn that waits for a slot.

    Attributes:
        turn: The number that it is about to have.
    """

    session: str
    turn: int
    request_id: str
    agent: str
    tenant: str
    queued_at: datetime


class OpenTurns(Value):
    """Number of turns that run now, and of those that wait for a person.

    Attributes:
        running_since: Start of the oldest one that runs.
        waiting_since: Start of the longest wait.
    """

    running: int = 0
    running_since: datetime | None = None
    waiting: int = 0
    waiting_since: datetime | None = None


class Closure(Value):
    """End of an open turn's workflow by Temporal, which could not end the turn itself.

    Attributes:
        how: ``terminated``, ``failed`` or ``timed out``.
        text: One sentence about the end, and how the session goes on.
    """

    at: datetime
    how: str
    text: str


class TurnRecord(Value):
    """A turn: open while ``result`` is None.

    Attributes:
        last_step: The turn's last step; None while the turn is open, and if it had no step.
        closure: For a listed open turn: the end of its workflow by Temporal, if it has ended.
    """

    session: str
    turn: int
    request_id: str
    agent: str
    definition: str
    started_at: datetime
    ended_at: datetime | None
    result: TurnResult | None
    last_step: str | None = None
    closure: Closure | None = None

    @property
    def job_status(self) -> JobStatus:
        """Status of the session, if this is its last turn."""
        if self.closure is not None:
            return StopReason.ERROR.job_status
        return JobStatus.RUNNING if self.result is None else self.result.job_status


class TurnGlance(Value):
    """A turn in a list: the beginning of its prompt, the number of its last stored step, and what its steps cost."""

    prompt: str = ""
    steps: int = 0
    cost_usd: Decimal = Decimal(0)


class SessionFilter(TypedDict, total=False):
    """Filter of a list of sessions, by their last turns; ``since`` leaves out turns that began earlier.

    ``caller`` keeps only the delegates of that session, ``delegates=False`` leaves out all delegates. ``tenant`` is
    that of the session's first turn; empty is the default tenant, and None is any. ``before`` leaves out all down to
    that place in the list: when the last turn of a session began, and the session's id. ``text`` stands in the
    session's id, or in the last turn's prompt or result, whatever the case of ASCII letters.
    """

    before: tuple[datetime, str] | None

    tenant: str | None
    agent: str | None
    state: RunState | None
    stop_reason: StopReason | None
    reason_code: str | None
    since: datetime | None
    caller: str | None
    delegates: bool
    text: str | None


class Artifact(Value):
    """A large output, an image or a file, kept out of the conversation.

    Attributes:
        media_type: Media type of the content, with the suffix ``;base64`` if ``text`` holds bytes.
        location: File of the content, if it stands outside of the database; ``text`` is then empty in its row.
        name: Name of a tool's file, for the event of its call; no row has it.
    """

    id: str
    session: str
    media_type: str
    text: str
    location: str = ""
    name: str = ""

    @property
    def content_type(self) -> str:
        """The media type of the bytes."""
        return self.media_type.removesuffix(BASE64)

    @property
    def is_binary(self) -> bool:
        """Whether the content is bytes that are no text."""
        return self.media_type.endswith(BASE64)

    @property
    def data(self) -> bytes:
        """The bytes."""
        return base64.b64decode(self.text) if self.is_binary else self.text.encode()


def artifact_of(session: str, part: FilePart, data: bytes) -> Artifact:
    """The artifact with the bytes of a prompt's image or file."""
    if part.media_type == TEXT:
        return Artifact(id=part.artifact, session=session, media_type=TEXT, text=data.decode())
    text = base64.b64encode(data).decode()
    return Artifact(id=part.artifact, session=session, media_type=f"{part.media_type}{BASE64}", text=text)
