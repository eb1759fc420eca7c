"""The agents that workers have loaded, and the frozen definitions of turns, by their hashes."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection, bindparam, select

from perdure.contracts.agents import AgentDefinition
from perdure.store import schema
from perdure.store.errors import NotFoundError
from perdure.store.records import RegisteredAgent
from perdure.store.rows import insert_into, upsert

_DEFINITION = select(schema.definitions.c.body).where(schema.definitions.c.hash == bindparam("hash"))
_DIGESTS = (
    select(schema.definitions.c.name, schema.definitions.c.hash)
    .join(schema.agents, schema.agents.c.name == schema.definitions.c.name)
    .order_by(schema.definitions.c.created_at.desc(), schema.definitions.c.hash)
)
_AGENTS = select(schema.agents).order_by(schema.agents.c.name)


def register_agents(connection: Connection, definitions: Sequence[AgentDefinition]) -> None:
    """Register the agents that a worker has loaded."""
    if not definitions:
        return
    now = datetime.now(UTC)
    # Sorted, or two workers that start at once could deadlock.
    ordered = sorted(definitions, key=lambda definition: definition.name)
    insert_definitions(connection, sorted(definitions, key=AgentDefinition.digest), now)
    rows = [
        {
            "name": definition.name,
            "definition": definition.digest(),
            "model": definition.model,
            "description": definition.description,
            "tools": json.dumps([tool.name for tool in definition.tools]),
            "seen_at": now,
        }
        for definition in ordered
    ]
    upsert(connection, schema.agents, rows)


def insert_definitions(connection: Connection, definitions: Sequence[AgentDefinition], now: datetime) -> None:
    """Insert definitions under their hashes; existing ones stay."""
    rows = [
        {"hash": definition.digest(), "name": definition.name, "body": definition.canonical(), "created_at": now}
        for definition in definitions
    ]
    connection.execute(insert_into(connection, schema.definitions).on_conflict_do_nothing(), rows)


def agents(connection: Connection) -> tuple[RegisteredAgent, ...]:
    """The agents that workers have loaded, by name."""
    return tuple(
        RegisteredAgent(
            name=row.name,
            model=row.model,
            description=row.description,
            tools=tuple(json.loads(row.tools)),
            definition=row.definition,
            seen_at=row.seen_at,
        )
        for row in connection.execute(_AGENTS)
    )


def digests_by_name(connection: Connection) -> Mapping[str, Sequence[str]]:
    """The digests of all kept definitions with the name of an agent that a worker has loaded, the newest first."""
    found: dict[str, list[str]] = {}
    for name, digest in connection.execute(_DIGESTS):
        found.setdefault(name, []).append(digest)
    return found


def definition(connection: Connection, digest: str) -> AgentDefinition:
    """The frozen definition with this hash.

    Raises:
        NotFoundError: No turn was opened with it, and no worker has loaded it.
    """
    body = connection.scalar(_DEFINITION, {"hash": digest})
    if body is None:
        msg = f"there is no agent definition {digest!r}"
        raise NotFoundError(msg)
    return AgentDefinition.model_validate_json(body)
