"""The activity ``react``: hooks written in Python are called with the events of a step."""

from perdure.contracts.budgets import Spent
from perdure.contracts.decisions import Decided
from perdure.contracts.reactions import AnyReaction, Boundary
from perdure.contracts.tools import ToolOutcome
from perdure.contracts.values import Value


class React(Value):
    """The input of the activity ``react``: call these hooks with the events of a step.

    Attributes:
        step: The step whose events they are.
        tip: The last step of the conversation.
        calling: The names of the hooks.
        spent: What the turn has used, for the hooks to see.
        left: How many calls of hooks the turn's budget allows; None is no limit.
        failed: Results that the event log does not have yet: only the workflow knows of them.
        decided: Decisions of the workflow that hooks are on; they go into the log now, if they are not there.
        ended: The calls of delegates in the background whose ends hooks have not heard of.
        store: The id of the store that the turn lives in.
    """

    session: str
    turn: int
    step: int
    tip: str
    definition: str
    boundary: Boundary
    calling: tuple[str, ...]
    spent: Spent = Spent()
    left: int | None = None
    failed: tuple[ToolOutcome, ...] = ()
    decided: tuple[Decided, ...] = ()
    ended: tuple[str, ...] = ()
    store: str = ""


class HookReaction(Value):
    """What a hook wants."""

    hook: str
    reaction: AnyReaction


class Reacted(Value):
    """The result of the activity ``react``.

    Attributes:
        reactions: Those of the hooks that had one, in the order in which they were called.
        calls: How many calls of hooks were made.
        refused: The hook for which the turn's budget had no call left.
    """

    reactions: tuple[HookReaction, ...] = ()
    calls: int = 0
    refused: str | None = None
