"""The opening of a turn: with a prompt, from a checkpoint, or by a reply.

A checkpoint is not copied. The turn's first step names it as its parent, and holds the results of the checkpoint's
calls from the ledger: so no call is left without a result, and none runs again.

Long, because each place that a turn can go on from answers the same questions: its parent, its messages, its calls.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, bindparam, func, insert, literal, select

from perdure.contracts.agents import AgentDefinition
from perdure.contracts.budgets import Spent
from perdure.contracts.checkpoints import ResumeFrom
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.events import AgentStart, NewEvent, load_event
from perdure.contracts.messages import AssistantMessage, Message, ToolMessage, UserMessage, check_history
from perdure.contracts.tools import DELEGATED, PlannedCall
from perdure.contracts.traces import TurnTrace
from perdure.contracts.turns import OpenTurn, TurnRequest, TurnResult
from perdure.contracts.values import replace
from perdure.store import schema
from perdure.store.accounting import (
    read_unread_feedback,
    result_of_turn,
    spent_of_earlier_turns,
    todos_at_beginning_of,
    todos_of_checkpoint,
)
from perdure.store.blocks import require_unblocked
from perdure.store.commit_turn import TurnRow, close_abandoned, find_turn
from perdure.store.errors import NotFoundError, ResumeRefusedError, StoreError, TurnMismatchError
from perdure.store.queries import store_id
from perdure.store.records import ClaimedTurn, SessionBefore, StepRecord, TurnBefore
from perdure.store.schema import insert_into, load_tool_message, step_id, step_record
from perdure.store.session_lock import LockedSession
from perdure.store.slots import SlotLimit, take_slot
from perdure.store.steps import find_step, insert_step
from perdure.store.tombstones import missing_session
from perdure.store.tool_calls import OpenCalls, take_over_calls

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
    """The parent of a turn's first step, and that step's contents before the prompt.

    Attributes:
        origin: The checkpoint, with session, turn and step even where the request left them out.
    """

    parent: str | None
    messages: tuple[Message, ...] = ()
    calls: tuple[PlannedCall, ...] = ()
    origin: ResumeFrom | None = None


def resume_checkpoint(locked: LockedSession, origin: ResumeFrom, *, prompt: str) -> Beginning | None:
    """The beginning of a turn that resumes from a checkpoint.

    None if the session itself stopped for people there: then the prompt withdraws their requests, as any message does.

    Raises:
        NotFoundError: There is no such session, turn or step.
        ResumeRefusedError: The session cannot go on from the checkpoint.
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
        messages = _results_of_calls(locked.connection, step, turn)
        beginning = Beginning(parent=step.id, messages=messages, origin=_checkpoint_of(step))
    if not prompt:
        _need_something_to_answer(locked.connection, beginning, session)
    return beginning


def _beginning_of_replaced(locked: LockedSession, number: int) -> Beginning:
    """The beginning of the turn that this one replaces after a rollback: its first step without its prompt."""
    turn = _turn(locked.connection, locked.session, number)
    if turn is None:
        msg = f"session {locked.session!r} has no turn {number} that could be rolled back"
        raise NotFoundError(msg)
    first = _step(locked.connection, turn, 0)
    before = first.messages[:-1] if first.messages and isinstance(first.messages[-1], UserMessage) else first.messages
    # A turn that a reply began had taken over the calls that waited; these are their results.
    messages = (*before, *_results_of_calls(locked.connection, first, turn))
    return Beginning(parent=first.parent, messages=messages, origin=_origin_of(locked, first.parent))


def _origin_of(locked: LockedSession, parent: str | None) -> ResumeFrom:
    step = None if parent is None else _require_step(find_step(locked.connection, parent), parent)
    if step is None:
        return ResumeFrom(session=locked.session, turn=0)
    return _checkpoint_of(step)


def _checkpoint_of(step: StepRecord) -> ResumeFrom:
    number = step.step if step.is_checkpoint else step.step - 1
    return ResumeFrom(session=step.session, turn=step.turn, step=number)


