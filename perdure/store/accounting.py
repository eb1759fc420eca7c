"""Spending of a turn, and what it takes over from earlier turns (todos, spending), from the store alone."""

import json
from collections.abc import Iterable

from sqlalchemy import Connection, Row, bindparam, select

from perdure.contracts.budgets import Paid, Spent, Usage
from perdure.contracts.checkpoints import ResumeFrom
from perdure.contracts.errors import ReasonCode
from perdure.contracts.ids import DELEGATED
from perdure.contracts.messages import AssistantMessage
from perdure.contracts.tools import Todo, changes_todos
from perdure.contracts.turns import CommitTurn, StopReason, TurnResult
from perdure.contracts.values import replace
from perdure.store import schema
from perdure.store.records import DelegateSpent, StepRecord, todos_from_json
from perdure.store.rows import load_tool_message, step_record
from perdure.store.session_lock import LockedSession

_S, _T, _C = schema.steps, schema.turns, schema.tool_calls
_F, _D, _B = schema.failed_generations, schema.todos, schema.feedback
_STEPS = select(_S).where(_S.c.session == bindparam("session"), _S.c.turn == bindparam("turn"), _S.c.step > 0)
_OF_TURN = (_C.c.session == bindparam("session"), _C.c.turn == bindparam("turn"))
_UNCLAIMED = select(_C.c.call_id, _C.c.message).where(*_OF_TURN, _C.c.state == "ended", _C.c.claimant.is_(None))
_DELEGATED = (
    select(_C.c.call_id, _C.c.delegate, _C.c.delegate_spent)
    .where(*_OF_TURN, _C.c.delegate.is_not(None))
    .order_by(_C.c.call_id)
)
_FAILED = select(_F).where(_F.c.session == bindparam("session"), _F.c.turn == bindparam("turn")).order_by(_F.c.seq)
_HOOKS = select(schema.sessions.c.hook_calls).where(
    schema.sessions.c.session == bindparam("session"), schema.sessions.c.turn == bindparam("turn")
)
_DELEGATE = select(_T.c.turn, _T.c.result).where(
    _T.c.session == bindparam("session"), _T.c.request_id == bindparam("request_id")
)

_FailedRow = Row[*tuple[object, ...]]


def spent_of_turn(connection: Connection, session: str, turn: int) -> tuple[Spent, int]:
    """Spending of a turn and its delegates so far, and the number of the turn's own steps.

    Every model call counts, also one whose answer a hook took back; every try of a failed call counts.
    """
    steps = _steps(connection, session, turn)
    not_run = _find_not_run(connection, session, turn)
    spent = Spent()
    for step in steps:
        spent = spent.with_call(step.usage, step.cost_usd)
        for call in step.calls if step.summarised is None else ():
            if call.rejected is None and call.call_id not in not_run:
                patches = spent.patches + changes_todos(call.builtin)
                spent = replace(spent, tool_calls=spent.tool_calls + 1, events=spent.events + 1, patches=patches)
    failed = _failed(connection, session, turn)
    retried = [row for row in failed if not row.final]
    spent = spent.with_failed(_sum_paid(retried, told=_steps_with_told_failures_of(steps)))
    spent = spent.with_failed(_sum_paid([row for row in failed if row.final], told=frozenset()))
    hooks = connection.scalar(_HOOKS, {"session": session, "turn": turn}) or 0
    spent = replace(spent, behavior_calls=hooks)
    own = max((step.step for step in steps if step.summarised is None), default=0)
    # Delegates count also while they run.
    for row in connection.execute(_DELEGATED, {"session": session, "turn": turn}).all():
        used, delegated_steps = _spent_of_delegate(connection, row.delegate, row.call_id, row.delegate_spent)
        spent = spent.with_delegate(used, delegated_steps)
        spent = replace(spent, behavior_calls=spent.behavior_calls + 1)
    return spent, own


def paid_of_interrupted(locked: LockedSession, commit: CommitTurn) -> Paid:
    """The cost of the tries of a generation that a stop interrupted, as far as the workflow has not counted them.

    The workflow has counted the tries of models before the current fallback, and those of compactions that have ended.
    """
    session, turn, step = commit.session, commit.turn, commit.aborted_step
    if step is None:
        return Paid()
    failed = _failed(locked.connection, session, turn)
    # The fallback that was at work when the turn was stopped; 0 is the agent's own model.
    mine = [row for row in failed if row.step == step and row.fallback == commit.fallback]
    retried = [row for row in mine if not row.final]
    if not retried:
        return Paid()
    steps = _steps(locked.connection, session, turn)
    written = any(record.id == commit.tip and record.step == step and record.summarised is not None for record in steps)
    heard = written or any(row.final and row.compaction for row in mine)
    unheard = [row for row in retried if not (heard and row.compaction)]
    return _sum_paid(unheard, told=_steps_with_told_failures_of(steps))


def _steps(connection: Connection, session: str, turn: int) -> list[StepRecord]:
    return [step_record(row) for row in connection.execute(_STEPS, {"session": session, "turn": turn})]


def _steps_with_told_failures_of(steps: Iterable[StepRecord]) -> frozenset[int]:
    """The steps that hold a failure told to the model: both their row and their event have its cost."""
    return frozenset(
        step.step
        for step in steps
        if step.summarised is None and not any(isinstance(message, AssistantMessage) for message in step.messages)
    )


def _failed(connection: Connection, session: str, turn: int) -> list[_FailedRow]:
    return list(connection.execute(_FAILED, {"session": session, "turn": turn}))


