"""Everything one test needs of perdure: its own store, task queue and scripted model, and workers on demand."""

import asyncio
import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import temporalio.client
from prometheus_client import CollectorRegistry
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError
from temporalio.worker import WorkflowRunner

from perdure import Agent
from perdure.activities.mcp.servers import McpServers
from perdure.activities.secrets import secret_values
from perdure.activities.telling.metrics import Metrics
from perdure.activities.telling.traces import Traces
from perdure.agents.data import InlineAgents, Registered
from perdure.cli.server import EmbeddedServer
from perdure.client import Client, NoWorkerError
from perdure.client.encryption import open_store
from perdure.contracts.names import AGENT_TURN
from perdure.contracts.queues import Role
from perdure.lanes.bodies import Bodies
from perdure.settings import Settings
from perdure.store import Store
from perdure.testing import ScriptedProvider
from perdure.worker.agents import Loaded
from perdure.worker.app import build_pinned_worker, build_workers, open_parts
from tests.forked import Forked, forked_worker
from tests.new_store import make_sqlite
from tests.sandbox import strict_runner

WAIT_SECONDS = 120.0
"""Upper bound of every wait in tests; none of them is a measurement."""

MOST_PAUSE = 0.2
"""Longest pause in seconds between two looks at a condition: many of them ask the store or the server."""

ROOT = Path(__file__).parent.parent


async def eventually(condition: Callable[[], Awaitable[Any]], seconds: float = WAIT_SECONDS) -> Any:
    """Wait until the condition gives something true, and return it; the longer it takes, the less often it is asked."""
    pause = 0.02
    async with asyncio.timeout(seconds):
        while not (value := await condition()):
            await asyncio.sleep(pause)
            pause = min(1.2 * pause, MOST_PAUSE)
        return value


def become_a_user(environment: pytest.MonkeyPatch, address: str) -> None:
    """Leave nothing of the developer's own in the environment, and point it at the server of this address."""
    for name in list(os.environ):
        if name.startswith(("PERDURE_", "TEMPORAL_", "OTEL_", "OPENAI_", "ANTHROPIC_")):
            environment.delenv(name)
    environment.setenv("TEMPORAL_ADDRESS", address)
    environment.setenv("OPENAI_API_KEY", "sk-scripted-0123456789")
    environment.setenv("ANTHROPIC_API_KEY", "sk-ant-scripted-0123456789")


