"""Waits of running turns, for the verbs that show turns: asked of Temporal, and never in the way of the verb."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import click

from perdure.cli.render import clean
from perdure.client import Cause, Client, ClientError, TurnWait
from perdure.client.causes import NEEDS_A_WORKER
from perdure.client.views import Views

LOOK = timedelta(seconds=2.5)
"""Between two looks at a turn that is followed; it stands still if no event came between two of them."""

AGAIN = timedelta(seconds=30)
"""A wait that goes on is told again after so long, with its new times, then after twice as long, and so on."""

RAREST = timedelta(hours=1)
"""But at least so often."""


async def read_known_waits(views: Views, sessions: Sequence[str]) -> dict[str, TurnWait]:
    """Waits of these turns, as far as they can be known; a server that cannot be asked is a line on stderr."""
    try:
        return await views.waits_in_time(sessions)
    except ClientError as error:
        click.echo(clean(f"perdure: what running turns wait for is not known: {error}"), err=True)
        return {}


class Watch:
    """Says why a turn that is followed stands still, when it does."""

    def __init__(self, client: Client, session: str, *, as_json: bool, live: bool) -> None:
        """As JSON, and where live rows tell it too, only what somebody has to act on is told."""
        self._client = client
        self._session = session
        self._only_stuck = as_json or live
        self._live = live
        self._seen: int | None = -1
        self._told: tuple[object, datetime, timedelta] | None = None

    async def look(self, after: int | None) -> TurnWait | None:
        """Reason the turn stands still now; ``after`` is the number of the last event that was printed."""
        is_quiet, self._seen = after == self._seen, after
        if not is_quiet:
            self._told = None
            return None
        wait = (await self._client.waits([self._session])).get(self._session)
        if wait is None or wait.cause is not Cause.PERSON or wait.session != self._session:
            return wait
        return wait if wait.text == NEEDS_A_WORKER else None  # who follows is asked

    def tell(self, wait: TurnWait) -> str | None:
        """Text to print of a wait now: the same wait more and more rarely, and but once where live rows stay."""
        if self._only_stuck and not wait.is_stuck:
            return None
        now, what = datetime.now(UTC), (wait.cause, wait.session, "" if wait.cause is Cause.PACE else wait.text)
        again = AGAIN
        if self._told is not None and self._told[0] == what:
            _, told_at, again = self._told
            if self._live or now - told_at < again:
                return None
            again = min(2 * again, RAREST)
        self._told = what, now, again
        return wait.sentence(now)
