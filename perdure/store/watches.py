"""Leases of followers of a session's deltas: followers renew them, and a generation reads them when it begins."""

from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, delete

from perdure.store import schema
from perdure.store.schema import insert_into

LEASE = timedelta(seconds=30)
"""Time that a session counts as followed after the last renewal."""

RENEW_EVERY = timedelta(seconds=10)


def watch(connection: Connection, session: str) -> None:
    """Renew the lease of a session's followers, for ``LEASE``. The session need not exist yet."""
    now = datetime.now(UTC)
    statement = insert_into(connection, schema.watches).values(session=session, until=now + LEASE)
    connection.execute(statement.on_conflict_do_update(index_elements=["session"], set_={"until": now + LEASE}))
    connection.execute(delete(schema.watches).where(schema.watches.c.until < now - LEASE))
