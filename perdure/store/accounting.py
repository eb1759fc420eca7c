"""Spending of a turn, and what it takes over from earlier turns (todos, spending), from the store alone."""

import json
from collections.abc import Iterable

from sqlalchemy import Connection, Row, bindparam, select

from perdure.contracts.budgets import Paid, Spent
from perdure.contracts.checkpoints import ResumeFrom
from perdure.contracts.errors import ReasonCode
from perdure.contracts.events import (
    AgentStart,
    CompactionEvent,
    DelegateEnd,
    DelegateStart,
    GenerationError,
    GenerationRetry,
    load_event,
)
from perdure.contracts.hooks import Continue, ModelFallback, ReactStep, TodosChanged
from perdure.contracts.ids import DELEGATED
from perdure.contracts.messages import AssistantMessage
from perdure.contracts.tools import Todo, changes_todos
from perdure.contracts.turns import CommitTurn, StopReason, TurnResult
from perdure.contracts.values import replace
from perdure.store import schema
from perdure.store.records import StepRecord
from perdure.store.schema import load_tool_message, step_record
from perdure.store.session_lock import LockedSession

_S, _T, _C, _E = schema.steps, schema.turns, schema.tool_calls, schema.events
_STEPS = select(_S).where(_S.c.session == bindparam("session"), _S.c.turn == bindparam("turn"), _S.c.step > 0)
_UNCLAIMED = select(_C.c.call_id, _C.c.message).where(
    _C.c.session == bindparam("session"),
    _C.c.turn == bindparam("turn"),
    _C.c.state == "ended",
    _C.c.claimant.is_(None),
)
_EVENTS = select(_E.c.key, _E.c.step, _E.c.type, _E.c.body).where(
    _E.c.session == bindparam("session"),
    _E.c.turn == bindparam("turn"),
    _E.c.type.in_(bindparam("types", expanding=True)),
)
_DELEGATE = select(_T.c.turn, _T.c.result).where(
    _T.c.session == bindparam("session"), _T.c.request_id == bindparam("request_id")
)


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
    spent = spent.with_failed(_sum_paid(_retries(connection, session, turn), told=_steps_with_told_failures_of(steps)))
    spent = spent.with_failed(_sum_last_tries(connection, session, turn))
    hooks = len(_events(connection, session, turn, "hook_end"))
    spent = replace(spent, behavior_calls=hooks)
    own = max((step.step for step in steps if step.summarised is None), default=0)
    # Delegates count also while they run, and those whose end the log lacks.
    ends: dict[str, DelegateEnd | None] = {}
    sessions: dict[str, str] = {}
    for row in _events(connection, session, turn, "delegate_start", "delegate_end"):
        event = load_event(json.loads(row.body))
        if isinstance(event, DelegateStart | DelegateEnd):
            sessions[event.call_id] = event.delegate
            ends[event.call_id] = event if isinstance(event, DelegateEnd) else ends.get(event.call_id)
    for call_id, delegate in sessions.items():
        used, delegated_steps = _spent_of_delegate(connection, delegate, call_id, ends[call_id])
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
    # The fallback that was at work when the turn was stopped; 0 is the agent's own model.
    stored = {row.key for row in _events(locked.connection, session, turn, "model_fallback")}
    decided = {f"{turn}/{decision.key}" for decision in commit.decided if isinstance(decision.event, ModelFallback)}
    fallback = len(stored | decided)
    retries = [retry for retry in _retries(locked.connection, session, turn) if retry[0] == step]
    mine = [(number, retry) for number, retry in retries if retry.fallback == fallback]
    if not mine:
        return Paid()
    steps = _steps(locked.connection, session, turn)
    written = any(record.id == commit.tip and record.step == step and record.summarised is not None for record in steps)
    model = f"fallback{fallback}/" if fallback else ""
    heard = written or locked.count_events(f"{turn}/{step}/{model}compaction/failed") > 0
    return _sum_paid(
        ((number, retry) for number, retry in mine if not (heard and retry.compaction)),
        told=_steps_with_told_failures_of(steps),
    )


def _steps(connection: Connection, session: str, turn: int) -> list[StepRecord]:
    return [step_record(row) for row in connection.execute(_STEPS, {"session": session, "turn": turn})]


def _steps_with_told_failures_of(steps: Iterable[StepRecord]) -> frozenset[int]:
    """The steps that hold a failure told to the model: both their row and their event have its cost."""
    return frozenset(
        step.step
        for step in steps
        if step.summarised is None and not any(isinstance(message, AssistantMessage) for message in step.messages)
    )


