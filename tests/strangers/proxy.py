"""A way to a gateway over TCP, which accidents happen to: it is cut, or leads to another gateway from now on."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

HOST = "127.0.0.1"


class Proxy:
    """A way from a port of its own to a gateway.

    Attributes:
        target: URL of the gateway that new connections lead to.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self._ends: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Where clients find it."""
        assert self._server is not None
        return f"http://{HOST}:{self._server.sockets[0].getsockname()[1]}"

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["Proxy"]:
        """It listens; at the end all its connections are cut."""
        self._server = await asyncio.start_server(self._carry, HOST, 0)
        try:
            yield self
        finally:
            self._server.close()
            await self.cut()

    async def cut(self) -> int:
        """Abort all connections that are open, on both sides, and wait until they are gone; how many ends they had."""
        ends = list(self._ends)
        for end in ends:
            end.transport.abort()
        await asyncio.gather(*(end.wait_closed() for end in ends), return_exceptions=True)
        return len(ends)

    async def _carry(self, heard: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        """Carry what comes over one connection, both ways, until both of its ends are closed."""
        try:
            told, asks = await asyncio.open_connection(HOST, urlsplit(self.target).port)
        except OSError:
            answers.transport.abort()
            return
        ends = {answers, asks}
        self._ends |= ends
        await asyncio.gather(_pour(heard, asks), _pour(told, answers))
        self._ends -= ends


async def _pour(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Pass on what comes, and close the sink behind the last of it."""
    with contextlib.suppress(ConnectionError):
        while data := await source.read(64 * 1024):
            sink.write(data)
            await sink.drain()
    sink.close()
