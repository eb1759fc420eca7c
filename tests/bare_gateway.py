"""A gateway's server without the gateway: bounded connections, and routes that hold, refuse, read, and say much."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from perdure.gateway.connections import CONNECTION
from perdure.gateway.room import MOST_HELD, Room
from perdure.gateway.serve import GatewayServer, bind
from tests.house import WAIT_SECONDS

LONG = timedelta(seconds=WAIT_SECONDS)
GET = b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF = b"POST /body%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhalf"
TCP_ESTABLISHED = 1
DOCUMENT = 400_000
"""Bytes of ``/document``."""

DONE, REFUSED = b"HTTP/1.1 204 No Content\r\n", b"HTTP/1.1 429 Too Many Requests\r\n"


@dataclass
class Door:
    """A server with bounded connections."""

    port: int
    room: Room
    release: asyncio.Event
    stack: AsyncExitStack
    entered: list[None] = field(default_factory=list)

    async def open(self, source: str = "127.0.0.1") -> "Wire":
        """A connection from an address of this machine."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(source, 0))
        self.stack.callback(writer.close)
        return Wire(reader, writer)

    async def plug(self, source: str, sent: bytes) -> socket.socket:
        """A connection with little room for answers, over which something was sent, and nothing is read."""
        plugged = socket.socket()
        self.stack.callback(plugged.close)
        plugged.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plugged.setblocking(False)
        plugged.bind((source, 0))
        loop = asyncio.get_running_loop()
        await loop.sock_connect(plugged, ("127.0.0.1", self.port))
        await loop.sock_sendall(plugged, sent)
        return plugged


def was_closed(plugged: socket.socket) -> bool:
    """Whether the server has closed a connection over which nothing was read; nothing is read here either."""
    state = plugged.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return state != TCP_ESTABLISHED


@dataclass
class Wire:
    """A connection that is read."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, path: bytes) -> bytes:
        """The first line of the answer; empty if the connection was closed."""
        self.writer.write(GET % path)
        async with asyncio.timeout(WAIT_SECONDS):
            line = await self.reader.readline()
            if line:
                await self.reader.readuntil(b"\r\n\r\n")
            return line

    async def closed(self) -> bool:
        """Whether the server closes the connection."""
        async with asyncio.timeout(WAIT_SECONDS):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    @property
    def is_open(self) -> bool:
        """Whether it was not closed so far."""
        return not self.reader.at_eof()


@asynccontextmanager
async def serving(most: int = 0, head_time: timedelta = LONG, most_held: int = MOST_HELD) -> AsyncIterator[Door]:
    """A server whose routes answer, hold their answer until it is released, read a body, refuse one, or say much."""
    app = FastAPI()
    app.state.gateway = SimpleNamespace(stopping=asyncio.Event())
    release, entered = asyncio.Event(), list[None]()

    @app.get("/")
    async def answer() -> Response:
        return Response(status_code=204)

    @app.get("/proven")
    async def prove(request: Request, tenant: str = "", held: str = "") -> Response:
        why = request.scope["state"][CONNECTION].prove(tenant)
        if held:
            entered.append(None)
            await release.wait()
        return Response(status_code=429 if why else 204)

    @app.post("/body")
    async def read(request: Request, tenant: str | None = None) -> Response:
        if tenant is not None:
            request.scope["state"][CONNECTION].prove(tenant)
        entered.append(None)
        await request.body()
        return Response(status_code=204)

    @app.post("/echo")
    async def echo(request: Request) -> Response:
        return Response(await request.body())

    @app.post("/refused")
    async def refuse() -> Response:
        entered.append(None)
        return Response("no", 401)

    @app.get("/document")
    async def document(request: Request, tenant: str | None = None) -> Response:
        entered.append(None)
        if tenant is not None:
            request.scope["state"][CONNECTION].prove(tenant)
        return Response(b"x" * DOCUMENT)

    @app.get("/parts")
    async def tell_in_parts() -> Response:
        async def parts() -> AsyncIterator[bytes]:
            for _ in range(10):
                yield b"x" * (DOCUMENT // 10)

        return StreamingResponse(parts())

    @app.get("/held")
    async def hold() -> Response:
        entered.append(None)
        await release.wait()
        return Response(status_code=204)

    room = Room(most, head_time, most_held)
    listener = bind("127.0.0.1:0", has_tokens=False)
    server = GatewayServer(app, grace=1, room=room)
    serving = asyncio.create_task(server.serve([listener]))
    try:
        async with AsyncExitStack() as stack:
            while not server.started:
                await asyncio.sleep(0.01)
            yield Door(listener.getsockname()[1], room, release, stack, entered)
    finally:
        release.set()
        server.should_exit = True
        await serving
        listener.close()