def _retries(connection: Connection, session: str, turn: int) -> list[tuple[int, GenerationRetry]]:
    rows = _events(connection, session, turn, "generation_retry")
    events = [(row.step, load_event(json.loads(row.body))) for row in rows]
    return [(step, event) for step, event in events if isinstance(event, GenerationRetry)]


def _sum_last_tries(connection: Connection, session: str, turn: int) -> Paid:
    """The cost of the last try of each model call that failed for good."""
    paid = Paid()
    for row in _events(connection, session, turn, "generation_error", "compaction_event"):
        event = load_event(json.loads(row.body))
        failed = isinstance(event, CompactionEvent) and event.compaction_status == "failed"
        if isinstance(event, GenerationError) or (isinstance(event, CompactionEvent) and failed):
            paid = paid.plus(event.usage, event.cost_usd)
    return paid


def _sum_paid(retries: Iterable[tuple[int, GenerationRetry]], *, told: frozenset[int]) -> Paid:
    paid = Paid()
    for step, retry in retries:
        if retry.compaction or step not in told:
            paid = paid.plus(retry.usage, retry.cost_usd)
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


def _spent_of_delegate(
    connection: Connection, session: str, call_id: str, end: DelegateEnd | None
) -> tuple[Spent, int]:
    """Spending of a delegate, and its steps: by its result, its caller's event, or its own steps so far."""
    keys = {"session": session, "request_id": f"{DELEGATED}{call_id}"}
    row = connection.execute(_DELEGATE, keys).one_or_none()
    if row is not None and row.result is not None:
        result = TurnResult.model_validate_json(row.result)
        if result.spent is not None:
            return result.spent, result.steps
    if end is not None:
        return Spent(usage=end.usage, cost_usd=end.cost_usd), end.steps
    return (Spent(), 0) if row is None else spent_of_turn(connection, session, row.turn)


def _events(connection: Connection, session: str, turn: int, *types: str) -> list[Row[*tuple[object, ...]]]:
    keys = {"session": session, "turn": turn, "types": list(types)}
    return list(connection.execute(_EVENTS.order_by(_E.c.seq), keys))


_CHANGED = (
    select(_E.c.body)
    .where(
        _E.c.session == bindparam("session"),
        _E.c.turn == bindparam("turn"),
        _E.c.step <= bindparam("step"),
        _E.c.type == "todos_changed",
    )
    .order_by(_E.c.seq.desc())
    .limit(1)
)
_START = select(_E.c.body).where(_E.c.session == bindparam("session"), _E.c.key == bindparam("key"))
_RESULT = select(_T.c.result).where(_T.c.session == bindparam("session"), _T.c.turn == bindparam("turn"))
_RESULTS = select(_T.c.result).where(_T.c.session == bindparam("session"), _T.c.turn < bindparam("turn"))

_REACTIONS = (
    select(_E.c.body)
    .where(
        _E.c.session == bindparam("session"),
        _E.c.turn == bindparam("turn"),
        _E.c.step == bindparam("step"),
        _E.c.type == "react_step",
    )
    .order_by(_E.c.seq)
)

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
    """The todos at a step of a turn, by the event log."""
    body = connection.scalar(_CHANGED, {"session": session, "turn": turn, "step": step})
    if body is not None:
        return TodosChanged.model_validate(json.loads(body)).todos
    return todos_at_beginning_of(connection, session, turn)


def todos_at_beginning_of(connection: Connection, session: str, turn: int) -> tuple[Todo, ...]:
    """The todos with which a turn that has begun did begin."""
    body = connection.scalar(_START, {"session": session, "key": f"{turn}/agent_start"})
    origin = None if body is None else AgentStart.model_validate(json.loads(body)).resumed_from
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
    last = connection.scalars(_REACTIONS, {"session": session, "turn": turn, "step": result.steps})
    reactions = (ReactStep.model_validate(json.loads(body)).reaction for body in last)
    return (*earlier, *(text for reaction in reactions if isinstance(reaction, Continue) for text in reaction.texts))


def spent_of_earlier_turns(connection: Connection, session: str, turn: int) -> Spent:
    """Spending of a session's turns before this one. Their steps are counted as ``delegated_steps``."""
    total = Spent()
    for recorded in connection.scalars(_RESULTS, {"session": session, "turn": turn}):
        result = None if recorded is None else TurnResult.model_validate_json(recorded)
        if result is not None and result.spent is not None:
            total = total.with_delegate(result.spent, result.steps)
    return total