def refuse_delegates(connection: Connection, session: str) -> None:
    """Refuse a delegate's session: it belongs to its caller, and goes on with the caller's steps only."""
    body = connection.scalar(_FIRST_START, {"session": session})
    start = None if body is None else load_event(json.loads(body))
    if isinstance(start, AgentStart) and start.delegated_by is not None:
        msg = f"session {session!r} is a delegate's; send to, resume or fork {start.delegated_by!r}, which called it"
        raise ResumeRefusedError(msg)
    first = find_turn(connection, session, 1) if start is None else None
    if first is not None and first.request_id.startswith(DELEGATED):  # a sweep may have deleted the event
        msg = f"session {session!r} is a delegate's; send to, resume or fork the session which called it"
        raise ResumeRefusedError(msg)


def _need_a_prompt(locked: LockedSession, prompt: str) -> None:
    if not prompt:
        msg = (
            f"session {locked.session!r} waits for people: answer, approve or deny what it asks, or give a prompt to "
            "go on with instead"
        )
        raise ResumeRefusedError(msg)


def _turn(connection: Connection, session: str, number: int | None) -> TurnRow | None:
    """The turn with this number, or the last one; None for 0, the time before the first."""
    row = connection.execute(_SESSION, {"session": session}).one_or_none()
    if row is None or row.turn == 0:
        raise missing_session(connection, session)
    if number == 0:
        return None
    found = find_turn(connection, session, row.turn if number is None else number)
    if found is None:
        msg = f"session {session!r} has no turn {number}; its last is {row.turn}"
        raise NotFoundError(msg)
    return found


def _step(connection: Connection, turn: TurnRow, number: int | None) -> StepRecord:
    """The step with this number, or the last one; of several, the one in the turn's conversation."""
    where = {"session": turn.session, "turn": turn.turn}
    if number is None:
        if turn.last_step is None:
            msg = f"turn {turn.turn} of session {turn.session!r} still runs; name one of its steps, or cancel it first"
            raise ResumeRefusedError(msg)
        return _require_step(find_step(connection, turn.last_step), turn.last_step)
    found = [step_record(row) for row in connection.execute(_NUMBERED, {**where, "step": number})]
    if len(found) == 1:
        return found[0]
    if not found:
        last = connection.scalar(_LAST, where)
        msg = f"turn {turn.turn} of session {turn.session!r} has no step {number}; its last is {last}"
        raise NotFoundError(msg)
    # A compaction, or a lost attempt's answer, may have the same number: the later one in the chain counts.
    end = turn.last_step or connection.execute(_SESSION, {"session": turn.session}).one().tip
    reached = connection.scalar(_REACHED, {**where, "step": number, "end": end})
    return next((step for step in found if step.id == reached), found[-1])


def _require_step(step: StepRecord | None, name: str) -> StepRecord:
    if step is None:
        msg = f"there is no step {name!r}"
        raise NotFoundError(msg)
    return step


def _results_of_calls(connection: Connection, step: StepRecord, turn: TurnRow) -> tuple[ToolMessage, ...]:
    """The results of the step's calls, in order. A call that will never have a result gets an error here."""
    if not step.calls:
        return ()
    keys: dict[str, object] = {"session": step.session, "call_ids": [call.call_id for call in step.calls]}
    ended, pending = _ledger(connection, {**keys, "turn": step.turn})
    if pending and turn.ended_at is not None:
        # The turn stopped for people: a later turn took the calls over, and has their results.
        ended, pending = _ledger(connection, keys)
    open_turn = connection.execute(_SESSION, {"session": step.session}).one().open_turn if pending else None
    running = [call for call, at in pending.items() if at == open_turn]
    if running:
        msg = (
            f"step {step.step} of turn {step.turn} of session {step.session!r} still runs {len(running)} of its calls; "
            "wait for them, name an earlier step, or cancel the turn first"
        )
        raise ResumeRefusedError(msg)
    return tuple(ended.get(call.call_id) or _withdrawn_result_of(call) for call in step.calls)


def _ledger(connection: Connection, keys: dict[str, object]) -> tuple[dict[str, ToolMessage], dict[str, int]]:
    """Results of calls by call id, and for calls without one the last turn that has them."""
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


def _withdrawn_result_of(call: PlannedCall) -> ToolMessage:
    """The result of a call that nobody decided about, for the model that goes on from there."""
    message = f"Operation aborted: nobody decided about {call.tool}, the session was resumed without; it did not run"
    error = ErrorDetail(code=ReasonCode.TOOL_CANCELLED, title=call.tool, message=message)
    return ToolMessage(call_id=call.call_id, name=call.tool, content=message, error=error)


