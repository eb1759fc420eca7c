"""The store's own id: a worker that looks at another store leaves a turn to those that look at this one."""

import uuid

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table, and give this store its id."""
    identity = op.create_table("identity", sa.Column("id", sa.Text(), primary_key=True))
    op.bulk_insert(identity, [{"id": uuid.uuid4().hex}])


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("identity")
