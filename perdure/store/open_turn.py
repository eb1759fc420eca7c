"""The opening of a turn: the look at the session before, and the transaction that claims the turn."""

from collections.abc import Sequence
from dataclasses import replace as replace_fields

from sqlalchemy import Connection, bindparam, func, insert, select

from perdure.contracts.agents import AgentDefinition
from perdure.contracts.budgets import Spent
from perdure.contracts.errors import ReasonCode
from perdure.contracts.events import AgentStart, NewEvent, UserMessageReceived
from perdure.contracts.input_requests import call_id_of
from perdure.contracts.messages import UserMessage
from perdure.contracts.tools import PlannedCall
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
from perdure.store.agents import insert_definitions
from perdure.store.beginnings import Beginning, find_beginning, refuse_delegates
from perdure.store.behind import notice_of_behind
from perdure.store.blocks import require_unblocked
from perdure.store.commit_turn import TurnRow, close_abandoned, find_turn, find_turn_of_request
from perdure.store.errors import StoreError, TurnMismatchError
from perdure.store.ids import new_seed
from perdure.store.owners import require_owner
from perdure.store.queries import store_id
from perdure.store.record import columns_of_start
from perdure.store.records import ClaimedTurn, SessionBefore, StepRecord, TurnBefore
from perdure.store.rows import step_id
from perdure.store.session_lock import LockedSession
from perdure.store.slots import SlotLimit, take_slot
from perdure.store.steps import counted_tokens, find_step, insert_step
from perdure.store.tool_calls import OpenCalls, read_results, take_over_calls

_T, _S = schema.turns, schema.steps
_OF_SESSION = _T.c.session == bindparam("session")
_NUMBER = select(func.max(_T.c.turn)).where(_OF_SESSION).correlate(None).scalar_subquery()
_IS_LAST = _OF_SESSION & (_T.c.turn == _NUMBER)
_IS_BEGUN = _OF_SESSION & (_T.c.request_id == bindparam("request_id"))
_LAST = select(*schema.TURN).where(_IS_LAST)
_LAST_AND_BEGUN = select(*schema.TURN).where(_IS_LAST | _IS_BEGUN).order_by(_T.c.turn.desc())
"""The session's last turn, and the turn of the request if that is another one; SQLite finds each by its index."""

