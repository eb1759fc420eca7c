"""A server that sends bytes as they are told: replies that no provider of a test kit would make."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from perdure.testing.provider import HOST

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """One request, head and body; nothing when the client is gone."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return head + await reader.readexactly(int(lengths[0].partition(b":")[2]) if lengths else 0)


def reply(body: bytes, *headers: str, status: int = 200) -> bytes:
    """A reply with its length."""
    lines = (f"HTTP/1.1 {status} Said", "content-type: application/json", f"content-length: {len(body)}", *headers)
    return "\r\n".join((*lines, "", "")).encode() + body


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[str]:
    """The address of a server whose every connection is handled by ``serve``."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(handle, HOST, 0)
    try:
        yield f"http://{HOST}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
