"""An index of what the providers of a session have refused, which a worker looks up once for each session.

It only adds. A worker of the release before neither writes such events nor looks for them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a partial index."""
    where = sa.text("type = 'generation_adapted'")
    op.create_index("ix_events_adapted", "events", ["session", "seq"], sqlite_where=where, postgresql_where=where)
