"""Reading a session's event log as it grows: in order, without gaps, over a store that is away for a while."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import TypeVar

from perdure.client.patience import STORE, patiently
from perdure.contracts.events import Envelope
from perdure.store import Store
from perdure.store.errors import StoreUnavailableError

SHORTEST_PAUSE = timedelta(milliseconds=50)
LONGEST_PAUSE = timedelta(milliseconds=500)
PAGE = 500
"""Events read at once."""

Result = TypeVar("Result")


async def from_store(call: Callable[[], Awaitable[Result]]) -> Result:
    """Make a call to the store, and make it again while the store does not answer, for up to a minute."""
    return await patiently(STORE, StoreUnavailableError, call)


class EventReader:
    """One reader's place in the log of one session.

    Attributes:
        after: The sequence number of the last event read.
        quiet: How long nothing new has come.
    """

    def __init__(self, store: Store, session: str, after: int) -> None:
        self._store = store
        self._session = session
        self._pause = SHORTEST_PAUSE
        self.after = after
        self.quiet = timedelta(0)

    async def read(self) -> list[Envelope]:
        """What has come since the last read; nothing if nothing has."""
        events = await from_store(partial(self._store.events, self._session, after=self.after, limit=PAGE))
        if events:
            self.after = events[-1].seq
            self._pause, self.quiet = SHORTEST_PAUSE, timedelta(0)
        return list(events)

    async def skip_to(self, turn: int, last: int) -> None:
        """Go to the beginning of a turn without reading the turns before it.

        Args:
            turn: A turn that has been opened. Turns follow one another, so their numbers increase along the log.
            last: The number of the last event, or of any event after the beginning of the turn.
        """
        low, high = self.after, last
        while high - low > PAGE:
            middle = (low + high) // 2
            found = await from_store(partial(self._store.events, self._session, after=middle, limit=1))
            if found and found[0].turn < turn:
                low = middle + 1
            else:
                high = middle
        self.after = low

    async def wait(self) -> None:
        """Wait a moment; the longer nothing comes, the longer the moment."""
        await asyncio.sleep(self._pause.total_seconds())
        self.quiet += self._pause
        self._pause = min(self._pause * 1.5, LONGEST_PAUSE)
