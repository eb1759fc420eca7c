"""A server that sends bytes as they are told: replies that no provider of a test kit would make.

A request that its provider refuses is refused here too, by the rules of ``perdure.testing``.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from perdure.testing.provider import HOST
from perdure.testing.rules import Refusal, rulebook, rules_at

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class RefusedError(Exception):
    """A request that the provider refuses."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.sentence)
        self.refusal = refusal


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """One request, head and body; nothing when the client is gone.

    Raises:
        RefusedError: The provider of this address refuses it; the server replies so.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    body = await reader.readexactly(int(lengths[0].partition(b":")[2]) if lengths else 0)
    refusal = _refuse(head.split(b" ")[1].decode(), body)
    if refusal is not None:
        raise RefusedError(refusal)
    return head + body


def _refuse(path: str, body: bytes) -> Refusal | None:
    """The refusal of a request, if it is one of a wire."""
    try:
        sent = json.loads(body)
    except ValueError:
        return None
    provider, model = rules_at(path, "chat")
    return rulebook(provider).refuse(sent, model) if isinstance(sent, dict) else None


def reply(body: bytes, *headers: str, status: int = 200) -> bytes:
    """A reply with its length."""
    lines = (f"HTTP/1.1 {status} Said", "content-type: application/json", f"content-length: {len(body)}", *headers)
    return "\r\n".join((*lines, "", "")).encode() + body


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[str]:
    """The address of a server whose every connection is handled by ``serve``."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            try:
                await serve(reader, writer)
            except RefusedError as refused:
                told = json.dumps(refused.refusal.body).encode()
                writer.write(reply(told, "connection: close", status=refused.refusal.status))
        writer.close()

    server = await asyncio.start_server(handle, HOST, 0)
    try:
        yield f"http://{HOST}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
