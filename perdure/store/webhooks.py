"""The webhooks of a store: their addresses, filters and secrets."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime

from sqlalchemy import Connection, Row, bindparam, delete, func, insert, select, update

from perdure.contracts.webhooks import PushConfig, Webhook, WebhookEvent, WebhookTarget
from perdure.store import schema
from perdure.store.errors import NotFoundError
from perdure.store.keys.sealing import Content

_W, _K, _S = schema.webhooks, schema.session_keys, schema.sessions
_SHOWN = (
    select(_W.c.id, _W.c.url, _W.c.events, _W.c.tenant, _W.c.agents, _W.c.session)
    .add_columns(_W.c.turn, _W.c.push, _W.c.paused, _W.c.pause_reason, _W.c.created_at)
    .order_by(_W.c.created_at, _W.c.id)
)
_ACTIVE = _SHOWN.where(_W.c.paused.is_(False))
_ONE = _W.c.id == bindparam("webhook")
_TARGET = select(_W.c.url, _W.c.tenant, _W.c.paused, _W.c.headers, _W.c.secret, _W.c.old_secret, _W.c.old_until).where(
    _ONE
)


_AS_THEY_ARE = {"id", "url", "tenant", "session", "turn", "paused", "pause_reason", "created_at"}


def add_webhook(
    connection: Connection, webhook: Webhook, secret: str, headers: Mapping[str, str] | None = None
) -> None:
    """Insert a webhook, its secret, and the headers that each of its messages has."""
    connection.execute(
        insert(_W),
        {
            **webhook.model_dump(include=_AS_THEY_ARE),
            "push": None if webhook.push is None else webhook.push.model_dump_json(),
            "headers": Content(key_holder_of(webhook.id), json.dumps(dict(headers))) if headers else None,
            "events": json.dumps(webhook.events),
            "agents": json.dumps(webhook.agents),
            "secret": Content(key_holder_of(webhook.id), secret),
        },
    )


def webhooks(
    connection: Connection,
    event: WebhookEvent | None = None,
    *,
    tenant: str | None = None,
    turn: tuple[str, int] | None = None,
    one: str | None = None,
) -> tuple[Webhook, ...]:
    """Webhooks, the oldest first: those of no single turn; with an event, those that are to be told of it now.

    Args:
        connection: The transaction.
        event: Only those that get it and are not paused.
        tenant: Only those of this tenant.
        turn: A session and the number of its turn, whose own webhooks are there too; with an event, only its tenant's.
        one: Only the one of this id, also if it is a turn's.
    """
    statement = _SHOWN if event is None else _ACTIVE
    if one is not None:
        statement = statement.where(_W.c.id == one)
    elif turn is None:
        statement = statement.where(_W.c.turn.is_(None))
    else:
        session, number = turn
        statement = statement.where(_W.c.turn.is_(None) | ((_W.c.turn == number) & (_W.c.session == session)))
    if event is not None and turn is not None:
        statement = statement.where(_W.c.tenant == select(_S.c.tenant).where(_S.c.session == turn[0]).scalar_subquery())
    if tenant is not None:
        statement = statement.where(_W.c.tenant == tenant)
    found = (_webhook(row) for row in connection.execute(statement))
    return tuple(webhook for webhook in found if event is None or event in webhook.events)


def count_webhooks(connection: Connection, tenant: str) -> int:
    """Number of the tenant's webhooks, without those of single turns."""
    counted = select(func.count()).where(_W.c.turn.is_(None), _W.c.tenant == tenant)
    return connection.execute(counted).scalar_one()


def count_pushes(connection: Connection, tenant: str) -> int:
    """Number of the webhooks of single turns of the tenant that are open."""
    of_open = (_W.c.turn == _S.c.open_turn) & (_W.c.session == _S.c.session)
    counted = select(func.count()).select_from(_S.join(_W, of_open)).where(_S.c.tenant == tenant)
    return connection.execute(counted).scalar_one()


def webhook_target(connection: Connection, webhook: str) -> WebhookTarget | None:
    """Address and secrets for a delivery; None if there is no such webhook. Nothing else reads the secrets."""
    row = connection.execute(_TARGET, {"webhook": webhook}).one_or_none()
    if row is None:
        return None
    secrets = [row.secret]
    if row.old_secret is not None and row.old_until > datetime.now(UTC):
        secrets.append(row.old_secret)
    headers: dict[str, str] = {} if row.headers is None else json.loads(row.headers)
    return WebhookTarget(url=row.url, tenant=row.tenant, secrets=tuple(secrets), headers=headers, paused=row.paused)


def pause_webhook(connection: Connection, webhook: str, *, paused: bool, reason: str = "") -> Webhook:
    """Pause a webhook, or have it told again of what happens from now on.

    Raises:
        NotFoundError: There is no such webhook.
    """
    connection.execute(update(_W).where(_ONE).values(paused=paused, pause_reason=reason), {"webhook": webhook})
    return _find(connection, webhook)


def exchange_secret(connection: Connection, webhook: str, secret: str, until: datetime) -> Webhook:
    """Sign with a new secret, and until a time with the old one too.

    Raises:
        NotFoundError: There is no such webhook.
    """
    sealed = Content(key_holder_of(webhook), secret)
    changed = update(_W).where(_ONE).values(old_secret=_W.c.secret, old_until=until, secret=sealed)
    connection.execute(changed, {"webhook": webhook})
    return _find(connection, webhook)


def remove_webhook(connection: Connection, webhook: str) -> None:
    """Delete a webhook and its secrets.

    Raises:
        NotFoundError: There is no such webhook.
    """
    _find(connection, webhook)
    connection.execute(delete(_W).where(_ONE), {"webhook": webhook})
    connection.execute(delete(_K).where(_K.c.session == key_holder_of(webhook)))


def key_holder_of(webhook: str) -> str:
    """The name of a webhook's key among the keys of sessions. No session id looks like it."""
    return f"webhook/{webhook}"


def _find(connection: Connection, webhook: str) -> Webhook:
    row = connection.execute(_SHOWN.where(_ONE), {"webhook": webhook}).one_or_none()
    if row is None:
        msg = f"there is no webhook {webhook!r}"
        raise NotFoundError(msg)
    return _webhook(row)


def _webhook(row: Row[*tuple[object, ...]]) -> Webhook:
    return Webhook(
        id=row.id,
        url=row.url,
        events=tuple(json.loads(row.events)),
        tenant=row.tenant,
        agents=tuple(json.loads(row.agents)),
        session=row.session,
        turn=row.turn,
        push=None if row.push is None else PushConfig.model_validate_json(row.push),
        paused=row.paused,
        pause_reason=row.pause_reason,
        created_at=row.created_at,
    )
