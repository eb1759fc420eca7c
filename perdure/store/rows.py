"""Rows to records and back, and the ids that the store itself makes."""

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
from perdure.store.records import SessionRecord, StepRecord, TurnRecord

_messages: TypeAdapter[tuple[Message, ...]] = TypeAdapter(tuple[Message, ...])
_calls: TypeAdapter[tuple[PlannedCall, ...]] = TypeAdapter(tuple[PlannedCall, ...])

Insert = postgresql.Insert | sqlite.Insert
"""An insert that may say what happens on conflict."""


def step_id(*parts: object) -> str:
    """The id of a step no generation made: 32 hexadecimal digits over all that determines it."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def insert_into(connection: Connection, table: Table) -> Insert:
    """The database's own insert, which knows ``on_conflict_…``."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


def dump_messages(messages: Sequence[Message]) -> str:
    """Messages as their column holds them."""
    return _messages.dump_json(tuple(messages)).decode()


def load_messages(text: str) -> tuple[Message, ...]:
    """Messages of a column."""
    return _messages.validate_json(text)


def load_tool_message(text: str) -> ToolMessage:
    """The result of a ledger row."""
    return ToolMessage.model_validate_json(text)


def load_usage(text: str) -> Usage:
    """The usage of a step's row."""
    return Usage.model_validate_json(text)


def step_values(step: StepRecord, now: datetime) -> Mapping[str, object]:
    """A step as its row."""
    return {
        "id": step.id,
        "session": step.session,
        "turn": step.turn,
        "step": step.step,
        "parent": step.parent,
        "messages": dump_messages(step.messages),
        "calls": _calls.dump_json(step.calls).decode(),
        "finish_reason": step.finish_reason,
        "usage": step.usage.model_dump_json(),
        "cost": step.cost_usd,
        "summarised": step.summarised,
        "created_at": now,
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
        usage=load_usage(row.usage),
        cost_usd=row.cost,
        summarised=row.summarised,
    )


def session_record(row: Row[*tuple[object, ...]]) -> SessionRecord:
    """A session from its row."""
    return SessionRecord(
        session=row.session,
        agent=row.agent,
        turn=row.turn,
        open_turn=row.open_turn,
        head=row.head,
        tip=row.tip,
        last_seq=row.last_seq,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


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
