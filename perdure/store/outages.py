"""Whether a database takes what a turn writes, and what helps against one that refuses, by what it says.

A refused connection has no code, as PostgreSQL's client keeps none, so texts are looked for too.
"""

import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NoReturn

from sqlalchemy import Connection, insert

from perdure.store.errors import RefusalCause
from perdure.store.schema import definitions

_BODY_BYTES = 65_536
"""More than the free space of a page, so that the table has to grow, which a full disk refuses."""


@dataclass(frozen=True)
class Outage:
    """One kind of refusal: its cause as a word, its SQLSTATEs, the words of the database, and the fix."""

    cause: RefusalCause
    states: frozenset[str]
    words: re.Pattern[str]
    fix: str


def _outage(cause: RefusalCause, states: str, words: str, fix: str) -> Outage:
    return Outage(cause, frozenset(states.split()), re.compile(words, re.IGNORECASE), fix)


_OUTAGES = (
    _outage(
        RefusalCause.FULL,
        "53100",
        r"no space left on device|database or disk is full",
        "its disk is full: free or add space there; turns wait meanwhile, and go on by themselves",
    ),
    _outage(
        RefusalCause.READ_ONLY,
        "25006",
        r"read-only transaction",
        "it takes no writes: use the address of the primary, or, if this is the primary, turn off "
        "default_transaction_read_only of the server, the database or the role",
    ),
    _outage(
        RefusalCause.READ_ONLY,
        "",
        r"attempt to write a readonly database",
        "make the file and its folder writable for this user",
    ),
    _outage(
        RefusalCause.CONNECTIONS,
        "53300",
        r"too many (clients|connections)|remaining connection slots|no more connections allowed",
        "it is out of connections: end idle ones (pg_stat_activity lists them), raise max_connections or the limit of "
        "the role or database, or put PgBouncer before it",
    ),
    _outage(
        RefusalCause.STARTING,
        "57P03",
        r"the database system is (starting up|shutting down|in recovery mode|not (yet )?accepting connections)",
        "wait, and if it lasts, look at the log of PostgreSQL",
    ),
)


_UNKNOWN = _outage(RefusalCause.OTHER, "", "", "")


def find_outage(sqlstate: str | None, text: str) -> Outage:
    """The kind of a refusal with this code or text; without a fix if perdure knows nothing better than to look."""
    return next(
        (outage for outage in _OUTAGES if sqlstate in outage.states or outage.words.search(text)),
        _UNKNOWN,
    )


class UndoneError(Exception):
    """Ends a transaction without a commit."""


def write_and_undo(connection: Connection) -> NoReturn:
    """Write a row and take it back.

    Raises:
        UndoneError: The database took it.
    """
    name = f"probe {secrets.token_hex(8)}"
    body = secrets.token_hex(_BODY_BYTES // 2)
    connection.execute(insert(definitions).values(hash=name, name=name, body=body, created_at=datetime.now(UTC)))
    raise UndoneError
