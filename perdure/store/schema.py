"""The tables, the types of their columns, and the conversion of rows to records.

JSON is kept as text: PostgreSQL's own JSON types refuse the NUL character, which tools do print.

Long, because all tables stand in one place.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal

from pydantic import TypeAdapter
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    DateTime,
    Dialect,
    Float,
    Index,
    Integer,
    MetaData,
    Row,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite

from perdure.contracts.budgets import Usage
from perdure.contracts.events import Envelope, load_event
from perdure.contracts.messages import Message, ToolMessage
from perdure.contracts.tools import PlannedCall
from perdure.contracts.turns import TurnResult
from perdure.store.keys.sealing import Content, SealedText
from perdure.store.records import SessionRecord, StepRecord, TurnRecord

REVISION = "0014"
"""The schema this release reads and writes."""

KNOWN_REVISIONS = (
    "0001",
    "0002",
    "0003",
    "0004",
    "0005",
    "0007",
    "0008",
    "0009",
    "0010",
    "0011",
    "0012",
    "0013",
    "0014",
)
"""Every schema this release can upgrade from, oldest first."""

OLDEST_REVISION = "0001"
"""The oldest schema whose releases may still use the store: migrations since then only added to it.

A migration that removes something which those releases need raises it, in a release of its own.
"""

REVISION_TABLE = "perdure_revision"
"""The table with that oldest revision. A release that does not know the revision refuses the store."""

MIGRATIONS_TABLE = "perdure_migrations"
"""The table with the newest migration that was run: Alembic's, under another name."""


class UtcDateTime(TypeDecorator[datetime]):
    """An aware time, always returned in UTC; SQLite itself knows no time zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to UTC; a naive time is refused, since it names no certain moment."""
        if value is None:
            return None
        if value.tzinfo is None:
            msg = f"the store takes aware times only, not {value!r}"
            raise ValueError(msg)
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Add the time zone."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Money(TypeDecorator[Decimal]):
    """An exact amount, as text: SQLite would make it a float."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Decimal | None, dialect: Dialect) -> str | None:
        """Write the digits as text."""
        return None if value is None else str(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Decimal | None:
        """Read the digits."""
        return None if value is None else Decimal(value)


class AnyText(TypeDecorator[str]):
    """Text from a model or a tool, as a JSON string: PostgreSQL refuses NUL in plain text."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Quote the text, and escape control characters."""
        return None if value is None else json.dumps(value, ensure_ascii=False)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        """Read the text as it was written."""
        return None if value is None else str(json.loads(value))


metadata = MetaData()

identity = Table("identity", metadata, Column("id", Text, primary_key=True), Column("key_store", Text))
"""One row: the store's id, and the id of the key store for new keys of sessions; null: they go into the store."""

