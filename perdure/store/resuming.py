"""Where a turn goes on that is asked to resume from a checkpoint: another session's step, or an earlier one of its own.

Nothing is copied. The turn's first step names the checkpoint as its parent, and holds the results of its calls: they
stand in the ledger for good, so no call is left without a result, and none runs again.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, literal, select

from perdure.contracts.checkpoints import ResumeFrom
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.events import AgentStart, load_event
from perdure.contracts.messages import AssistantMessage, Message, ToolMessage
from perdure.contracts.tools import PlannedCall
from perdure.store import schema
from perdure.store.closing import TurnRow, find_turn
from perdure.store.errors import NotFoundError, ResumeRefusedError
from perdure.store.generations import find_step
from perdure.store.log import LockedSession
from perdure.store.records import StepRecord
from perdure.store.rows import load_tool_message, step_record

_S = schema.steps
_SESSION = select(schema.sessions).where(schema.sessions.c.session == bindparam("session"))
_OF_TURN = (_S.c.session == bindparam("session"), _S.c.turn == bindparam("turn"))
_NUMBERED = select(_S).where(*_OF_TURN, _S.c.step == bindparam("step"))
_LAST = select(_S.c.step).where(*_OF_TURN).order_by(_S.c.step.desc()).limit(1)

_FIRST_START = select(schema.events.c.body).where(
    schema.events.c.session == bindparam("session"), schema.events.c.key == "1/agent_start"
)

_end = (
    select(_S.c.id, _S.c.parent, _S.c.step, literal(0).label("distance"))
    .where(_S.c.id == bindparam("end"), *_OF_TURN)
    .cte("chain", recursive=True)
)
_before = select(_S.c.id, _S.c.parent, _S.c.step, (_end.c.distance + 1).label("distance")).where(
    _S.c.id == _end.c.parent, *_OF_TURN
)
_chain = _end.union_all(_before)
_REACHED = select(_chain.c.id).where(_chain.c.step == bindparam("step")).order_by(_chain.c.distance).limit(1)

_C = schema.tool_calls
_CALLS = select(_C.c.turn, _C.c.call_id, _C.c.state, _C.c.message).where(
    _C.c.session == bindparam("session"), _C.c.call_id.in_(bindparam("call_ids", expanding=True))
)
_CALLS_OF_TURN = _CALLS.where(_C.c.turn == bindparam("turn"))


@dataclass(frozen=True)
class Beginning:
    """What a turn's first step goes on from, and what stands in it before the prompt.

    Attributes:
        origin: The checkpoint, with all that the request left open.
    """

    parent: str | None
    messages: tuple[Message, ...] = ()
    calls: tuple[PlannedCall, ...] = ()
    origin: ResumeFrom | None = None


def resumed(locked: LockedSession, origin: ResumeFrom, *, prompt: str) -> Beginning | None:
    """The checkpoint as the beginning of a turn of this session; None if it stopped there for people.

    What they were asked is then withdrawn as by any other message.

    Raises:
        NotFoundError: There is no such session, turn or step.
        ResumeRefusedError: The session cannot go on from there.
    """
    forks = origin.session not in {None, locked.session}
    if forks and locked.turn > 0:
        msg = f"session {locked.session!r} exists already; a fork begins a new session: name another id"
        raise ResumeRefusedError(msg)
    session = origin.session or locked.session
    refuse_delegates(locked.connection, session)
    turn = _turn(locked.connection, session, origin.turn)
    if turn is None:
        beginning = Beginning(parent=None, origin=ResumeFrom(session=session, turn=0))
    else:
        step = _step(locked.connection, turn, origin.step)
        if step.id == locked.head and step.calls:
            _need_a_prompt(locked, prompt)
            return None
        messages = _results(locked.connection, step, turn)
        number = step.step if step.is_checkpoint else step.step - 1
        origin = ResumeFrom(session=session, turn=turn.turn, step=number)
        beginning = Beginning(parent=step.id, messages=messages, origin=origin)
    if not prompt:
        _need_something_to_answer(locked.connection, beginning, session)
    return beginning


def refuse_delegates(connection: Connection, session: str) -> None:
    """A delegate's session belongs to its caller, which goes on from its own steps."""
    body = connection.scalar(_FIRST_START, {"session": session})
    start = None if body is None else load_event(json.loads(body))
    if isinstance(start, AgentStart) and start.delegated_by is not None:
        msg = f"session {session!r} is a delegate's; send to, resume or fork {start.delegated_by!r}, which called it"
        raise ResumeRefusedError(msg)


def _need_a_prompt(locked: LockedSession, prompt: str) -> None:
    if not prompt:
        msg = (
            f"session {locked.session!r} waits for people: answer, approve or deny what it asks, or give a prompt to "
            "go on with instead"
        )
        raise ResumeRefusedError(msg)


