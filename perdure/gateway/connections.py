"""Connections of a gateway: each is parsed as far as it is asked for, and holds what its caller has shown to be worth.

uvicorn and h11 bound a request's head. The rest is here: how long a head may take, how much of a body is parsed before
a route asks for it, what becomes of a request that was answered before its end, and of an answer that nobody reads.
"""

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from perdure.gateway.room import Room, owner_by_address

try:
    import fcntl
    import resource
    import termios
except ImportError:  # this system has no limit of files, and does not say what is unread
    fcntl = resource = termios = None  # type: ignore[assignment]

RESERVED_FILES = 256
"""Open files that a gateway needs besides its connections."""

MOST_FILES = 65_536
"""Open files that a gateway asks the system for at most."""

CONNECTION = "connection"
"""Key of a request's connection in its state."""

PATIENCE_WITH_STRANGERS, PATIENCE = timedelta(seconds=10), timedelta(seconds=90)
"""A connection whose other end takes nothing for so long is closed by the system, also one that was dropped before."""

UNSENT = 16 * 1024
"""Bytes of an answer that the system takes beyond what its caller has room for."""

PIECES_AT_ONCE = 16
"""Pieces of a body that are parsed each time that the application asks for it."""

FREE_PIECES, FREE_PIECES_OF_STRANGERS, SMALLEST_PIECE = 4_096, 256, 64
"""Pieces of any length in which a body may come; all others have so many bytes on average."""

LINGER, MOST_LINGERED = timedelta(seconds=5), 64 * 1024 * 1024
"""Time for which, and bytes of which, the rest of a request is passed over once its answer was sent."""

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


def prepare(listener: socket.socket) -> None:
    """Have each connection of a listener hold little of an answer that nobody reads, and for a short time."""
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)
    _be_patient(listener, PATIENCE_WITH_STRANGERS)


def _be_patient(connection: socket.socket, patience: timedelta) -> None:
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        milliseconds = int(patience.total_seconds() * 1000)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


class LazyConnection(h11.Connection):
    """h11's connection, which parses what is wanted, and says in an answer that it is the connection's last.

    Attributes:
        pieces: Pieces of the body of this request that were parsed.
        is_held: Whether there may be more of the body, which the application has to ask for.
        is_behind: Whether another request may have come, which waits until the answer before it was taken.
        is_last: Tells whether another request may not follow although nothing of the kind was said.
        is_unread: Tells whether answers wait to be taken.
    """

    def __init__(self, longest: int, *, is_last: Callable[[], bool], is_unread: Callable[[], bool]) -> None:
        super().__init__(h11.SERVER, longest)
        self.pieces = 0
        self.is_held = self.is_behind = False
        self.is_last = is_last
        self.is_unread = is_unread
        self._left = 0

    @property
    def unparsed(self) -> bytes:
        """Bytes that have come, and were not parsed."""
        return self.trailing_data[0]

    @property
    def has_rest(self) -> bool:
        """Whether there is more to come, or there, than was parsed."""
        return self.their_state in {h11.SEND_BODY, h11.ERROR} or bool(self.unparsed)

    def ask(self) -> None:
        """Let some more pieces of the body be parsed."""
        self._left = PIECES_AT_ONCE

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """The next event, as h11 gives it; PAUSED if none is wanted now."""
        self.is_behind = self.their_state is h11.IDLE and self.is_unread()
        answers = self.our_state not in {h11.IDLE, h11.SEND_RESPONSE}
        self.is_held = self.their_state is h11.SEND_BODY and (answers or not self._left)
        if self.is_behind or self.is_held:
            return h11.PAUSED
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.pieces = 0
            self.ask()
        elif isinstance(event, h11.Data):
            self.pieces += 1
            self._left -= 1
        return event

    def send_with_data_passthrough(self, event: h11.Event) -> list[bytes] | None:
        """The bytes of an event; an answer in front of the end of its request closes the connection (RFC 9112 §9.6)."""
        if isinstance(event, h11.Response) and (self.their_state is h11.SEND_BODY or self.is_last()):
            headers = [*event.headers, (b"connection", b"close")]
            event = h11.Response(status_code=event.status_code, headers=headers, reason=event.reason)
        return super().send_with_data_passthrough(event)


class _Flow(FlowControl):
    """uvicorn's flow control, which tells when the application asks for more of a request."""

    def __init__(self, transport: asyncio.Transport, on_ask: Callable[[], None]) -> None:
        super().__init__(transport)
        self._on_ask = on_ask

    def resume_reading(self) -> None:
        super().resume_reading()
        self._on_ask()


class _Transport:
    """The transport as uvicorn has it: to close it is the protocol's."""

    def __init__(self, inner: asyncio.Transport, protocol: "BoundedProtocol") -> None:
        self._inner = inner
        self._protocol = protocol
        self.write = inner.write

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it is
        return getattr(self._inner, name)

    def close(self) -> None:
        self._protocol.finish()

    def is_closing(self) -> bool:
        return self._protocol.is_lingering or self._inner.is_closing()


