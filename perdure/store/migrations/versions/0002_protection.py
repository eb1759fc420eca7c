"""Keys of sessions, tombstones of erased ones, and what retention leaves behind; it only adds."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def _time(name: str, *, nullable: bool = False) -> "sa.Column[object]":
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _text(name: str, *, nullable: bool = False, primary_key: bool = False) -> "sa.Column[object]":
    return sa.Column(name, sa.Text(), nullable=nullable, primary_key=primary_key)


def upgrade() -> None:
    """Add two tables and three columns."""
    op.create_table(
        "session_keys",
        _text("id", primary_key=True),
        _text("session"),
        _text("wrapped"),
        _text("wrapped_by"),
        _time("created_at"),
        sa.UniqueConstraint("session", name="uq_session_keys_session"),
    )
    op.create_index("ix_session_keys_wrapped_by", "session_keys", ["wrapped_by"])
    op.create_table(
        "tombstones",
        _text("session", primary_key=True),
        _text("id"),
        _text("tenant"),
        _text("agent"),
        _text("erased_by"),
        _text("reason"),
        _text("digest"),
        _text("counts"),
        _time("erased_at"),
        _time("finished_at", nullable=True),
    )
    op.create_index("ix_tombstones_erased", "tombstones", ["erased_at"])
    op.add_column("sessions", sa.Column("swept_seq", sa.BigInteger(), nullable=True))
    op.add_column("turns", sa.Column("exception", sa.Text(), nullable=True))
    op.add_column("artifacts", sa.Column("location", sa.Text(), nullable=True))
