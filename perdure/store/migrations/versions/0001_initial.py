"""The first schema. Frozen: it never reads ``perdure.store.schema``, which moves on."""

import uuid

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _time(name: str, *, nullable: bool = False) -> "sa.Column[object]":
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _text(name: str, *, nullable: bool = False, primary_key: bool = False) -> "sa.Column[object]":
    return sa.Column(name, sa.Text(), nullable=nullable, primary_key=primary_key)


def _integer(name: str, *, nullable: bool = False, primary_key: bool = False) -> "sa.Column[object]":
    return sa.Column(name, sa.Integer(), nullable=nullable, primary_key=primary_key, autoincrement=False)


def _partial_index(name: str, table: str, columns: list[str], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)


def upgrade() -> None:
    """Create all tables, and give the store its id."""
    identity = op.create_table("identity", _text("id", primary_key=True))
    op.bulk_insert(identity, [{"id": uuid.uuid4().hex}])
    _create_agents()
    _create_conversations()
    _create_log()
    _create_webhooks()
    _create_live()


def _create_agents() -> None:
    op.create_table("definitions", _text("hash", primary_key=True), _text("name"), _text("body"), _time("created_at"))
    op.create_table(
        "agents",
        _text("name", primary_key=True),
        _text("definition"),
        _text("model"),
        _text("description"),
        _text("tools"),
        _time("seen_at"),
    )


def _create_conversations() -> None:
    op.create_table(
        "sessions",
        _text("session", primary_key=True),
        _text("tenant"),
        _text("agent"),
        _integer("turn"),
        _integer("open_turn", nullable=True),
        _text("head", nullable=True),
        _text("tip", nullable=True),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        _time("created_at"),
        _time("updated_at"),
    )
    _partial_index("ix_sessions_open", "sessions", ["session", "open_turn"], "open_turn IS NOT NULL")
    op.create_index("ix_sessions_tenant", "sessions", ["tenant", "open_turn"])
    op.create_table(
        "requests",
        _text("tenant", primary_key=True),
        _text("key", primary_key=True),
        _text("digest"),
        _text("session"),
        _text("answer", nullable=True),
        _time("created_at"),
    )
    op.create_index("ix_requests_session", "requests", ["session"])
    op.create_table(
        "turns",
        _text("session", primary_key=True),
        _integer("turn", primary_key=True),
        _text("request_id"),
        _text("agent"),
        _text("definition"),
        _time("started_at"),
        _time("run_started_at"),
        _time("ended_at", nullable=True),
        _text("stop_reason", nullable=True),
        _text("reason_code", nullable=True),
        _text("last_step", nullable=True),
        _text("result", nullable=True),
        sa.UniqueConstraint("session", "request_id", name="uq_turns_request"),
    )
    op.create_index("ix_turns_started", "turns", ["started_at"])
    op.create_table(
        "steps",
        _text("id", primary_key=True),
        _text("session"),
        _integer("turn"),
        _integer("step"),
        _text("parent", nullable=True),
        _text("messages"),
        _text("calls"),
        _text("finish_reason"),
        _text("usage"),
        _text("cost", nullable=True),
        _integer("summarised", nullable=True),
        _time("created_at"),
    )
    op.create_index("ix_steps_session", "steps", ["session", "turn", "step"])
    first = sa.text("step = 0")
    op.create_index("ix_steps_begin", "steps", ["parent"], sqlite_where=first, postgresql_where=first)


def _create_log() -> None:
    op.create_table(
        "tool_calls",
        _text("session", primary_key=True),
        _integer("turn", primary_key=True),
        _text("call_id", primary_key=True),
        _integer("step"),
        _text("tool"),
        _text("arguments"),
        sa.Column("masked", sa.Boolean(), nullable=False),
        _text("state"),
        _text("claimant", nullable=True),
        _text("message", nullable=True),
        _time("claimed_at", nullable=True),
        _time("ended_at", nullable=True),
    )
    op.create_table(
        "events",
        _text("session", primary_key=True),
        sa.Column("seq", sa.BigInteger(), primary_key=True, autoincrement=False),
        _integer("turn"),
        _integer("step"),
        _text("type"),
        _time("at"),
        _text("key"),
        _text("body"),
        sa.UniqueConstraint("session", "key", name="uq_events_key"),
    )
    _partial_index("ix_events_retries", "events", ["session", "turn", "step", "seq"], "type = 'generation_retry'")
    asked = "type IN ('user_input_required', 'user_input_received')"
    _partial_index("ix_events_input", "events", ["session", "turn", "type"], asked)
    op.create_table(
        "artifacts",
        _text("id", primary_key=True),
        _text("session"),
        _integer("turn"),
        _text("call_id"),
        _text("media_type"),
        _text("text"),
        _time("created_at"),
    )
    op.create_index("ix_artifacts_session", "artifacts", ["session"])


def _create_webhooks() -> None:
    op.create_table(
        "webhooks",
        _text("id", primary_key=True),
        _text("url"),
        _text("events"),
        _text("tenant"),
        _text("agents"),
        _text("session", nullable=True),
        _text("secret"),
        _text("old_secret", nullable=True),
        _time("old_until", nullable=True),
        sa.Column("paused", sa.Boolean(), nullable=False),
        _text("pause_reason"),
        _time("created_at"),
    )


def _create_live() -> None:
    op.create_table("watches", _text("session", primary_key=True), _time("until"))
    if op.get_context().dialect.name == "sqlite":  # has them in a file of their own
        return
    op.create_table(
        "live",
        _text("session", primary_key=True),
        *(_integer(name, primary_key=True) for name in ("turn", "step", "attempt", "n")),
        _text("body"),
        _time("at"),
        prefixes=["UNLOGGED"],
    )
    op.create_index("ix_live_at", "live", ["at"])
