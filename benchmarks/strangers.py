"""What callers without a token can do to a gateway by connections: leave answers unread, take places, send crumbs.

Phases of :mod:`benchmarks.siege`.
"""

import asyncio
import contextlib
import socket
import time
from typing import Any

from benchmarks.followers import Seen, follow
from benchmarks.fort import Fort

UNREAD, DOCUMENTS, FEW_PLACES = 1_500, 12, 40
"""Connections that read nothing, requests of each, and the places of a gateway that two addresses fill."""

CRUMBS, CRUMBLY = (1, 7, 100, 16_000), (1, 20, 100)
"""Bytes of a chunk, and connections at once."""

SENT = 250_000
"""Bytes that each of them sends."""

BEGIN_AT_ONCE = 500
HELD_SECONDS = 30.0
TCP_ESTABLISHED = 1


async def plug(port: int, source: str, sent: bytes) -> socket.socket:
    """A connection with little room for answers, over which something was sent, and nothing is read."""
    plugged, loop = socket.socket(), asyncio.get_running_loop()
    plugged.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plugged.setblocking(False)
    plugged.bind((source, 0))
    with contextlib.suppress(OSError):
        await loop.sock_connect(plugged, ("127.0.0.1", port))
        await loop.sock_sendall(plugged, sent)
    return plugged


def is_open(plugged: socket.socket) -> bool:
    """Whether the gateway has not closed it; nothing is read."""
    return plugged.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_ESTABLISHED


async def plugged(fort: Fort, sources: list[str], count: int, sent: bytes) -> dict[str, Any]:
    """So many connections that read nothing; those that are closed are opened again a second later."""
    figures: dict[str, Any] = {}
    closed = 0
    async with fort.watched(figures):
        held = [await plug(fort.port, sources[number % len(sources)], sent) for number in range(count)]
        end = time.monotonic() + HELD_SECONDS
        while time.monotonic() < end:
            for number, each in enumerate(held):
                if not is_open(each):
                    each.close()
                    closed += 1
                    held[number] = await plug(fort.port, sources[number % len(sources)], sent)
            await asyncio.sleep(1)
    for each in held:
        each.close()
    return {"connections": count, "closed": closed, **figures}


async def unread(fort: Fort) -> dict[str, Any]:
    """Connections of one address, with a dozen documents each that nobody reads."""
    sent = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * DOCUMENTS
    return await plugged(fort, ["127.1.0.1"], UNREAD, sent)


async def places(fort: Fort) -> dict[str, Any]:
    """Two addresses that fill all places of a small gateway, with answers that nobody reads."""
    sent = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 25
    return await plugged(fort, ["127.1.0.1", "127.1.0.2"], FEW_PLACES, sent)


async def crumbs(fort: Fort) -> dict[str, Any]:
    """Bodies in chunks of one byte and more: to a route that refuses them, to the log-in, and with a token."""
    figures: dict[str, Any] = {}
    ways = {
        "refused": b"POST /v1/sessions HTTP/1.1\r\n",
        "login": b"POST /ui/login HTTP/1.1\r\n",
        "token": b"POST /v1/sessions HTTP/1.1\r\nAuthorization: Bearer %s\r\n" % fort.tokens["wild"].encode(),
    }

    async def send(sent: bytes) -> None:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", fort.port)
            with contextlib.closing(writer):
                writer.write(sent)
                await reader.readuntil(b"\r\n\r\n")

    for way, head in ways.items():
        for size in CRUMBS:
            chunk = b"%x\r\n%s\r\n" % (size, b" " * size)
            sent = head + b"Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk * (SENT // len(chunk))
            for count in CRUMBLY:
                seen: dict[str, Any] = {}
                async with fort.watched(seen):
                    async with asyncio.timeout(120):
                        await asyncio.gather(*(send(sent + b"0\r\n\r\n") for _ in range(count)))
                figures[f"{way}, {size} bytes, {count} connections"] = seen
    worst = max(figures.values(), key=lambda each: each["healthz_ms"]["longest"])
    failed = {path: count for each in figures.values() for path, count in each["failed"].items()}
    return {"each": figures, "healthz_ms": worst["healthz_ms"], "failed": failed, "peak_mb": worst["peak_mb"]}


async def begins(fort: Fort) -> dict[str, Any]:
    """Many followers of another tenant's sessions that begin in the same moment."""
    figures: dict[str, Any] = {}
    seen = [Seen(fort.sessions[number % len(fort.sessions)]) for number in range(BEGIN_AT_ONCE)]
    async with fort.watched(figures, "wild"):
        following = [
            asyncio.create_task(follow(fort.port, each.session, 0, each, fort.tokens["calm"])) for each in seen
        ]
        began = time.monotonic()
        async with asyncio.timeout(60):
            while not all(each.numbers for each in seen):
                await asyncio.sleep(0.02)
        took = time.monotonic() - began
    for task in following:
        task.cancel()
    await asyncio.gather(*following, return_exceptions=True)
    return {"followers": len(seen), "all_began_s": round(took, 2), **figures}
