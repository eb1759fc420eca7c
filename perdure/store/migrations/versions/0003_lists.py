"""Indexes for lists of a large store: by start, and by agent, stop reason and reason code."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The index by start gets the second column of the order; the others are new."""
    op.create_index("ix_turns_listed", "turns", ["started_at", "session"])
    op.create_index("ix_turns_agent", "turns", ["agent", "started_at", "session"])
    op.create_index("ix_turns_stop_reason", "turns", ["stop_reason", "started_at", "session"])
    op.create_index("ix_turns_reason_code", "turns", ["reason_code", "started_at", "session"])
    op.drop_index("ix_turns_started", "turns")
