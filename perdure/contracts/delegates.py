"""Delegates: agents that are tools of agents. A call of one is a turn of its own, in a session of its own."""

import hashlib
import re
from typing import Literal

from pydantic import Field

from perdure.contracts.budgets import Spent
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.people import InputReceipt
from perdure.contracts.values import JsonValue, Value

AgentType = Literal["explore", "plan", "test", "review", "general"]
"""What a clone of an agent is for; see ``engine.spawning``."""

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
    # Left out where it is not allowed: definitions from before it keep their hashes.
    background: bool = Field(default=False, exclude_if=lambda allowed: not allowed)


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
