"""A step may hold a summary in place of the messages before it; older releases leave the column empty."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("steps", sa.Column("summarised", sa.Integer(), nullable=True))
