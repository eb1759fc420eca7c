"""Requests that come without a key, and that a client sends again by itself when its connection has ended.

The connection of each is held by a gateway, which says from time to time that it runs. Once the connection has ended,
or its gateway has not been heard of, a retry of the same caller with the same body joins the job. Somebody whose
connection stands keeps it: two people who say the same have two jobs. A try that is not counted, or counted as the
first, joins only what a gateway that stopped has told to come again, or, not counted, what its operator allows.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection, Row, delete, select, update

from perdure.contracts.values import Value
from perdure.store import schema
from perdure.store.rows import insert_into

LATELY = timedelta(minutes=2)
"""Time after the end of its connection in which a request can be joined: clients try again within seconds."""

SILENT = timedelta(seconds=10)
"""A gateway that was not heard of for so long has ended, and with it its connections."""

LONGEST = timedelta(hours=24)
"""Oldest request that can be joined."""

MOST = 50
"""Requests that are looked at: the newest of those that say the same."""

REFUSED = "refused"
"""In place of the digest of a request of which nothing came."""

_R, _G = schema.requests.c, schema.gateways.c


class Try(Value):
    """A try of a request that has no key of its caller's.

    Attributes:
        said: Digest of who asks for what.
        number: Tries before this one, as the client counts them; None if it does not.
        holder: The gateway that holds its connection.
        within: Time after the end of a connection in which a try that is not counted may join.
    """

    said: str
    number: int | None
    holder: str
    within: timedelta = timedelta(0)


class Joined(Value):
    """The job that a try joins; without a key there is none yet, but one whose connection stands."""

    key: str = ""


def join(connection: Connection, one: Try, now: datetime | None = None) -> Joined | None:
    """Join a job that nobody waits for, as its next try; of several that join one, one succeeds. None without any."""
    at = now or datetime.now(UTC)
    lately = at - (LATELY if one.number is not None else one.within)
    fewer = _R.tries < one.number if one.number is not None else _R.said == one.said
    rows = connection.execute(
        select(_R.tenant, _R.key, _R.digest, _R.tries, _R.holder, _R.let_go_at, _R.told, _G.alive_at)
        .select_from(schema.requests.outerjoin(schema.gateways, _R.holder == _G.gateway))
        .where(_R.said == one.said, _R.created_at > at - LONGEST, fewer)
        .order_by(_R.created_at.desc())
        .limit(MOST)
    ).all()
    stands = False
    for row in sorted(rows, key=lambda row: row.digest != REFUSED):
        ended_at = row.let_go_at if row.holder is None else row.alive_at
        if row.holder is not None and ended_at is not None and ended_at > at - SILENT:
            stands = True
        elif ended_at is not None and ended_at > (at - LATELY if row.told else lately) and _take(connection, one, row):
            return None if row.digest == REFUSED else Joined(key=row.key)
    return Joined() if stands and (one.number is not None or one.within) else None


def _take(connection: Connection, one: Try, row: Row[*tuple[Any, ...]]) -> bool:
    is_still = (
        (_R.tenant == row.tenant)
        & (_R.key == row.key)
        & (_R.tries == row.tries)
        & _R.holder.is_not_distinct_from(row.holder)
    )
    number = row.tries + 1 if one.number is None else one.number
    if row.digest == REFUSED:
        return connection.execute(delete(schema.requests).where(is_still).returning(_R.key)).one_or_none() is not None
    taken = (
        update(schema.requests)
        .where(is_still)
        .values(holder=one.holder, let_go_at=None, told=None, tries=number)
        .returning(_R.key)
    )
    return connection.execute(taken).one_or_none() is not None


def note_refused(connection: Connection, key: str) -> None:
    """Note that a request with a key of ours was refused: its retry begins a job, and joins nobody else's."""
    ours = (_R.key == key) & _R.said.is_not(None) & _R.answer.is_(None)
    connection.execute(
        update(schema.requests).where(ours).values(digest=REFUSED, holder=None, let_go_at=datetime.now(UTC))
    )


def note_alive(connection: Connection, gateway: str, ended: Mapping[str, bool] = MappingProxyType({})) -> None:
    """Note that a gateway runs, and which requests' connections have ended: their keys, and whether each was told."""
    now = datetime.now(UTC)
    statement = insert_into(connection, schema.gateways)
    alive = statement.on_conflict_do_update(index_elements=["gateway"], set_={"alive_at": now})
    connection.execute(alive, {"gateway": gateway, "alive_at": now})
    for told in {*ended.values()}:
        of_ours = (_R.key.in_([key for key, is_told in ended.items() if is_told is told])) & (_R.holder == gateway)
        connection.execute(update(schema.requests).where(of_ours).values(holder=None, let_go_at=now, told=told))
