"""Key store: where the keys of sessions stand, if not here; it only adds."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column."""
    op.add_column("identity", sa.Column("key_store", sa.Text(), nullable=True))
