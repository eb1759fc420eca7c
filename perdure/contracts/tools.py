"""Tools: how one is declared and called, and its outcome; built-in tools; delegates, the agents that are tools.

Long, because a call is told from its declaration to its outcome in one place.
"""

import hashlib
import operator
import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from perdure.contracts.budgets import Spent
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.ids import delegate_session
from perdure.contracts.input_requests import InputReceipt, Need, request_id_of
from perdure.contracts.server_questions import ServerAnswer, ServerQuestion
from perdure.contracts.values import JsonValue, Schema, Tagged, Value

MAX_TODOS = 100
"""Most todos of a session; the whole list travels in payloads."""

MAX_TITLE = 500
"""Longest title of a todo, in characters."""

MAX_SUMMARY = 10_000
"""Longest summary of ``finish``, in characters."""

MAX_AWAITED = 100
"""Most sessions that one call can name to wait for."""

Completion = Literal["text", "finish_tool", "attempt_completion"]
"""Completion criterion of a turn: text without a call, a tool, or ``attempt_completion`` without open todos."""

Title = Annotated[str, Field(min_length=1, max_length=MAX_TITLE)]
"""Title of a todo, in the model's words."""


class Todo(Value):
    """A todo of an agent's list; its id is its place there, from 0."""

    title: str
    completed: bool = False


class ChangeTodos(Tagged):
    """A call that adds todos and then completes some by their ids; without either, it only reads the list."""

    type: Literal["todo"] = "todo"
    new_titles: tuple[Title, ...] = Field(default=(), max_length=MAX_TODOS)
    completed: tuple[int, ...] = Field(default=(), max_length=MAX_TODOS)


class ClearTodos(Tagged):
    """A call that drops every todo; ids begin at 0 again."""

    type: Literal["clear_todo"] = "clear_todo"


class FinishCall(Tagged):
    """A call that ends the turn with this result."""

    type: Literal["finish"] = "finish"
    summary: str = Field(default="", max_length=MAX_SUMMARY)


class AttemptCompletion(Tagged):
    """A call that ends the turn unless todos are open."""

    type: Literal["attempt_completion"] = "attempt_completion"


class AwaitCall(Tagged):
    """A call that waits for background delegates: of these sessions, or all that no call has waited for."""

    type: Literal["await_delegate"] = "await_delegate"
    sessions: tuple[str, ...] = Field(default=(), max_length=MAX_AWAITED)


def awaits_delegates(call: "BuiltinCall | None") -> bool:
    """Whether the call waits for delegates: it runs after the other calls of its answer."""
    return isinstance(call, AwaitCall)


def changes_todos(call: "BuiltinCall | None") -> bool:
    """Whether the call adds, completes or drops a todo, and so changes the session's state."""
    return isinstance(call, ClearTodos) or (isinstance(call, ChangeTodos) and bool(call.new_titles or call.completed))


BuiltinCall = Annotated[
    ChangeTodos | ClearTodos | FinishCall | AttemptCompletion | AwaitCall, Field(discriminator="type")
]
"""A call of a built-in tool with its arguments."""

Builtin = Literal["todo", "clear_todo", "finish", "attempt_completion", "await_delegate"]
"""Kind of a built-in tool, whatever name an author gave it."""


AgentType = Literal["explore", "plan", "test", "review", "general"]
"""Purpose of a clone of an agent; see ``engine.delegates``."""

DELEGATE_OUTPUT = 1_000
"""Longest output of a delegate in the history, in characters; the caller's model reads the whole from the store."""

