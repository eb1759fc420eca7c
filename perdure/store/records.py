"""What the store takes and gives: frozen values, one for each kind of row."""

import base64
from datetime import datetime
from decimal import Decimal
from typing import Literal, TypedDict

from perdure.contracts.budgets import Spent, Usage
from perdure.contracts.checkpoints import JobStatus
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.files import TEXT, FilePart
from perdure.contracts.input_requests import InputRequest
from perdure.contracts.messages import AssistantMessage, Message, ToolMessage
from perdure.contracts.tools import PlannedCall, Todo
from perdure.contracts.turns import RunState, StopReason, TurnResult
from perdure.contracts.values import Value

BASE64 = ";base64"
"""The end of the media type of bytes; their text is written so."""


class StepRecord(Value):
    """An immutable step: what is new in the conversation since its parent.

    Attributes:
        id: Given by ``Generate.step_id``; for step 0 (the prompt) and closing steps by the store.
        step: The number of the generation in its turn; 0 holds the prompt.
        parent: None at the root of a conversation.
        messages: Tool results and user messages that are new, then the model's answer.
        calls: The calls of the answer, as the workflow sees them.
        summarised: Of a compaction: its messages are the whole conversation, a summary of so many in place of them.
            What came before is reached by the parent, for those who want every message.
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

    @property
    def added(self) -> tuple[Message, ...]:
        """What the step adds to the transcript; a compaction, which holds what is there already, adds nothing."""
        return self.messages if self.summarised is None else ()

    @property
    def is_checkpoint(self) -> bool:
        """False of the step that closes a turn: with the results of the calls before it, it ends their checkpoint."""
        answers = any(isinstance(message, AssistantMessage) for message in self.messages)
        return self.step == 0 or answers or self.finish_reason != "" or self.summarised is not None


class LedgerCall(Value):
    """A tool call as ``finish_generation`` enters it in the ledger.

    Attributes:
        arguments: The raw JSON text; wiped when the call ends if ``masked``.
        rejected: The error of a call that never runs; its row is born ended.
    """

    call_id: str
    tool: str
    arguments: str
    masked: bool = False
    rejected: ErrorDetail | None = None


class Begun(Value):
    """What ``begin_generation`` found: the stored answer, or the results the model has not read yet."""

    answer: StepRecord | None
    results: tuple[ToolMessage, ...] = ()


RERUN = "tool_rerun/"
"""Keys of the events that tell of a call's further runs begin with it; the ledger counts them."""


class Claim(Value):
    """What an attempt finds when it asks for a call.

    Attributes:
        state: ``free``: the attempt holds the call now, and its body may run, with ``arguments``. ``committed``: the
            call has its result, ``message``. ``uncertain``: another attempt holds it, so the body may have run.
        aborted: The call ended in a way that ends the turn: ``tool_error`` stands in the log.
        held_by: Of an uncertain call: the claimant. Whoever takes the call over names it, and gets the call only while
            that still is so.
        runs: Of an uncertain call: how often its body was begun.
    """

    state: Literal["free", "committed", "uncertain"]
    arguments: str = "{}"
    message: ToolMessage | None = None
    aborted: bool = False
    held_by: str | None = None
    runs: int = 0


class Opened(Value):
    """What ``open_turn`` recorded, now or at an earlier attempt; ``first`` tells which.

    Attributes:
        todos: Those of the turn before, or of the checkpoint.
        earlier: What the session's turns before have spent, if the agent's budgets count over the session.
        said: What hooks have said before the turn stopped for people.
        store: The id of the store that holds it.
    """

    turn: int
    tip: str
    definition: str
    first: bool
    ended: TurnResult | None = None
    todos: tuple[Todo, ...] = ()
    earlier: Spent = Spent()
    said: tuple[str, ...] = ()
    store: str = ""


class TurnBefore(Value):
    """A turn by which another one is opened; ``definition`` is the hash of what it froze."""

    session: str
    turn: int
    agent: str
    definition: str


