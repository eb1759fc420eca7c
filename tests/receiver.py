"""A receiver of webhooks: real HTTP on loopback, whose answers a test chooses, and what it was sent."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from standardwebhooks import Webhook


@dataclass(frozen=True)
class Received:
    """A request, as it came."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def message(self) -> str:
        return self.headers["webhook-id"]

    def verified(self, secret: str) -> dict[str, object]:
        """What it says, if its signature is right: by the library that receivers use."""
        told: dict[str, object] = Webhook(secret).verify(self.body, dict(self.headers))
        return told


async def _take(_: Received) -> str:
    return "200 OK"


@dataclass
class Receiver:
    """The receiver's address, what it got, and how it answers: the rest of a status line, and headers below it."""

    url: str = ""
    got: list[Received] = field(default_factory=list)
    answer: Callable[[Received], Awaitable[str]] = _take

    @property
    def origin(self) -> str:
        return self.url.removesuffix("/hook")

    @classmethod
    @asynccontextmanager
    async def listening(cls, tls: ssl.SSLContext | None = None) -> AsyncIterator["Receiver"]:
        receiver = cls()
        server = await asyncio.start_server(receiver._serve, "127.0.0.1", 0, ssl=tls)
        scheme = "http" if tls is None else "https"
        receiver.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
        async with server:
            yield receiver

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            received = Received(first.split()[1], headers, body)
            self.got.append(received)
            answered = await self.answer(received)
            if answered:
                writer.write(f"HTTP/1.1 {answered}\r\ncontent-length: 0\r\n\r\n".encode())
                await writer.drain()
        finally:
            writer.close()
