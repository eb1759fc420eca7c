"""Blocks: an operator's refusals of turns. The transaction that claims a turn looks for them.

On PostgreSQL a claim that has looked holds ROW SHARE on the table until it commits, and a block is inserted under
EXCLUSIVE. So a block waits for the claims that have not seen it, and every later claim sees it: it can miss only turns
that are open once it is committed. Neither lock blocks readers or backups. SQLite has one writer at a time anyway.
"""

from collections.abc import Collection
from datetime import UTC, datetime

from sqlalchemy import Connection, Row, bindparam, func, insert, select, true, update

from perdure.contracts.agents import AgentDefinition
from perdure.contracts.blocks import Block
from perdure.store import schema
from perdure.store.errors import NotFoundError, TurnBlockedError
from perdure.store.records import MeantTurn

_B, _S, _T, _D = schema.blocks, schema.sessions, schema.turns, schema.definitions
_IN_FORCE = _B.c.lifted_at.is_(None)
_OLDEST = (
    select(_B)
    .where(
        _IN_FORCE,
        _B.c.agent.is_(None) | (_B.c.agent == bindparam("agent")),
        _B.c.tenant.is_(None) | _B.c.tenant.in_(bindparam("tenants", expanding=True)),
        _B.c.model.is_(None) | _B.c.model.in_(bindparam("models", expanding=True)),
    )
    .order_by(_B.c.created_at, _B.c.id)
    .limit(1)
    .with_for_update(key_share=True)
    .subquery()
)
_MET = select(schema.identity.c.id.label("store"), _OLDEST).select_from(schema.identity.outerjoin(_OLDEST, true()))
"""The store's id, and the oldest block that fits a turn, if there is one."""


def require_unblocked(connection: Connection, definition: AgentDefinition, tenants: Collection[str]) -> str:
    """Refuse a turn that a block fits; returns the store's id, which the same statement reads.

    Raises:
        TurnBlockedError: A block fits; the message names the oldest.
    """
    asked = {"agent": definition.name, "tenants": [*tenants], "models": [*definition.models]}
    row = connection.execute(_MET, asked).one()
    if row.id is not None:
        raise TurnBlockedError(_block(row).describe())
    return str(row.store)


def add_block(connection: Connection, block: Block) -> Block:
    """Insert a block and return it; if one with the same filters is in force, return that one instead."""
    if connection.dialect.name != "sqlite":
        connection.exec_driver_sql("LOCK TABLE blocks IN EXCLUSIVE MODE")
    same = [_B.c[name].is_not_distinct_from(getattr(block, name)) for name in ("agent", "tenant", "model")]
    known = connection.execute(select(_B).where(_IN_FORCE, *same).order_by(_B.c.created_at)).first()
    if known is not None:
        return _block(known)
    connection.execute(insert(_B), block.model_dump())
    return block


def count_blocks(connection: Connection, tenant: str) -> int:
    """Number of the tenant's blocks in force."""
    return connection.execute(select(func.count()).where(_IN_FORCE, _B.c.tenant == tenant)).scalar_one()


def lift_block(connection: Connection, block: str, *, by: str, tenant: str | None = None) -> bool:
    """Lift a block; False if it was lifted before. With a tenant only that tenant's blocks are found.

    Raises:
        NotFoundError: There is no such block.
    """
    mine = (_B.c.id == block, *([] if tenant is None else [_B.c.tenant == tenant]))
    if connection.execute(select(_B.c.id).where(*mine)).one_or_none() is None:
        msg = f"there is no block {block!r}"
        raise NotFoundError(msg)
    lifted = update(_B).where(*mine, _IN_FORCE).values(lifted_at=datetime.now(UTC), lifted_by=by)
    return connection.execute(lifted).rowcount > 0


def blocks(connection: Connection, *, lifted: bool = False, tenant: str | None = None) -> tuple[Block, ...]:
    """The blocks in force, the oldest first; with ``lifted`` also those that were lifted."""
    statement = select(_B).order_by(_B.c.created_at, _B.c.id)
    if not lifted:
        statement = statement.where(_IN_FORCE)
    if tenant is not None:
        statement = statement.where(_B.c.tenant == tenant)
    return tuple(map(_block, connection.execute(statement)))


def find_block(
    connection: Connection, tenant: str, session: str, agent: str | None = None, model: str | None = None
) -> Block | None:
    """The block that would refuse a turn, as far as is known before it starts; the turn's claim looks again.

    Without ``agent``, the agent of the session's last turn counts; ``model`` overrides the agent's own.
    """
    concerned = select(_B).where(_IN_FORCE, _B.c.tenant.is_(None) | (_B.c.tenant == tenant))
    found = [_block(row) for row in connection.execute(concerned.order_by(_B.c.created_at, _B.c.id))]
    if not found:
        return None
    last = select(_T.c.agent.label("name"), _T.c.definition).where(_T.c.session == session).order_by(_T.c.turn.desc())
    row = connection.execute(last.limit(1)).one_or_none()
    if agent is not None and (row is None or row.name != agent):
        registered = select(schema.agents.c.name, schema.agents.c.definition).where(schema.agents.c.name == agent)
        row = connection.execute(registered).one_or_none()
    models = () if row is None else _models(connection, [row.definition]).get(row.definition, ())
    name = agent or (row.name if row is not None else "")
    meant = {*models[1:], model} if model is not None else {*models}
    return next((block for block in found if block.fits(name, (tenant,), meant)), None)


def blocked_turns(connection: Connection, block: Block) -> tuple[MeantTurn, ...]:
    """The open turns that a block fits, as far as the store knows."""
    is_open = (_S.c.session == _T.c.session) & (_S.c.open_turn == _T.c.turn)
    statement = select(_T.c.session, _T.c.turn, _T.c.agent, _T.c.definition).join_from(_S, _T, is_open)
    statement = statement.where(schema.IS_OPEN).order_by(_T.c.started_at, _T.c.session)
    if block.agent is not None:
        statement = statement.where(_T.c.agent == block.agent)
    if block.tenant is not None:
        statement = statement.where(_S.c.tenant == block.tenant)
    rows = connection.execute(statement).all()
    if block.model is not None:
        models = _models(connection, {row.definition for row in rows})
        rows = [row for row in rows if block.model in models.get(row.definition, ())]
    return tuple(MeantTurn(session=row.session, turn=row.turn, agent=row.agent) for row in rows)


def blocked_agents(connection: Connection, block: Block) -> tuple[str, ...]:
    """Names of the registered agents whose turns a block refuses."""
    rows = connection.execute(select(schema.agents.c.name, schema.agents.c.definition).order_by("name")).all()
    models = _models(connection, {row.definition for row in rows}) if block.model is not None else {}
    tenants = () if block.tenant is None else (block.tenant,)
    return tuple(row.name for row in rows if block.fits(row.name, tenants, models.get(row.definition, ())))


_AT_ONCE = 500
"""Definitions that one statement reads at most."""


def _models(connection: Connection, digests: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The models of definitions, by their hashes."""
    names, found = sorted(digests), dict[str, tuple[str, ...]]()
    for place in range(0, len(names), _AT_ONCE):
        chosen = select(_D.c.hash, _D.c.body).where(_D.c.hash.in_(names[place : place + _AT_ONCE]))
        for row in connection.execute(chosen):
            found[row.hash] = AgentDefinition.model_validate_json(row.body).models
    return found


def _block(row: Row[*tuple[object, ...]]) -> Block:
    return Block.model_validate(row, from_attributes=True)
