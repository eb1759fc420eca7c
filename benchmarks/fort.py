"""A gateway with two tenants to be attacked, and who watches it: a process of its own, and followers of one tenant."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from urllib.parse import urlsplit

from benchmarks.followers import WRITER, Seen, follow, gateway, write
from perdure.cli.server import EmbeddedServer, ServerOptions
from perdure.client import Client
from perdure.contracts.turns import Continuation, OpenTurn
from perdure.gateway.callers import Scope
from perdure.gateway.tokens import make_token
from perdure.local_ports import find_free_port
from perdure.settings import Settings
from perdure.store import Store

FOLLOWERS, SESSIONS, RATE = 100, 5, 5.0

FAIR = {"matching.enableFairness": "true"}
"""As docs/limits.md asks for where tenants share a fleet."""

KERNEL_SOCKETS = Path("/proc/net/sockstat")


def kernel_mb() -> float:
    """Memory of all TCP sockets of this machine, those of the attackers too."""
    words = KERNEL_SOCKETS.read_text().partition("TCP:")[2].splitlines()[0].split()
    return int(words[words.index("mem") + 1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def watch(base: str, token: str) -> None:
    """Ask for ``/healthz``, and with a good token who asks, on a connection each, until SIGTERM; print what was seen.

    It runs in a process of its own: the one that attacks is busier than the gateway.
    """
    seen = Watched()
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    headers = {"Authorization": f"Bearer {token}"}
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while not stopped.wait(0.02):
        for path, taken in (("/healthz", seen.health), ("/v1/whoami", seen.good)):
            began = time.monotonic()
            try:
                asked = HTTPConnection(urlsplit(base).netloc, timeout=30)
                asked.request("GET", path, headers=headers if path != "/healthz" else {})
                failed = asked.getresponse().status != HTTPStatus.OK
                asked.close()
            except (OSError, HTTPException):
                failed = True
            if failed:
                seen.failed[path] = seen.failed.get(path, 0) + 1
            taken.append(time.monotonic() - began)
    sys.stdout.write(json.dumps(vars(seen)))


@dataclass
class Watched:
    """Seconds that ``/healthz`` and a question with a good token took, and failed ones of each."""

    health: list[float] = field(default_factory=list)
    good: list[float] = field(default_factory=list)
    failed: dict[str, int] = field(default_factory=dict)


@dataclass
class Fort:
    """A gateway with two tenants."""

    port: int
    pid: int
    store: Store
    tokens: dict[str, str]
    sessions: list[str]
    environment: dict[str, str]

    @property
    def base(self) -> str:
        """The gateway's address."""
        return f"http://127.0.0.1:{self.port}"

    def peak_mb(self) -> float:
        """Largest resident memory of the gateway so far."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    def cpu_seconds(self) -> float:
        """Processor time of the gateway so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @asynccontextmanager
    async def watched(self, figures: dict[str, Any], tenant: str = "calm") -> AsyncIterator[None]:
        """Another process watches, with a token of the tenant, for as long as the block lasts; then its figures."""
        cpu, kernel = self.cpu_seconds(), [kernel_mb()]

        async def sample() -> None:
            while True:
                await asyncio.sleep(0.2)
                kernel.append(kernel_mb())

        command = (sys.executable, "-m", "benchmarks.siege", "--watch", self.base, "--token", self.tokens[tenant])
        watcher = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert watcher.stdout is not None
        await watcher.stdout.readline()
        sampling = asyncio.create_task(sample())
        try:
            yield
            await asyncio.sleep(1)  # what was begun last shows
        finally:
            sampling.cancel()
            watcher.terminate()
            said, _ = await watcher.communicate()
            watched = Watched(**json.loads(said))
        figures |= {
            "healthz_ms": {"p50": round(median(watched.health) * 1000), "longest": round(max(watched.health) * 1000)},
            "good_token_ms": {"p50": round(median(watched.good) * 1000), "longest": round(max(watched.good) * 1000)},
            "asked": len(watched.health),
            "failed": watched.failed,
            "gateway_cpu_s": round(self.cpu_seconds() - cpu, 1),
            "peak_mb": round(self.peak_mb()),
            "kernel_mb": round(max(kernel) - kernel[0]),
        }

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
            async with self.watched(figures):
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
            "event_delay_ms": {"p50": round(median(delays)), "p99": round(quantiles(delays, n=100)[98])},
            "followers_with_gaps": sum(
                each.numbers != list(range(places[each.session], last[each.session] + 1)) for each in seen
            ),
        }


@asynccontextmanager
async def built(url: str, folder: Path) -> AsyncIterator["Site"]:
    """A server, a store with sessions that stay open, and tokens of two tenants."""
    server = EmbeddedServer(ServerOptions(port=find_free_port(), log=folder / "server.log", dynamic_config=FAIR))
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
        environment = {
            "TEMPORAL_ADDRESS": server.address,
            "PERDURE_STORE_URL": url,
            "PERDURE_GATEWAY_TOKENS_FILE": str(folder / "tokens"),
            "PERDURE_DOORS": "responses,agui,a2a",
            "PERDURE_GATEWAY_MAX_STREAMS": "0",
            "PERDURE_GATEWAY_MAX_REQUESTS": "0",
            "PERDURE_GATEWAY_MAX_RUNNING": "0",
        }
        yield Site(environment, store, {tenant: token for tenant, (token, _) in made.items()}, sessions)


@dataclass
class Site:
    """Where a gateway may be built, as often as one is wanted."""

    environment: dict[str, str]
    store: Store
    tokens: dict[str, str]
    sessions: list[str]

    @asynccontextmanager
    async def fort(self, **more: str) -> AsyncIterator[Fort]:
        """A gateway; with these variables, too."""
        port = find_free_port()
        async with gateway({**self.environment, **more}, port) as pid:
            yield Fort(port, pid, self.store, self.tokens, self.sessions, self.environment)
