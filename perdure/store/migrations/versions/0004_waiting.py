"""An index of the sessions whose turn is open: how many of them wait for a person is asked at every scrape."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the index."""
    is_open = sa.text("open_turn IS NOT NULL")
    op.create_index(
        "ix_sessions_open", "sessions", ["session", "open_turn"], sqlite_where=is_open, postgresql_where=is_open
    )


def downgrade() -> None:
    """Drop the index."""
    op.drop_index("ix_sessions_open", "sessions")
