"""A gateway under bodies that cost more than they weigh, and under connections that nobody would want.

* ``heavy``: every route with a body gets the worst JSON of 1, 10 and 32 MB, without a token and with one;
* ``crowded``: 3,000 idle and 500 slow connections stand beside 50 starts a second;
* ``unread``: 1,500 connections ask for a dozen documents each, and read none;
* ``places``: two addresses do so at a gateway of 40 places;
* ``crumbs``: bodies in chunks of one byte and more, on up to 100 connections;
* ``begins``: 500 followers begin in the same moment;
* ``deliveries``: 710 messages of a tenant to receivers that are slow, silent, endless and gone, beside another's turns.

The first two stand beside followers of another tenant to whose sessions events are committed all the while. A process
of its own asks for ``/healthz``, and with a good token, all the time.

Prints how long these took at most and how many failed, the gateway's memory and that of the system's sockets. Ends with
1 if ``/healthz`` took more than half a second, one of these questions failed, memory passed the chart's limit, an event
is missing, a start failed, or a turn took more than twice as long as alone.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx

from benchmarks.fort import Fort, built, watch
from benchmarks.receivers import Receivers, deliveries
from benchmarks.strangers import FEW_PLACES, begins, crumbs, places, unread
from tests.postgresql import start_postgresql, url_of

SIZES, AT_ONCE = (1, 10, 32), 4
IDLE, SLOW, STARTS, SECONDS = 3_000, 500, 50, 20.0
LONGEST_HEALTH, CHART_MB = 0.5, 512
RECEIVERS = Receivers()


def bodies(size: int) -> Iterator[bytes]:
    """The worst JSON objects of so many bytes: unknown fields at two places, depth, width, numbers, and no end."""
    wide = b",".join(b'"k%d":0' % number for number in range(size // 12))
    yield b'{"agent":"writer","prompt":"go",%s}' % wide[: wide.rindex(b",", 0, size)]
    yield b'{"agent":"writer","prompt":"go","context":%s}' % (b"[" * (size - 50))
    yield b'{"agent":"writer","prompt":"go","context":{"a":[%s[]]}}' % (b"[]," * (size // 3 - 30))
    yield b'{"agent":"writer","prompt":"go","max_steps":%s}' % (b"9" * (size - 60))
    yield b'{"agent":"writer","prompt":"%s"}' % (b"\\ud800" * (size // 6 - 10))
    yield b'{"agent":"writer","prompt":"%s' % (b"x" * (size - 40))
    yield b'{"agent":"writer","prompt":"go","budgets":{%s}}' % wide[: wide.rindex(b",", 0, min(size, 900_000))]
    yield b'{"agent":"writer","prompt":"go","tools":[%s1]}' % (b"1," * min(size // 2 - 30, 99_000))
    yield b'{"agent":"writer","prompt":"go","context":%s}' % (b"]" * (size - 50))
    yield from taken_bodies()


def taken_bodies() -> Iterator[bytes]:
    """The longest of what the bounds admit: a context, a conversation, tools, parts of a prompt, objects of a door."""
    many = b",".join(b'"k%d":[%d]' % (number, number) for number in range(49_000))
    said = b",".join(b'{"role":"user","content":"%d"}' % number for number in range(10_000))
    tools = b",".join(b'{"name":"t%d"}' % number for number in range(33_000))
    parts = b",".join(b'{"type":"text","text":"%d"}' % number for number in range(33_000))
    yield b'{"agent":"writer","prompt":"go","context":{%s}}' % many
    yield b'{"agent":"writer","prompt":"go","history":[%s]}' % said
    yield b'{"agent":"writer","prompt":"go","definition":{"model":"openai/gpt-5","tools":[%s]}}' % tools
    yield b'{"agent":"writer","prompt":[%s]}' % parts
    yield b'{"model":"writer","input":[%s]}' % said
    yield b'{"model":"writer","input":"go","tools":[%s],"text":{%s}}' % (tools, many)
    yield b'{"threadId":"t","runId":"r","messages":[%s],"tools":[%s],"context":[],"state":{}}' % (said, tools)
    message = b'{"messageId":"m","role":"ROLE_USER","parts":[%s]}' % (b'{"text":"a"},' * 30_000 + b'{"text":"a"}')
    yield b'{"message":%s}' % message
    yield b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":%s}}' % message


async def heavy(fort: Fort) -> dict[str, Any]:
    """Every route with a body gets every bad body."""
    answered: Counter[str] = Counter()
    at_once = asyncio.Semaphore(AT_ONCE)
    figures: dict[str, Any] = {}
    async with httpx.AsyncClient(base_url=fort.base, timeout=120) as http:
        described = (await http.get("/openapi.json")).json()["paths"]
        routes = [
            (method, path.replace("{", "").replace("}", ""))
            for path, methods in described.items()
            for method, route in methods.items()
            if "requestBody" in route
        ]
        others = ("/ui/login", "/openai/v1/responses", "/agui/writer", "/a2a/writer", "/a2a/writer/message:send")
        routes += [("post", path) for path in others]

        async def send(method: str, path: str, body: bytes, token: str | None) -> None:
            headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
            async with at_once:
                try:
                    got = await http.request(method, path, content=body, headers=headers)
                    answered[str(got.status_code)] += 1
                except httpx.TransportError as error:  # refused before all of it was sent
                    answered[type(error).__name__] += 1

        async with fort.followed(figures):
            for size in SIZES:
                for body in bodies(size * 1_000_000):
                    for token in (None, fort.tokens["wild"]):
                        await asyncio.gather(*(send(method, path, body, token) for method, path in routes))
    return {"routes": len(routes), "answers": dict(sorted(answered.items())), **figures}


async def crowded(fort: Fort) -> dict[str, Any]:
    """Idle and slow connections, each few from an address of their own, beside starts at a rate."""
    figures: dict[str, Any] = {}
    open_now: list[asyncio.StreamWriter] = []
    refused: Counter[str] = Counter()

    async def idle(number: int) -> None:
        source = f"127.1.{number // 200}.{1 + number % 200}"
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", fort.port, local_addr=(source, 0))
        except OSError as error:
            refused[type(error).__name__] += 1
            return
        open_now.append(writer)

    async def slow(number: int) -> None:
        head = b"GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\nX-Pad: " + b"x" * 10_000
        while True:
            with contextlib.suppress(OSError):
                source = f"127.2.{number // 200}.{1 + number % 200}"
                _, writer = await asyncio.open_connection("127.0.0.1", fort.port, local_addr=(source, 0))
                with contextlib.closing(writer):
                    for byte in head:
                        writer.write(bytes([byte]))
                        await writer.drain()
                        await asyncio.sleep(0.5)
            await asyncio.sleep(0.5)

    taken: list[float] = []
    outcomes: Counter[int] = Counter()
    limits = httpx.Limits(max_connections=100, max_keepalive_connections=100)
    headers = {"Authorization": f"Bearer {fort.tokens['calm']}"}
    async with (
        httpx.AsyncClient(base_url=fort.base, timeout=30, limits=limits, headers=headers) as http,
        fort.followed(figures),
    ):

        async def start() -> None:
            began = time.monotonic()
            got = await http.post("/v1/sessions", json={"agent": "writer", "prompt": "go"})
            taken.append(time.monotonic() - began)
            outcomes[got.status_code] += 1

        crawling = [asyncio.create_task(slow(number)) for number in range(SLOW)]
        await asyncio.gather(*(idle(number) for number in range(IDLE)))
        starting: list[asyncio.Task[None]] = []
        began = time.monotonic()
        for number in range(int(STARTS * SECONDS)):
            starting.append(asyncio.create_task(start()))
            await asyncio.sleep(max(0.0, began + (number + 1) / STARTS - time.monotonic()))
        failed = [got for got in await asyncio.gather(*starting, return_exceptions=True) if got is not None]
        for task in crawling:
            task.cancel()
        await asyncio.gather(*crawling, return_exceptions=True)
    for writer in open_now:
        writer.close()
    cuts = quantiles(taken, n=100)
    return {
        "idle": len(open_now),
        "slow": SLOW,
        "connections_refused": dict(refused),
        "starts": {str(status): count for status, count in outcomes.items()},
        "starts_failed": len(failed),
        "start_ms": {"p50": round(cuts[49] * 1000), "p99": round(cuts[98] * 1000), "longest": round(max(taken) * 1000)},
        **figures,
    }


PHASES: dict[str, Callable[[Fort], Awaitable[dict[str, Any]]]] = {
    "heavy": heavy,
    "crowded": crowded,
    "unread": unread,
    "places": places,
    "crumbs": crumbs,
    "begins": begins,
    "deliveries": lambda fort: deliveries(fort, RECEIVERS),
}


async def measured(phases: list[str], url: str, folder: Path) -> dict[str, Any]:
    """The figures of each phase, on a gateway of its own."""
    figures: dict[str, Any] = {}
    async with built(url, folder) as site:
        for phase in phases:
            more = {"places": {"PERDURE_GATEWAY_MAX_CONNECTIONS": str(FEW_PLACES)}, "deliveries": RECEIVERS.variables()}
            async with site.fort(**more.get(phase, {})) as fort:
                figures[phase] = await PHASES[phase](fort)
    return figures


def is_good(phase: dict[str, Any]) -> bool:
    """Whether a phase shows what it has to."""
    return (
        phase["healthz_ms"]["longest"] <= LONGEST_HEALTH * 1000
        and not phase["failed"]
        and phase["peak_mb"] + phase.get("kernel_mb", 0) <= CHART_MB
        and not phase.get("followers_with_gaps")
        and not phase.get("starts_failed")
        and set(phase.get("starts", {"202": 0})) == {"202"}
        and phase.get("turn_ms_beside", {"p95": 0})["p95"] <= 2 * phase.get("turn_ms_alone", {"p95": 0})["p95"]
    )


def main() -> int:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phases", nargs="*", choices=[[], *PHASES], help="all if none is named")
    parser.add_argument("--watch", metavar="ADDRESS", help="only watch the gateway there, until SIGTERM")
    parser.add_argument("--token", default="", help="a good token, to watch with")
    given = parser.parse_args()
    if given.watch:
        watch(given.watch, given.token)
        return 0
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    os.environ.pop("PERDURE_GATEWAY_TOKENS", None)
    server = start_postgresql()
    try:
        with tempfile.TemporaryDirectory(prefix="perdure-siege-") as folder:
            figures = asyncio.run(measured(given.phases or [*PHASES], url_of(server), Path(folder)))
    finally:
        server.cleanup()
    sys.stdout.write(f"{json.dumps(figures, indent=2)}\n")
    return 0 if all(map(is_good, figures.values())) else 1


if __name__ == "__main__":
    sys.exit(main())
