"""Inserts of the database's own dialect, and the conversion of rows to records."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime

from pydantic import TypeAdapter
from sqlalchemy import Connection, Row, Table
from sqlalchemy.dialects import postgresql, sqlite

from perdure.contracts.budgets import Usage
from perdure.contracts.events import Envelope, load_event
from perdure.contracts.messages import Message, ToolMessage
from perdure.contracts.tools import PlannedCall
from perdure.contracts.turns import TurnResult
from perdure.store.keys.sealing import Content
from perdure.store.records import SessionRecord, StepRecord, TurnRecord

_messages: TypeAdapter[tuple[Message, ...]] = TypeAdapter(tuple[Message, ...])
_calls: TypeAdapter[tuple[PlannedCall, ...]] = TypeAdapter(tuple[PlannedCall, ...])

Insert = postgresql.Insert | sqlite.Insert
"""An insert with ``on_conflict_…``, which SQLAlchemy's general one lacks."""


def step_id(*parts: object) -> str:
    """The id of a step that no generation made: 32 hexadecimal digits of a hash over all that determines it."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def insert_into(connection: Connection, table: Table) -> Insert:
    """An insert of the database's own dialect, with ``on_conflict_…``."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


def upsert(connection: Connection, table: Table, rows: Sequence[Mapping[str, object]]) -> None:
    """Insert rows, or change those that exist under the same primary key."""
    statement = insert_into(connection, table)
    changing = {column.name: statement.excluded[column.name] for column in table.c if not column.primary_key}
    connection.execute(statement.on_conflict_do_update(index_elements=[*table.primary_key], set_=changing), rows)


def load_messages(text: str) -> tuple[Message, ...]:
    """Messages of a column."""
    return _messages.validate_json(text)


def load_tool_message(text: str) -> ToolMessage:
    """The result of a ledger row."""
    return ToolMessage.model_validate_json(text)


def step_values(step: StepRecord, now: datetime) -> Mapping[str, object]:
    """A step as its row."""
    return {
        "id": step.id,
        "session": step.session,
        "turn": step.turn,
        "step": step.step,
        "parent": step.parent,
        "messages": Content(step.session, _messages.dump_json(step.messages).decode()),
        "calls": Content(step.session, _calls.dump_json(step.calls).decode()),
        "finish_reason": step.finish_reason,
        "usage": step.usage.model_dump_json(),
        "cost": step.cost_usd,
        "summarised": step.summarised,
        "created_at": now,
        "model": step.model or None,
    }


def step_record(row: Row[*tuple[object, ...]]) -> StepRecord:
    """A step from its row."""
    return StepRecord(
        id=row.id,
        session=row.session,
        turn=row.turn,
        step=row.step,
        parent=row.parent,
        messages=load_messages(row.messages),
        calls=_calls.validate_json(row.calls),
        finish_reason=row.finish_reason,
        usage=Usage.model_validate_json(row.usage),
        cost_usd=row.cost,
        summarised=row.summarised,
        model=row.model or "",
    )


def session_record(row: Row[*tuple[object, ...]]) -> SessionRecord:
    """A session from its row."""
    return SessionRecord.model_validate(row, from_attributes=True)


def turn_record(row: Row[*tuple[object, ...]]) -> TurnRecord:
    """A turn from its row."""
    return TurnRecord(
        session=row.session,
        turn=row.turn,
        request_id=row.request_id,
        agent=row.agent,
        definition=row.definition,
        started_at=row.started_at,
        ended_at=row.ended_at,
        result=None if row.result is None else TurnResult.model_validate_json(row.result),
        last_step=row.last_step,
    )


def envelope(row: Row[*tuple[object, ...]]) -> Envelope:
    """An event from its row."""
    return Envelope(
        seq=row.seq,
        session=row.session,
        turn=row.turn,
        step=row.step,
        at=row.at,
        event=load_event(json.loads(row.body)),
    )