id_secrets = Table(
    "id_secrets",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("secret", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
)
"""The secrets that derived ids are signed with; the highest number signs, and the others still verify."""

definitions = Table(
    "definitions",
    metadata,
    Column("hash", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
)

agents = Table(
    "agents",
    metadata,
    Column("name", Text, primary_key=True),
    Column("definition", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("description", Text, nullable=False),
    Column("tools", Text, nullable=False),
    Column("seen_at", UtcDateTime, nullable=False),
)

sessions = Table(
    "sessions",
    metadata,
    Column("session", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("turn", Integer, nullable=False),
    Column("open_turn", Integer),
    Column("head", Text),
    Column("tip", Text),
    Column("last_seq", BigInteger, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("updated_at", UtcDateTime, nullable=False),
    Column("swept_seq", BigInteger),
    Column("begun_at", UtcDateTime),
    Index("ix_sessions_tenant", "tenant", "open_turn"),
)

requests = Table(
    "requests",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("session", Text, nullable=False),
    Column("answer", SealedText("requests.answer")),
    Column("created_at", UtcDateTime, nullable=False),
    Column("said", Text),
    Column("tries", Integer),
    Column("holder", Text),
    Column("let_go_at", UtcDateTime),
    Column("told", Boolean),
    Index("ix_requests_session", "session"),
)
"""Requests by their keys. One without a key of its caller's has one of ours, and what a retry of it finds it by."""

IS_SAID = text("said IS NOT NULL")
"""The condition of a partial index: requests that a retry may join."""

Index(
    "ix_requests_said",
    requests.c.said,
    requests.c.created_at,
    sqlite_where=IS_SAID,
    postgresql_where=IS_SAID,
)

gateways = Table(
    "gateways",
    metadata,
    Column("gateway", Text, primary_key=True),
    Column("alive_at", UtcDateTime, nullable=False),
)
"""Gateways that hold connections of such requests, each as long as it runs."""

turns = Table(
    "turns",
    metadata,
    Column("session", Text, primary_key=True),
    Column("turn", Integer, primary_key=True, autoincrement=False),
    Column("request_id", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("definition", Text, nullable=False),
    Column("started_at", UtcDateTime, nullable=False),
    Column("run_started_at", UtcDateTime, nullable=False),
    Column("ended_at", UtcDateTime),
    Column("stop_reason", Text),
    Column("reason_code", Text),
    Column("last_step", Text),
    Column("result", SealedText("turns.result")),
    Column("exception", Text),
    Column("seed", Text),
    UniqueConstraint("session", "request_id", name="uq_turns_request"),
    Index("ix_turns_listed", "started_at", "session"),
    Index("ix_turns_agent", "agent", "started_at", "session"),
    Index("ix_turns_stop_reason", "stop_reason", "started_at", "session"),
    Index("ix_turns_reason_code", "reason_code", "started_at", "session"),
)

steps = Table(
    "steps",
    metadata,
    Column("id", Text, primary_key=True),
    Column("session", Text, nullable=False),
    Column("turn", Integer, nullable=False),
    Column("step", Integer, nullable=False),
    Column("parent", Text),
    Column("messages", SealedText("steps.messages"), nullable=False),
    Column("calls", SealedText("steps.calls"), nullable=False),
    Column("finish_reason", Text, nullable=False),
    Column("usage", Text, nullable=False),
    Column("cost", Money),
    Column("summarised", Integer),
    Column("created_at", UtcDateTime, nullable=False),
    Index("ix_steps_session", "session", "turn", "step"),
)

IS_FIRST = text("first.step = 0")
"""The condition, on an alias ``first``, for first steps of turns. Only these can have a parent in another session."""

Index("ix_steps_begin", steps.c.parent, sqlite_where=text("step = 0"), postgresql_where=text("step = 0"))

tool_calls = Table(
    "tool_calls",
    metadata,
    Column("session", Text, primary_key=True),
    Column("turn", Integer, primary_key=True, autoincrement=False),
    Column("call_id", Text, primary_key=True),
    Column("step", Integer, nullable=False),
    Column("tool", AnyText, nullable=False),
    Column("arguments", SealedText("tool_calls.arguments", quoted=True), nullable=False),
    Column("masked", Boolean, nullable=False),
    Column("state", Text, nullable=False),
    Column("claimant", Text),
    Column("message", SealedText("tool_calls.message")),
    Column("claimed_at", UtcDateTime),
    Column("ended_at", UtcDateTime),
)

events = Table(
    "events",
    metadata,
    Column("session", Text, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("turn", Integer, nullable=False),
    Column("step", Integer, nullable=False),
    Column("type", Text, nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("key", Text, nullable=False),
    Column("body", SealedText("events.body"), nullable=False),
    UniqueConstraint("session", "key", name="uq_events_key"),
)

IS_RETRY = text("type = 'generation_retry'")
"""The condition of the partial index; written out, since a planner cannot match a parameter with it."""

Index(
    "ix_events_retries",
    events.c.session,
    events.c.turn,
    events.c.step,
    events.c.seq,
    sqlite_where=IS_RETRY,
    postgresql_where=IS_RETRY,
)

IS_ADAPTED = text("type = 'generation_adapted'")
"""The condition of another: what the providers of a session have refused, which is little or nothing."""

Index("ix_events_adapted", events.c.session, events.c.seq, sqlite_where=IS_ADAPTED, postgresql_where=IS_ADAPTED)

IS_INPUT = text("type IN ('user_input_required', 'user_input_received')")
"""The condition of a third partial index: input requests and decisions."""

Index(
    "ix_events_input",
    events.c.session,
    events.c.turn,
    events.c.type,
    sqlite_where=IS_INPUT,
    postgresql_where=IS_INPUT,
)

IS_OPEN = text("open_turn IS NOT NULL")
"""The condition of a fourth partial index: sessions with an open turn, few among many that have ended."""

Index("ix_sessions_open", sessions.c.session, sessions.c.open_turn, sqlite_where=IS_OPEN, postgresql_where=IS_OPEN)

artifacts = Table(
    "artifacts",
    metadata,
    Column("id", Text, primary_key=True),
    Column("session", Text, nullable=False),
    Column("turn", Integer, nullable=False),
    Column("call_id", Text, nullable=False),
    Column("media_type", Text, nullable=False),
    Column("text", SealedText("artifacts.text", quoted=True), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("location", Text),
    Index("ix_artifacts_session", "session"),
)

session_keys = Table(
    "session_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("session", Text, nullable=False),
    Column("wrapped", Text, nullable=False),
    Column("wrapped_by", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    UniqueConstraint("session", name="uq_session_keys_session"),
    Index("ix_session_keys_wrapped_by", "wrapped_by"),
)
"""Data keys of sessions, wrapped by the keyring, for :class:`~perdure.store.keys.sealing.SealedText`."""

tombstones = Table(
    "tombstones",
    metadata,
    Column("session", Text, primary_key=True),
    Column("id", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("erased_by", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("counts", Text, nullable=False),
    Column("erased_at", UtcDateTime, nullable=False),
    Column("finished_at", UtcDateTime),
    Index("ix_tombstones_erased", "erased_at"),
)
"""The tombstones of erased sessions, without any of their contents."""

_SECRETS = "webhooks.secret"
"""The place to which both columns of secrets are sealed, because an exchange moves a sealed text between them."""

webhooks = Table(
    "webhooks",
    metadata,
    Column("id", Text, primary_key=True),
    Column("url", Text, nullable=False),
    Column("events", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("agents", Text, nullable=False),
    Column("session", Text),
    Column("turn", Integer),
    Column("push", Text),
    Column("headers", SealedText("webhooks.headers")),
    Column("secret", SealedText(_SECRETS), nullable=False),
    Column("old_secret", SealedText(_SECRETS)),
    Column("old_until", UtcDateTime),
    Column("paused", Boolean, nullable=False),
    Column("pause_reason", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Index("ix_webhooks_turn", "turn", "session"),
)

refusals = Table(
    "refusals",
    metadata,
    Column("key", Text, primary_key=True),
    Column("worker", Text, primary_key=True),
    Column("at", UtcDateTime, nullable=False),
    Column("closed_until", UtcDateTime, nullable=False),
    Column("rate", Float, nullable=False),
)

queued_turns = Table(
    "queued_turns",
    metadata,
    Column("session", Text, primary_key=True),
    Column("request_id", Text, nullable=False),
    Column("run_started_at", UtcDateTime, nullable=False),
    Column("agent", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("queued_at", UtcDateTime, nullable=False),
    Column("seen_at", UtcDateTime, nullable=False),
    Column("held_by", Text, nullable=False),
)
"""The turns that wait for a slot, at most one for a session. ``held_by`` names the limits that it waits for."""

blocks = Table(
    "blocks",
    metadata,
    Column("id", Text, primary_key=True),
    Column("agent", Text),
    Column("tenant", Text),
    Column("model", Text),
    Column("reason", Text, nullable=False),
    Column("by", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("lifted_at", UtcDateTime),
    Column("lifted_by", Text, nullable=False),
)
"""Blocks. Their rows stay when they are lifted."""

standing_approvals = Table(
    "standing_approvals",
    metadata,
    Column("session", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("agent", Text, nullable=False),
    Column("tool", AnyText, nullable=False),
    Column("scope", Text, nullable=False),
    Column("until", UtcDateTime),
    Column("call", SealedText("standing_approvals.call"), nullable=False),
    Column("reason", SealedText("standing_approvals.reason", quoted=True), nullable=False),
    Column("by", AnyText, nullable=False),
    Column("given_at", UtcDateTime, nullable=False),
    Column("revoked_at", UtcDateTime),
    Column("revoked_by", AnyText, nullable=False),
)
"""Standing approvals. ``call`` is the digest and the masked arguments of the approved call: a digest lets guess them.

Their rows stay when they are revoked.
"""

watches = Table(
    "watches",
    metadata,
    Column("session", Text, primary_key=True),
    Column("until", UtcDateTime, nullable=False),
)
"""Leases of followers of deltas: the time until which a session counts as followed."""

live = Table(
    "live",
    metadata,
    Column("session", Text, primary_key=True),
    Column("turn", Integer, primary_key=True, autoincrement=False),
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("n", Integer, primary_key=True, autoincrement=False),
    Column("body", Text, nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Index("ix_live_at", "at"),
    prefixes=["UNLOGGED"],
)
"""Deltas of answers that are being written, on PostgreSQL only. The table is unlogged: a crash may lose them."""


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