def _need_something_to_answer(connection: Connection, beginning: Beginning, session: str) -> None:
    """Refuse a turn without a prompt if the conversation ends with an answer: a model cannot answer itself."""
    last = _find_last_message(connection, beginning.messages, beginning.parent)
    if last is None or isinstance(last, AssistantMessage):
        said = "an answer of the model" if last is not None else "nothing yet"
        msg = f"the conversation of session {session!r} ends there with {said}; give a prompt to go on with"
        raise ResumeRefusedError(msg)


def _find_last_message(connection: Connection, messages: Sequence[Message], parent: str | None) -> Message | None:
    while not messages and parent is not None:
        step = _require_step(find_step(connection, parent), parent)
        messages, parent = step.messages, step.parent
    return messages[-1] if messages else None


_T = schema.turns
_BY_REQUEST = select(_T).where(_T.c.session == bindparam("session"), _T.c.request_id == bindparam("request_id"))
_LAST_TURN = select(_T).where(_T.c.session == bindparam("session")).order_by(_T.c.turn.desc()).limit(1)
_NUMBER = select(func.max(_T.c.turn)).where(_T.c.session == bindparam("session")).correlate(None).scalar_subquery()
_LAST_AND_BEGUN = (
    select(_T)
    .where(
        _T.c.session == bindparam("session"),
        (_T.c.turn == _NUMBER) | (_T.c.request_id == bindparam("request_id")),
    )
    .order_by(_T.c.turn.desc())
)
"""The session's last turn, and the turn of the request if that is another one."""

_INSERT_TURN = insert(_T)
_PROMPT_STEP = select(schema.steps.c.id).where(
    schema.steps.c.session == bindparam("session"),
    schema.steps.c.turn == bindparam("turn"),
    schema.steps.c.step == 0,
)


def session_before(connection: Connection, opening: OpenTurn) -> SessionBefore:
    """The state of the session before a turn opens, read once."""
    session, origin = opening.session, opening.request.resume_from
    found = connection.execute(_LAST_AND_BEGUN, {"session": session, "request_id": opening.request_id}).all()
    last = found[0] if found else None
    begun = next((row for row in found if row.request_id == opening.request_id), None)
    source = last
    if origin is not None and origin.turn:
        source = find_turn(connection, origin.session or session, origin.turn)
    elif origin is not None and origin.session is not None:
        source = connection.execute(_LAST_TURN, {"session": origin.session}).one_or_none()
    stopped = last if begun is None else find_turn(connection, session, begun.turn - 1)
    before = SessionBefore(
        last=_turn_before(last),
        begun=_turn_before(begun),
        source=_turn_before(source),
        cut_off=None if stopped is None or not _is_cut_off(stopped) else stopped.turn,
    )
    if opening.request.reply is None or stopped is None or stopped.result is None:
        return before
    result = TurnResult.model_validate_json(stopped.result)
    step = find_step(connection, stopped.last_step)
    calls = () if step is None else step.calls
    keys: dict[str, object] = {"session": session, "call_ids": [call.call_id for call in calls]}
    ended, _ = _ledger(connection, {**keys, "turn": (begun or stopped).turn})
    waiting = frozenset(call.call_id for call in calls if call.needs is not None and call.call_id not in ended)
    return replace(before, calls=calls, waiting=waiting, requests=result.requests)


def _is_cut_off(row: TurnRow) -> bool:
    return row.result is None or row.reason_code == ReasonCode.RUNTIME_TURN_CLOSED


def _turn_before(row: TurnRow | None) -> TurnBefore | None:
    if row is None:
        return None
    return TurnBefore(session=row.session, turn=row.turn, agent=row.agent, definition=row.definition)


