"""Latest refusals by providers: each worker notes its own, and reads those of the others."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, bindparam, delete, select

from perdure.store import schema
from perdure.store.rows import upsert

FRESH = timedelta(seconds=10)
"""Age up to which other workers read a refusal that asked for no wait."""

KEPT = timedelta(hours=1)

_R = schema.refusals
_OTHERS = select(_R).where(
    _R.c.worker != bindparam("worker"),
    (_R.c.closed_until > bindparam("now")) | (_R.c.at > bindparam("fresh")),
)


@dataclass(frozen=True)
class Refusal:
    """A provider's refusal of a worker's calls with a key.

    Attributes:
        key: Digest of provider, address and key.
        worker: The worker that was refused.
        at: Time of the refusal, by that worker's clock.
        closed_until: Time until which the provider asked to wait; ``at`` if it asked for no wait.
        rate: The worker's pace since then, in calls per second.
    """

    key: str
    worker: str
    at: datetime
    closed_until: datetime
    rate: float


def note_refusal(connection: Connection, refusal: Refusal) -> None:
    """Note a refusal in place of the worker's last one with the key, and delete old ones."""
    upsert(connection, _R, [asdict(refusal)])
    connection.execute(delete(_R).where(_R.c.closed_until < refusal.at - KEPT, _R.c.at < refusal.at - KEPT))


def read_refusals(connection: Connection, worker: str) -> Sequence[Refusal]:
    """The refusals of other workers that still count: young ones, and those whose wait is not over."""
    now = datetime.now(UTC)
    found = connection.execute(_OTHERS, {"worker": worker, "now": now, "fresh": now - FRESH})
    return [Refusal(row.key, row.worker, row.at, row.closed_until, row.rate) for row in found]
