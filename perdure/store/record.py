"""The record: facts of events that the store decides by, in rows, beside the log that retention sweeps.

Each event is recorded in the transaction that writes it. An older release writes events only: a session keeps the
number up to which its events stand in rows, and what is behind is made up for by whoever locks it next, or by
:func:`perdure.store.fill.fill`.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table, Update, bindparam, select, update

from perdure.contracts.events import (
    EVENT_TYPES,
    AgentError,
    AgentStart,
    CompactionEvent,
    DelegateEnd,
    DelegateStart,
    GenerationAdapted,
    GenerationEnd,
    GenerationError,
    GenerationRetry,
    HookEnd,
    ToolError,
    ToolRecovery,
    UserInputReceived,
    UserInputRequired,
)
from perdure.contracts.hooks import Continue, ReactStep, TodosChanged
from perdure.contracts.ids import DELEGATED
from perdure.store import log, schema
from perdure.store.keys.sealing import Content
from perdure.store.log import Line
from perdure.store.records import RERUN, DelegateSpent, todos_to_json
from perdure.store.rows import insert_into, upsert
from perdure.store.standing_approvals import standing_row

_S, _T, _C, _I = schema.sessions, schema.turns, schema.tool_calls, schema.input_requests

_FALLBACK = re.compile(r"/fallback(\d+)/")
_CALL = re.compile(rf"{DELEGATED}call_([0-9a-f]{{16}})_[0-9]+")
"""The request of a delegate: its call's id begins with the first digits of the id of the step which made it."""


class Row(NamedTuple):
    """A row to insert; one that is there stays, but of todos, where the later one counts."""

    table: Table
    values: Mapping[str, object]


class Change(NamedTuple):
    """An update with its parameters."""

    statement: Update
    values: Mapping[str, object]


Writes = Iterator[Row | Change]


def _update(table: Table, *key: str, **columns: str) -> Update:
    """An update of these columns by parameters of these names; the key's are named after it, as ``this_turn``."""
    where = (table.c[name] == bindparam(f"this_{name}") for name in key)
    return update(table).where(*where).values({name: bindparam(given) for name, given in columns.items()})


_CALL_KEY = ("session", "turn", "call_id")
_BEGIN_DELEGATE = _update(_C, *_CALL_KEY, delegate="new_delegate")
_END_DELEGATE = _update(_C, *_CALL_KEY, delegate="new_delegate", delegate_spent="new_spent")
_ABORT = _update(_C, *_CALL_KEY, aborted="new_aborted")
_COUNT_RUN = _update(_C, *_CALL_KEY, runs="new_runs")
_DECIDE = _update(_I, "session", "turn", "request_id", decided_at="at")


def columns_of_start(session: str, start: AgentStart) -> dict[str, object]:
    """Columns of a turn that its beginning says."""
    return {
        "model": start.model,
        "context_window": start.context_window,
        "resumed_from": None if start.resumed_from is None else start.resumed_from.model_dump_json(),
        "trace": None if start.trace is None else start.trace.trace_id,
        "prompt": Content(session, start.prompt),
    }


def keep(connection: Connection, session: str, lines: Iterable[tuple[str, Line]]) -> None:
    """Record events of a session, each with the agent of its turn."""
    _execute(connection, [write for agent, line in lines for write in _writes_of(session, agent, line)])


def _writes_of(session: str, agent: str, line: Line) -> Writes:
    if isinstance(line.event, UserInputReceived) and (approval := standing_row(session, agent, line.event)):
        yield Row(schema.standing_approvals, approval)
    if (says := _SAYS.get(type(line.event))) is not None:
        yield from says(session, line, line.event)


def _execute(connection: Connection, writes: Sequence[Row | Change]) -> None:
    """Insert first, and then update, each statement once with all that is for it."""
    rows, changes = defaultdict[Table, list[Mapping[str, object]]](list), dict[int, tuple[Update, list[Any]]]()
    for write in writes:
        if isinstance(write, Row):
            rows[write.table].append(write.values)
        else:
            changes.setdefault(id(write.statement), (write.statement, []))[1].append(write.values)
    for table, values in rows.items():
        if table is schema.todos:
            upsert(connection, table, values)
        else:
            connection.execute(insert_into(connection, table).on_conflict_do_nothing(), values)
    for statement, parameters in changes.values():
        connection.execute(statement, parameters)


