"""Webhooks of one turn, which clients of A2A ask for, with the headers by which the receiver knows the sender.

It only adds. A worker of the release before sends them messages as to every webhook of the session.
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add three columns and an index."""
    op.add_column("webhooks", sa.Column("turn", sa.Integer(), nullable=True))
    op.add_column("webhooks", sa.Column("push", sa.Text(), nullable=True))
    op.add_column("webhooks", sa.Column("headers", sa.Text(), nullable=True))
    op.create_index("ix_webhooks_turn", "webhooks", ["turn", "session"])