RUN_IN_BACKGROUND: dict[str, JsonValue] = {
    "run_in_background": {
        "type": "boolean",
        "default": False,
        "description": "Whether to go on at once: the result is then a session, and await_delegate gives what came of "
        "it. What nobody has waited for is cancelled when your work ends.",
    }
}
"""Argument of the tools whose calls may work in the background."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


class DelegateSettings(Value):
    """Settings of a delegate, as its caller declares it.

    Attributes:
        agent: The delegate's name; empty for a clone of the caller.
        interactive: Whether the delegate may ask people and wait for approvals.
        spawns: Whether the delegate is a clone of the caller, by the arguments of the call.
        background: Whether a call may ask to work in the background.
    """

    agent: str = ""
    interactive: bool = False
    spawns: bool = False
    background: bool = False


class CallSite(Value):
    """Place of a tool call: its session, turn and step, and the agent that made the call.

    Attributes:
        definition: The hash of the agent's frozen definition.
        approval: Who allowed the call, if it needed an approval.
        trace: The trace context of the turn's span; empty if the turn is not traced.
    """

    session: str
    turn: int
    step: int
    call_id: str
    definition: str
    approval: InputReceipt | None = None
    trace: str = ""


class Delegated(CallSite):
    """The caller's side of a delegate's turn: whose call the turn carries out, and how.

    Attributes:
        session: The caller's session; ``turn``, ``step`` and ``call_id`` name the call, whose arguments hold the query.
        root: The session at the top of the tree.
        depth: Level below the root, from 1.
        interactive: Whether the turn may ask people.
        spawns: Whether a clone of the caller makes the turn, by the arguments of the call.
        background: Whether the caller goes on meanwhile; the call's result then differs from the turn's.
        delegate: The delegate's own session; empty if the caller's turn has no seed.
    """

    tool: str
    root: str
    delegate: str = ""
    depth: int = 1
    interactive: bool = False
    spawns: bool = False
    background: bool = False

    @property
    def claimant(self) -> str:
        """Name of the delegate as the holder of the call, in the caller's ledger."""
        return claimant_of(self.delegate or delegate_session(self.root, self.tool, self.session, self.call_id, seed=""))


class DelegateReport(Value):
    """A delegate's report to its caller, sent with the result.

    Attributes:
        spent: The turn's use, delegates of its own included.
        matched: Indexes of the caller's stop conditions on texts that the output meets.
        problem: Why those conditions could not be checked, which ends the caller's turn.
    """

    spent: Spent
    matched: tuple[int, ...] = ()
    problem: ErrorDetail | None = None


class AwaitedDelegate(Value):
    """A background delegate that has ended.

    Attributes:
        session: The delegate's session; ``call_id`` names the call that started it, ``tool`` the tool.
        lost: Why the delegate has no result, if it has none.
    """

    session: str
    tool: str
    call_id: str
    lost: ErrorDetail | None = None


class CollectDelegates(CallSite):
    """The input of the activity ``collect_delegates``, which writes the delegates' results as the result of a call.

    Attributes:
        store: The id of the store that the turn lives in.
    """

    tool: str
    delegates: tuple[AwaitedDelegate, ...]
    store: str = ""


def claimant_of(session: str) -> str:
    """Name of a delegate's session as the holder of a call, in its caller's ledger."""
    return f"delegate/{session}"


def tool_name_of(agent: str) -> str:
    """Tool name of an agent: the agent's name in the characters that providers accept."""
    name = _UNSAFE.sub("_", agent)
    if len(name) <= 64:
        return name
    return f"{name[:55]}_{hashlib.sha256(agent.encode()).hexdigest()[:8]}"


WIRE_NAME_PATTERN = r"^[a-zA-Z0-9_-]{1,64}$"
"""Pattern of tool names that OpenAI and Anthropic both accept."""

LONGEST_NAME = 64
"""Longest name of a tool that every provider takes, in characters."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")

DEFAULT_TOOL_TIMEOUT = timedelta(seconds=300)
"""Time after which a tool call is stopped, unless its author says otherwise."""

DEFAULT_CALLER_TIMEOUT = timedelta(days=1)
"""Time that a caller has for the result of a tool that it runs, unless the tool says otherwise."""

Runs = Literal["worker", "caller"]
"""Side that runs a tool's calls: a worker runs the body, or the caller runs them and sends their results."""


def wire_name(owner: str, tool: str, taken: Collection[str] = ()) -> str:
    """``owner__tool`` in the characters that providers accept; what had to be changed ends with a hash of the name."""
    whole = f"{owner}__{tool}"
    name = _NOT_IN_NAMES.sub("_", whole)
    if name == whole and len(name) <= LONGEST_NAME and name not in taken:
        return name
    digest = hashlib.sha256(f"{owner}\n{tool}".encode()).hexdigest()[:8]  # of both: a__b and c are not a and b__c
    return f"{name[: LONGEST_NAME - 9]}_{digest}"


