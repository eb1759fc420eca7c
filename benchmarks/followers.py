"""Many followers on one gateway: how late events are, what they cost the writers, and the gateway's memory.

Prints the delay from an event's time to its arrival (p50, p99, longest) with one follower and with many, events
committed a second with followers and without them in the same run, the connections of the database that listen, and
the gateway's memory before the many, after them, and after as many again.
The store is PostgreSQL; the writers write to it as workers do, at a fixed rate. Ends with 1 when an event is missing.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from sqlalchemy import create_engine, text

from perdure.cli.server import EmbeddedServer, ServerOptions
from perdure.client import Client
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.events import NewEvent, UserMessageReceived
from perdure.contracts.turns import Continuation, OpenTurn
from perdure.local_ports import find_free_port
from perdure.settings import Settings
from perdure.store import Store
from perdure.store.database import Address
from perdure.store.doorbell import CHANNEL
from tests.postgresql import start_postgresql, url_of

FOLLOWERS, SESSIONS, RATE, SECONDS = 500, 10, 5.0, 15.0
WRITER = AgentDefinition(name="writer", model="test/model")


@dataclass
class Seen:
    """What one follower saw of a session: the numbers, and how late each event was, in ms."""

    session: str
    numbers: list[int] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)


async def follow(port: int, session: str, after: int, seen: Seen, token: str = "") -> None:
    """Read a stream until it is cut off."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    heads = [f"GET /v1/sessions/{session}/events?after={after} HTTP/1.1", f"Host: 127.0.0.1:{port}"]
    heads += [f"Authorization: Bearer {token}"] if token else []
    writer.write("\r\n".join([*heads, "", ""]).encode())
    try:
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                now = datetime.now(UTC)
                event = json.loads(line[6:])
                seen.numbers.append(event["seq"])
                if "replayed" not in event:
                    seen.delays.append((now - datetime.fromisoformat(event["at"])).total_seconds() * 1000)
    finally:
        writer.close()


async def write(store: Store, session: str, rate: float, seconds: float, first: int) -> int:
    """Commit events at a rate; how many there were time for."""
    began, written = time.monotonic(), 0
    while (elapsed := time.monotonic() - began) < seconds:
        number = first + written
        event = UserMessageReceived(content="x" * 500)
        await store.append_events(session, [NewEvent(key=f"1/said/{number}", turn=1, step=0, event=event)])
        written += 1
        await asyncio.sleep(max(0.0, written / rate - elapsed))
    return written


def memory_of(pid: int) -> float:
    """Resident MB of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def _accepts(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


@asynccontextmanager
async def gateway(environment: dict[str, str], port: int) -> AsyncIterator[int]:
    """A gateway in a process of its own; its pid."""
    command = [sys.executable, "-m", "perdure.cli", "gateway", "--address", f"127.0.0.1:{port}"]
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, **environment}, stdout=quiet, stderr=quiet
    )
    try:
        while not await _accepts(port):
            await asyncio.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        await process.wait()


async def measured(given: argparse.Namespace, url: str, folder: Path) -> dict[str, Any]:
    """The figures."""
    sessions = [f"followed-{number}" for number in range(given.sessions)]
    server = EmbeddedServer(ServerOptions(port=find_free_port(), log=folder / "server.log"))
    engine = create_engine(Address(url).url, isolation_level="AUTOCOMMIT")
    async with server, await Store.open(url, upgrade=True) as store:
        environment = {
            "TEMPORAL_ADDRESS": server.address,
            "PERDURE_STORE_URL": url,
            "PERDURE_GATEWAY_MAX_STREAMS": "0",
            "PERDURE_GATEWAY_MAX_REQUESTS": "0",
        }
        settings = Settings(store_url=url)
        async with await Client.connect(settings, address=server.address) as client:
            for session in sessions:  # no worker takes them, so they stay open
                await client.start("writer", "go", session=session)
                request = Continuation(prompt="go")
                started = datetime.now(UTC)
                opening = OpenTurn(session=session, request=request, request_id="r", run_started_at=started)
                await store.open_turn(opening, WRITER)

        async def written(first: int) -> float:
            began = time.monotonic()
            counts = await asyncio.gather(
                *(write(store, session, given.rate, given.seconds, first) for session in sessions)
            )
            return sum(counts) / (time.monotonic() - began)

        port = find_free_port()
        async with gateway(environment, port) as pid:
            alone = await written(1_000_000)
            single = await _follow_all(port, store, sessions, 1, lambda: written(2_000_000))
            memory = [memory_of(pid)]
            many = await _follow_all(port, store, sessions, given.followers, lambda: written(3_000_000))
            memory.append(memory_of(pid))
            with engine.connect() as connection:
                listening = connection.execute(_LISTENING).scalar_one()
            many_again = await _follow_all(port, store, sessions, given.followers, lambda: written(4_000_000))
            memory.append(memory_of(pid))
    engine.dispose()
    return {
        "followers": given.followers,
        "sessions": given.sessions,
        "frames_a_second": round(len(many.delays) / given.seconds),
        "delay_ms": {"one": single.summary, "many": many.summary, "again": many_again.summary},
        "committed_a_second": {"alone": round(alone, 1), "followed": round(many.rate, 1)},
        "ratio": round(many.rate / alone, 3),
        "listening_connections": listening,
        "memory_mb": [round(size, 1) for size in memory],
        "followers_with_gaps": single.missing + many.missing + many_again.missing,
    }


_LISTENING = text(f"SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN {CHANNEL}%' OR query = 'SELECT 1'")


@dataclass
class Phase:
    """What some followers saw while the writers wrote: delays in ms, commits a second, followers with a gap."""

    delays: list[float]
    rate: float
    missing: int

    @property
    def summary(self) -> dict[str, float]:
        """The middle, the last of a hundred and the longest."""
        cuts = quantiles(self.delays, n=100)
        return {"p50": round(median(self.delays), 1), "p99": round(cuts[98], 1), "longest": round(max(self.delays), 1)}


async def _follow_all(
    port: int, store: Store, sessions: list[str], count: int, write_all: Callable[[], Awaitable[float]]
) -> Phase:
    """Follow while it is written, and until all has arrived."""
    places = await store.last_seqs(sessions)
    seen = [Seen(sessions[number % len(sessions)]) for number in range(count)]
    tasks = [asyncio.create_task(follow(port, each.session, places[each.session] - 1, each)) for each in seen]
    while not all(each.numbers for each in seen):
        await asyncio.sleep(0.05)
    rate = await write_all()
    last = await store.last_seqs(sessions)
    for _ in range(200):
        if all(each.numbers[-1] == last[each.session] for each in seen):
            break
        await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    missing = sum(each.numbers != list(range(places[each.session], last[each.session] + 1)) for each in seen)
    return Phase([delay for each in seen for delay in each.delays], rate, missing)


def main() -> int:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--followers", type=int, default=FOLLOWERS)
    parser.add_argument("--sessions", type=int, default=SESSIONS)
    parser.add_argument("--rate", type=float, default=RATE, help="events a second for each session")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    given = parser.parse_args()
    server = start_postgresql()
    try:
        with tempfile.TemporaryDirectory(prefix="perdure-followers-") as folder:
            figures = asyncio.run(measured(given, url_of(server), Path(folder)))
    finally:
        server.cleanup()
    sys.stdout.write(f"{json.dumps(figures, indent=2)}\n")
    return 1 if figures["followers_with_gaps"] else 0


if __name__ == "__main__":
    sys.exit(main())
