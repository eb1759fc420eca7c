"""An index of what people were asked and decided: which sessions wait is asked for often."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the index."""
    asked = sa.text("type IN ('user_input_required', 'user_input_received')")
    op.create_index(
        "ix_events_input", "events", ["session", "turn", "type"], sqlite_where=asked, postgresql_where=asked
    )


def downgrade() -> None:
    """Drop the index."""
    op.drop_index("ix_events_input", "events")