def _says_asked(session: str, line: Line, asked: UserInputRequired) -> Writes:
    row = {
        "session": session,
        "turn": line.turn,
        "request_id": asked.request_id,
        "request": Content(session, asked.model_dump_json(exclude={"type", "stops"})),
        "asked_at": line.at,
    }
    yield Row(_I, row)


def _says_decided(session: str, line: Line, said: UserInputReceived) -> Writes:
    this = {"this_session": session, "this_turn": line.turn, "this_request_id": said.request_id}
    yield Change(_DECIDE, {**this, "at": line.at})


def _says_todos(session: str, line: Line, changed: TodosChanged) -> Writes:
    todos = Content(session, todos_to_json(changed.todos))
    yield Row(schema.todos, {"session": session, "turn": line.turn, "step": line.step, "todos": todos})


def _says_feedback(session: str, line: Line, reacted: ReactStep) -> Writes:
    if isinstance(reacted.reaction, Continue) and (texts := reacted.reaction.texts):
        said = Content(session, json.dumps(texts))
        yield Row(schema.feedback, {**_place(session, line), "step": line.step, "texts": said})


def _says_failure(session: str, line: Line, failed: GenerationRetry | GenerationError | CompactionEvent) -> Writes:
    if isinstance(failed, CompactionEvent) and failed.compaction_status != "failed":
        return
    in_key = _FALLBACK.search(line.key)  # only a retry has it in its fields
    row = {
        **_place(session, line),
        "step": line.step,
        "fallback": int(in_key[1]) if in_key is not None else getattr(failed, "fallback", 0),
        "compaction": isinstance(failed, CompactionEvent) or getattr(failed, "compaction", False),
        "final": not isinstance(failed, GenerationRetry),
        "usage": failed.usage.model_dump_json(),
        "cost": failed.cost_usd or Decimal(0),
    }
    yield Row(schema.failed_generations, row)


def _says_adapted(session: str, line: Line, adapted: GenerationAdapted) -> Writes:
    said = Content(session, adapted.model_dump_json())
    yield Row(schema.adaptations, {"session": session, "seq": line.seq, "adapted": said})


def _says_delegate(session: str, line: Line, begun: DelegateStart) -> Writes:
    yield Change(_BEGIN_DELEGATE, {**_call(session, line, begun.call_id), "new_delegate": begun.delegate})


def _says_end_of_delegate(session: str, line: Line, ended: DelegateEnd) -> Writes:
    spent = DelegateSpent(steps=ended.steps, usage=ended.usage, cost_usd=ended.cost_usd).model_dump_json()
    called = _call(session, line, ended.call_id)
    yield Change(_END_DELEGATE, {**called, "new_delegate": ended.delegate, "new_spent": spent})


def _says_aborted(session: str, line: Line, error: ToolError) -> Writes:
    if line.key.endswith("/tool_error"):  # and not the error of a call that never ran, which a model reads
        yield Change(_ABORT, {**_call(session, line, error.call_id), "new_aborted": True})


def _says_run(session: str, line: Line, recovery: ToolRecovery) -> Writes:
    _, again, number = line.key.partition(f"/{RERUN}")
    if again:
        yield Change(_COUNT_RUN, {**_call(session, line, recovery.call_id), "new_runs": int(number)})


def _place(session: str, line: Line) -> dict[str, object]:
    return {"session": session, "turn": line.turn, "seq": line.seq}


def _call(session: str, line: Line, call_id: str) -> dict[str, object]:
    return {"this_session": session, "this_turn": line.turn, "this_call_id": call_id}


_Says = Callable[[str, Line, Any], Writes]

_SAYS: dict[type, _Says] = {
    UserInputRequired: _says_asked,
    UserInputReceived: _says_decided,
    TodosChanged: _says_todos,
    ReactStep: _says_feedback,
    GenerationRetry: _says_failure,
    GenerationError: _says_failure,
    CompactionEvent: _says_failure,
    GenerationAdapted: _says_adapted,
    DelegateStart: _says_delegate,
    DelegateEnd: _says_end_of_delegate,
    ToolError: _says_aborted,
    ToolRecovery: _says_run,
}
"""Rows and changes that each kind of event makes."""

