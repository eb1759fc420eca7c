"""One HTTP connection of the scripted provider: h11 knows the protocol, this module moves bytes and breaks things."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field

import h11

from perdure.testing.script import Fault
from perdure.testing.streams import Stream

LINGER_NOW = struct.pack("ii", 1, 0)
"""Socket option that makes closing send a TCP reset."""


@dataclass(frozen=True)
class Response:
    """Response over the connection; ``fault`` is what goes wrong on the way, if anything does.

    Attributes:
        stream: The body in pieces, if it is sent so.
        hold: Takes the number of pieces sent, before each piece of a stream; what it returns is awaited first.
    """

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    fault: Fault | None = None
    stream: Stream | None = None
    hold: Callable[[int], Coroutine[object, object, None] | None] | None = None


Handler = Callable[[str, str, dict[str, str], bytes], Awaitable[Response]]
"""The response to method, path, headers and body."""


class Connection:
    """Answer the requests of one connection until it ends."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handler: Handler,
        on_disconnect: Callable[[], Awaitable[None]],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._handler = handler
        self._on_disconnect = on_disconnect
        self._http = h11.Connection(h11.SERVER)

    async def serve(self) -> None:
        """Answer requests until the connection ends."""
        while True:
            event = await self._event()
            if isinstance(event, h11.ConnectionClosed):
                return
            if not isinstance(event, h11.Request):
                continue
            body = bytearray()
            while not isinstance(event_in_body := await self._event(), h11.EndOfMessage):
                if isinstance(event_in_body, h11.Data):
                    body += event_in_body.data
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
            path = event.target.partition(b"?")[0].decode("latin-1")
            response = await self._handler(event.method.decode("latin-1"), path, headers, bytes(body))
            if not await self._respond(response) or self._http.our_state is h11.MUST_CLOSE:
                return
            self._http.start_next_cycle()

    async def _event(self) -> object:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            self._http.receive_data(await self._reader.read(65_536))

    async def _respond(self, response: Response) -> bool:
        """Send the response or carry out its fault; False when the connection is over."""
        fault = response.fault
        match fault and fault.kind:
            case "hang":
                await self._wait_unless_gone(asyncio.Event().wait())
            case "hang_in_body":
                await self._send_half(response)
                await self._wait_unless_gone(asyncio.Event().wait())
            case "close":
                pass
            case "cut":
                await self._send_half(response)
            case "reset":
                self._reset()
            case "reset_in_body":
                await self._send_half(response)
                self._reset()
            case "drip":
                return await self._drip(response, fault.seconds if fault else 0)
            case "delay":
                if not await self._wait_unless_gone(asyncio.sleep(fault.seconds if fault else 0)):
                    return False
                return await self._send(response)
            case _ if response.stream is not None:
                return await self._send_stream(response, response.stream)
            case _:
                return await self._send(response)
        return False

    async def _send_stream(self, response: Response, stream: Stream) -> bool:
        """Send the frames of a stream; a client that goes meanwhile is noticed."""
        self._write(h11.Response(status_code=response.status, headers=list(response.headers.items())))
        sent = 0
        for frame in stream.frames:
            if frame.part == "delta":
                held = response.hold(sent) if response.hold is not None else None
                if held is not None and not await self._wait_unless_gone(held):
                    return False
                sent += 1
            self._write(h11.Data(data=frame.data))
            await self._writer.drain()
        if stream.stops == "stall":
            await self._wait_unless_gone(asyncio.Event().wait())
        if stream.stops != "end":
            return False
        self._write(h11.EndOfMessage())
        await self._writer.drain()
        return True

    async def _send(self, response: Response) -> bool:
        self._begin(response)
        self._write(h11.Data(data=response.body))
        self._write(h11.EndOfMessage())
        await self._writer.drain()
        return True

    async def _send_half(self, response: Response) -> None:
        self._begin(response)
        self._write(h11.Data(data=response.body[: len(response.body) // 2]))
        await self._writer.drain()

    async def _drip(self, response: Response, seconds: float) -> bool:
        self._begin(response)
        for index in range(len(response.body)):
            # Before each byte: after the last one the client may already send its next request.
            if not await self._wait_unless_gone(asyncio.sleep(seconds)):
                return False
            self._write(h11.Data(data=response.body[index : index + 1]))
        self._write(h11.EndOfMessage())
        return True

    def _reset(self) -> None:
        raw: socket.socket = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOW)
        self._writer.transport.abort()

    async def _wait_unless_gone(self, waiting: Coroutine[object, object, object]) -> bool:
        """Wait, but notice a client that closes its connection meanwhile."""
        done, gone = asyncio.create_task(waiting), asyncio.create_task(self._reader.read(1))
        try:
            await asyncio.wait([done, gone], return_when=asyncio.FIRST_COMPLETED)
            if done.done():
                return True
            await self._on_disconnect()
            return False
        finally:
            done.cancel()
            gone.cancel()
            await asyncio.gather(done, gone, return_exceptions=True)

    def _begin(self, response: Response) -> None:
        fields = {
            "content-type": "application/json",
            "content-length": str(len(response.body)),
            **response.headers,
        }
        self._write(h11.Response(status_code=response.status, headers=list(fields.items())))

    def _write(self, event: h11.Event) -> None:
        self._writer.write(self._http.send(event) or b"")
