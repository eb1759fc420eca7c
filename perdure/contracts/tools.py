"""Tools: how one is declared and called, and its outcome; built-in tools; delegates, the agents that are tools."""

import hashlib
import re
from collections.abc import Collection
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from perdure.contracts.budgets import Spent
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.input_requests import InputReceipt, Need
from perdure.contracts.values import JsonValue, Tagged, Value

MAX_TODOS = 100
"""Most todos of a session; the whole list travels in payloads."""

MAX_TITLE = 500
"""Longest title of a todo, in characters."""

MAX_SUMMARY = 10_000
"""Longest summary of ``finish``, in characters."""

MAX_AWAITED = 100
"""Most sessions that one call can name to wait for."""

Completion = Literal["text", "finish_tool", "attempt_completion"]
"""What finishes a turn: text without a call, a tool, or ``attempt_completion`` without open todos."""

Title = Annotated[str, Field(min_length=1, max_length=MAX_TITLE)]
"""What is to be done, as the model words it."""


class Todo(Value):
    """Something that an agent has to do; its id is its place in the list, from 0."""

    title: str
    completed: bool = False


class ChangeTodos(Tagged):
    """Add todos, then complete some by their ids; without either, only read them."""

    type: Literal["todo"] = "todo"
    new_titles: tuple[Title, ...] = Field(default=(), max_length=MAX_TODOS)
    completed: tuple[int, ...] = Field(default=(), max_length=MAX_TODOS)


class ClearTodos(Tagged):
    """Drop every todo; ids begin at 0 again."""

    type: Literal["clear_todo"] = "clear_todo"


class Finish(Tagged):
    """The work is done, with this result."""

    type: Literal["finish"] = "finish"
    summary: str = Field(default="", max_length=MAX_SUMMARY)


class AttemptCompletion(Tagged):
    """The work is done, unless todos are open."""

    type: Literal["attempt_completion"] = "attempt_completion"


class AwaitDelegates(Tagged):
    """Wait for delegates that work in the background: those of these sessions, or all that nobody has waited for."""

    type: Literal["await_delegate"] = "await_delegate"
    sessions: tuple[str, ...] = Field(default=(), max_length=MAX_AWAITED)


def awaits_delegates(call: "BuiltinCall | None") -> bool:
    """Whether the call waits for delegates, and so comes behind those of its answer."""
    return isinstance(call, AwaitDelegates)


def changes_todos(call: "BuiltinCall | None") -> bool:
    """Whether the call adds, completes or drops a todo, and so changes the session's state."""
    return isinstance(call, ClearTodos) or (isinstance(call, ChangeTodos) and bool(call.new_titles or call.completed))


BuiltinCall = Annotated[
    ChangeTodos | ClearTodos | Finish | AttemptCompletion | AwaitDelegates, Field(discriminator="type")
]
"""A call of such a tool with its arguments."""

Builtin = Literal["todo", "clear_todo", "finish", "attempt_completion", "await_delegate"]
"""Which of them a tool is, whatever an author named it."""


AgentType = Literal["explore", "plan", "test", "review", "general"]
"""What a clone of an agent is for; see ``engine.delegates``."""

DELEGATED = "delegate:"
"""The request id of a delegate's turn begins so."""

DELEGATE_OUTPUT = 1_000
"""Longest output of a delegate in the history, in characters; what the caller's model reads comes from the store."""

RUN_IN_BACKGROUND: dict[str, JsonValue] = {
    "run_in_background": {
        "type": "boolean",
        "default": False,
        "description": "Whether to go on at once: the result is then a session, and await_delegate gives what came of "
        "it. What nobody has waited for is cancelled when your work ends.",
    }
}
"""The argument that a tool has whose calls may work in the background."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_ROOT_CHARACTERS = 120
_NAME_CHARACTERS = 40


class DelegateSettings(Value):
    """What a tool that is an agent is to the one that calls it.

    Attributes:
        agent: The agent's name; empty of one that is a clone of its caller.
        interactive: Whether its turns may ask people and wait for approvals.
        spawns: Whether it is a clone of its caller, by the arguments of the call.
        background: Whether a call may ask to work in the background.
    """

    agent: str = ""
    interactive: bool = False
    spawns: bool = False
    background: bool = False


class Delegated(Value):
    """Of a delegate's turn: whose call it carries out, and how.

    Attributes:
        session: The caller's; ``turn``, ``step`` and ``call_id`` say which call. Its arguments hold the query.
        definition: The hash of the caller's frozen definition.
        root: The session at the top of the tree.
        depth: How many levels below that, from 1.
        interactive: Whether people may be asked.
        spawns: Whether the turn is of a clone of the caller, by the arguments of the call.
        approval: Who allowed the call, if that was needed.
        background: Whether the caller goes on meanwhile: the call then has another result than the turn's.
    """

    session: str
    turn: int
    step: int
    call_id: str
    tool: str
    definition: str
    root: str
    depth: int = 1
    interactive: bool = False
    spawns: bool = False
    approval: InputReceipt | None = None
    background: bool = False

    @property
    def claimant(self) -> str:
        """Who holds the call in the caller's ledger."""
        return claimant_of(delegate_session(self.root, self.tool, self.session, self.call_id))


