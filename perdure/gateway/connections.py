"""Connections of a gateway: each must send a head soon, and when there are too many, idle ones give way to new ones.

A caller without a token can open connections and send nothing, or half of a request. So what counts is whether a
connection works: one with a whole request, or with a part of one and a good token, is never closed for another. Each
belongs to its address, and to its tenant once a token was found good; one address or tenant has at most half of the
room.
"""

import asyncio
import ipaddress
import logging
import time
from collections import Counter
from datetime import timedelta
from typing import Any, cast

import h11
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
        self._count: Counter[str] = Counter()
        self._said_at = float("-inf")

    @property
    def share(self) -> int:
        """Connections that one address or tenant may have; 0 means no limit."""
        return max(1, self.most // 2) if self.most else 0

    def admit(self, connection: "BoundedProtocol") -> bool:
        """Let a connection in; others may be closed for it. False if all of them work, and it has to go itself."""
        self._open.add(connection)
        self._count[connection.owner] += 1
        self.rest(connection)
        victim = self._find_victim(connection) if self.most else None
        if victim is not None:
            self._say(connection.owner)
            self._close(victim)
        return victim is not connection

    def _find_victim(self, new: "BoundedProtocol") -> "BoundedProtocol | None":
        """Choose what to close for a new connection: an idle one, of its owner if possible, itself, or None."""
        of_owner = self._idle_of[new.owner]
        if self._count[new.owner] > self.share:
            return next(iter(of_owner))
        if len(self._open) <= self.most:
            return None
        return next((idle for idle in (*of_owner, *self._idle) if idle is not new), new)

    def work(self, connection: "BoundedProtocol") -> None:
        """A request of the connection is in progress from now on."""
        self._idle.pop(connection, None)
        of_owner = self._idle_of.get(connection.owner)
        if of_owner is not None:
            of_owner.pop(connection, None)
            if not of_owner:
                del self._idle_of[connection.owner]

    def rest(self, connection: "BoundedProtocol") -> None:
        """The connection is idle from now on."""
        if connection in self._open:
            self.work(connection)
            self._idle[connection] = None
            self._idle_of.setdefault(connection.owner, {})[connection] = None

    def prove(self, connection: "BoundedProtocol", tenant: str) -> bool:
        """A token of the connection, of this tenant, was found good; it works from now on.

        Returns:
            False if the tenant has more than its share, and none of its connections is idle. Callers without a
            tenant have no share.
        """
        self.work(connection)
        owner = f"tenant {tenant}"
        if connection not in self._open or connection.owner == owner:
            return True
        self._count_out(connection.owner)
        connection.owner = owner
        self._count[owner] += 1
        if not tenant or not self.share or self._count[owner] <= self.share:
            return True
        idle = next(iter(self._idle_of.get(owner, ())), None)
        if idle is not None:
            self._say(owner)
            self._close(idle)
        return idle is not None

    def leave(self, connection: "BoundedProtocol") -> None:
        """The connection is gone, or is about to be."""
        if connection in self._open:
            self._open.remove(connection)
            self.work(connection)
            self._count_out(connection.owner)

    def _close(self, connection: "BoundedProtocol") -> None:
        self.leave(connection)
        connection.close()

    def _count_out(self, owner: str) -> None:
        self._count[owner] -= 1
        if not self._count[owner]:
            del self._count[owner]

    def _say(self, owner: str) -> None:
        now = time.monotonic()
        if now - self._said_at >= SAID_EVERY.total_seconds():
            self._said_at = now
            logger.warning(
                "%s connections are open, of %s at most: idle ones are closed for new ones; the last was of %s",
                *(len(self._open), self.most, owner),
            )


def owner_by_address(host: str) -> str:
    """The owner of a connection without a token: its address, of IPv6 the network of 64 bits that one caller has."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "a socket"
    if address.version == 4:
        return f"address {address}"
    return f"network {ipaddress.ip_network((address, 64), strict=False)}"


class BoundedProtocol(H11Protocol):
    """A connection that has its place in a room.

    Attributes:
        owner: Whose share of the room it takes.
    """

    def __init__(self, *, room: Room, **parts: Any) -> None:  # noqa: ANN401 - uvicorn's
        super().__init__(**parts)
        self.owner = ""
        self._room = room
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place, and wait for a head."""
        super().connection_made(transport)
        self.owner = owner_by_address(self.client[0] if self.client is not None else "")
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
        elif at_rest:  # a part of a head, or the rest of a body
            self._await_head()
        cycle = cast("RequestResponseCycle | None", self.cycle)
        asks = cycle is not None and not cycle.response_complete
        if asks and self.conn.their_state is not h11.SEND_BODY:  # anybody can send half of a body
            self._room.work(self)

    def on_response_complete(self) -> None:
        """Rest until the next request."""
        self._room.rest(self)
        super().on_response_complete()

    def prove(self, tenant: str) -> bool:
        """Note that a token of the connection was found good; False if its tenant has too many connections."""
        return self._room.prove(self, tenant)

    def close(self) -> None:
        """Close the connection, which has no whole request in progress."""
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
