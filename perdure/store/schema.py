"""The tables, and the types of their columns.

JSON is kept as text: PostgreSQL's own JSON types refuse the NUL character, which tools do print.

Long, because all tables stand in one place.
"""

import json
from datetime import UTC, datetime
from decimal import Decimal

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    DateTime,
    Dialect,
    Float,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    func,
    text,
)

from perdure.store.keys.sealing import SealedText

REVISION = "0015"
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
    "0015",
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
    Column("caller", Text),
    Column("hook_calls", Integer),
    Column("recorded_seq", BigInteger),
    Index("ix_sessions_tenant", "tenant", "open_turn"),
)
"""Sessions.

``caller`` is the session that delegates to this one, and ``hook_calls`` the number of hooks that its last turn called.
What the events up to ``recorded_seq`` say stands in rows; a worker of an older release leaves it behind ``last_seq``.
"""

IS_BEHIND: ColumnElement[bool] = sessions.c.last_seq > func.coalesce(sessions.c.recorded_seq, 0)
"""The condition for sessions that a worker of an older release has written to."""

IS_DELEGATE = text("caller IS NOT NULL")
"""The condition of a partial index: sessions and tombstones of delegates."""

Index("ix_sessions_caller", sessions.c.caller, sqlite_where=IS_DELEGATE, postgresql_where=IS_DELEGATE)

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
    Column("model", Text),
    Column("context_window", Integer),
    Column("resumed_from", Text),
    Column("trace", Text),
    Column("prompt", SealedText("turns.prompt", quoted=True)),
    Column("error", SealedText("turns.error")),
    UniqueConstraint("session", "request_id", name="uq_turns_request"),
    Index("ix_turns_listed", "started_at", "session"),
    Index("ix_turns_agent", "agent", "started_at", "session"),
    Index("ix_turns_stop_reason", "stop_reason", "started_at", "session"),
    Index("ix_turns_reason_code", "reason_code", "started_at", "session"),
)
TURN = tuple(column for column in turns.c if column.name not in {"prompt", "error"})
"""The columns of a turn without its longest texts, which few readers want."""

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
    Column("model", Text),
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
    Column("runs", Integer),
    Column("aborted", Boolean),
    Column("delegate", Text),
    Column("delegate_spent", Text),
)
"""The ledger. ``runs`` counts further runs of a call's body, and ``aborted`` tells that the call ended its turn.

``delegate`` is the session that works on the call, and ``delegate_spent`` what that one has spent, once it has ended.
"""

todos = Table(
    "todos",
    metadata,
    Column("session", Text, primary_key=True),
    Column("turn", Integer, primary_key=True, autoincrement=False),
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("todos", SealedText("todos.todos"), nullable=False),
)
"""The agent's todos behind each step that changed them."""

feedback = Table(
    "feedback",
    metadata,
    Column("session", Text, primary_key=True),
    Column("turn", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("step", Integer, nullable=False),
    Column("texts", SealedText("feedback.texts"), nullable=False),
)
"""Texts of hooks for the model behind a step, by the numbers of their events."""

input_requests = Table(
    "input_requests",
    metadata,
    Column("session", Text, primary_key=True),
    Column("turn", Integer, primary_key=True, autoincrement=False),
    Column("request_id", Text, primary_key=True),
    Column("request", SealedText("input_requests.request"), nullable=False),
    Column("asked_at", UtcDateTime, nullable=False),
    Column("decided_at", UtcDateTime),
)
"""Input requests of turns that wait for people."""

IS_UNDECIDED = text("decided_at IS NULL")
"""The condition of a partial index: input requests that wait."""

Index(
    "ix_input_requests_undecided",
    input_requests.c.session,
    input_requests.c.turn,
    sqlite_where=IS_UNDECIDED,
    postgresql_where=IS_UNDECIDED,
)

failed_generations = Table(
    "failed_generations",
    metadata,
    Column("session", Text, primary_key=True),
    Column("turn", Integer, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("step", Integer, nullable=False),
    Column("fallback", Integer, nullable=False),
    Column("compaction", Boolean, nullable=False),
    Column("final", Boolean, nullable=False),
    Column("usage", Text, nullable=False),
    Column("cost", Money, nullable=False),
)
"""Model calls that failed, with what they cost, by the number of their event; after a ``final`` one none was sent."""

adaptations = Table(
    "adaptations",
    metadata,
    Column("session", Text, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("adapted", SealedText("adaptations.adapted"), nullable=False),
)
"""Refusals of the providers of a session, so that its later calls go without."""

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

IS_INPUT = text("type IN ('user_input_required', 'user_input_received')")
"""The condition of another: input requests and decisions."""

Index(
    "ix_events_input",
    events.c.session,
    events.c.turn,
    events.c.type,
    sqlite_where=IS_INPUT,
    postgresql_where=IS_INPUT,
)

IS_OPEN = text("open_turn IS NOT NULL")
"""The condition of a third partial index: sessions with an open turn, few among many that have ended."""

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
    Column("caller", Text),
    Index("ix_tombstones_erased", "erased_at"),
)
"""The tombstones of erased sessions, without any of their contents."""

Index("ix_tombstones_caller", tombstones.c.caller, sqlite_where=IS_DELEGATE, postgresql_where=IS_DELEGATE)

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
