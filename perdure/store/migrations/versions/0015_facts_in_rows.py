"""Facts that older releases read from events, in rows: callers, todos, input requests, failed calls and others.

It only adds, and an index goes. What existing events say is filled in afterwards, session by session, while workers
run: see ``perdure.store.record``.
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_TEXTS = {
    "sessions": ("caller",),
    "turns": ("model", "resumed_from", "trace", "prompt", "error"),
    "steps": ("model",),
    "tool_calls": ("delegate", "delegate_spent"),
    "tombstones": ("caller",),
}


def _session() -> "sa.Column[object]":
    return sa.Column("session", sa.Text(), primary_key=True)


def _turn() -> "sa.Column[object]":
    return sa.Column("turn", sa.Integer(), primary_key=True, autoincrement=False)


def _seq() -> "sa.Column[object]":
    return sa.Column("seq", sa.BigInteger(), primary_key=True, autoincrement=False)


def upgrade() -> None:
    """Add columns and five tables with their indexes, and drop the index of events that nobody uses any more."""
    for table, names in _TEXTS.items():
        for name in names:
            op.add_column(table, sa.Column(name, sa.Text(), nullable=True))
    op.add_column("sessions", sa.Column("hook_calls", sa.Integer(), nullable=True))
    op.add_column("sessions", sa.Column("recorded_seq", sa.BigInteger(), nullable=True))
    op.add_column("turns", sa.Column("context_window", sa.Integer(), nullable=True))
    op.add_column("tool_calls", sa.Column("runs", sa.Integer(), nullable=True))
    op.add_column("tool_calls", sa.Column("aborted", sa.Boolean(), nullable=True))
    for table in ("sessions", "tombstones"):
        where = sa.text("caller IS NOT NULL")
        op.create_index(f"ix_{table}_caller", table, ["caller"], sqlite_where=where, postgresql_where=where)
    op.create_table(
        "todos",
        _session(),
        _turn(),
        sa.Column("step", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("todos", sa.Text(), nullable=False),
    )
    op.create_table(
        "feedback",
        _session(),
        _turn(),
        _seq(),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("texts", sa.Text(), nullable=False),
    )
    op.create_table(
        "input_requests",
        _session(),
        _turn(),
        sa.Column("request_id", sa.Text(), primary_key=True),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("asked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=True),
    )
    where = sa.text("decided_at IS NULL")
    op.create_index(
        "ix_input_requests_undecided",
        "input_requests",
        ["session", "turn"],
        sqlite_where=where,
        postgresql_where=where,
    )
    op.create_table(
        "failed_generations",
        _session(),
        _turn(),
        _seq(),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("fallback", sa.Integer(), nullable=False),
        sa.Column("compaction", sa.Boolean(), nullable=False),
        sa.Column("final", sa.Boolean(), nullable=False),
        sa.Column("usage", sa.Text(), nullable=False),
        sa.Column("cost", sa.Text(), nullable=False),
    )
    op.create_table("adaptations", _session(), _seq(), sa.Column("adapted", sa.Text(), nullable=False))
    op.drop_index("ix_events_adapted", "events")