class SessionBefore(Value):
    """Where a session stands when a turn is about to open, and what that turn goes on from.

    Attributes:
        last: The session's last turn; None of a new session.
        begun: The turn that the same request has begun at an earlier attempt.
        source: The turn whose agent and context the new one goes on with: the last one, or that of a checkpoint.
        calls: Of a turn that a reply starts: the calls of the answer at which the turn before stopped for people.
        waiting: The ids of those that still wait for a person.
        requests: What people were asked there.
    """

    last: TurnBefore | None = None
    begun: TurnBefore | None = None
    source: TurnBefore | None = None
    calls: tuple[PlannedCall, ...] = ()
    waiting: frozenset[str] = frozenset()
    requests: tuple[InputRequest, ...] = ()

    @property
    def number(self) -> int:
        """The number that the turn has, or is about to get."""
        if self.begun is not None:
            return self.begun.turn
        return 1 if self.last is None else self.last.turn + 1


class Committed(Value):
    """The recorded result, and whether this commit recorded it."""

    result: TurnResult
    first: bool
    started_at: datetime
    ended_at: datetime


class RegisteredAgent(Value):
    """An agent that some worker has loaded."""

    name: str
    model: str
    description: str
    tools: tuple[str, ...]
    definition: str
    seen_at: datetime


class SessionRecord(Value):
    """A session and where it stands.

    Attributes:
        turn: The number of the last turn; 0 before the first.
        open_turn: The turn that runs, if one does.
        head: The last step of the last ended turn.
        tip: The last step of the open turn.
        waiting: Of a listed session: whether its open turn waits for a person.
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


class PeopleWaitedFor(Value):
    """How many turns wait for a person now, and since when the first of them does."""

    turns: int
    since: datetime | None


class Closure(Value):
    """How Temporal has ended the workflow of an open turn, which could not end the turn.

    Attributes:
        how: ``terminated``, ``failed`` or ``timed out``.
        text: The same as one sentence, with what goes on.
    """

    at: datetime
    how: str
    text: str


class TurnRecord(Value):
    """A turn: open while ``result`` is None.

    Attributes:
        last_step: The step at its end; None while it is open, and if it had none.
        closure: Of a listed turn that is open: how Temporal has ended its workflow, if it has.
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
        """Where the session stands if this is its last turn."""
        if self.closure is not None:
            return StopReason.ERROR.job_status
        return JobStatus.RUNNING if self.result is None else self.result.job_status


class TurnGlance(Value):
    """What a list shows of a turn beside its row: the beginning of its prompt, and the last step that is stored."""

    prompt: str = ""
    steps: int = 0


class SessionFilter(TypedDict, total=False):
    """Which sessions are listed, by their last turns; ``since`` leaves out those that began before.

    ``caller`` keeps only the delegates of that session, ``delegates=False`` leaves out those of any.
    """

    agent: str | None
    state: RunState | None
    stop_reason: StopReason | None
    reason_code: str | None
    since: datetime | None
    caller: str | None
    delegates: bool


class Artifact(Value):
    """A large output, an image or a file, kept out of the conversation.

    Attributes:
        media_type: That of the text; it ends with ``;base64`` if the text is that of bytes.
    """

    id: str
    session: str
    media_type: str
    text: str

    @property
    def content_type(self) -> str:
        """The media type of the bytes."""
        return self.media_type.removesuffix(BASE64)

    @property
    def is_binary(self) -> bool:
        """Whether it holds bytes that are no text."""
        return self.media_type.endswith(BASE64)

    @property
    def data(self) -> bytes:
        """The bytes."""
        return base64.b64decode(self.text) if self.is_binary else self.text.encode()


def artifact_of(session: str, part: FilePart, data: bytes) -> Artifact:
    """The artifact that has the bytes of a prompt's image or file."""
    if part.media_type == TEXT:
        return Artifact(id=part.artifact, session=session, media_type=TEXT, text=data.decode())
    text = base64.b64encode(data).decode()
    return Artifact(id=part.artifact, session=session, media_type=f"{part.media_type}{BASE64}", text=text)