@dataclass
class HeldCalls:
    """Calls of a method of the store that do not begin before the test lets them go on.

    Attributes:
        reached: Set once a call has come.
        go_on: Lets it begin, and all later ones.
    """

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class House:
    """One test's perdure."""

    server: EmbeddedServer
    temporal: temporalio.client.Client
    environment: pytest.MonkeyPatch
    folder: Path
    settings: Settings
    store: Store
    client: Client
    session: str
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    metrics: Metrics = field(default_factory=lambda: Metrics(CollectorRegistry()))
    processes: list[Forked | subprocess.Popen[bytes]] = field(default_factory=list)
    mcp: McpServers = field(default_factory=lambda: McpServers((), frozenset()))

    @classmethod
    @asynccontextmanager
    async def built(  # noqa: PLR0913 - what differs between the places that build one, all by keyword
        cls,
        *,
        name: str,
        server: EmbeddedServer,
        temporal: temporalio.client.Client,
        environment: pytest.MonkeyPatch,
        folder: Path,
        task_queue: str | None = None,
        store_url: str | None = None,
    ) -> AsyncIterator["House"]:
        session = re.sub(r"[^A-Za-z0-9]+", "-", name)[:60].strip("-") + "-" + uuid.uuid4().hex[:6]
        file = folder / "store.db"
        if store_url is None and not file.exists():
            make_sqlite(file)
        environment.setenv("PERDURE_STORE_URL", store_url or f"sqlite:///{file}")
        environment.setenv("PERDURE_TASK_QUEUE", task_queue or session)
        environment.setenv("PERDURE_METRICS_ADDRESS", "")
        environment.setenv("PERDURE_SHUTDOWN_GRACE", "20")  # for tests that end while a call hangs
        environment.setenv("PERDURE_MCP_FOLDER", str(folder / "mcp"))
        settings = Settings()
        async with await open_store(settings, upgrade=True) as store:
            client = await Client.connect(settings)
            house = cls(server, temporal, environment, folder, settings, store, client, session)
            try:
                yield house
            finally:
                for process in house.processes:
                    process.kill()
                    process.wait()
                await house.end_all()
                await client.close()

    async def end_all(self) -> None:
        """Terminate what still runs: its timers would load the server of all tests, and its ids would be taken."""
        with contextlib.suppress(RPCError):  # the test has ended the server
            query = f'TaskQueue = "{self.settings.task_queue}" AND ExecutionStatus = "Running"'
            async for found in self.temporal.list_workflows(query, rpc_timeout=timedelta(seconds=WAIT_SECONDS)):
                await self.temporal.get_workflow_handle(found.id, run_id=found.run_id).terminate()

    def hold(self, method: str, when: Callable[..., bool] = lambda *_, **__: True) -> HeldCalls:
        """Hold the calls of a method of the workers' store, or those whose arguments ``when`` is true of."""
        held, real = HeldCalls(), getattr(self.store, method)

        async def slow(*arguments: Any, **named: Any) -> Any:
            if when(*arguments, **named):
                held.reached.set()
                await held.go_on.wait()
            return await real(*arguments, **named)

        self.environment.setattr(self.store, method, slow)
        return held

    def use(self, provider: ScriptedProvider) -> None:
        """Let every model call of this test go to the provider."""
        self.environment.setenv("OPENAI_BASE_URL", provider.url)
        self.environment.setenv("OPENAI_API_BASE", provider.url)
        self.environment.setenv("ANTHROPIC_API_BASE", provider.anthropic_url)

    @asynccontextmanager
    async def worker(
        self,
        *agents: Agent,
        runner: WorkflowRunner | None = None,
        client: temporalio.client.Client | None = None,
        inline: bool = False,
        fail_workflows: bool = False,
        traces: Traces | None = None,
    ) -> AsyncIterator[None]:
        """A worker in this process, under the strict sandbox; ``inline`` allows agents in start requests."""
        await self.store.register_agents([agent.definition for agent in agents])
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry, tenants=True)
        loaded = Loaded({agent.name: agent for agent in agents}, Registered(agents))
        secrets, bodies = secret_values(agents, os.environ), Bodies(8)
        opening = open_parts(self.settings, self.store, loaded, self.metrics, secrets=secrets, bodies=bodies)
        async with AsyncExitStack() as stack:
            parts = dataclasses.replace(
                await stack.enter_async_context(opening),
                search_attributes=client is None,
                fail_workflows=fail_workflows,
                inline=InlineAgents(loaded.registered, list(loaded.agents)) if inline else None,
                traces=traces or Traces(),
            )
            self.mcp = parts.mcp
            pinned = build_pinned_worker(client or self.temporal, self.settings, parts)
            if pinned is not None:
                await stack.enter_async_context(pinned)
            for worker in build_workers(client or self.temporal, self.settings, parts, runner or strict_runner()):
                if worker._workflow_worker is not None:
                    worker._workflow_worker._deadlock_timeout_seconds = int(WAIT_SECONDS)  # busy is not stuck
                await stack.enter_async_context(worker)
            if client is None and self.settings.routing.has(Role.TURNS):
                await eventually(self._polled)  # commands refuse to start what no worker would take
            yield

    async def _polled(self) -> bool:
        try:
            await self.client.check_worker()
        except NoWorkerError:
            return False
        return True

    def spawn_worker(self, agents: str, *, main: str = "perdure.worker", **environment: str) -> "WorkerProcess":
        """A worker in a process of its own, as an operator starts it unless another main module is named.

        It can be killed, and ends with the test. What its process has imported before is all that is not as an
        operator's; tests of ``perdure dev``, of settings and of the demo start theirs by a command.
        """
        log = self.folder / f"worker-{uuid.uuid4().hex[:6]}.log"
        process = forked_worker(main, agents, {**os.environ, **environment}, log)
        self.processes.append(process)
        return WorkerProcess(process, log)

    async def start(
        self, agent: str | None = "tester", prompt: str = "go", *, session: str | None = None, **request: Any
    ) -> WorkflowHandle[Any, Any]:
        """Start a turn the way another service does: by name, with plain JSON; in the test's session or another."""
        return await self.temporal.start_workflow(
            AGENT_TURN,
            {"agent": agent, "prompt": prompt, **request},
            id=session or self.session,
            task_queue=self.settings.task_queue,
        )

    async def run(self, agent: str | None = "tester", prompt: str = "go", **request: Any) -> dict[str, Any]:
        """Start a turn and wait for the workflow's result."""
        handle = await self.start(agent, prompt, **request)
        async with asyncio.timeout(WAIT_SECONDS):
            result: dict[str, Any] = await handle.result()
        return result

    async def events(self, *types: str) -> list[Mapping[str, Any]]:
        """The events of the session as JSON lines, all or those of these types."""
        lines: list[Mapping[str, Any]] = []
        while page := await self.store.events(self.session, after=len(lines), limit=500):
            lines.extend(envelope.line() for envelope in page)
        return [line for line in lines if not types or line["type"] in types]

    async def wait_for_event(self, kind: str, count: int = 1) -> list[Mapping[str, Any]]:
        """Wait until so many events of a type stand in the log."""

        async def there() -> list[Mapping[str, Any]] | None:
            found = await self.events(kind)
            return found if len(found) >= count else None

        return list(await eventually(there))


@dataclass
class WorkerProcess:
    """A worker that can be killed."""

    process: Forked | subprocess.Popen[bytes]
    log: Path

    async def polling(self) -> None:
        """Wait until it polls."""

        async def polls() -> bool:
            if self.process.poll() is not None:
                pytest.fail(f"the worker ended with {self.process.returncode}:\n{self.log.read_text()}")
            return '"polling"' in self.log.read_text()

        await eventually(polls)

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()

    async def stop(self) -> int:
        """SIGTERM, and wait for its end."""
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, WAIT_SECONDS)
