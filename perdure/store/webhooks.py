"""The webhooks of a store: their addresses, filters and secrets."""

import json
from datetime import UTC, datetime

from sqlalchemy import Connection, Row, bindparam, delete, insert, select, update

from perdure.contracts.webhooks import Webhook, WebhookEvent, WebhookTarget
from perdure.store import schema
from perdure.store.errors import NotFoundError
from perdure.store.sealing import Content

_W, _K = schema.webhooks, schema.session_keys
_SHOWN = (
    select(_W.c.id, _W.c.url, _W.c.events, _W.c.tenant, _W.c.agents, _W.c.session)
    .add_columns(_W.c.paused, _W.c.pause_reason, _W.c.created_at)
    .order_by(_W.c.created_at, _W.c.id)
)
_ACTIVE = _SHOWN.where(_W.c.paused.is_(False))
_ONE = _W.c.id == bindparam("webhook")
_TARGET = select(_W.c.url, _W.c.paused, _W.c.secret, _W.c.old_secret, _W.c.old_until).where(_ONE)


def add_webhook(connection: Connection, webhook: Webhook, secret: str) -> None:
    """Insert a webhook and its secret."""
    connection.execute(
        insert(_W),
        {
            **webhook.model_dump(include={"id", "url", "tenant", "session", "paused", "pause_reason", "created_at"}),
            "events": json.dumps(webhook.events),
            "agents": json.dumps(webhook.agents),
            "secret": Content(key_holder_of(webhook.id), secret),
        },
    )


def webhooks(
    connection: Connection, event: WebhookEvent | None = None, *, tenant: str | None = None
) -> tuple[Webhook, ...]:
    """Webhooks, the oldest first: all, or those of a tenant; with an event, those that are to be told of it now."""
    statement = _SHOWN if event is None else _ACTIVE
    if tenant is not None:
        statement = statement.where(_W.c.tenant == tenant)
    found = (_webhook(row) for row in connection.execute(statement))
    return tuple(webhook for webhook in found if event is None or event in webhook.events)


def webhook_target(connection: Connection, webhook: str) -> WebhookTarget | None:
    """Address and secrets for a delivery; None if there is no such webhook. Nothing else reads the secrets."""
    row = connection.execute(_TARGET, {"webhook": webhook}).one_or_none()
    if row is None:
        return None
    secrets = [row.secret]
    if row.old_secret is not None and row.old_until > datetime.now(UTC):
        secrets.append(row.old_secret)
    return WebhookTarget(url=row.url, secrets=tuple(secrets), paused=row.paused)


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
        paused=row.paused,
        pause_reason=row.pause_reason,
        created_at=row.created_at,
    )
