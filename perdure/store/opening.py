"""How a turn begins, and the agents that can begin one."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection, bindparam, insert, select

from perdure.contracts.agents import AgentDefinition
from perdure.contracts.budgets import Spent
from perdure.contracts.events import AgentStart, NewEvent
from perdure.contracts.messages import Message, UserMessage, checked_history
from perdure.contracts.tools import PlannedCall
from perdure.contracts.turns import OpenTurn, TurnRequest, TurnResult
from perdure.store import schema
from perdure.store.carrying import said_before, spent_before, todos_before
from perdure.store.closing import TurnRow, close_abandoned, find_turn
from perdure.store.errors import NotFoundError, ResumeRefusedError, StoreError, TurnMismatchError
from perdure.store.generations import find_step, insert_step
from perdure.store.ledger import OpenCalls, take_over_calls
from perdure.store.log import LockedSession
from perdure.store.reads import store_id
from perdure.store.records import Opened, RegisteredAgent, StepRecord
from perdure.store.resuming import Beginning, refuse_delegates, resumed
from perdure.store.rows import insert_into, step_id

_T = schema.turns
_BY_REQUEST = select(_T).where(_T.c.session == bindparam("session"), _T.c.request_id == bindparam("request_id"))
_INSERT_TURN = insert(_T)
_PROMPT_STEP = select(schema.steps.c.id).where(
    schema.steps.c.session == bindparam("session"),
    schema.steps.c.turn == bindparam("turn"),
    schema.steps.c.step == 0,
)
_DEFINITION = select(schema.definitions.c.body).where(schema.definitions.c.hash == bindparam("hash"))
_AGENTS = select(schema.agents).order_by(schema.agents.c.name)


def open_turn(
    connection: Connection, opening: OpenTurn, definition: AgentDefinition, context_window: int | None = None
) -> Opened:
    """Begin the session's next turn, or give the one that this request has begun before."""
    locked = LockedSession.find(connection, opening.session) or LockedSession.create(
        connection, opening.session, definition.name
    )
    request = {"session": opening.session, "request_id": opening.request_id}
    recorded = connection.execute(_BY_REQUEST, request).one_or_none()
    if recorded is not None:
        return _taking_over(connection, opening, definition, _opened_before(connection, recorded))
    if locked.turn > 0 and opening.request.delegated is None:
        refuse_delegates(connection, opening.session)
    _close_open_turn(locked, opening)
    turn = locked.turn + 1
    if opening.request.turn is not None and opening.request.turn != turn:
        msg = f"session {opening.session!r} is at turn {turn}, the caller expected {opening.request.turn}"
        raise TurnMismatchError(msg)
    insert_definitions(connection, [definition], locked.now)
    return _taking_over(connection, opening, definition, _begin(locked, opening, definition, context_window))


def _taking_over(connection: Connection, opening: OpenTurn, definition: AgentDefinition, opened: Opened) -> Opened:
    """The opened turn with what it takes over from those before it, which have ended: the same for every attempt."""
    session, turn = opening.session, opened.turn
    todos = todos_before(connection, session, turn, opening.request.resume_from)
    counts = definition.budgets.scope == "session"
    earlier = spent_before(connection, session, turn) if counts else Spent()
    said = said_before(connection, session, turn) if opening.request.resume_from is None else ()
    taken = {"todos": todos, "earlier": earlier, "said": said, "store": store_id(connection)}
    return opened.model_copy(update=taken)


def _opened_before(connection: Connection, row: TurnRow) -> Opened:
    prompt = connection.execute(_PROMPT_STEP, {"session": row.session, "turn": row.turn}).scalar_one()
    return Opened(
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


def _begin(locked: LockedSession, opening: OpenTurn, definition: AgentDefinition, context_window: int | None) -> Opened:
    request, prompt, turn = opening.request, opening.request.prompt, locked.turn + 1
    digest = definition.digest()
    checkpoint = None if request.resume_from is None else resumed(locked, request.resume_from, prompt=prompt)
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
    )
    locked.append(NewEvent(key=f"{turn}/agent_start", turn=turn, step=0, event=start))
    beginning = checkpoint or _beginning(locked, request, turn)
    said = prompt and request.reply is None and not request.compact
    step = StepRecord(
        id=step_id("prompt", opening.session, turn, beginning.parent, prompt, *(one.artifact for one in request.parts)),
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
    locked.save()
    return Opened(turn=turn, tip=step.id, definition=digest, first=True)


def _beginning(locked: LockedSession, request: TurnRequest, turn: int) -> Beginning:
    if request.history and turn > 1:
        msg = f"history: session {locked.session!r} has begun already; a history begins a new one, so name no session"
        raise ResumeRefusedError(msg)
    if request.history:
        return Beginning(parent=None, messages=checked_history(request.history))
    unanswered = _unanswered(locked, turn)
    if request.reply is not None or request.compact:
        return Beginning(parent=locked.head, calls=unanswered)
    return Beginning(parent=locked.head, messages=_withdrawn(locked, turn, unanswered))


def _unanswered(locked: LockedSession, turn: int) -> tuple[PlannedCall, ...]:
    """The calls of the answer at which the session stopped for people, taken over into this turn."""
    head = None if locked.head is None else find_step(locked.connection, locked.head)
    if head is None or not head.calls:
        return ()
    take_over_calls(locked, [call.call_id for call in head.calls], turn=turn, before=head.turn)
    return head.calls


def _withdrawn(locked: LockedSession, turn: int, calls: Sequence[PlannedCall]) -> tuple[Message, ...]:
    """The results of those calls for a model that reads another message instead: nobody is asked any more."""
    ids = tuple(call.call_id for call in calls)
    open_calls = OpenCalls(locked, turn, ids)
    open_calls.withdraw()
    open_calls.write()
    return open_calls.results(ids)


def insert_definitions(connection: Connection, definitions: Sequence[AgentDefinition], now: datetime) -> None:
    """Keep definitions under their hashes; what is there stays."""
    rows = [
        {"hash": definition.digest(), "name": definition.name, "body": definition.canonical(), "created_at": now}
        for definition in definitions
    ]
    connection.execute(insert_into(connection, schema.definitions).on_conflict_do_nothing(), rows)


def register_agents(connection: Connection, definitions: Sequence[AgentDefinition]) -> None:
    """Note which agents a worker has loaded."""
    if not definitions:
        return
    now = datetime.now(UTC)
    # In one order everywhere: two workers that start at once would otherwise wait for each other.
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


def agents(connection: Connection) -> tuple[RegisteredAgent, ...]:
    """The agents that workers have loaded, by name."""
    return tuple(
        RegisteredAgent(
            name=row.name,
            model=row.model,
            description=row.description,
            tools=tuple(json.loads(row.tools)),
            definition=row.definition,
            seen_at=row.seen_at,
        )
        for row in connection.execute(_AGENTS)
    )


def definition(connection: Connection, digest: str) -> AgentDefinition:
    """The definition of that hash."""
    body = connection.scalar(_DEFINITION, {"hash": digest})
    if body is None:
        msg = f"there is no agent definition {digest!r}"
        raise NotFoundError(msg)
    return AgentDefinition.model_validate_json(body)
