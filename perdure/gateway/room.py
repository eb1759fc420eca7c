"""Room for the connections of a gateway: who has a place, and who gives way when there are too many.

A caller without a token can open connections and send nothing, or half of a request, or read no answer. So a connection
is worth what it has shown. Until a good token has come over it, it is a *stranger*: it belongs to its address, and may
be closed for another as soon as the gateway waits for its caller. From then on it is *proven*: it belongs to its
tenant, and may be closed only while it is idle. Strangers never hold the last tenth of the places, nor do the proven,
so that there is always a place for a good token, and one for a probe.
"""

import ipaddress
import logging
import time
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from itertools import islice
from typing import Protocol

HEAD_TIME = timedelta(seconds=10)
"""Longest time from the first byte of a request, or from its connection, to the end of its head."""

MOST_HELD = 32 * 1024 * 1024
"""Bytes that strangers together may have the gateway hold: answers that they do not read, and what is not parsed."""

KEPT, SHARE_OF_TENANT, SHARE_OF_ADDRESS = 10, 2, 4
"""Divisors of the room: what strangers and the proven leave to each other, and the most of a tenant and an address."""

SAMPLE = 32
"""Strangers that have been idle for longest, of which one of the owner with the most connections gives way."""

SAID_EVERY = timedelta(minutes=1)

logger = logging.getLogger("perdure.gateway")


class Connection(Protocol):
    """A connection, as the room knows it.

    Attributes:
        owner: Whose share of the room it takes.
    """

    owner: str

    def drop(self) -> None:
        """Close it at once."""
        ...


class Room:
    """Room for connections.

    Args:
        most: Connections at the same time; 0 means no limit.
        head_time: How long a head may take.
        most_held: Bytes that all strangers together may have the gateway hold.
    """

    def __init__(self, most: int, head_time: timedelta = HEAD_TIME, most_held: int = MOST_HELD) -> None:
        self.most = most
        self.most_held = most_held
        self.head_seconds = head_time.total_seconds()
        self._strangers: dict[Connection, None] = {}  # those that came first come first
        self._proven: set[Connection] = set()
        self._idle_strangers: dict[Connection, None] = {}  # those idle for longest come first, here and below
        self._idle_proven: dict[Connection, None] = {}
        self._idle_of: dict[str, dict[Connection, None]] = {}
        self._count: Counter[str] = Counter()
        self._held: dict[Connection, int] = {}
        self._bytes_held = 0
        self._said_at = float("-inf")

    @property
    def kept(self) -> int:
        """Places that strangers leave to the proven, and the proven to strangers."""
        return max(1, self.most // KEPT) if self.most > 1 else 0

    @property
    def open(self) -> int:
        """The open connections."""
        return len(self._strangers) + len(self._proven)

    def is_stranger(self, connection: Connection) -> bool:
        """Whether the connection is open, and has shown no good token."""
        return connection in self._strangers

    def admit(self, new: Connection) -> bool:
        """Let a connection in, for which another may be closed. False if it has to go itself."""
        self._strangers[new] = None
        self._count[new.owner] += 1
        self.rest(new)
        victim = self._find_victim(new) if self.most else None
        if victim is not None:
            self._say("%s connections are open, of %s at most; the last was of %s", self.open, self.most, new.owner)
            self._drop(victim)
        return victim is not new

    def _find_victim(self, new: Connection) -> Connection | None:
        """Choose what gives way to a new connection: another, itself, or None."""
        if self._count[new.owner] > max(1, self.most // SHARE_OF_ADDRESS):
            return next(iter(self._idle_of[new.owner]))
        is_crowded = len(self._strangers) > self.most - self.kept
        if not is_crowded and self.open <= self.most:
            return None
        oldest = islice((idle for idle in self._idle_strangers if idle is not new), SAMPLE)
        if idle := max(oldest, key=lambda other: self._count[other.owner], default=None):
            return idle
        return _first(() if is_crowded else self._idle_proven) or _first(self._strangers)

    def work(self, connection: Connection) -> None:
        """The gateway works for the connection from now on."""
        self._idle_strangers.pop(connection, None)
        self._idle_proven.pop(connection, None)
        of_owner = self._idle_of.get(connection.owner)
        if of_owner is not None:
            of_owner.pop(connection, None)
            if not of_owner:
                del self._idle_of[connection.owner]

    def rest(self, connection: Connection) -> None:
        """The gateway waits for the connection's caller from now on."""
        idle = self._idle_strangers if connection in self._strangers else self._idle_proven
        if connection in self._strangers or connection in self._proven:
            self.work(connection)
            idle[connection] = None
            self._idle_of.setdefault(connection.owner, {})[connection] = None

    def hold(self, connection: Connection, size: int) -> None:
        """The connection has the gateway hold so many bytes; strangers that have done so for longest may be closed."""
        if connection not in self._strangers:
            return
        self._bytes_held += size - self._held.get(connection, 0)
        self._held[connection] = size
        if not size:
            del self._held[connection]
        while self._bytes_held > self.most_held:
            said = "callers without a token leave %s bytes unread: those that have left them for longest are closed"
            self._say(said, self._bytes_held)
            self._drop(next(iter(self._held)))

    def prove(self, connection: Connection, tenant: str) -> str:
        """A token of the connection, of this tenant, was found good; the gateway works for it from now on.

        Returns:
            Why it has no place among the proven; empty if it has one. Callers without a tenant have no share of their
            own.
        """
        self.work(connection)
        owner, is_stranger = f"tenant {tenant}", connection in self._strangers
        if connection.owner == owner or not (is_stranger or connection in self._proven):
            return ""
        victim: Connection | None = None
        if tenant and self.most and self._count[owner] >= max(1, self.most // SHARE_OF_TENANT):
            victim = _first(self._idle_of.get(owner, ()))
            if victim is None:
                return "the tenant has as many connections with open requests as it may; use fewer, or end some first"
        elif is_stranger and self.most and len(self._proven) >= self.most - self.kept:
            victim = _first(self._idle_proven)
            if victim is None:
                return "the gateway has as many connections with open requests as it may; try again later"
        if victim is not None:
            self._say("%s connections are open, of %s at most; the last was of %s", self.open, self.most, owner)
            self._drop(victim)
        self._remove(connection)
        connection.owner = owner
        self._count[owner] += 1
        self._proven.add(connection)
        return ""

    def leave(self, connection: Connection) -> None:
        """The connection is gone, or is about to be."""
        if connection in self._strangers or connection in self._proven:
            self.work(connection)
            self._remove(connection)

    def _remove(self, connection: Connection) -> None:
        self._strangers.pop(connection, None)
        self._proven.discard(connection)
        self._bytes_held -= self._held.pop(connection, 0)
        self._count[connection.owner] -= 1
        if not self._count[connection.owner]:
            del self._count[connection.owner]

    def _drop(self, connection: Connection) -> None:
        self.leave(connection)
        connection.drop()

    def _say(self, said: str, *parts: object) -> None:
        now = time.monotonic()
        if now - self._said_at >= SAID_EVERY.total_seconds():
            self._said_at = now
            logger.warning(said, *parts)


def _first(connections: Iterable[Connection]) -> Connection | None:
    return next(iter(connections), None)


def owner_by_address(host: str) -> str:
    """The owner of a connection without a token: its address, of IPv6 the network of 64 bits that one caller has."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "a socket"
    if address.version == 4:
        return f"address {address}"
    return f"network {ipaddress.ip_network((address, 64), strict=False)}"