_TURN_KEY = ("session", "turn")
_BEGIN = _update(
    _T,
    *_TURN_KEY,
    model="new_model",
    context_window="new_context_window",
    resumed_from="new_resumed_from",
    trace="new_trace",
    prompt="new_prompt",
)
_FAIL = _update(_T, *_TURN_KEY, error="new_error")
_ANSWER = _update(schema.steps, "session", "turn", "step", model="new_model")
_NAME_CALLER = _update(_S, "session", caller="new_caller").where(_S.c.caller.is_(None))
_MAKE_UP = _update(_S, "session", recorded_seq="new_seq", hook_calls="new_hooks")


def _said_of_start(session: str, line: Line, start: AgentStart) -> Writes:
    columns = {f"new_{name}": value for name, value in columns_of_start(session, start).items()}
    yield Change(_BEGIN, {"this_session": session, "this_turn": line.turn, **columns})
    if start.delegated_by is not None:
        yield Change(_NAME_CALLER, {"this_session": session, "new_caller": start.delegated_by})


def _said_of_delegate(session: str, line: Line, begun: DelegateStart) -> Writes:
    yield from _says_delegate(session, line, begun)
    # The delegate's own log may have been swept.
    yield Change(_NAME_CALLER, {"this_session": begun.delegate, "new_caller": session})


def _said_of_answer(session: str, line: Line, end: GenerationEnd) -> Writes:
    this = {"this_session": session, "this_turn": line.turn, "this_step": line.step}
    yield Change(_ANSWER, {**this, "new_model": end.model})


def _said_of_error(session: str, line: Line, error: AgentError) -> Writes:
    failure = Content(session, error.error.model_dump_json())
    yield Change(_FAIL, {"this_session": session, "this_turn": line.turn, "new_error": failure})


_SAID: dict[type, _Says] = {
    AgentStart: _said_of_start,
    DelegateStart: _said_of_delegate,
    GenerationEnd: _said_of_answer,
    AgentError: _said_of_error,
}
"""Those that this release writes with other rows, and an older one has written in events only."""

_TYPES = [name for name, kind in EVENT_TYPES.items() if kind in {*_SAYS, *_SAID, HookEnd}]


class Behind(NamedTuple):
    """A session, locked, whose events do not stand in rows behind the number ``after``."""

    session: str
    agent: str
    turn: int
    last_seq: int
    after: int
    hook_calls: int


def make_up(connection: Connection, behind: Sequence[Behind]) -> None:
    """Record what an older release has written of these sessions, all at once."""
    writes: list[Row | Change] = []
    told, lines = {each.session: each for each in behind}, defaultdict[str, list[Line]](list)
    for session, line in log.read_behind(connection, {each.session: each.after for each in behind}, _TYPES):
        lines[session].append(line)
    for session, each in told.items():
        for line in lines[session]:
            said = _SAID.get(type(line.event))
            writes += _writes_of(session, each.agent, line) if said is None else said(session, line, line.event)
        calls = sum(isinstance(line.event, HookEnd) and line.turn == each.turn for line in lines[session])
        hooks = {"new_seq": each.last_seq, "new_hooks": each.hook_calls + calls}
        writes.append(Change(_MAKE_UP, {"this_session": session, **hooks}))
        if each.after == 0 and not any(isinstance(line.event, AgentStart) for line in lines[session]):
            writes += _find_caller(connection, session)
    _execute(connection, writes)


def _find_caller(connection: Connection, session: str) -> Writes:
    """The caller of a delegate of whose beginning no log tells any more: a call's id is made from its step's."""
    first = select(_T.c.request_id).where(_T.c.session == session, _T.c.turn == 1)
    call = _CALL.fullmatch(connection.scalar(first) or "")
    if call is not None:
        steps = schema.steps.c
        made = select(steps.session).where(steps.id >= call[1], steps.id < f"{call[1]}g")
        if (caller := connection.scalar(made.limit(1))) is not None:
            yield Change(_NAME_CALLER, {"this_session": session, "new_caller": caller})
