"""Server-sent events on the wire: frames, and a response that streams them to a reader who may be slow or gone."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from datetime import timedelta
from http import HTTPStatus

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from perdure.contracts.errors import PerdureError
from perdure.contracts.events import Envelope
from perdure.contracts.values import JsonValue
from perdure.gateway.problems import ProblemCode, ProblemError, problem_of

PING_EVERY = timedelta(seconds=15)
"""After so long without an event comes a comment, so that no proxy takes the stream for dead."""

STALL = timedelta(seconds=30)
"""A reader that takes nothing for so long is dropped."""

RETRY = b"retry: 1000\n\n"
"""Frame that sets how long a browser waits until it comes again, in ms; the first that a reader gets."""

PING = b": ping\n\n"

HEADERS = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}

RESYNC = "resync"
"""A notice: some events are left out, as the reader wanted."""

DROPPED = "dropped"
"""A notice: the stream ends though the session does not; come again after that number."""

END = "end"
"""A notice: the session has no turn that runs or waits, so nothing more comes."""


class Frame:
    """An event as it is sent, made once for all readers.

    Attributes:
        envelope: The event.
        body: The lines for ``event:`` and ``data:`` up to the end of the JSON object, without its last brace.
    """

    __slots__ = ("body", "envelope")

    def __init__(self, envelope: Envelope) -> None:
        self.envelope = envelope
        text = envelope.to_json().encode()
        self.body = b"event: %s\ndata: %s" % (envelope.event.type.encode(), text[:-1])

    @property
    def seq(self) -> int:
        """The event's number."""
        return self.envelope.seq

    def encode(self, place: str, *, replayed: bool) -> bytes:
        """The frame with the reader's place behind the event, marked as one that stood in the log before, or not."""
        mark = b', "replayed": true}\n\n' if replayed else b"}\n\n"
        return b"id: %s\n%s%s" % (place.encode(), self.body, mark)


def encode_notice(name: str, data: Mapping[str, JsonValue]) -> bytes:
    """Encode a notice: a message without an id, which does not move the reader's position."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), json.dumps(data).encode())


Chunks = AsyncGenerator[tuple[bytes, str], None]
"""Bytes to send, and the reader's place behind them."""

Farewell = Callable[[ProblemError, str], bytes]
"""Writes why a stream ends before what it follows does, for a reader at this place."""


def say_dropped(_: ProblemError, place: str) -> bytes:
    """The farewell of our own streams: they may be followed on from any place."""
    return encode_notice(DROPPED, {"after": place})


class EventStream(Response):
    """A response that streams until its chunks end, its reader goes or takes nothing, or an event says so.

    No reader can take a stream for whole that is not: it then ends with a farewell.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        chunks: Chunks,
        *,
        place: str,
        ends: Mapping[asyncio.Event, ProblemError],
        closing: AsyncExitStack | None = None,
        farewell: Farewell = say_dropped,
        leave: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Prepare the response.

        Args:
            chunks: What is sent.
            place: The reader's place before the first of them.
            ends: Each of them ends the stream when it is set, for this reason.
            closing: Closed at the end.
            farewell: Writes the reason. With our own, browsers are told when to come again.
            leave: Called once the reader has gone before the end.
        """
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._chunks = chunks
        self._place = place
        self._ends = ends
        self._closing = closing or AsyncExitStack()
        self._farewell = farewell
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        streaming = asyncio.create_task(self._stream(send))
        others = [asyncio.create_task(wait_until_gone(receive))]
        others += [asyncio.create_task(_wait_for(end)) for end in self._ends]
        try:
            await asyncio.wait([streaming, *others], return_when=asyncio.FIRST_COMPLETED)
            reason = next((reason for end, reason in self._ends.items() if end.is_set()), None)
            if not streaming.done() and reason is not None:
                await _cancel(streaming)
                await self._say_farewell(send, reason)
            elif not streaming.done() and self._leave is not None:
                await self._leave()
        finally:
            await _cancel(streaming, *others)
            await self._closing.aclose()
        if not streaming.cancelled():
            streaming.result()

    async def _stream(self, send: Send) -> None:
        try:
            async with asyncio.timeout(STALL.total_seconds()):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                first = RETRY if self._farewell is say_dropped else b""
                await send({"type": "http.response.body", "body": first, "more_body": True})
            async with aclosing(self._chunks) as chunks:
                async for chunk, place in chunks:
                    async with asyncio.timeout(STALL.total_seconds()):
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    self._place = place
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            await self._say_farewell(send, _STALLED)
        except (PerdureError, ProblemError) as error:
            problem = problem_of(error)
            if problem is None:
                raise
            await self._say_farewell(send, problem)

    async def _say_farewell(self, send: Send, reason: ProblemError) -> None:
        """Tell the reader why the stream ends, in case it ever takes it."""
        notice = self._farewell(reason, self._place)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STALL.total_seconds()):
                await send({"type": "http.response.body", "body": notice, "more_body": False})


_STALLED = ProblemError(
    HTTPStatus.REQUEST_TIMEOUT,
    ProblemCode.READER_STALLED,
    f"the reader took nothing for {STALL.total_seconds():.0f} s; read on behind the last event",
)


async def wait_until_gone(receive: Receive) -> None:
    """Wait until the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _wait_for(end: asyncio.Event) -> None:
    await end.wait()


async def _cancel(*tasks: "asyncio.Task[object]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
