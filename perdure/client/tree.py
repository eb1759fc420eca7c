"""A session and its delegates as one stream, which a reader can take up again where it was, without a gap or a repeat.

A place in the tree is the number of the last event of the session itself, and of each delegate that is not over yet:
``41.9f3c61e2ab47-7`` has read 41 events of the session and 7 of one delegate. Delegates that are over need no mention:
their events come before the caller's ``delegate_end``, unless they take too long.
"""

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from perdure.client.errors import RequestRefusedError, TurnClosedError, UnknownSessionError
from perdure.client.stream import from_store
from perdure.contracts.events import DelegateEnd, DelegateStart, Envelope
from perdure.store import Store

CATCH_UP = timedelta(seconds=3)
"""Longest wait for the last events of a delegate before its caller's next event."""

KEY_DIGITS = 12

_PLACE = re.compile(r"[0-9]{1,18}(?:\.[0-9a-f]{12}-[0-9]{1,18})*")

Item = TypeVar("Item")


def _key_of(session: str) -> str:
    return hashlib.sha256(session.encode()).hexdigest()[:KEY_DIGITS]


@dataclass(frozen=True)
class TreePlace:
    """Position of a reader in a tree.

    Attributes:
        after: The number of the session's own last event.
        delegates: Those of delegates that are not over, by the digest of their session's id.
    """

    after: int = 0
    delegates: dict[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "TreePlace":
        """Read what ``str`` gives.

        Raises:
            RequestRefusedError: The text is not a position.
        """
        if _PLACE.fullmatch(text) is None:
            raise RequestRefusedError(
                f"{text[:100]!r} is no place in a tree; give the id of the last event, as it came"
            )
        after, *others = text.split(".")
        pairs = (other.split("-") for other in others)
        return cls(int(after), {key: int(seq) for key, seq in pairs})

    def __str__(self) -> str:
        return ".".join([str(self.after), *(f"{key}-{seq}" for key, seq in self.delegates.items())])


class _Held(NamedTuple, Generic[Item]):
    """An item that waits for the end of a delegate, or for a moment in the loop's time."""

    item: Item
    delegate: str
    deadline: float


@dataclass(eq=False)
class _Member(Generic[Item]):
    """A session of the tree that is not over.

    Attributes:
        coming: The next item; None while the last one is held back, and at the end.
        is_read: Whether its events are read to the end.
        has_ended: Whether its caller's log says that it has ended.
    """

    session: str
    seq: int
    caller: "_Member[Item] | None"
    source: AsyncGenerator[Item, None]
    coming: "asyncio.Future[Item | None] | None" = None
    held: _Held[Item] | None = None
    is_read: bool = False
    has_ended: bool = False

    def read_on(self) -> None:
        self.coming = asyncio.ensure_future(anext(self.source, None))


class Tree(Generic[Item]):
    """The merged stream of a session and its delegates, theirs included.

    ``open_source`` gives a session's items after a number, and ``envelope_of`` the event of an item, or None if it is
    none. Such an item is passed on, and moves nobody's place.

    Attributes:
        lost: Delegates of the reader's place whose events cannot come any more, by the digests of their sessions' ids:
            they were erased, or a retention has deleted their beginning from their caller's log.
    """

    def __init__(
        self,
        store: Store,
        open_source: Callable[[str, int], AsyncGenerator[Item, None]],
        envelope_of: Callable[[Item], Envelope | None],
    ) -> None:
        self._store = store
        self._open_source = open_source
        self._envelope_of = envelope_of
        self._members: dict[str, _Member[Item]] = {}
        self.lost: tuple[str, ...] = ()

    async def begin(self, session: str, place: TreePlace) -> None:
        """Find the delegates that the reader knows of already, and how far it has read them; before :meth:`merge`.

        Raises:
            RequestRefusedError: A log of the tree ends before the place.
        """
        await self._find_delegates(self._add(session, place.after, None), place)
        numbers = await from_store(lambda: self._store.last_seqs(list(self._members)))
        for member in [*self._members.values()][1:]:
            if member.session not in numbers and member.seq:
                del self._members[member.session]
        known = {_key_of(name) for name in self._members}
        self.lost = tuple(key for key in place.delegates if key not in known)
        for member in self._members.values():
            if member.seq > (last := numbers.get(member.session, 0)):
                msg = f"session {member.session!r} has {last} events, so that nothing can come after {member.seq}"
                raise RequestRefusedError(f"{msg}; give the id of an event that you have seen")

    async def merge(self) -> AsyncGenerator[tuple[Item, TreePlace], None]:
        """The items as they come, each with the place behind it.

        Raises:
            TurnClosedError: The session's workflow closed and its turn will never end.
        """
        root = next(iter(self._members.values()))
        try:
            for member in self._members.values():
                member.read_on()
            while await self._wait():
                for member in list(self._members.values()):
                    for item in self._take(member):
                        self._note(member, item)
                        yield item, self._place(root)
        finally:
            await self._stop()

    def _add(self, session: str, seq: int, caller: "_Member[Item] | None") -> "_Member[Item]":
        member = _Member(session, seq, caller, self._open_source(session, seq))
        self._members[session] = member
        return member

    async def _find_delegates(self, member: "_Member[Item]", place: TreePlace) -> None:
        if not member.seq:
            return
        read = partial(self._store.delegate_events, member.session, last=member.seq)
        events = [found.event for found in await from_store(read)]
        over = {event.delegate for event in events if isinstance(event, DelegateEnd)}
        for event in events:
            if isinstance(event, DelegateStart) and event.delegate not in self._members:
                seq = place.delegates.get(_key_of(event.delegate))
                if seq is None and event.delegate in over:
                    continue
                below = self._add(event.delegate, seq or 0, member)
                below.has_ended = event.delegate in over
                await self._find_delegates(below, place)

    async def _wait(self) -> bool:
        """Wait until some member has an item; False at the end of all."""
        members = list(self._members.values())
        coming = [member.coming for member in members if member.coming is not None]
        held = [member.held for member in members if member.held is not None]
        if not coming and not held:
            return False
        if coming and not any(map(self._is_free, held)):
            now = asyncio.get_running_loop().time()
            longest = max(0.0, min(waiting.deadline for waiting in held) - now) if held else None
            await asyncio.wait(coming, timeout=longest, return_when=asyncio.FIRST_COMPLETED)
        return True

    def _is_free(self, held: _Held[Item]) -> bool:
        """Whether an item waits no longer."""
        below = self._members.get(held.delegate)
        return below is None or below.is_read or asyncio.get_running_loop().time() >= held.deadline

    def _take(self, member: "_Member[Item]") -> Iterator[Item]:
        """The item of a member that may be passed on now, if there is one."""
        item: Item | None
        if member.held is not None:
            if self._is_free(member.held):
                item, member.held = member.held.item, None
                yield item
                member.read_on()
            return
        if member.coming is None or not member.coming.done():
            return
        coming, member.coming = member.coming, None
        try:
            item = coming.result()
        except (TurnClosedError, UnknownSessionError):  # or a delegate was erased
            if member.caller is None:
                raise
            item = None
        if item is None:
            member.is_read = True
            self._forget()
            return
        envelope = self._envelope_of(item)
        if envelope is not None and isinstance(envelope.event, DelegateEnd):
            deadline = asyncio.get_running_loop().time() + CATCH_UP.total_seconds()
            held = _Held(item, envelope.event.delegate, deadline)
            if not self._is_free(held):
                member.held = held
                return
        yield item
        member.read_on()

    def _note(self, member: "_Member[Item]", item: Item) -> None:
        envelope = self._envelope_of(item)
        if envelope is None:
            return
        member.seq = envelope.seq
        event = envelope.event
        if isinstance(event, DelegateStart) and event.delegate not in self._members:
            self._add(event.delegate, 0, member).read_on()
        elif isinstance(event, DelegateEnd) and (below := self._members.get(event.delegate)) is not None:
            below.has_ended = True
            self._forget()

    def _forget(self) -> None:
        """Leave out who is over: read to the end, told as ended, and without anybody below who is not."""
        changed = True
        while changed:
            callers = {id(member.caller) for member in self._members.values()}
            over = [
                member
                for member in self._members.values()
                if member.is_read and member.has_ended and id(member) not in callers
            ]
            for member in over:
                del self._members[member.session]
            changed = bool(over)

    def _place(self, root: "_Member[Item]") -> TreePlace:
        below = {_key_of(member.session): member.seq for member in self._members.values() if member is not root}
        return TreePlace(root.seq, below)

    async def _stop(self) -> None:
        members = list(self._members.values())
        for member in members:
            if member.coming is not None:
                member.coming.cancel()
        await asyncio.gather(*(member.coming for member in members if member.coming), return_exceptions=True)
        for member in members:
            await member.source.aclose()
