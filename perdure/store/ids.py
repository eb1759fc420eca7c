"""Ids that the store signs, so that nobody outside can know or make one; see :mod:`perdure.contracts.ids`."""

import hashlib
import hmac
import json
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection, bindparam, insert, select

from perdure.contracts.ids import MARK, Signed, parts_of
from perdure.store import schema

_SECRETS = select(schema.id_secrets.c.secret).order_by(schema.id_secrets.c.number.desc())
_NEWEST = select(schema.id_secrets.c.number).order_by(schema.id_secrets.c.number.desc()).limit(1)
_KNOWN = select(schema.sessions.c.session).where(schema.sessions.c.session.in_(bindparam("ids", expanding=True)))
_DIGITS = 16


def sign_id(connection: Connection, kind: Signed, tenant: str, stem: str, parts: Sequence[str] = ()) -> str:
    """The signed id of what a tenant's parts stand for: the same for the same parts, and another for each tenant.

    After a rotation the id that an older secret gave stays, if a session has it.
    """
    newest, *older = sign_ids(connection, kind, tenant, stem, parts)
    known = set(connection.scalars(_KNOWN, {"ids": older})) if older else set[str]()
    return next((made for made in older if made in known), newest)


def sign_ids(
    connection: Connection, kind: Signed, tenant: str, stem: str, parts: Sequence[str] = ()
) -> tuple[str, ...]:
    """The signed id by each secret of the store, the newest first: what is known to Temporal alone may have any."""
    signed: list[str] = []
    for secret in connection.scalars(_SECRETS):
        head = f"{stem}{MARK}{kind}{_mac(secret, kind, tenant, stem, *parts)}"
        signed.append(f"{head}{_check(secret, tenant, head)}")
    return tuple(signed)


def is_signed(connection: Connection, tenant: str, session: str) -> bool:
    """Whether the store has signed the id, for this tenant."""
    signed = parts_of(session)
    if signed is None:
        return False
    checks = (_check(secret, tenant, signed.head) for secret in connection.scalars(_SECRETS))
    return any(hmac.compare_digest(check, signed.check) for check in checks)


def rotate_id_secret(connection: Connection) -> int:
    """Sign with a new secret from now on; returns its number. Ids that older ones have signed stay valid."""
    number = int(connection.execute(_NEWEST).scalar_one()) + 1
    row = {"number": number, "secret": secrets.token_hex(32), "created_at": datetime.now(UTC)}
    connection.execute(insert(schema.id_secrets), row)
    return number


def new_seed() -> str:
    """A secret for a new turn."""
    return secrets.token_hex(16)


def _check(secret: str, tenant: str, head: str) -> str:
    return _mac(secret, "check", tenant, head)


def _mac(secret: str, *parts: str) -> str:
    return hmac.digest(bytes.fromhex(secret), json.dumps(parts).encode(), hashlib.sha256).hex()[:_DIGITS]