MCP_REFERENCE = "mcp:"
"""Prefix of a declaration's reference to a tool of an MCP server, ``mcp:server/tool``."""


CALLER_REFERENCE = "caller:"
"""Reference of a tool that has a schema and no body."""

REQUEST_REFERENCE = "caller:request"
"""The same of a tool that came with the request for its turn."""


class RemoteTool(NamedTuple):
    """A tool of an MCP server, by the names of both."""

    server: str
    name: str


class ToolDeclaration(Value):
    """A tool, frozen with its agent: all data, the body by dotted name.

    Attributes:
        name: The wire name: what the model calls, and the activity type in Temporal.
        reference: ``module:qualified.name`` of the callable.
        catch: Classes whose exceptions become error results, by name; ``all`` or ``none``.
        idempotent: Whether the body may run again after its worker was lost.
        masked: Top-level arguments shown as ``***`` everywhere outside the tool's body.
        offload: Whether an output of more than 30,000 characters becomes an artifact.
        truncate: Longest result that the model reads, in characters; None is the common limit.
        interactive: Whether a person's answer is the result; the body never runs.
        answer: For an interactive tool: the JSON schema of the answer.
        runs: ``caller``: the tool is interactive, and the caller runs its calls and sends their results.
        requires_approval: Whether a call waits for somebody's approval, unless a rule of the agent says otherwise.
        pinned: Whether ``task_queue`` is that of the one worker that holds the state of the tool's server.
        delegate: For a tool that is an agent: a call is a turn of the delegate, and the body never runs.
        builtin: For a tool that the workflow carries out itself: its kind.
    """

    name: str = Field(pattern=WIRE_NAME_PATTERN)
    description: str
    parameters: Schema
    reference: str
    timeout: timedelta = Field(default=DEFAULT_TOOL_TIMEOUT, gt=timedelta(0))
    idempotent: bool = False
    catch: Literal["all", "none"] | tuple[str, ...] = ()
    truncate: int | None = Field(default=None, ge=1)
    offload: bool = True
    task_queue: str | None = None
    masked: tuple[str, ...] = ()
    interactive: bool = False
    answer: Schema | None = None
    runs: Runs = Field(default="worker", exclude_if=lambda runs: runs == "worker")
    requires_approval: bool = False
    pinned: bool = False
    delegate: DelegateSettings | None = None
    builtin: Builtin | None = None

    @property
    def remote(self) -> "RemoteTool | None":
        """The MCP server's tool that calls go to; None for a tool of Python."""
        if not self.reference.startswith(MCP_REFERENCE):
            return None
        server, _, name = self.reference.removeprefix(MCP_REFERENCE).partition("/")
        return RemoteTool(server, name)

    def catches(self, error: BaseException) -> bool:
        """Whether the error becomes an error result for the model. Classes go by name, so that the list is data."""
        if isinstance(self.catch, str):
            return self.catch == "all"
        return any(base.__name__ in self.catch for base in type(error).__mro__)


class ToolPolicy(Value):
    """The part of a declaration that the workflow decides by.

    Attributes:
        first_call_usd: For a delegate: expected cost of its model's first call; None if the price is unknown.
        by_caller: Whether the caller runs its calls.
    """

    timeout: timedelta = DEFAULT_TOOL_TIMEOUT
    task_queue: str | None = None
    answer: dict[str, JsonValue] | None = None
    pinned: bool = False
    delegate: DelegateSettings | None = None
    first_call_usd: Decimal | None = None
    by_caller: bool = Field(default=False, exclude_if=operator.not_)


@dataclass(frozen=True)
class RawCall:
    """A tool call as a model wrote it, without an id; the arguments may hold secrets, and be no JSON."""

    name: str
    arguments: str


class MaskedCall(Value):
    """A tool call for people.

    Attributes:
        call_id: The ledger's key; the raw arguments stand there and nowhere else.
        arguments: The arguments with masked values, at most 500 characters.
    """

    call_id: str
    tool: str
    arguments: str = "{}"


