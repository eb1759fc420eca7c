"""Reading a session's event log as it grows: in order, without gaps, over a store that is away for a while."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

from perdure.client.errors import EventsGoneError, RequestRefusedError, SessionErasedError
from perdure.client.patience import call_patiently
from perdure.contracts.deltas import Delta
from perdure.contracts.events import Envelope, Heartbeat, event_type, is_called
from perdure.contracts.values import replace
from perdure.store import Store
from perdure.store.doorbell import Bell
from perdure.store.errors import NotFoundError, StoreUnavailableError
from perdure.store.errors import SessionErasedError as StoreErasedError

SHORTEST = timedelta(milliseconds=10)
"""More often nobody needs to know."""


Shown = TypeVar("Shown", bound=Envelope | Delta)
"""Item that a reader is given: an event, or a delta among them."""

Types = Collection[str]
"""Names of types of events; none are all."""

Every = timedelta | None
"""Time from the last event to a heartbeat; None sends none."""


async def with_heartbeats(
    events: AsyncIterator[Shown], first: Envelope, every: timedelta
) -> AsyncGenerator[Shown | Envelope, None]:
    """The events, and a heartbeat whenever none has come for that long; also while the store is away.

    Args:
        events: The events.
        first: A heartbeat for the time before the first event; later ones have the place of the last event.
        every: The time.
    """
    beat, coming = first, asyncio.ensure_future(anext(events, None))
    try:
        while True:
            done, _ = await asyncio.wait([coming], timeout=every.total_seconds())
            if not done:
                yield replace(beat, at=datetime.now(UTC))
                continue
            envelope = coming.result()
            if envelope is None:
                return
            if isinstance(envelope, Envelope):
                beat = replace(envelope, event=Heartbeat())
            yield envelope
            coming = asyncio.ensure_future(anext(events, None))
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)


PAGE = 500
"""Events read at once."""

SHORTEST_LOOK = timedelta(milliseconds=50)
"""Behind the end of a turn, this long until another look at whether the workflow still runs."""

LOOK = timedelta(seconds=2)
"""After this long without another event, see whether the workflow still runs."""

LONGEST_LOOK = timedelta(seconds=30)
"""Each look without news doubles the time until the next one, up to this: only Temporal knows of turns it has ended."""

Result = TypeVar("Result")


async def from_store(call: Callable[[], Awaitable[Result]]) -> Result:
    """Make a call to the store, and make it again while the store does not answer, for up to a minute."""
    return await call_patiently("the transcript store", StoreUnavailableError, call)


async def filter_events(
    events: AsyncGenerator[Envelope | Delta, None],
    types: Collection[str],
    *,
    heartbeat: Every,
    before: Envelope,
) -> AsyncGenerator[Envelope | Delta, None]:
    """The events of these types, by any of their names, and heartbeats between them.

    Args:
        events: All events; deltas among them are left where they are.
        types: Names of types; none are all.
        heartbeat: After so long without an event comes a heartbeat, whatever the types.
        before: The place of a heartbeat that comes before the first event.
    """
    try:
        for name in types:
            event_type(name)
    except ValueError as error:
        raise RequestRefusedError(str(error)) from None
    some = _filter_types(events, types)
    if heartbeat is not None:
        if heartbeat < SHORTEST:
            least = f"name {SHORTEST.total_seconds():g} s or more"
            raise RequestRefusedError(f"heartbeat: {heartbeat.total_seconds():g} s is too short; {least}")
        some = with_heartbeats(some, before, heartbeat)
    async with aclosing(some):
        async for envelope in some:
            yield envelope


async def _filter_types(
    events: AsyncGenerator[Envelope | Delta, None], types: Collection[str]
) -> AsyncGenerator[Envelope | Delta, None]:
    async with aclosing(events):
        async for item in events:
            if not types or isinstance(item, Delta) or is_called(item.event, types):
                yield item


def heartbeat_at(session: str, turn: int, seq: int) -> Envelope:
    """A heartbeat after that event."""
    return Envelope(seq=seq, session=session, turn=turn, step=0, at=datetime.now(UTC), event=Heartbeat())


class EventReader:
    """One reader's place in the log of one session.

    Attributes:
        after: The sequence number of the last event read.
        known: The number of the last event that stood in the log when the reader first looked.
    """

    def __init__(self, store: Store, session: str, after: int, bell: Bell | None = None) -> None:
        """``bell`` is the session's, which the store gives to followers; who only reads needs none.

        Raises:
            RequestRefusedError: No event can have the number ``after``.
        """
        if after < 0:
            msg = f"after: {after} is no event's number; 0 begins with the first event"
            raise RequestRefusedError(msg)
        self._store = store
        self._session = session
        self._bell = bell or Bell()
        self._rung = 0
        self.after = after
        self.known: int | None = None

    async def begin(self) -> int:
        """Look how far the log has come; the number of its last event."""
        if self.known is None:
            try:
                self.known = (await from_store(lambda: self._store.session(self._session))).last_seq
            except StoreErasedError as error:
                raise SessionErasedError(str(error)) from None
            except NotFoundError:
                self.known = 0
            if self.after > self.known:
                msg = f"session {self._session!r} has {self.known} events, so that nothing can come after {self.after}"
                raise RequestRefusedError(f"{msg}; name the number of one that you have seen")
        return self.known

    async def read(self) -> list[Envelope]:
        """Read what has come since the last read, if anything; what was there at first is marked as replayed.

        Raises:
            RequestRefusedError: The reader's place is after the end of the log.
            EventsGoneError: What comes next was deleted by the retention of the session's agent.
            SessionErasedError: The session was erased.
        """
        known = await self.begin()
        self._rung = self._bell.rung
        events = await from_store(partial(self._store.events, self._session, after=self.after, limit=PAGE))
        if not events or events[0].seq > self.after + 1:
            await self._refuse_gap(events)
        if events:
            self.after = events[-1].seq
            self._tell()
        return [replace(envelope, replayed=True) if envelope.seq <= known else envelope for envelope in events]

    async def skip_swept(self) -> None:
        """Go to the first event that no sweep has deleted."""
        self.after = max(self.after, await from_store(partial(self._store.swept_seq, self._session)))

    async def _refuse_gap(self, events: Sequence[Envelope]) -> None:
        """Refuse to go on where events are missing, which a sweep has deleted."""
        if self.after >= (self.known or 0) and not events:
            return
        swept = await from_store(partial(self._store.swept_seq, self._session))
        if swept > self.after:
            raise EventsGoneError(
                f"events {self.after + 1} to {swept} of session {self._session!r} were deleted by the retention of its "
                f"agent; go on after event {swept}, or read the transcript",
                swept,
            )

    async def skip_to(self, turn: int) -> None:
        """Go to the beginning of a turn without reading the turns before it.

        Args:
            turn: A turn that has been opened. Turns follow one another, so their numbers increase along the log.
        """
        low, high = self.after, await self.begin()
        while high - low > PAGE:
            middle = (low + high) // 2
            found = await from_store(partial(self._store.events, self._session, after=middle, limit=1))
            if found and found[0].turn < turn:
                low = middle + 1
            else:
                high = middle
        self.after = low

    def _tell(self) -> None:
        """Tell the bell how far the log goes, which may be news to others; this reader need not be woken for it."""
        silent = self._bell.rung == self._rung
        self._bell.note(self.after)
        if silent:
            self._rung = self._bell.rung

    async def wait(self, longest: timedelta) -> bool:
        """Wait until something may have been written since the last read began; whether that is so in time."""
        return await self._bell.wait(self._rung, longest)


async def events_of_turns(
    reader: EventReader, first: int, is_open: Callable[[], Awaitable[bool]]
) -> AsyncGenerator[Envelope, None]:
    """The events of turn ``first`` and all after it, until nothing of the session runs or waits for its turn.

    A turn that waits goes on from the one before it without a gap: the workflow is open until the last has ended.
    """
    look, closed = timedelta(0), False
    while True:
        page = await reader.read()
        for envelope in page:
            if envelope.turn >= first:
                yield envelope
        if page:
            closed, look = False, timedelta(0) if page[-1].event.type == "agent_end" else LOOK
        elif closed:  # and nothing was written before it closed
            return
        elif not await reader.wait(look):
            closed, look = not await is_open(), lengthen_look(look)


def lengthen_look(look: timedelta) -> timedelta:
    """Time to wait for events after a look at the workflow, which was after so long without any."""
    return min(max(look * 2, SHORTEST_LOOK), LONGEST_LOOK)
