"""The time at which a turn was begun that no worker has opened yet, with its session; it only adds.

A worker of the release before leaves it there: its session counts as running for an hour at most.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column, which claimed sessions have."""
    op.add_column("sessions", sa.Column("begun_at", sa.DateTime(timezone=True), nullable=True))
    op.execute("UPDATE sessions SET begun_at = created_at WHERE turn = 0")