class PlannedCall(MaskedCall):
    """A tool call as ``generate`` returns it to the workflow.

    Attributes:
        rejected: The call never ran and has its error result already, for example an unknown tool.
        needs: What the call needs of a person, if anything.
        question: For a question: its text; ``options`` are the answers that it offers.
        digest: For a call that needs an approval or a result: digest of tool and arguments, masked values left out.
        expires_at: For a call that needs a result: time until which it can be given; None until it is asked for.
        approval: Who approved the call.
        builtin: Arguments of a call that the workflow carries out itself.
        background: For a call of a delegate: whether the turn goes on meanwhile.
        asked: The last question of the call's MCP server; ``answer`` is sent with the call.
    """

    rejected: ErrorDetail | None = None
    needs: Need | None = None
    question: str = ""
    options: tuple[str, ...] = ()
    digest: str = ""
    expires_at: datetime | None = None
    approval: InputReceipt | None = None
    builtin: BuiltinCall | None = None
    background: bool = False
    asked: ServerQuestion | None = Field(default=None, exclude_if=lambda asked: asked is None)
    answer: ServerAnswer | None = Field(default=None, exclude_if=lambda answer: answer is None)

    @property
    def request_id(self) -> str:
        """The id of the call's input request."""
        return self.call_id if self.asked is None else request_id_of(self.call_id, self.asked.number)

    def with_question(self, asked: ServerQuestion) -> "PlannedCall":
        """The call as it waits for the answer to a question of its MCP server."""
        fields = {"needs": "answer", "question": asked.text, "options": asked.options, "asked": asked, "answer": None}
        return self.model_copy(update=fields)

    def describe_withdrawn(self, instead: str) -> str:
        """The error result of a call that nobody replied to, with what came instead."""
        if self.needs == "result":
            return f"Operation aborted: no result of {self.tool} came, {instead}; whether it ran is unknown"
        return f"Operation aborted: nobody decided about {self.tool}, {instead}; it did not run"

    @property
    def is_own(self) -> bool:
        """Whether the workflow carries out the call without an activity and without waiting."""
        return self.builtin is not None and not awaits_delegates(self.builtin)

    def as_error(
        self, code: str, message: str, *, decided: InputReceipt | None = None, cause: str = ""
    ) -> "ToolOutcome":
        """The outcome of a call that failed without an activity: only the workflow knows it, and the model reads it."""
        error = ErrorDetail(code=code, title=self.tool, message=message, type=cause)
        return ToolOutcome(call_id=self.call_id, preview=message, error=error, recorded=False, decided=decided)


class CallTool(CallSite):
    """The input of a tool's activity.

    Attributes:
        arguments: The masked arguments, for people; the body gets the raw ones from the ledger.
        store: The id of the store that the turn lives in.
        answer: Answer to the question that the MCP server asked in place of a result.
    """

    arguments: str = "{}"
    store: str = ""
    answer: ServerAnswer | None = Field(default=None, exclude_if=lambda answer: answer is None)


class ToolOutcome(Value):
    """The result of a tool's activity.

    Attributes:
        preview: The first 4,000 characters of the result; the store holds the whole.
        error: The error that the model reads, for an error result.
        recorded: Whether the result stands in the store; False if only the workflow knows it so far.
        decided: A person's decision about the call; only for a result that is not recorded.
        matched: Indexes of the stop conditions on texts that the whole result meets.
        problem: Why stop conditions could not be checked in the result, which ends the turn.
        stop: The reason with which the tool asked the turn to end.
        delegate: Session of a background delegate that works on the call; only for a result that is not recorded.
        asks: Question of an MCP server, in place of a result.
    """

    call_id: str
    preview: str = ""
    error: ErrorDetail | None = None
    recorded: bool = True
    decided: InputReceipt | None = None
    matched: tuple[int, ...] = ()
    problem: ErrorDetail | None = None
    stop: str | None = None
    delegate: str | None = None
    asks: ServerQuestion | None = Field(default=None, exclude_if=lambda asks: asks is None)
