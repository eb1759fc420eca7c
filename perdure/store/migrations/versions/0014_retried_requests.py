"""Requests without a key that a retry may join, and the gateways that hold their connections; it only adds.

A gateway of the release before begins a job for each try, as it did.
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add columns with a partial index, and a table."""
    op.add_column("requests", sa.Column("said", sa.Text(), nullable=True))
    op.add_column("requests", sa.Column("tries", sa.Integer(), nullable=True))
    op.add_column("requests", sa.Column("holder", sa.Text(), nullable=True))
    op.add_column("requests", sa.Column("let_go_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("requests", sa.Column("told", sa.Boolean(), nullable=True))
    where = sa.text("said IS NOT NULL")
    op.create_index("ix_requests_said", "requests", ["said", "created_at"], sqlite_where=where, postgresql_where=where)
    op.create_table(
        "gateways",
        sa.Column("gateway", sa.Text(), primary_key=True),
        sa.Column("alive_at", sa.DateTime(timezone=True), nullable=False),
    )
