"""Beginnings of a turn: at its session's head, at a checkpoint, in place of another turn, or with a history.

A checkpoint is not copied. The turn's first step names it as its parent, and holds the results of the checkpoint's
calls from the ledger: so no call is left without a result, and none runs again.
"""

from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, literal, select

from perdure.contracts.checkpoints import ResumeFrom
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.ids import DELEGATED
from perdure.contracts.messages import AssistantMessage, Message, ToolMessage, UserMessage, check_history
from perdure.contracts.tools import PlannedCall
from perdure.contracts.turns import Continuation
from perdure.store import schema
from perdure.store.commit_turn import TurnRow, find_turn
from perdure.store.errors import NotFoundError, ResumeRefusedError
from perdure.store.queries import session as find_session
from perdure.store.records import StepRecord
from perdure.store.rows import step_record
from perdure.store.session_lock import LockedSession
from perdure.store.steps import find_step, require_step
from perdure.store.tool_calls import read_results

_S = schema.steps
_OF_TURN = (_S.c.session == bindparam("session"), _S.c.turn == bindparam("turn"))
_NUMBERED = select(_S).where(*_OF_TURN, _S.c.step == bindparam("step"))
_LAST = select(_S.c.step).where(*_OF_TURN).order_by(_S.c.step.desc()).limit(1)

