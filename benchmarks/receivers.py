"""What a tenant's receivers of messages can do to others' turns: be slow, silent, endless or gone.

A phase of :mod:`benchmarks.siege`.
"""

import asyncio
import contextlib
import itertools
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

from benchmarks.fort import Fort
from perdure.cli.server import spawn, stop_process
from perdure.client import Client
from perdure.contracts.webhooks import PushConfig
from perdure.local_ports import find_free_port
from perdure.settings import Settings
from perdure.testing import ScriptedProvider, say

WEBHOOKS, TASKS, PUSHES = 110, 60, 10
WORKERS, TURNS_ALONE, SECONDS = 2, 30, 60.0
SLOW_SECONDS = 8.0

HOSTS = {"slow": "127.0.0.2", "silent": "127.0.0.3", "endless": "127.0.0.4", "gone": "127.0.0.5"}
"""A host for each kind: places are counted by hosts."""


@dataclass
class Receivers:
    """Receivers of each kind, and how many deliveries are under way with them."""

    ports: Mapping[str, int] = field(default_factory=lambda: {kind: find_free_port() for kind in HOSTS})
    under_way: int = 0
    most: int = 0
    reached: int = 0

    def variables(self) -> dict[str, str]:
        """What gateway and workers need beside the rest: a queue without other jobs, and leave to send here."""
        origins = ",".join(f"http://{HOSTS[kind]}:{port}" for kind, port in self.ports.items())
        return {"PERDURE_WEBHOOK_ALLOW": origins, "PERDURE_TASK_QUEUE": "deliveries"}

    def addresses(self) -> Iterator[str]:
        """Addresses, of each kind in turn."""
        return itertools.cycle(f"http://{HOSTS[kind]}:{port}/hook" for kind, port in self.ports.items())

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """All but the one that is gone listen for as long as the block lasts."""
        async with AsyncExitStack() as stack:
            for kind in ("slow", "silent", "endless"):
                answer = {"slow": self._answer_late, "silent": self._say_nothing, "endless": self._talk_on}[kind]
                await stack.enter_async_context(await asyncio.start_server(answer, HOSTS[kind], self.ports[kind]))
            yield

    @contextlib.contextmanager
    def _counted(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        self.under_way += 1
        self.reached += 1
        self.most = max(self.most, self.under_way)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                yield
        finally:
            self.under_way -= 1
            writer.close()

    async def _answer_late(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with self._counted(writer):
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(SLOW_SECONDS)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            await writer.drain()

    async def _say_nothing(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with self._counted(writer):
            while await reader.read(65_536):
                pass

    async def _talk_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with self._counted(writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n")
            for number in itertools.count():
                writer.write(f"x-more-{number}: more\r\n".encode())
                await writer.drain()
                await asyncio.sleep(0.2)


async def _took(client: Client, tenant: str) -> float:
    began = time.monotonic()
    turn = await client.start("bench", "go", tenant=tenant)
    await turn.result()
    return time.monotonic() - began


async def _make_tasks(client: Client) -> None:
    """The other tenant's tasks, which have ended."""
    for first in range(0, TASKS, 10):
        starting = (
            client.start("bench", "go", tenant="wild", session=f"task-{first + number}") for number in range(10)
        )
        await asyncio.gather(*(turn.result() for turn in await asyncio.gather(*starting)))


async def _begin(client: Client, receivers: Receivers) -> None:
    """Its messages: one turn with many webhooks, and a few push notifications for each task."""
    addresses, hooks = receivers.addresses(), client.webhooks.of("wild")
    for _ in range(WEBHOOKS):
        await hooks.add(next(addresses), ["ended"], session="hooked")
    await (await client.start("bench", "go", tenant="wild", session="hooked")).result()
    for number, push in itertools.product(range(TASKS), range(PUSHES)):
        await hooks.pushes.add(f"task-{number}", 1, next(addresses), PushConfig(id=f"push-{push}"), {})


@asynccontextmanager
async def _workers(fort: Fort, variables: Mapping[str, str], provider: str) -> AsyncIterator[None]:
    more = {"PERDURE_METRICS_ADDRESS": "", "OPENAI_API_KEY": "sk-scripted-0123456789", "OPENAI_BASE_URL": provider}
    environment = {**os.environ, **fort.environment, **variables, **more, "OPENAI_API_BASE": provider}
    command = [sys.executable, "-m", "perdure.worker", "--agents", "benchmarks.agents"]
    with open(os.devnull, "wb") as output:  # noqa: ASYNC230, PTH123 - opens nothing that waits
        started = [spawn(command, output=output, env=environment) for _ in range(WORKERS)]
        try:
            yield
        finally:
            await asyncio.gather(*(stop_process(process, 5.0) for process in started))


async def deliveries(fort: Fort, receivers: Receivers) -> dict[str, Any]:
    """Turns of one tenant, alone, and beside another's messages to receivers of each kind."""
    figures: dict[str, Any] = {}
    settings = Settings(store_url=fort.environment["PERDURE_STORE_URL"], **_settings_of(receivers))
    async with (
        receivers.listening(),
        ScriptedProvider(lambda _: say("done")) as provider,
        _workers(fort, receivers.variables(), provider.url),
        await Client.connect(settings, address=fort.environment["TEMPORAL_ADDRESS"]) as client,
    ):
        await _make_tasks(client)
        alone = [await _took(client, "calm") for _ in range(TURNS_ALONE)]
        async with fort.watched(figures):
            beginning, while_begun = asyncio.create_task(_begin(client, receivers)), list[float]()
            while not beginning.done():
                while_begun.append(await _took(client, "calm"))
            await beginning
            beside, until = list[float](), time.monotonic() + SECONDS
            while time.monotonic() < until:
                beside.append(await _took(client, "calm"))
    return {
        "messages": WEBHOOKS + TASKS * PUSHES,
        "reached": receivers.reached,
        "under_way": receivers.most,
        "places": WORKERS * settings.max_deliveries,
        "turn_ms_alone": _summary(alone),
        "turn_ms_while_they_begin": _summary(while_begun),
        "turn_ms_beside": _summary(beside),
        **figures,
    }


def _settings_of(receivers: Receivers) -> dict[str, Any]:
    variables = receivers.variables()
    allowed = tuple(variables["PERDURE_WEBHOOK_ALLOW"].split(","))
    return {"task_queue": variables["PERDURE_TASK_QUEUE"], "webhook_allow": allowed, "metrics_address": ""}


def _summary(taken: list[float]) -> dict[str, int]:
    return {
        "turns": len(taken),
        "p50": round(median(taken) * 1000),
        "p95": round(quantiles(taken, n=20)[18] * 1000),
        "longest": round(max(taken) * 1000),
    }
