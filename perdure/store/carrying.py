"""What a turn takes over from those before it: todos, what they have spent, and what hooks said to no model yet."""

import json

from sqlalchemy import Connection, bindparam, select

from perdure.contracts.budgets import Spent
from perdure.contracts.checkpoints import ResumeFrom
from perdure.contracts.events import AgentStart
from perdure.contracts.hooks import Continue, ReactStep, TodosChanged
from perdure.contracts.tools import Todo
from perdure.contracts.turns import StopReason, TurnResult
from perdure.store import schema

_E = schema.events
_T = schema.turns
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


def todos_before(connection: Connection, session: str, turn: int, origin: ResumeFrom | None) -> tuple[Todo, ...]:
    """The todos with which a turn begins: those of the last one, or as they were at the checkpoint it resumes from."""
    if origin is None:
        return _at_end(connection, session, turn - 1)
    session, last = origin.session or session, turn - 1
    if origin.session is not None and origin.turn is None:
        last = connection.scalar(select(schema.sessions.c.turn).where(schema.sessions.c.session == session)) or 0
    number = last if origin.turn is None else origin.turn
    return (
        _at_end(connection, session, number)
        if origin.step is None
        else todos_in(connection, session, number, origin.step)
    )


def _at_end(connection: Connection, session: str, turn: int) -> tuple[Todo, ...]:
    recorded = connection.scalar(_RESULT, {"session": session, "turn": turn})
    return () if recorded is None else TurnResult.model_validate_json(recorded).todos


def todos_in(connection: Connection, session: str, turn: int, step: int = _ANY_STEP) -> tuple[Todo, ...]:
    """The todos at a step of a turn, by the event log."""
    body = connection.scalar(_CHANGED, {"session": session, "turn": turn, "step": step})
    if body is not None:
        return TodosChanged.model_validate(json.loads(body)).todos
    return _at_beginning(connection, session, turn)


def _at_beginning(connection: Connection, session: str, turn: int) -> tuple[Todo, ...]:
    """The todos of the turn before, or of the checkpoint that the turn went on from."""
    body = connection.scalar(_START, {"session": session, "key": f"{turn}/agent_start"})
    origin = None if body is None else AgentStart.model_validate(json.loads(body)).resumed_from
    if origin is None:
        return _at_end(connection, session, turn - 1)
    if not origin.turn:
        return ()
    return todos_in(
        connection, origin.session or session, origin.turn, _ANY_STEP if origin.step is None else origin.step
    )


def said_before(connection: Connection, session: str, turn: int) -> tuple[str, ...]:
    """What hooks have said in the last step of a turn that stopped for people: no generation came to read it."""
    recorded = connection.scalar(_RESULT, {"session": session, "turn": turn - 1})
    result = None if recorded is None else TurnResult.model_validate_json(recorded)
    if result is None or result.stop_reason is not StopReason.WAITING_FOR_INPUT:
        return ()
    earlier = () if result.steps else said_before(connection, session, turn - 1)
    last = connection.scalars(_REACTIONS, {"session": session, "turn": turn - 1, "step": result.steps})
    reactions = (ReactStep.model_validate(json.loads(body)).reaction for body in last)
    return (*earlier, *(text for one in reactions if isinstance(one, Continue) for text in one.texts))


def spent_before(connection: Connection, session: str, turn: int) -> Spent:
    """What a session's turns before this one have spent, their steps among the delegated ones."""
    total = Spent()
    for recorded in connection.scalars(_RESULTS, {"session": session, "turn": turn}):
        result = None if recorded is None else TurnResult.model_validate_json(recorded)
        if result is not None and result.spent is not None:
            total = total.with_delegate(result.spent, result.steps)
    return total
