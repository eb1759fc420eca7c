"""Connections of a gateway: each must send a head soon, and when there are too many, idle ones give way to new ones.

A caller without a token can open connections and send nothing. So what counts is whether a connection works: one with
a request in progress is never closed for another, and one address has at most half of the room until a token of it was
found good.
"""

import asyncio
import logging
import time
from collections import Counter
from datetime import timedelta
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

try:
    import resource
except ImportError:  # no limit of files on this system
    resource = None  # type: ignore[assignment]

HEAD_TIME = timedelta(seconds=10)
"""Longest time from the first byte of a request, or from its connection, to the end of its head."""

RESERVED_FILES = 256
"""Open files that a gateway needs besides its connections."""

MOST_FILES = 65_536
"""Open files that a gateway asks the system for at most."""

CONNECTION = "connection"
"""Key of a request's connection in its state."""

SAID_EVERY = timedelta(minutes=1)

logger = logging.getLogger("perdure.gateway")


def raise_file_limit() -> int:
    """Raise the limit of open files as far as the system allows without a privilege; returns the limit, 0 for none."""
    if resource is None:
        return 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return 0 if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        logger.warning("the limit of open files stays at %s: %s", soft, error)
        return soft
    logger.info("the limit of open files is %s, raised from %s", wanted, soft)
    return wanted


def count_room(most: int, files: int) -> int:
    """Connections that a gateway may have: by its setting and by the limit of open files, each 0 for none."""
    left = max(files - RESERVED_FILES, files // 2)
    return min((limit for limit in (most, left) if limit), default=0)


class Room:
    """Room for connections.

    Args:
        most: Connections at the same time; 0 means no limit.
        head_time: How long a head may take.
    """

    def __init__(self, most: int, head_time: timedelta = HEAD_TIME) -> None:
        self.most = most
        self.head_seconds = head_time.total_seconds()
        self._open: set[BoundedProtocol] = set()
        self._idle: dict[BoundedProtocol, None] = {}  # those idle for longest come first
        self._idle_of: dict[str, dict[BoundedProtocol, None]] = {}
        self._unproven: Counter[str] = Counter()
        self._said_at = float("-inf")

    def admit(self, connection: "BoundedProtocol") -> bool:
        """Let a connection in; others may be closed for it. False if all of them work, and it has to go itself."""
        address = connection.address
        self._open.add(connection)
        self._unproven[address] += 1
        self.rest(connection)
        victim = self._find_victim(connection) if self.most else None
        if victim is not None:
            self._say(address)
            self.leave(victim)
            victim.close()
        return victim is not connection

    def _find_victim(self, new: "BoundedProtocol") -> "BoundedProtocol | None":
        """Choose what to close for a new connection: an idle one, of its address if possible, itself, or None."""
        of_address = [idle for idle in self._idle_of[new.address] if not idle.proven]
        if self._unproven[new.address] > max(1, self.most // 2):
            return of_address[0]
        if len(self._open) <= self.most:
            return None
        others = (idle for idle in (*of_address, *self._idle) if idle is not new)
        return next(others, new)

    def work(self, connection: "BoundedProtocol") -> None:
        """A request of the connection is in progress from now on."""
        self._idle.pop(connection, None)
        of_address = self._idle_of.get(connection.address)
        if of_address is not None:
            of_address.pop(connection, None)
            if not of_address:
                del self._idle_of[connection.address]

    def rest(self, connection: "BoundedProtocol") -> None:
        """The connection is idle from now on."""
        if connection in self._open:
            self.work(connection)
            self._idle[connection] = None
            self._idle_of.setdefault(connection.address, {})[connection] = None

    def prove(self, connection: "BoundedProtocol") -> None:
        """A token of the connection was found good."""
        if connection in self._open and not connection.proven:
            self._count_out(connection.address)
        connection.proven = True

    def leave(self, connection: "BoundedProtocol") -> None:
        """The connection is gone, or is about to be."""
        if connection not in self._open:
            return
        self._open.remove(connection)
        self.work(connection)
        if not connection.proven:
            self._count_out(connection.address)

    def _count_out(self, address: str) -> None:
        self._unproven[address] -= 1
        if not self._unproven[address]:
            del self._unproven[address]

    def _say(self, address: str) -> None:
        now = time.monotonic()
        if now - self._said_at >= SAID_EVERY.total_seconds():
            self._said_at = now
            logger.warning(
                "%s connections are open, of %s at most: idle ones are closed for new ones; the last came from %s",
                *(len(self._open), self.most, address or "a socket"),
            )


class BoundedProtocol(H11Protocol):
    """A connection that has its place in a room."""

    def __init__(self, *, room: Room, **parts: Any) -> None:  # noqa: ANN401 - uvicorn's
        super().__init__(**parts)
        self.proven = False
        self.address = ""
        self._room = room
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place, and wait for a head."""
        super().connection_made(transport)
        self.address = self.client[0] if self.client is not None else ""
        if self._room.admit(self):
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        self._stop_waiting()
        self._room.leave(self)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Note when a request begins, and wait for its head to end before that."""
        before = cast("RequestResponseCycle | None", self.cycle)  # uvicorn says that there is always one
        at_rest = before is None or before.response_complete
        super().handle_events()
        if self.cycle is not before:
            self.scope.setdefault("state", {})[CONNECTION] = self
            self._stop_waiting()
            self._room.work(self)
        elif at_rest:  # a part of a head, or the rest of a body
            self._await_head()

    def on_response_complete(self) -> None:
        """Rest until the next request."""
        self._room.rest(self)
        super().on_response_complete()

    def prove(self) -> None:
        """Note that a token of the connection was found good."""
        self._room.prove(self)

    def close(self) -> None:
        """Close the connection, which has no request in progress."""
        self._stop_waiting()
        if not self.transport.is_closing():
            self.transport.close()

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._room.head_seconds, self.close)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
