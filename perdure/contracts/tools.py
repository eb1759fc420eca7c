"""Tools: how one is declared, called, and what came of it."""

import hashlib
import re
from collections.abc import Collection
from datetime import timedelta
from decimal import Decimal
from typing import Literal

from pydantic import Field

from perdure.contracts.builtins import Builtin, BuiltinCall, awaits_delegates
from perdure.contracts.delegates import DelegateSettings
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.people import InputReceipt, Need
from perdure.contracts.values import JsonValue, Value

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