def open_turn(
    connection: Connection,
    opening: OpenTurn,
    definition: AgentDefinition,
    *,
    context_window: int | None = None,
    trace: TurnTrace | None = None,
    limits: Sequence[SlotLimit] = (),
) -> ClaimedTurn:
    """Begin the session's next turn, or find the turn that the same request id began before.

    An open turn whose workflow was terminated is closed first, with the reason ``runtime.turn_closed``.

    Raises:
        TurnMismatchError: The caller expected another turn, or a newer run holds the session.
        NotFoundError: The checkpoint that the request names does not exist.
        SessionErasedError: A session with this id was erased.
        ResumeRefusedError: The session cannot go on from the checkpoint.
        TurnBlockedError: A block refuses turns of this agent, tenant or model.
        NoSlotError: All slots are taken, or other turns wait before this one.
    """
    locked = LockedSession.find(connection, opening.session) or LockedSession.create(
        connection, opening.session, definition.name, opening.request.tenant
    )
    request = {"session": opening.session, "request_id": opening.request_id}
    recorded = connection.execute(_BY_REQUEST, request).one_or_none() if locked.turn > 0 else None
    if recorded is not None:
        opened = replace(_read_opened(connection, recorded), store=store_id(connection))
        return _with_earlier_turns(connection, opening, definition, opened)
    # A turn for another tenant than its session's meets the blocks of both. Checked before the definition is inserted:
    # another claim may hold that row, and wait behind a block that waits for this transaction.
    tenants = {opening.request.tenant, *([locked.tenant] if locked.turn else [])}
    store = require_unblocked(connection, definition, tenants)
    if locked.turn > 0 and opening.request.delegated is None:
        refuse_delegates(connection, opening.session)
    _close_open_turn(locked, opening)
    turn = locked.turn + 1
    if opening.request.turn is not None and opening.request.turn != turn:
        msg = f"session {opening.session!r} is at turn {turn}, the caller expected {opening.request.turn}"
        raise TurnMismatchError(msg)
    if limits:
        take_slot(connection, opening, limits)
    insert_definitions(connection, [definition], locked.now)
    begun = _begin(locked, opening, definition, context_window, trace)
    return _with_earlier_turns(connection, opening, definition, replace(begun, store=store))


def _with_earlier_turns(
    connection: Connection, opening: OpenTurn, definition: AgentDefinition, opened: ClaimedTurn
) -> ClaimedTurn:
    """The opened turn with what it takes over from earlier turns. These have ended, so every attempt gets the same."""
    session, turn = opening.session, opened.turn
    replaced, origin = opening.request.replaces, opening.request.resume_from
    said: tuple[str, ...] = ()
    if replaced is not None:
        todos = todos_at_beginning_of(connection, session, replaced)
    elif origin is not None:
        todos = todos_of_checkpoint(connection, session, turn, origin)
    else:
        before = result_of_turn(connection, session, turn - 1)
        todos = () if before is None else before.todos
        said = () if before is None else read_unread_feedback(connection, before)
    counts = definition.budgets.scope == "session"
    earlier = spent_of_earlier_turns(connection, session, turn) if counts else Spent()
    return replace(opened, todos=todos, earlier=earlier, said=said)


def _read_opened(connection: Connection, row: TurnRow) -> ClaimedTurn:
    prompt = connection.execute(_PROMPT_STEP, {"session": row.session, "turn": row.turn}).scalar_one()
    return ClaimedTurn(
        turn=row.turn,
        tip=prompt,
        definition=row.definition,
        first=False,
        ended=None if row.result is None else TurnResult.model_validate_json(row.result),
    )


def _close_open_turn(locked: LockedSession, opening: OpenTurn) -> None:
    if locked.open_turn is None:
        return
    row = find_turn(locked.connection, locked.session, locked.open_turn)
    if row is None:
        msg = f"turn {locked.open_turn} of session {locked.session!r} has no row; the store is damaged"
        raise StoreError(msg)
    if opening.run_started_at < row.run_started_at:
        msg = (
            f"session {locked.session!r} is at turn {row.turn}, which a newer run has begun; "
            f"the run of {opening.run_started_at.isoformat()} may not close it"
        )
        raise TurnMismatchError(msg)
    close_abandoned(locked, row)


