"""The two transactions of a generation, and the conversation that it reads."""

from collections.abc import Sequence
from typing import Any, cast

from sqlalchemy import ColumnElement, Connection, Row, Select, bindparam, insert, literal, select

from perdure.contracts.budgets import Usage
from perdure.contracts.events import NewEvent
from perdure.contracts.generations import Generate
from perdure.contracts.messages import Message
from perdure.contracts.values import replace
from perdure.store import schema
from perdure.store.errors import NotFoundError
from perdure.store.records import Begun, LedgerCall, StepRecord
from perdure.store.rows import load_messages, step_record, step_values
from perdure.store.session_lock import LockedSession
from perdure.store.standing_approvals import let_through
from perdure.store.tool_calls import OpenCalls, enter_calls

_S = schema.steps
_FIND = select(_S).where(_S.c.id == bindparam("id"))
_INSERT = insert(_S)


def begin_generation(connection: Connection, request: Generate, events: Sequence[NewEvent]) -> Begun:
    """Begin a generation: find the answer stored under the request's key, or the results that the model reads now."""
    locked = LockedSession.lock_for_turn(connection, request.session, request.turn, looks_for_watchers=True)
    answer = find_step(connection, request.step_id())
    if answer is not None:
        return Begun(answer=answer)
    _need_parent(locked, request.parent)
    ids = (*request.call_ids, *(outcome.call_id for outcome in request.failed))
    calls = OpenCalls(locked, request.turn, ids)
    calls.record(request.failed)
    calls.end_rest(cancelled=False)
    calls.write()
    locked.append(*events)
    locked.save()
    return Begun(answer=None, results=calls.results(request.call_ids), is_watched=locked.is_watched)


def finish_generation(
    connection: Connection, step: StepRecord, calls: Sequence[LedgerCall], events: Sequence[NewEvent]
) -> StepRecord:
    """Store an answer and its calls, and move the tip. If another attempt has stored one, that one is returned.

    Calls that standing approvals cover need no approval in the step that is stored and returned.
    """
    locked = LockedSession.lock_for_turn(connection, step.session, step.turn)
    stored = find_step(connection, step.id)
    if stored is not None:
        return stored
    _need_parent(locked, step.parent)
    if calls:
        step = let_through(connection, step, locked.agent, locked.now)
    insert_step(locked, step)
    enter_calls(locked, step.turn, step.step, calls)
    locked.tip = step.id
    locked.append(*events)
    locked.save()
    return step


def finish_compaction(connection: Connection, step: StepRecord, events: Sequence[NewEvent]) -> StepRecord:
    """Store a summary as a step, and move the tip. If another attempt has stored one, that one is returned.

    Calls of the step before that wait for results are among the messages that were kept.
    """
    before = None if step.parent is None else find_step(connection, step.parent)
    with_calls = step if before is None else replace(step, calls=before.calls)
    stored = finish_generation(connection, with_calls, (), events)
    return step if stored is with_calls else stored


def _need_parent(locked: LockedSession, parent: str | None) -> None:
    """Refuse a parent that does not exist, or the conversation would begin in its middle.

    The parent is the tip unless the turn was reset, so only then a query is needed.
    """
    if parent is not None and parent != locked.tip:
        require_step(locked.connection, parent)


def find_step(connection: Connection, step: str) -> StepRecord | None:
    """The step with this id; None if there is none."""
    row = connection.execute(_FIND, {"id": step}).one_or_none()
    return None if row is None else step_record(row)


def require_step(connection: Connection, step: str) -> StepRecord:
    """The step with this id.

    Raises:
        NotFoundError: There is no such step.
    """
    found = find_step(connection, step)
    if found is None:
        raise NotFoundError(_describe_missing_step(step))
    return found


def insert_step(locked: LockedSession, step: StepRecord) -> None:
    """Insert a step."""
    locked.connection.execute(_INSERT, step_values(step, locked.now))


_READ = (_S.c.id, _S.c.parent, _S.c.messages, _S.c.summarised)


_COUNT = (_S.c.id, _S.c.parent, _S.c.finish_reason, _S.c.usage, _S.c.summarised)


def _chain(*read: ColumnElement[Any], whole: bool) -> Select[*tuple[object, ...]]:
    """The steps from the tip back to the last compaction, or with ``whole`` to the root."""
    tip = select(*read, literal(0).label("distance")).where(_S.c.id == bindparam("tip")).cte("chain", recursive=True)
    before = select(*read, (tip.c.distance + 1).label("distance")).where(_S.c.id == tip.c.parent)
    rows = tip.union_all(before if whole else before.where(tip.c.summarised.is_(None)))
    return cast("Select[*tuple[object, ...]]", select(rows))


_CONVERSATION = _chain(*_READ, whole=False)
_HISTORY = _chain(*_READ, whole=True)
_COUNTS = _chain(*_COUNT, whole=False)


def conversation(connection: Connection, tip: str) -> tuple[Message, ...]:
    """The messages that a model reads at a step ``tip``: from the last compaction, or from the root."""
    return tuple(
        message for row in _steps_to(connection, _CONVERSATION, tip) for message in load_messages(row.messages)
    )


def conversation_steps(connection: Connection, tip: str) -> tuple[str, ...]:
    """Ids of the steps that a model reads at a step ``tip``."""
    return tuple(row.id for row in _steps_to(connection, _CONVERSATION, tip))


def counted_tokens(connection: Connection, tip: str) -> tuple[int, int]:
    """Tokens that the last answer before a step ``tip`` read and wrote, and the first one after the last compaction.

    Zero if there is no such answer since that compaction, or if the conversation was never compacted.
    """
    rows = _steps_to(connection, _COUNTS, tip)
    answers = (row for row in rows if row.summarised is None and row.finish_reason not in {"", "error"})
    counts = [tokens for row in answers if (tokens := Usage.model_validate_json(row.usage).total_tokens)]
    if not counts:
        return 0, 0
    return counts[-1], counts[0] if rows[0].summarised is not None else 0


def history(connection: Connection, tip: str) -> tuple[Message, ...]:
    """Every message from the root to a step ``tip``, without summaries of compactions."""
    rows = (row for row in _steps_to(connection, _HISTORY, tip) if row.summarised is None)
    return tuple(message for row in rows for message in load_messages(row.messages))


def _steps_to(connection: Connection, chain: Select[*tuple[object, ...]], tip: str) -> list[Row[*tuple[object, ...]]]:
    rows = connection.execute(chain, {"tip": tip}).all()
    if not rows:
        raise NotFoundError(_describe_missing_step(tip))
    # Sorted here, since the database would move every message through its sorter.
    return sorted(rows, key=lambda row: row.distance, reverse=True)


def _describe_missing_step(step: str) -> str:
    return f"there is no step {step!r}"