def _sum_paid(failed: Iterable[_FailedRow], *, told: frozenset[int]) -> Paid:
    paid = Paid()
    for row in failed:
        if row.compaction or row.step not in told:
            paid = paid.plus(Usage.model_validate_json(row.usage), row.cost)
    return paid


def _find_not_run(connection: Connection, session: str, turn: int) -> frozenset[str]:
    """The calls that did not run and used up no budget: a budget was exhausted before, or a hook withdrew them."""
    found: set[str] = set()
    for row in connection.execute(_UNCLAIMED, {"session": session, "turn": turn}):
        message = load_tool_message(row.message)
        code = "" if message.error is None else message.error.code
        if code.startswith("budget.") or (code == ReasonCode.TOOL_DENIED and message.decided is None):
            found.add(row.call_id)
    return frozenset(found)


def _spent_of_delegate(connection: Connection, session: str, call_id: str, spent: str | None) -> tuple[Spent, int]:
    """Spending of a delegate, and its steps: by its result, its caller's ledger, or its own steps so far."""
    keys = {"session": session, "request_id": f"{DELEGATED}{call_id}"}
    row = connection.execute(_DELEGATE, keys).one_or_none()
    if row is not None and row.result is not None:
        result = TurnResult.model_validate_json(row.result)
        if result.spent is not None:
            return result.spent, result.steps
    if spent is not None:
        used = DelegateSpent.model_validate_json(spent)
        return Spent(usage=used.usage, cost_usd=used.cost_usd), used.steps
    return (Spent(), 0) if row is None else spent_of_turn(connection, session, row.turn)


_CHANGED = (
    select(_D.c.todos)
    .where(
        _D.c.session == bindparam("session"),
        _D.c.turn == bindparam("turn"),
        _D.c.step <= bindparam("step"),
    )
    .order_by(_D.c.step.desc())
    .limit(1)
)
_THIS_TURN = (_T.c.session == bindparam("session"), _T.c.turn == bindparam("turn"))
_ORIGIN = select(_T.c.resumed_from).where(*_THIS_TURN)
_FEEDBACK = (
    select(_B.c.texts)
    .where(_B.c.session == bindparam("session"), _B.c.turn == bindparam("turn"), _B.c.step == bindparam("step"))
    .order_by(_B.c.seq)
)
_RESULT = select(_T.c.result).where(*_THIS_TURN)
_RESULTS = select(_T.c.result).where(_T.c.session == bindparam("session"), _T.c.turn < bindparam("turn"))

_ANY_STEP = 2**31 - 1


def result_of_turn(connection: Connection, session: str, turn: int) -> TurnResult | None:
    """The result of a turn; None if it has none, or for 0, the time before the first turn."""
    recorded = connection.scalar(_RESULT, {"session": session, "turn": turn}) if turn else None
    return None if recorded is None else TurnResult.model_validate_json(recorded)


def todos_of_checkpoint(connection: Connection, session: str, turn: int, origin: ResumeFrom) -> tuple[Todo, ...]:
    """The todos with which a turn begins that resumes from a checkpoint."""
    session, last = origin.session or session, turn - 1
    if origin.session is not None and origin.turn is None:
        last = connection.scalar(select(schema.sessions.c.turn).where(schema.sessions.c.session == session)) or 0
    number = last if origin.turn is None else origin.turn
    if origin.step is not None:
        return todos_in(connection, session, number, origin.step)
    return _todos_at_end_of(connection, session, number)


def _todos_at_end_of(connection: Connection, session: str, turn: int) -> tuple[Todo, ...]:
    result = result_of_turn(connection, session, turn)
    return () if result is None else result.todos


def todos_in(connection: Connection, session: str, turn: int, step: int = _ANY_STEP) -> tuple[Todo, ...]:
    """The todos at a step of a turn."""
    changed = connection.scalar(_CHANGED, {"session": session, "turn": turn, "step": step})
    return todos_at_beginning_of(connection, session, turn) if changed is None else todos_from_json(changed)


def todos_at_beginning_of(connection: Connection, session: str, turn: int) -> tuple[Todo, ...]:
    """The todos with which a turn that has begun did begin."""
    resumed = connection.scalar(_ORIGIN, {"session": session, "turn": turn})
    origin = None if resumed is None else ResumeFrom.model_validate_json(resumed)
    if origin is None:
        return _todos_at_end_of(connection, session, turn - 1)
    if not origin.turn:
        return ()
    return todos_in(
        connection, origin.session or session, origin.turn, _ANY_STEP if origin.step is None else origin.step
    )


def read_unread_feedback(connection: Connection, session: str, turn: int, result: TurnResult | None) -> tuple[str, ...]:
    """Texts of hooks in the last step of a turn, if it stopped for people: no generation has read them yet."""
    if result is None or result.stop_reason is not StopReason.WAITING_FOR_INPUT:
        return ()
    earlier: tuple[str, ...] = ()
    if not result.steps:
        before = result_of_turn(connection, session, turn - 1)
        earlier = read_unread_feedback(connection, session, turn - 1, before)
    last = connection.scalars(_FEEDBACK, {"session": session, "turn": turn, "step": result.steps})
    return (*earlier, *(text for texts in last for text in json.loads(texts)))


def spent_of_earlier_turns(connection: Connection, session: str, turn: int) -> Spent:
    """Spending of a session's turns before this one. Their steps are counted as ``delegated_steps``."""
    total = Spent()
    for recorded in connection.scalars(_RESULTS, {"session": session, "turn": turn}):
        result = None if recorded is None else TurnResult.model_validate_json(recorded)
        if result is not None and result.spent is not None:
            total = total.with_delegate(result.spent, result.steps)
    return total