class DelegateReport(Value):
    """What a delegate's turn tells its caller beside the result.

    Attributes:
        spent: All that the turn used, with the delegates of its own.
        matched: The caller's stop conditions on texts that hold for the output, by their place among them.
        problem: Why they could not be looked for there, which ends the caller's turn.
    """

    spent: Spent
    matched: tuple[int, ...] = ()
    problem: ErrorDetail | None = None


class AwaitedDelegate(Value):
    """A delegate that worked in the background and has ended.

    Attributes:
        session: Its session; ``call_id`` is the call that started it, of the tool ``tool``.
        lost: Why it has no result of its own, if it has none.
    """

    session: str
    tool: str
    call_id: str
    lost: ErrorDetail | None = None


class CollectDelegates(Value):
    """The input of the activity ``collect_delegates``: write what came of these as the result of a call.

    Attributes:
        store: The id of the store that the turn lives in.
    """

    session: str
    turn: int
    step: int
    call_id: str
    tool: str
    definition: str
    delegates: tuple[AwaitedDelegate, ...]
    approval: InputReceipt | None = None
    store: str = ""


def claimant_of(session: str) -> str:
    """Who holds the call in its caller's ledger that is carried out in this session."""
    return f"delegate/{session}"


def delegate_session(root: str, tool: str, session: str, call_id: str) -> str:
    """The session of a delegate: below the name of the tree's root, and always the same for the same call."""
    digest = hashlib.sha256(f"{session}\n{call_id}".encode()).hexdigest()[:16]
    return f"{root[:_ROOT_CHARACTERS]}.{tool[:_NAME_CHARACTERS]}.{digest}"


def tool_name_of(agent: str) -> str:
    """What a model calls an agent: its name in the characters that providers accept."""
    name = _UNSAFE.sub("_", agent)
    if len(name) <= 64:
        return name
    return f"{name[:55]}_{hashlib.sha256(agent.encode()).hexdigest()[:8]}"


WIRE_NAME_PATTERN = r"^[a-zA-Z0-9_-]{1,64}$"
"""What OpenAI and Anthropic both accept as a tool's name."""

