"""Blocks: which turns an operator refuses, and who lifted that; it only adds."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a table."""
    op.create_table(
        "blocks",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("agent", sa.Text()),
        sa.Column("tenant", sa.Text()),
        sa.Column("model", sa.Text()),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("lifted_at", sa.DateTime(timezone=True)),
        sa.Column("lifted_by", sa.Text(), nullable=False),
    )
