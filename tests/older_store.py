"""A store as the release before schema 0015 would have written it: with events, and without what they say in rows."""

from sqlalchemy import Connection, Table, delete, text, update

from perdure.store import schema

ADDED: dict[Table, tuple[str, ...]] = {
    schema.sessions: ("caller", "hook_calls", "recorded_seq"),
    schema.turns: ("model", "context_window", "resumed_from", "trace", "prompt", "error"),
    schema.steps: ("model",),
    schema.tool_calls: ("runs", "aborted", "delegate", "delegate_spent"),
}
"""The columns that the migration adds to tables of older releases."""

MADE = (schema.todos, schema.feedback, schema.input_requests, schema.failed_generations, schema.adaptations)
"""The tables that it makes."""


def empty_rows(connection: Connection) -> None:
    """Leave nothing in what the migration has added."""
    for table, names in ADDED.items():
        connection.execute(update(table).values(dict.fromkeys(names)))
    for table in MADE:
        connection.execute(delete(table))


def migrate_back(connection: Connection) -> None:
    """Bring the tables back to schema 0014."""
    for table in MADE:
        connection.execute(text(f"DROP TABLE {table.name}"))
    for index in ("ix_sessions_caller", "ix_tombstones_caller"):
        connection.execute(text(f"DROP INDEX {index}"))
    for name, columns in (*((table.name, names) for table, names in ADDED.items()), ("tombstones", ("caller",))):
        for column in columns:
            connection.execute(text(f"ALTER TABLE {name} DROP COLUMN {column}"))
    where = "WHERE type = 'generation_adapted'"
    connection.execute(text(f"CREATE INDEX ix_events_adapted ON events (session, seq) {where}"))
    connection.execute(text("UPDATE perdure_migrations SET version_num = '0014'"))