_INSERT = insert(_T)
_PROMPT_STEP = select(_S.c.id).where(
    _S.c.session == bindparam("session"), _S.c.turn == bindparam("turn"), _S.c.step == 0
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
        source = connection.execute(_LAST, {"session": origin.session}).one_or_none()
    stopped = last if begun is None else find_turn(connection, session, begun.turn - 1)
    is_cut_off = stopped is not None and (
        stopped.result is None or stopped.reason_code == ReasonCode.RUNTIME_TURN_CLOSED
    )
    before = SessionBefore(
        last=_turn_before(last),
        begun=_turn_before(begun),
        source=_turn_before(source),
        cut_off=stopped.turn if is_cut_off and stopped is not None else None,
    )
    if not opening.request.replies or stopped is None or stopped.result is None:
        return before
    step = find_step(connection, stopped.last_step)
    calls = () if step is None else step.calls
    ended, _ = read_results(connection, session, calls, (begun or stopped).turn)
    requests = TurnResult.model_validate_json(stopped.result).requests
    asked = {call_id_of(request.request_id) for request in requests}
    needing = {call.call_id for call in calls if call.needs is not None or call.call_id in asked}
    waiting = frozenset(needing - ended.keys())
    return replace(before, calls=calls, waiting=waiting, requests=requests)


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

    An open turn whose workflow was terminated is closed first, with the reason ``runtime.turn_closed``. After a turn
    that ended with ``runtime.store_behind``, the first message says that work may have been done which the store does
    not show.

    Raises:
        TurnMismatchError: The caller expected another turn, or a newer run holds the session.
        NotFoundError: The checkpoint that the request names does not exist.
        SessionErasedError: A session with this id was erased.
        ResumeRefusedError: The session cannot go on from the checkpoint, or is somebody else's.
        TurnBlockedError: A block refuses turns of this agent, tenant or model.
        NoSlotError: All slots are taken, or other turns wait before this one.
    """
    request = opening.request
    locked = LockedSession.find(connection, opening.session) or LockedSession.create(
        connection, opening.session, definition.name, request.tenant
    )
    require_owner(locked, opening)
    begun = _read_begun(locked, opening.request_id)
    if begun is not None:
        return _with_earlier_turns(connection, opening, definition, begun)
    # Checked before the definition is inserted: another claim may hold that row, and wait behind a block that waits for
    # this transaction.
    store = require_unblocked(connection, definition, {request.tenant})
    if locked.turn > 0 and request.delegated is None:
        refuse_delegates(connection, opening.session)
    _close_open_turn(locked, opening)
    if request.turn not in {None, locked.turn + 1}:
        msg = f"session {opening.session!r} is at turn {locked.turn + 1}, the caller expected {request.turn}"
        raise TurnMismatchError(msg)
    if limits:
        take_slot(connection, opening, limits)
    insert_definitions(connection, [definition], locked.now)
    beginning = find_beginning(locked, request)
    start = AgentStart(
        agent=definition.name,
        model=definition.model,
        prompt="" if request.replies else request.prompt,  # it is read behind the results
        definition=definition.digest(),
        context_window=context_window,
        resumed_from=beginning.origin,
        delegated_by=None if request.delegated is None else request.delegated.session,
        parts=() if request.replies else request.parts,
        context=request.context or {},
        tenant=request.tenant,
        by=request.by,
        trace=trace,
        structured=definition.output_schema is not None,
    )
    seed = new_seed()
    tip = _write_turn(locked, opening, beginning, start, seed)
    claimed = ClaimedTurn(turn=locked.turn, tip=tip, definition=start.definition, first=True, store=store, seed=seed)
    return _with_earlier_turns(connection, opening, definition, claimed)


def _read_begun(locked: LockedSession, request_id: str) -> ClaimedTurn | None:
    """The turn that an earlier attempt of the same request has begun."""
    if locked.turn == 0:
        return None
    row = find_turn_of_request(locked.connection, locked.session, request_id)
    if row is None:
        return None
    return ClaimedTurn(
        turn=row.turn,
        tip=locked.connection.execute(_PROMPT_STEP, {"session": row.session, "turn": row.turn}).scalar_one(),
        definition=row.definition,
        first=False,
        ended=None if row.result is None else TurnResult.model_validate_json(row.result),
        store=store_id(locked.connection),
        seed=row.seed or "",
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


def _write_turn(locked: LockedSession, opening: OpenTurn, beginning: Beginning, start: AgentStart, seed: str) -> str:
    """Write the session's next turn with its event and its first step; returns the step's id."""
    turn = locked.turn + 1
    locked.append(NewEvent(key=f"{turn}/agent_start", turn=turn, step=0, event=start))
    if notice := notice_of_behind(locked.connection, locked.session, locked.turn):
        told = UserMessageReceived(content=notice, is_notice=True)
        locked.append(NewEvent(key=f"{turn}/behind", turn=turn, step=0, event=told))
        beginning = replace_fields(beginning, messages=(*beginning.messages, UserMessage(content=notice)))
    step = _make_first_step(locked, turn, beginning, opening.request)
    row = {
        "session": opening.session,
        "turn": turn,
        "request_id": opening.request_id,
        "agent": start.agent,
        "definition": start.definition,
        "started_at": locked.now,
        "run_started_at": opening.run_started_at,
        "seed": seed,
        **columns_of_start(opening.session, start),
    }
    locked.connection.execute(_INSERT, row)
    insert_step(locked, step)
    locked.agent, locked.turn, locked.open_turn, locked.tip = start.agent, turn, turn, step.id
    locked.hook_calls, locked.caller = 0, start.delegated_by
    locked.save()
    return step.id


def _make_first_step(locked: LockedSession, turn: int, beginning: Beginning, request: TurnRequest) -> StepRecord:
    """The step with the prompt. Calls that waited for people go on with a reply, and end with another message."""
    goes_on = bool(request.replies) or request.compact
    messages, calls, stopped = beginning.messages, tuple[PlannedCall, ...](), beginning.stopped
    if stopped is not None:
        ids = tuple(call.call_id for call in stopped.calls)
        take_over_calls(locked, ids, turn=turn, before=stopped.turn)
        if goes_on:
            calls = stopped.calls
        else:
            open_calls = OpenCalls(locked, turn, ids)
            open_calls.withdraw(stopped.calls)
            open_calls.write()
            messages = (*open_calls.results(ids), *messages)
    if request.prompt and not goes_on:
        messages = (*messages, UserMessage(content=request.prompt, parts=request.parts))
    artifacts = (part.artifact for part in request.parts)
    return StepRecord(
        id=step_id("prompt", locked.session, turn, beginning.parent, request.prompt, *artifacts),
        session=locked.session,
        turn=turn,
        step=0,
        parent=beginning.parent,
        messages=messages,
        calls=calls,
    )


def _with_earlier_turns(
    connection: Connection, opening: OpenTurn, definition: AgentDefinition, claimed: ClaimedTurn
) -> ClaimedTurn:
    """The turn with what it takes over from earlier turns. These have ended, so every attempt gets the same."""
    session, turn = opening.session, claimed.turn
    replaced, origin = opening.request.replaces, opening.request.resume_from
    said: tuple[str, ...] = ()
    if replaced is not None:
        todos = todos_at_beginning_of(connection, session, replaced)
    elif origin is not None:
        todos = todos_of_checkpoint(connection, session, turn, origin)
    else:
        before = result_of_turn(connection, session, turn - 1)
        todos = () if before is None else before.todos
        said = read_unread_feedback(connection, session, turn - 1, before)
    counts = definition.budgets.scope == "session"
    earlier = spent_of_earlier_turns(connection, session, turn) if counts else Spent()
    tokens, left = counted_tokens(connection, claimed.tip)
    return replace(claimed, todos=todos, earlier=earlier, said=said, tokens=tokens, tokens_left=left)