_FIRST = (
    select(schema.turns.c.request_id, schema.sessions.c.caller)
    .join_from(schema.turns, schema.sessions, schema.turns.c.session == schema.sessions.c.session)
    .where(schema.turns.c.session == bindparam("session"), schema.turns.c.turn == 1)
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


@dataclass(frozen=True)
class Beginning:
    """Point that a turn goes on from.

    Attributes:
        parent: Id of the parent of the turn's first step; None at the root of a conversation.
        messages: Contents of that first step before the prompt.
        stopped: The parent, if the session stopped there for people: some of its calls have no results.
        origin: The checkpoint, with session, turn and step even where the request left them out.
    """

    parent: str | None
    messages: tuple[Message, ...] = ()
    stopped: StepRecord | None = None
    origin: ResumeFrom | None = None


def find_beginning(locked: LockedSession, request: Continuation) -> Beginning:
    """Find what the session's next turn goes on from. Nothing is written.

    Raises:
        NotFoundError: There is no such session, turn or step.
        ResumeRefusedError: The session cannot go on from there.
    """
    if request.replaces is not None:
        # The beginning of a turn that was rolled back: its first step without its prompt.
        turn = find_turn(locked.connection, locked.session, request.replaces)
        if turn is None:
            msg = f"session {locked.session!r} has no turn {request.replaces} that could be rolled back"
            raise NotFoundError(msg)
        first = _step_of(locked.connection, turn, 0)
        has_prompt = bool(first.messages) and isinstance(first.messages[-1], UserMessage)
        before = first.messages[:-1] if has_prompt else first.messages
        # A turn that a reply began had taken over the calls that waited; these are their results.
        messages = (*before, *_results_of_calls(locked.connection, first, turn))
        origin = ResumeFrom(session=locked.session, turn=0)
        if first.parent is not None:
            origin = _origin_at(require_step(locked.connection, first.parent))
        return Beginning(parent=first.parent, messages=messages, origin=origin)
    if request.resume_from is not None:
        return _find_checkpoint(locked, request.resume_from, request)
    if not request.history:
        return _find_head(locked)
    if locked.turn > 0:
        msg = f"history: session {locked.session!r} has begun already; a history begins a new one, so name no session"
        raise ResumeRefusedError(msg)
    return Beginning(parent=None, messages=check_history(request.history))


def _find_head(locked: LockedSession) -> Beginning:
    head = None if locked.head is None else find_step(locked.connection, locked.head)
    return Beginning(parent=locked.head, stopped=head if head is not None and head.calls else None)


def _find_checkpoint(locked: LockedSession, origin: ResumeFrom, request: Continuation) -> Beginning:
    forks = origin.session not in {None, locked.session}
    if forks and locked.turn > 0:
        msg = f"session {locked.session!r} exists already; a fork begins a new session: name another id"
        raise ResumeRefusedError(msg)
    session = origin.session or locked.session
    if forks and find_session(locked.connection, session).tenant != locked.tenant:
        raise NotFoundError(f"there is no session {session!r}")
    refuse_delegates(locked.connection, session)
    last, turn = find_session(locked.connection, session).turn, None
    if origin.turn != 0:  # which is the time before the first
        turn = find_turn(locked.connection, session, last if origin.turn is None else origin.turn)
        if turn is None:
            raise NotFoundError(f"session {session!r} has no turn {origin.turn}; its last is {last}")
    if turn is None:
        history = check_history(request.history)
        beginning = Beginning(parent=None, messages=history, origin=ResumeFrom(session=session, turn=0))
    else:
        step = _step_of(locked.connection, turn, origin.step)
        if step.id == locked.head and step.calls:
            if request.prompt:  # it withdraws what the session asks people, as any message does
                return _find_head(locked)
            msg = (
                f"session {locked.session!r} waits for people: answer, approve or deny what it asks, or give a prompt "
                "to go on with instead"
            )
            raise ResumeRefusedError(msg)
        messages = _results_of_calls(locked.connection, step, turn)
        beginning = Beginning(parent=step.id, messages=messages, origin=_origin_at(step))
    if not request.prompt:
        _need_something_to_answer(locked.connection, beginning, session)
    return beginning


def _origin_at(step: StepRecord) -> ResumeFrom:
    number = step.step if step.is_checkpoint else step.step - 1
    return ResumeFrom(session=step.session, turn=step.turn, step=number)


def _step_of(connection: Connection, turn: TurnRow, number: int | None) -> StepRecord:
    """The step with this number, or the last one; of several, the one in the turn's conversation."""
    where = {"session": turn.session, "turn": turn.turn}
    if number is None:
        if turn.last_step is None:
            msg = f"turn {turn.turn} of session {turn.session!r} still runs; name one of its steps, or cancel it first"
            raise ResumeRefusedError(msg)
        return require_step(connection, turn.last_step)
    found = [step_record(row) for row in connection.execute(_NUMBERED, {**where, "step": number})]
    if len(found) == 1:
        return found[0]
    if not found:
        last = connection.scalar(_LAST, where)
        msg = f"turn {turn.turn} of session {turn.session!r} has no step {number}; its last is {last}"
        raise NotFoundError(msg)
    # A compaction, or a lost attempt's answer, may have the same number: the later one in the chain counts.
    end = turn.last_step or find_session(connection, turn.session).tip
    reached = connection.scalar(_REACHED, {**where, "step": number, "end": end})
    return next((step for step in found if step.id == reached), found[-1])


def _results_of_calls(connection: Connection, step: StepRecord, turn: TurnRow) -> tuple[ToolMessage, ...]:
    """The results of the step's calls, in order. A call that will never have a result gets an error here."""
    ended, pending = read_results(connection, step.session, step.calls, step.turn)
    if pending and turn.ended_at is not None:
        # The turn stopped for people: a later turn took the calls over, and has their results.
        ended, pending = read_results(connection, step.session, step.calls)
    open_turn = find_session(connection, step.session).open_turn if pending else None
    running = [call for call, row in pending.items() if row.turn == open_turn]
    if running:
        msg = (
            f"step {step.step} of turn {step.turn} of session {step.session!r} still runs {len(running)} of its calls; "
            "wait for them, name an earlier step, or cancel the turn first"
        )
        raise ResumeRefusedError(msg)
    return tuple(ended.get(call.call_id) or _withdrawn_result_of(call) for call in step.calls)


def _withdrawn_result_of(call: PlannedCall) -> ToolMessage:
    """The result of a call that nobody decided about, for the model that goes on from there."""
    message = call.describe_withdrawn("the session was resumed without")
    error = ErrorDetail(code=ReasonCode.TOOL_CANCELLED, title=call.tool, message=message)
    return ToolMessage(call_id=call.call_id, name=call.tool, content=message, error=error)


def _need_something_to_answer(connection: Connection, beginning: Beginning, session: str) -> None:
    """Refuse a turn without a prompt if the conversation ends with an answer: a model cannot answer itself."""
    messages, parent = beginning.messages, beginning.parent
    while not messages and parent is not None:
        step = require_step(connection, parent)
        messages, parent = step.messages, step.parent
    last = messages[-1] if messages else None
    if last is None or isinstance(last, AssistantMessage):
        said = "an answer of the model" if last is not None else "nothing yet"
        msg = f"the conversation of session {session!r} ends there with {said}; give a prompt to go on with"
        raise ResumeRefusedError(msg)


def refuse_delegates(connection: Connection, session: str) -> None:
    """Refuse a delegate's session: it belongs to its caller, and goes on with the caller's steps only.

    Raises:
        ResumeRefusedError: The session is a delegate's.
    """
    first = connection.execute(_FIRST, {"session": session}).one_or_none()
    if first is None or not first.request_id.startswith(DELEGATED):
        return
    named = "the session which called it" if first.caller is None else f"{first.caller!r}, which called it"
    msg = f"session {session!r} is a delegate's; send to, resume or fork {named}"
    raise ResumeRefusedError(msg)
