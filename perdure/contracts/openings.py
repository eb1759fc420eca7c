"""The opening of a turn: what the store and the activity ``open_turn`` say of it."""

from datetime import datetime

from perdure.contracts.agents import TurnPolicy
from perdure.contracts.budgets import Spent
from perdure.contracts.tools import PlannedCall, Todo
from perdure.contracts.turns import TurnResult
from perdure.contracts.values import Value


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
    ended: TurnResult | None = None
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