def _begin(
    locked: LockedSession,
    opening: OpenTurn,
    definition: AgentDefinition,
    context_window: int | None,
    trace: TurnTrace | None,
) -> ClaimedTurn:
    request, prompt, turn = opening.request, opening.request.prompt, locked.turn + 1
    digest = definition.digest()
    checkpoint: Beginning | None = None
    if request.replaces is not None:
        checkpoint = _beginning_of_replaced(locked, request.replaces)
    elif request.resume_from is not None:
        checkpoint = resume_checkpoint(locked, request.resume_from, prompt=prompt)
    start = AgentStart(
        agent=definition.name,
        model=definition.model,
        prompt=prompt,
        definition=digest,
        context_window=context_window,
        resumed_from=None if checkpoint is None else checkpoint.origin,
        delegated_by=None if request.delegated is None else request.delegated.session,
        parts=request.parts,
        context=request.context or {},
        tenant=request.tenant,
        by=request.by,
        trace=trace,
    )
    locked.append(NewEvent(key=f"{turn}/agent_start", turn=turn, step=0, event=start))
    beginning = checkpoint or _read_beginning(locked, request, turn)
    said = prompt and request.reply is None and not request.compact
    step = StepRecord(
        id=step_id(
            "prompt", opening.session, turn, beginning.parent, prompt, *(part.artifact for part in request.parts)
        ),
        session=opening.session,
        turn=turn,
        step=0,
        parent=beginning.parent,
        messages=(*beginning.messages, *((UserMessage(content=prompt, parts=request.parts),) if said else ())),
        calls=beginning.calls,
    )
    row = {
        "session": opening.session,
        "turn": turn,
        "request_id": opening.request_id,
        "agent": definition.name,
        "definition": digest,
        "started_at": locked.now,
        "run_started_at": opening.run_started_at,
    }
    locked.connection.execute(_INSERT_TURN, row)
    insert_step(locked, step)
    locked.agent, locked.turn, locked.open_turn, locked.tip = definition.name, turn, turn, step.id
    if turn == 1:  # the tenant of the first turn replaces that of a gateway's claim
        locked.tenant = request.tenant
    locked.save()
    return ClaimedTurn(turn=turn, tip=step.id, definition=digest, first=True)


def _read_beginning(locked: LockedSession, request: TurnRequest, turn: int) -> Beginning:
    if request.history and turn > 1:
        msg = f"history: session {locked.session!r} has begun already; a history begins a new one, so name no session"
        raise ResumeRefusedError(msg)
    if request.history:
        return Beginning(parent=None, messages=check_history(request.history))
    unanswered = _read_unanswered(locked, turn)
    if request.reply is not None or request.compact:
        return Beginning(parent=locked.head, calls=unanswered)
    return Beginning(parent=locked.head, messages=_withdraw_calls(locked, turn, unanswered))


def _read_unanswered(locked: LockedSession, turn: int) -> tuple[PlannedCall, ...]:
    """Take over, into this turn, the calls of the answer at which the session stopped for people."""
    head = None if locked.head is None else find_step(locked.connection, locked.head)
    if head is None or not head.calls:
        return ()
    take_over_calls(locked, [call.call_id for call in head.calls], turn=turn, before=head.turn)
    return head.calls


def _withdraw_calls(locked: LockedSession, turn: int, calls: Sequence[PlannedCall]) -> tuple[Message, ...]:
    """End calls that waited for people, because another message came; the results for the model."""
    ids = tuple(call.call_id for call in calls)
    open_calls = OpenCalls(locked, turn, ids)
    open_calls.withdraw()
    open_calls.write()
    return open_calls.results(ids)


def insert_definitions(connection: Connection, definitions: Sequence[AgentDefinition], now: datetime) -> None:
    """Insert definitions under their hashes; existing ones stay."""
    rows = [
        {"hash": definition.digest(), "name": definition.name, "body": definition.canonical(), "created_at": now}
        for definition in definitions
    ]
    connection.execute(insert_into(connection, schema.definitions).on_conflict_do_nothing(), rows)


def register_agents(connection: Connection, definitions: Sequence[AgentDefinition]) -> None:
    """Register the agents that a worker has loaded."""
    if not definitions:
        return
    now = datetime.now(UTC)
    # Sorted, or two workers that start at once could deadlock.
    ordered = sorted(definitions, key=lambda definition: definition.name)
    insert_definitions(connection, sorted(definitions, key=AgentDefinition.digest), now)
    rows = [
        {
            "name": definition.name,
            "definition": definition.digest(),
            "model": definition.model,
            "description": definition.description,
            "tools": json.dumps([tool.name for tool in definition.tools]),
            "seen_at": now,
        }
        for definition in ordered
    ]
    statement = insert_into(connection, schema.agents)
    changing = {name: statement.excluded[name] for name in rows[0] if name != "name"}
    connection.execute(statement.on_conflict_do_update(index_elements=["name"], set_=changing), rows)