class BoundedProtocol(H11Protocol):
    """A connection that has its place in a room.

    Attributes:
        owner: Whose share of the room it takes.
        unsent: Bytes of an answer that are held besides, until those before them were taken.
        is_lingering: Whether nothing more is answered, and what comes is passed over.
    """

    conn: LazyConnection

    def __init__(self, *, room: Room, **parts: Any) -> None:  # noqa: ANN401 - uvicorn's
        super().__init__(**parts)
        longest = self.config.h11_max_incomplete_event_size or 0
        self.conn = LazyConnection(longest, is_last=self._is_last, is_unread=lambda: self.flow.write_paused)
        self.owner = ""
        self.unsent = 0
        self.is_lingering = False
        self._room = room
        self._passed_over = 0
        self._timer: asyncio.TimerHandle | None = None

    def is_crumbled(self, size: int) -> bool:
        """Whether the body of the request, of which there are so many bytes, came in too many small pieces."""
        free = FREE_PIECES_OF_STRANGERS if self._room.is_stranger(self) else FREE_PIECES
        return self.conn.pieces > free + size // SMALLEST_PIECE

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place, and wait for a head."""
        self._transport = transport
        super().connection_made(cast("asyncio.Transport", _Transport(transport, self)))
        self.flow = _Flow(transport, self._ask)
        transport.set_write_buffer_limits(high=0)  # so that whatever is unread is known
        self.owner = owner_by_address(self.client[0] if self.client is not None else "")
        if self._room.admit(self):
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        self._stop_waiting()
        self._room.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what comes; what comes behind the last answer is passed over."""
        if not self.is_lingering:
            super().data_received(data)
            return
        self._passed_over += len(data)
        if self._passed_over > MOST_LINGERED:
            self._close()

    def handle_events(self) -> None:
        """Note when a request begins, and wait for its head to end before that."""
        before = cast("RequestResponseCycle | None", self.cycle)  # uvicorn says that there is always one
        at_rest = before is None or before.response_complete
        super().handle_events()
        if self.cycle is not before:
            self.scope.setdefault("state", {})[CONNECTION] = self
            self._stop_waiting()
        elif at_rest and not self.is_lingering and not self.conn.is_behind:  # a part of a head
            self._await_head()
        self._take_place()

    def on_response_complete(self) -> None:
        """Rest until the next request."""
        self._room.rest(self)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Note that the caller reads slower than the gateway answers, or not at all."""
        super().pause_writing()
        if self._room.is_stranger(self):
            self._room.rest(self)
        self._hold()

    def resume_writing(self) -> None:
        """Note that the caller has read; the next request may be there already."""
        super().resume_writing()
        if self.conn.is_behind:
            self.flow.resume_reading()
            self.handle_events()
        self._take_place()

    def prove(self, tenant: str) -> str:
        """Note that a token of the connection was found good; returns why it has no place, empty if it has one."""
        was_stranger = self._room.is_stranger(self)
        why = self._room.prove(self, tenant)
        if was_stranger and not why and not self._transport.is_closing():
            _be_patient(self._transport.get_extra_info("socket"), PATIENCE)
        return why

    def finish(self) -> None:
        """Close the connection, once the caller could read the answer.

        A connection that is closed with bytes that were not read is reset, and the answer is lost with it (RFC 9112
        §9.6): so the gateway's side alone is closed, and what comes is passed over for a while.
        """
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and not cycle.response_complete:  # uvicorn has answered what is no HTTP
            cycle.disconnected = True
            cycle.message_event.set()
        if self.is_lingering or self._transport.is_closing() or not self.conn.has_rest:
            self._close()
            return
        self.is_lingering = True
        self._stop_waiting()
        self._unset_keepalive_if_required()
        self._transport.write_eof()
        self._transport.resume_reading()
        self._timer = self.loop.call_later(LINGER.total_seconds(), self._close)
        self._room.rest(self)
        self._hold()

    def drop(self) -> None:
        """Close the connection at once, and keep nothing of an answer that was not read."""
        self._stop_waiting()
        if not self._is_read():
            connection = self._transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        self._close()

    def _close(self) -> None:
        self._stop_waiting()
        if not self._transport.is_closing():
            self._transport.close()

    def _is_read(self) -> bool:
        """Whether nothing of an answer is left, here or in the system."""
        if self._transport.get_write_buffer_size():
            return False
        if fcntl is None:
            return True
        if termios is None:
            return True
        descriptor = self._transport.get_extra_info("socket").fileno()
        return descriptor < 0 or fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)) == bytes(4)

    def _is_last(self) -> bool:
        """Whether the answer is the last: of requests that strangers send without waiting, one is answered."""
        return self._room.is_stranger(self) and bool(self.conn.unparsed)

    def _ask(self) -> None:
        """The application asks for more of the body: it is parsed in the next turn of the loop, as others wait too."""
        self.conn.ask()
        if self.conn.is_held:
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if self.conn.is_held and not self._transport.is_closing():
            self.handle_events()

    def _take_place(self) -> None:
        """Tell the room for whom the gateway works, and what it holds."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        asks = cycle is not None and not cycle.response_complete
        is_unread = self._room.is_stranger(self) and self.flow.write_paused
        if asks and not is_unread and self.conn.their_state is not h11.SEND_BODY:  # anybody can send half of a body
            self._room.work(self)
        self._hold()

    def _hold(self) -> None:
        if self._room.is_stranger(self):
            unparsed = b"" if self.is_lingering else self.conn.unparsed
            self._room.hold(self, self._transport.get_write_buffer_size() + self.unsent + len(unparsed))

    def _await_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self._room.head_seconds, self._close)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