def _turn(connection: Connection, session: str, number: int | None) -> TurnRow | None:
    """The turn that is meant; None is the time before the first."""
    row = connection.execute(_SESSION, {"session": session}).one_or_none()
    if row is None or row.turn == 0:
        msg = f"there is no session {session!r}"
        raise NotFoundError(msg)
    if number == 0:
        return None
    found = find_turn(connection, session, row.turn if number is None else number)
    if found is None:
        msg = f"session {session!r} has no turn {number}; its last is {row.turn}"
        raise NotFoundError(msg)
    return found


def _step(connection: Connection, turn: TurnRow, number: int | None) -> StepRecord:
    """The step that is meant: of several with its number, the one that the turn's conversation holds."""
    where = {"session": turn.session, "turn": turn.turn}
    if number is None:
        if turn.last_step is None:
            msg = f"turn {turn.turn} of session {turn.session!r} still runs; name one of its steps, or cancel it first"
            raise ResumeRefusedError(msg)
        return _need(find_step(connection, turn.last_step), turn.last_step)
    found = [step_record(row) for row in connection.execute(_NUMBERED, {**where, "step": number})]
    if len(found) == 1:
        return found[0]
    if not found:
        last = connection.scalar(_LAST, where)
        msg = f"turn {turn.turn} of session {turn.session!r} has no step {number}; its last is {last}"
        raise NotFoundError(msg)
    # A compaction before the generation, or an answer that a lost attempt stored: the later one of the chain is it.
    end = turn.last_step or connection.execute(_SESSION, {"session": turn.session}).one().tip
    reached = connection.scalar(_REACHED, {**where, "step": number, "end": end})
    return next((step for step in found if step.id == reached), found[-1])


def _need(step: StepRecord | None, name: str) -> StepRecord:
    if step is None:
        msg = f"there is no step {name!r}"
        raise NotFoundError(msg)
    return step


def _results(connection: Connection, step: StepRecord, turn: TurnRow) -> tuple[ToolMessage, ...]:
    """The results of the step's calls, in their order; a call that will never have one gets an error result here."""
    if not step.calls:
        return ()
    keys: dict[str, object] = {"session": step.session, "call_ids": [call.call_id for call in step.calls]}
    ended, pending = _ledger(connection, {**keys, "turn": step.turn})
    if pending and turn.ended_at is not None:
        # It stopped for people: a later turn took the calls over, and has what came of them.
        ended, pending = _ledger(connection, keys)
    open_turn = connection.execute(_SESSION, {"session": step.session}).one().open_turn if pending else None
    running = [call for call, at in pending.items() if at == open_turn]
    if running:
        msg = (
            f"step {step.step} of turn {step.turn} of session {step.session!r} still runs {len(running)} of its calls; "
            "wait for them, name an earlier step, or cancel the turn first"
        )
        raise ResumeRefusedError(msg)
    return tuple(ended.get(call.call_id) or _withdrawn(call) for call in step.calls)


def _ledger(connection: Connection, keys: dict[str, object]) -> tuple[dict[str, ToolMessage], dict[str, int]]:
    """The results of calls, and the last turns that have those without one; the last turn of a call counts."""
    ended: dict[str, ToolMessage] = {}
    pending: dict[str, int] = {}
    statement = _CALLS_OF_TURN if "turn" in keys else _CALLS
    for row in sorted(connection.execute(statement, keys), key=lambda row: row.turn):
        ended.pop(row.call_id, None)
        pending.pop(row.call_id, None)
        if row.state == "ended":
            ended[row.call_id] = load_tool_message(row.message)
        else:
            pending[row.call_id] = row.turn
    return ended, pending


def _withdrawn(call: PlannedCall) -> ToolMessage:
    """The result of a call that nobody decided about, for the model that goes on here: as if it were withdrawn."""
    message = f"Operation aborted: nobody decided about {call.tool}, the session was resumed without; it did not run"
    error = ErrorDetail(code=ReasonCode.TOOL_CANCELLED, title=call.tool, message=message)
    return ToolMessage(call_id=call.call_id, name=call.tool, content=message, error=error)


def _need_something_to_answer(connection: Connection, beginning: Beginning, session: str) -> None:
    """Refuse to have a model answer its own answer."""
    last = _last_message(connection, beginning.messages, beginning.parent)
    if last is None or isinstance(last, AssistantMessage):
        said = "an answer of the model" if last is not None else "nothing yet"
        msg = f"the conversation of session {session!r} ends there with {said}; give a prompt to go on with"
        raise ResumeRefusedError(msg)


def _last_message(connection: Connection, messages: Sequence[Message], parent: str | None) -> Message | None:
    while not messages and parent is not None:
        step = _need(find_step(connection, parent), parent)
        messages, parent = step.messages, step.parent
    return messages[-1] if messages else None
