"""Alembic's entry: runs the migrations on the connection, and in the transaction, that the store hands over."""

from alembic import context

from perdure.store.schema import MIGRATIONS_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, version_table=MIGRATIONS_TABLE
)
context.run_migrations()
