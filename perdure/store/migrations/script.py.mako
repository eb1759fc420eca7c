"""${message}."""

import sqlalchemy as sa
from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Write the change out: a migration never reads ``perdure.store.schema``, which moves on."""
    ${upgrades if upgrades else "pass"}
