"""A gateway under bodies that cost more than they weigh, and under connections that do nothing.

Two phases, each beside followers of another tenant to whose sessions events are committed all the while:

* every route with a body gets the worst JSON of 1, 10 and 32 MB, without a token and with one;
* 3,000 idle and 500 slow connections stand beside 50 starts a second.

Prints how long ``/healthz`` took at most, what each start took, the gateway's memory, and the followers with a gap.
Ends with 1 if an event is missing, a start failed or ``/healthz`` took more than half a second.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import httpx

from benchmarks.followers import WRITER, Seen, follow, gateway, write
from perdure.cli.server import EmbeddedServer, ServerOptions
from perdure.client import Client
from perdure.contracts.turns import Continuation, OpenTurn
from perdure.gateway.callers import Scope
from perdure.gateway.tokens import make_token
from perdure.local_ports import find_free_port
from perdure.settings import Settings
from perdure.store import Store
from tests.postgresql import start_postgresql, url_of

SIZES, AT_ONCE = (1, 10, 32), 4
IDLE, SLOW, FOLLOWERS, STARTS, SECONDS = 3_000, 500, 100, 50, 20.0
SESSIONS, RATE = 5, 5.0
LONGEST_HEALTH = 0.5


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


def watch_health(base: str) -> None:
    """Ask for ``/healthz`` again and again, on a connection each, until SIGTERM; print how long each took, in seconds.

    It runs in a process of its own: the one that attacks is busier than the gateway.
    """
    taken: list[float] = []
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    while not stopped.wait(0.02):
        began = time.monotonic()
        httpx.get(f"{base}/healthz", timeout=30).raise_for_status()
        taken.append(time.monotonic() - began)
    sys.stdout.write(json.dumps(taken))


@asynccontextmanager
async def health_watched(base: str) -> AsyncIterator[list[float]]:
    """Seconds that ``/healthz`` took, which are there once the block has ended."""
    taken: list[float] = []
    command = (sys.executable, "-m", "benchmarks.siege", "--watch", base)
    watcher = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        yield taken
    finally:
        watcher.terminate()
        said, _ = await watcher.communicate()
        taken += json.loads(said)


@dataclass
class Fort:
    """A gateway with two tenants."""

    port: int
    pid: int
    store: Store
    tokens: dict[str, str]
    sessions: list[str]

    @property
    def base(self) -> str:
        """The gateway's address."""
        return f"http://127.0.0.1:{self.port}"

    def peak_mb(self) -> float:
        """Largest resident memory of the gateway so far."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    @asynccontextmanager
    async def followed(self, figures: dict[str, Any]) -> AsyncIterator[None]:
        """Followers of the first tenant and writers to its sessions, for as long as the block; then their figures."""
        places = await self.store.last_seqs(self.sessions)
        seen = [Seen(self.sessions[number % len(self.sessions)]) for number in range(FOLLOWERS)]
        token = self.tokens["calm"]
        tasks = [
            asyncio.create_task(follow(self.port, each.session, places[each.session] - 1, each, token)) for each in seen
        ]
        first = max(places.values()) * 1_000_000
        writing = [asyncio.create_task(write(self.store, session, RATE, 1e9, first)) for session in self.sessions]
        try:
            async with health_watched(self.base) as taken:
                yield
        finally:
            for writer in writing:
                writer.cancel()
            await asyncio.gather(*writing, return_exceptions=True)
            last = await self.store.last_seqs(self.sessions)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(30):
                    while not all(each.numbers and each.numbers[-1] == last[each.session] for each in seen):
                        await asyncio.sleep(0.05)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        delays = [delay for each in seen for delay in each.delays]
        figures |= {
            "healthz_ms": {"p50": round(median(taken) * 1000), "longest": round(max(taken) * 1000)},
            "event_delay_ms": {"p50": round(median(delays)), "p99": round(quantiles(delays, n=100)[98])},
            "peak_mb": round(self.peak_mb()),
            "followers_with_gaps": sum(
                each.numbers != list(range(places[each.session], last[each.session] + 1)) for each in seen
            ),
        }


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


async def measured(phases: list[str], url: str, folder: Path) -> dict[str, Any]:
    """The figures of each phase, on a gateway of its own."""
    server = EmbeddedServer(ServerOptions(port=find_free_port(), log=folder / "server.log"))
    figures: dict[str, Any] = {}
    async with server, await Store.open(url, upgrade=True) as store:
        sessions = [f"followed-{number}" for number in range(SESSIONS)]
        async with await Client.connect(Settings(store_url=url), address=server.address) as client:
            for session in sessions:  # no worker takes them, so they stay open
                await client.start("writer", "go", session=session, tenant="calm")
                request, now = Continuation(prompt="go", tenant="calm"), datetime.now(UTC)
                opening = OpenTurn(session=session, request=request, request_id="r", run_started_at=now)
                await store.open_turn(opening, WRITER)
        made = {
            tenant: make_token(tenant, tenant, (Scope.READ, Scope.RUN, Scope.APPROVE)) for tenant in ("calm", "wild")
        }
        (folder / "tokens").write_text("\n".join(line for _, line in made.values()))
        tokens = {tenant: token for tenant, (token, _) in made.items()}
        environment = {
            "TEMPORAL_ADDRESS": server.address,
            "PERDURE_STORE_URL": url,
            "PERDURE_GATEWAY_TOKENS_FILE": str(folder / "tokens"),
            "PERDURE_DOORS": "responses,agui,a2a",
            "PERDURE_GATEWAY_MAX_STREAMS": "0",
            "PERDURE_GATEWAY_MAX_REQUESTS": "0",
            "PERDURE_GATEWAY_MAX_RUNNING": "0",
        }
        for phase in phases:
            port = find_free_port()
            async with gateway(environment, port) as pid:
                fort = Fort(port, pid, store, tokens, sessions)
                figures[phase] = await {"heavy": heavy, "crowded": crowded}[phase](fort)
    return figures


def main() -> int:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("phases", nargs="*", help="heavy, crowded; both if none is named")
    parser.add_argument("--watch", metavar="ADDRESS", help="only watch the gateway there, until SIGTERM")
    given = parser.parse_args()
    if given.watch:
        watch_health(given.watch)
        return 0
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    os.environ.pop("PERDURE_GATEWAY_TOKENS", None)
    server = start_postgresql()
    try:
        with tempfile.TemporaryDirectory(prefix="perdure-siege-") as folder:
            figures = asyncio.run(measured(given.phases or ["heavy", "crowded"], url_of(server), Path(folder)))
    finally:
        server.cleanup()
    sys.stdout.write(f"{json.dumps(figures, indent=2)}\n")
    good = all(
        not phase["followers_with_gaps"]
        and not phase.get("starts_failed")
        and set(phase.get("starts", {"202": 0})) == {"202"}
        and phase["healthz_ms"]["longest"] <= LONGEST_HEALTH * 1000
        for phase in figures.values()
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
