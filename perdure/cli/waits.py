"""What running turns wait for, for the verbs that show turns: asked of Temporal, and never in the way of the verb."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import click

from perdure.cli.render import clean
from perdure.client import Cause, Client, ClientError, TurnWait
from perdure.client.connect import connect
from perdure.client.runs import Runs
from perdure.client.waits import Waits

MOST = 20
"""Running turns of a page that the server is asked about."""

PATIENCE = timedelta(seconds=5)
"""How long a verb waits for what the server says of them."""

SLOWEST = 10
"""Turns a second that a slow server still says something of."""

LOOK = timedelta(seconds=2.5)
"""Between two looks at a turn that is followed; it stands still if no event came between two of them."""

AGAIN = timedelta(seconds=30)
"""A wait that goes on is told again after so long, with its new times."""


async def waits_of(sessions: Sequence[str]) -> dict[str, TurnWait]:
    """Why these turns stand still, as far as the server says so in time.

    Raises:
        ClientError: The server does not answer.
    """
    if not sessions:
        return {}
    waits = Waits(Runs(await connect()))
    try:
        async with asyncio.timeout(max(PATIENCE.total_seconds(), len(sessions) / SLOWEST)):
            return await waits.of_several(sessions)
    except TimeoutError:
        return {}


async def known_waits(sessions: Sequence[str]) -> dict[str, TurnWait]:
    """The same of at most 20 turns; a server that cannot be asked is a line on stderr."""
    try:
        return await waits_of(sessions[:MOST])
    except ClientError as error:
        click.echo(clean(f"perdure: what running turns wait for is not known: {error}"), err=True)
        return {}


class Watch:
    """Says why a turn that is followed stands still, when it does."""

    def __init__(self, client: Client, session: str, *, as_json: bool) -> None:
        """As JSON only what somebody has to act on is told."""
        self._client = client
        self._session = session
        self._as_json = as_json
        self._seen: int | None = -1
        self._told: tuple[str, datetime] | None = None

    async def look(self, after: int | None) -> str | None:
        """What is to be told now; ``after`` is the number of the last event that was printed."""
        is_quiet, self._seen = after == self._seen, after
        if not is_quiet:
            self._told = None
            return None
        wait = (await self._client.waits([self._session])).get(self._session)
        now = datetime.now(UTC)
        if wait is None or (wait.cause is Cause.PERSON and wait.session == self._session):  # who follows is asked
            return None
        if self._as_json and not wait.is_stuck:
            return None
        if self._told is not None and self._told[0] == wait.text and now - self._told[1] < AGAIN:
            return None
        self._told = wait.text, now
        return wait.sentence(now)
