"""The notice of a turn that goes on behind what was done: the store lost the work, as after a restore."""

from sqlalchemy import Connection

from perdure.contracts.errors import ReasonCode
from perdure.store.accounting import spent_of_turn
from perdure.store.commit_turn import find_turn

BEHIND = (
    "Note: the record of this conversation was restored from an older copy. Turn {turn} went on after its step {step}, "
    "and that work is not shown here: calls of tools may have had their effects. Look before you repeat one."
)
"""First message of a turn that goes on behind what was done, for its model, and the notice to who asks for it."""


def notice_of_behind(connection: Connection, session: str, turn: int) -> str:
    """The notice to whoever goes on from a session's turn; empty if the store has all of that turn."""
    row = find_turn(connection, session, turn) if turn else None
    if row is None or row.reason_code != ReasonCode.RUNTIME_STORE_BEHIND or row.result is None:
        return ""
    _, steps = spent_of_turn(connection, session, row.turn)
    return BEHIND.format(turn=row.turn, step=steps)