LONGEST_NAME = 64
"""Of a tool, on the wire of every provider."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")

DEFAULT_TOOL_TIMEOUT = timedelta(seconds=300)
"""A tool call that runs longer is stopped, unless its author says otherwise."""


def wire_name(owner: str, tool: str, taken: Collection[str] = ()) -> str:
    """``owner__tool`` in the characters that providers accept; what had to be changed ends with a hash of the name."""
    whole = f"{owner}__{tool}"
    name = _NOT_IN_NAMES.sub("_", whole)
    if name == whole and len(name) <= LONGEST_NAME and name not in taken:
        return name
    digest = hashlib.sha256(f"{owner}\n{tool}".encode()).hexdigest()[:8]  # of both: a__b and c are not a and b__c
    return f"{name[: LONGEST_NAME - 9]}_{digest}"


MCP_REFERENCE = "mcp:"
"""``mcp:server/tool`` stands in a declaration where a Python tool has the name of its function."""


class RemoteTool(NamedTuple):
    """A tool of an MCP server, by the names of both."""

    server: str
    name: str


class ToolDeclaration(Value):
    """A tool as it is frozen with its agent: all data, the body by dotted name.

    Attributes:
        name: The wire name: what the model calls, and the activity type in Temporal.
        reference: ``module:qualified.name`` of the callable.
        catch: Classes whose exceptions become error results, by name; ``all`` or ``none``.
        idempotent: Whether the body may run again after its worker was lost.
        masked: Top-level arguments shown as ``***`` everywhere outside the tool's body.
        offload: Whether an output of more than 30,000 characters becomes an artifact.
        truncate: Longest result the model reads, in characters; None is no bound of its own.
        interactive: Whether a person's answer is the result; the body never runs.
        answer: Of an interactive tool: the JSON schema of the answer.
        requires_approval: Whether a call waits for somebody's approval, unless a rule of the agent says otherwise.
        pinned: Whether ``task_queue`` is that of the one worker that holds the state of the tool's server.
        delegate: Of a tool that is an agent: a call is a turn of it, and the body never runs.
        builtin: Of a tool that the workflow carries out itself: which one it is.
    """

    name: str = Field(pattern=WIRE_NAME_PATTERN)
    description: str
    parameters: dict[str, JsonValue]
    reference: str
    timeout: timedelta = Field(default=DEFAULT_TOOL_TIMEOUT, gt=timedelta(0))
    idempotent: bool = False
    catch: Literal["all", "none"] | tuple[str, ...] = ()
    truncate: int | None = Field(default=None, ge=1)
    offload: bool = True
    task_queue: str | None = None
    masked: tuple[str, ...] = ()
    interactive: bool = False
    answer: dict[str, JsonValue] | None = None
    requires_approval: bool = False
    pinned: bool = False
    delegate: DelegateSettings | None = None
    builtin: Builtin | None = None

    @property
    def remote(self) -> "RemoteTool | None":
        """Where calls of the tool go, if it is one of an MCP server."""
        if not self.reference.startswith(MCP_REFERENCE):
            return None
        server, _, name = self.reference.removeprefix(MCP_REFERENCE).partition("/")
        return RemoteTool(server, name)

    def catches(self, error: BaseException) -> bool:
        """Whether the author wants the model to read of the error. Classes go by name, so that the list is data."""
        if isinstance(self.catch, str):
            return self.catch == "all"
        return any(base.__name__ in self.catch for base in type(error).__mro__)


class ToolPolicy(Value):
    """The part of a declaration that the workflow decides by.

    Attributes:
        first_call_usd: Of a delegate: what the first call of its model is reckoned with; None if nobody knows.
    """

    timeout: timedelta = DEFAULT_TOOL_TIMEOUT
    task_queue: str | None = None
    answer: dict[str, JsonValue] | None = None
    pinned: bool = False
    delegate: DelegateSettings | None = None
    first_call_usd: Decimal | None = None


class PlannedCall(Value):
    """A tool call as ``generate`` returns it to the workflow.

    Attributes:
        call_id: The ledger's key; the raw arguments stand there and nowhere else.
        arguments: The arguments with masked values, at most 500 characters: for people.
        rejected: The call never ran and has its error result already, for example an unknown tool.
        needs: What the call waits for a person for, if it does.
        question: Of a question: its text, and the options it offers.
        digest: Of a call that needs an approval: the digest of tool and arguments, without what is masked.
        approval: Who approved the call.
        builtin: The arguments of a call that the workflow carries out itself.
        background: Of a call of a delegate: whether the turn goes on meanwhile.
    """

    call_id: str
    tool: str
    arguments: str = "{}"
    rejected: ErrorDetail | None = None
    needs: Need | None = None
    question: str = ""
    options: tuple[str, ...] = ()
    digest: str = ""
    approval: InputReceipt | None = None
    builtin: BuiltinCall | None = None
    background: bool = False

    @property
    def is_own(self) -> bool:
        """Whether the workflow carries the call out by itself: it runs nothing, and waits for nothing."""
        return self.builtin is not None and not awaits_delegates(self.builtin)


class CallTool(Value):
    """The input of a tool's activity.

    Attributes:
        approval: Who allowed the call, if that was needed.
        store: The id of the store that the turn lives in.
    """

    session: str
    turn: int
    step: int
    call_id: str
    definition: str
    arguments: str = "{}"
    approval: InputReceipt | None = None
    store: str = ""


class ToolOutcome(Value):
    """The result of a tool's activity.

    Attributes:
        preview: The first 4,000 characters of what the model reads; all of it stands in the store.
        error: What the model is told went wrong, if anything did.
        recorded: Whether the result stands in the store; False if only the workflow knows it so far.
        decided: What a person decided about the call, if one was asked; only with what is not recorded.
        matched: The stop conditions on texts that hold for the whole result, by their place among them.
        problem: Why stop conditions could not be looked for in the result, which ends the turn.
        stop: Why the tool asked the turn to end, if it did.
        delegate: The session of a delegate that works on the call in the background; only with what is not recorded.
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
