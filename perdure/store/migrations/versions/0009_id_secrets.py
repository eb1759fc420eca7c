"""Secrets that ids are derived with: one of the store, and one of each turn from now on; it only adds.

What has an id keeps it: turns that are open have no seed, and their delegates have the ids of earlier releases.
"""

import secrets
from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a table with a first secret, and a column."""
    table = op.create_table(
        "id_secrets",
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.bulk_insert(table, [{"number": 1, "secret": secrets.token_hex(32), "created_at": datetime.now(UTC)}])
    op.add_column("turns", sa.Column("seed", sa.Text(), nullable=True))
