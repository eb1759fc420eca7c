"""A generation's two transactions, and the conversation it reads."""

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, insert, literal, select

from perdure.contracts.events import NewEvent
from perdure.contracts.generations import Generate
from perdure.contracts.messages import Message
from perdure.store import schema
from perdure.store.errors import NotFoundError
from perdure.store.ledger import OpenCalls, enter_calls
from perdure.store.log import LockedSession
from perdure.store.records import Begun, LedgerCall, StepRecord
from perdure.store.rows import load_messages, step_record, step_values

_S = schema.steps
_FIND = select(_S).where(_S.c.id == bindparam("id"))
_INSERT = insert(_S)


def begin_generation(connection: Connection, request: Generate, events: Sequence[NewEvent]) -> Begun:
    """The answer that is stored under the request's key, or the results that the model has not read."""
    locked = LockedSession.for_turn(connection, request.session, request.turn)
    answer = find_step(connection, request.step_id())
    if answer is not None:
        return Begun(answer=answer)
    ids = (*request.call_ids, *(outcome.call_id for outcome in request.failed))
    calls = OpenCalls(locked, request.turn, ids)
    calls.record(request.failed)
    calls.end_rest(cancelled=False)
    calls.write()
    locked.append(*events)
    locked.save()
    return Begun(answer=None, results=calls.results(request.call_ids))


def finish_generation(
    connection: Connection, step: StepRecord, calls: Sequence[LedgerCall], events: Sequence[NewEvent]
) -> StepRecord:
    """Store an answer and enter its calls; the answer that another attempt stored wins."""
    locked = LockedSession.for_turn(connection, step.session, step.turn)
    stored = find_step(connection, step.id)
    if stored is not None:
        return stored
    insert_step(locked, step)
    enter_calls(locked, step.turn, step.step, calls)
    locked.tip = step.id
    locked.append(*events)
    locked.save()
    return step


def find_step(connection: Connection, step: str) -> StepRecord | None:
    """The step of that id."""
    row = connection.execute(_FIND, {"id": step}).one_or_none()
    return None if row is None else step_record(row)


def insert_step(locked: LockedSession, step: StepRecord) -> None:
    """Write an immutable step."""
    locked.connection.execute(_INSERT, step_values(step, locked.now))


_tip = (
    select(_S.c.parent, _S.c.messages, literal(0).label("distance"))
    .where(_S.c.id == bindparam("tip"))
    .cte("chain", recursive=True)
)
_chain = _tip.union_all(
    select(_S.c.parent, _S.c.messages, (_tip.c.distance + 1).label("distance")).where(_S.c.id == _tip.c.parent)
)
_CONVERSATION = select(_chain.c.distance, _chain.c.messages)


def conversation(connection: Connection, tip: str) -> tuple[Message, ...]:
    """All messages from the root to the tip."""
    rows = connection.execute(_CONVERSATION, {"tip": tip}).all()
    if not rows:
        msg = f"there is no step {tip!r}"
        raise NotFoundError(msg)
    # Sorted here: the database would move every message through its sorter.
    ordered = sorted(rows, key=lambda row: row.distance, reverse=True)
    return tuple(message for row in ordered for message in load_messages(row.messages))
