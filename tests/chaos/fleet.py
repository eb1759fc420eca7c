"""A fleet of real processes under load: workers and gateways on PostgreSQL, the jobs they carry, and their effects.

Whatever is done to it, :meth:`Fleet.broken` says at the end what was lost, doubled or broken.
"""

import asyncio
import math
import os
import random
import signal
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import httpx
import temporalio.client
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from perdure.cli.server import EmbeddedServer, ServerOptions
from perdure.client.connect import DATA_CONVERTER
from perdure.contracts.errors import ReasonCode
from perdure.contracts.messages import ToolMessage
from perdure.contracts.names import Metric
from perdure.local_ports import find_free_port
from perdure.store import Store
from perdure.testing import ChatRequest, Reply, ScriptedProvider
from perdure.workflows.agent_turn import AgentTurn
from tests.chaos.agents import EFFECTS
from tests.chaos.counted import Sums, differences_of, read_counted, read_stored
from tests.chaos.databases import Databases
from tests.conftest import FAST
from tests.forked import Forked, forked
from tests.house import eventually
from tests.sse import follow

WORKERS, GATEWAYS = 3, 2

PATIENCE = 180.0
"""Seconds, at most, until a job that nothing disturbs any more has ended."""

LIMITS = {**FAST, "limit.historyCount.suggestContinueAsNew": "60"}
"""Turns rotate at every few steps."""

OF_THE_DEVELOPER = ("PERDURE_", "TEMPORAL_", "OPENAI_", "ANTHROPIC_", "OTEL_")


class Member:
    """One process of the fleet; whenever it ends, the next one comes, as Kubernetes sees to it."""

    def __init__(self, main: str, arguments: tuple[str, ...], environment: dict[str, str], log: Path, url: str) -> None:
        self.url = url
        self.environment = environment
        self.deserted: list[int] = []
        self._call = (main, arguments, environment, log)
        self._told: set[int] = set()
        self._codes: dict[int, int] = {}
        self._process: Forked | None = None
        self._keeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Have it come."""
        self._keeper = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        while True:
            self._process = process = forked(*self._call)
            while process.poll() is None:
                await asyncio.sleep(0.05)
            self._codes[process.pid] = code = process.returncode or 0
            if process.pid not in self._told:
                self.deserted.append(code)

    async def ready(self, http: httpx.AsyncClient) -> None:
        """Wait until it is."""

        async def answers() -> bool:
            with suppress(httpx.TransportError):
                return (await http.get(f"{self.url}/readyz")).is_success
            return False

        await eventually(answers)

    def end(self, number: int) -> int:
        """Send it a signal, and say to which process."""
        assert self._process is not None
        self._told.add(self._process.pid)
        self._process.send_signal(number)
        return self._process.pid

    async def replace(self, http: httpx.AsyncClient) -> int:
        """SIGTERM, and wait until the next one is ready; the exit code of the old one."""
        old = self.end(signal.SIGTERM)

        async def came() -> bool:
            return old in self._codes and self._process is not None and self._process.pid != old

        await eventually(came)
        await self.ready(http)
        return self._codes[old]

    async def stop(self) -> int:
        """SIGTERM, and nobody comes after it until it is started again; its exit code."""
        assert self._process is not None
        assert self._keeper is not None
        self._keeper.cancel()
        self.end(signal.SIGTERM)
        return await asyncio.to_thread(self._process.wait, PATIENCE)

    async def leave(self) -> None:
        """Kill it for good."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)


@dataclass
class Job:
    """A session that the load has started.

    Attributes:
        turns: How many messages were accepted.
        seen: Sequence numbers that its follower was sent, over all of its connections.
        connections: How many connections that took.
        may_end: The stop reasons that its turns may have.
    """

    session: str
    turns: int = 0
    seen: list[int] = field(default_factory=list)
    connections: int = 0
    may_end: frozenset[str] = frozenset({"finished"})


@dataclass
class Fleet:
    """Workers, gateways, and what they share."""

    folder: Path
    server: EmbeddedServer
    temporal: temporalio.client.Client
    databases: Databases
    store_url: str
    store: Store
    http: httpx.AsyncClient
    provider: ScriptedProvider
    workers: list[Member]
    gateways: list[Member]
    agents: str
    environment: dict[str, str]
    stack: AsyncExitStack
    numbers: "count[int]" = field(default_factory=lambda: count(1))
    jobs: list[Job] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)

    @property
    def members(self) -> list[Member]:
        """All of its processes."""
        return [*self.workers, *self.gateways]

    @classmethod
    @asynccontextmanager
    async def running(
        cls, folder: Path, script: Callable[[ChatRequest], Reply], agents: str, **changes: str
    ) -> AsyncIterator["Fleet"]:
        """Three workers and two gateways on PostgreSQL, all of them ready; ``changes`` are of their environment."""
        async with AsyncExitStack() as stack:
            databases = stack.enter_context(Databases())
            url = databases.create()
            store = await stack.enter_async_context(await Store.open(url, upgrade=True))
            options = ServerOptions(port=find_free_port(), db=folder / "temporal.db", dynamic_config=LIMITS)
            server = await stack.enter_async_context(EmbeddedServer(options))
            temporal = await temporalio.client.Client.connect(server.address, data_converter=DATA_CONVERTER)
            provider = await stack.enter_async_context(ScriptedProvider(script))
            http = await stack.enter_async_context(httpx.AsyncClient(timeout=30))
            environment = {
                **{name: value for name, value in os.environ.items() if not name.startswith(OF_THE_DEVELOPER)},
                "TEMPORAL_ADDRESS": server.address,
                "PERDURE_STORE_URL": url,
                "PERDURE_TASK_QUEUE": "storm",
                "PERDURE_SHUTDOWN_GRACE": "3",
                "OPENAI_API_KEY": "sk-scripted-0123456789",
                "OPENAI_BASE_URL": provider.url,
                "OPENAI_API_BASE": provider.url,
                "CHAOS_FOLDER": str(folder),
                **changes,
            }
            fleet = cls(
                folder, server, temporal, databases, url, store, http, provider, [], [], agents, environment, stack
            )
            for _ in range(WORKERS):
                fleet.hire()
            for number in range(GATEWAYS):
                address, log = f"127.0.0.1:{find_free_port()}", folder / f"gateway-{number}.log"
                call_of = ("gateway", "--address", address)
                fleet.gateways.append(Member("perdure.cli", call_of, environment, log, f"http://{address}"))
                fleet.gateways[-1].start()
                stack.push_async_callback(fleet.gateways[-1].leave)
            await fleet.ready()
            yield fleet

    def hire(self, **changes: str) -> Member:
        """One more worker, which comes now; ``changes`` are of its environment."""
        address, log = f"127.0.0.1:{find_free_port()}", self.folder / f"worker-{len(self.workers)}.log"
        options = ("--agents", self.agents, "--metrics-address", address)
        environment = {**self.environment, **changes}
        worker = Member("tests.chaos.counting_worker", options, environment, log, f"http://{address}")
        self.workers.append(worker)
        worker.start()
        self.stack.push_async_callback(worker.leave)
        return worker

    async def ready(self) -> None:
        """Wait until every process is."""
        await asyncio.gather(*(member.ready(self.http) for member in self.members))

    async def load(self, at_once: int, until: asyncio.Event) -> None:
        """Keep so many jobs going until told to stop, and see the last ones to their ends."""
        await asyncio.gather(*(self._lane(until) for _ in range(at_once)))

    async def _lane(self, until: asyncio.Event) -> None:
        while not until.is_set():
            number = next(self.numbers)
            job = await self.begin(f"storm-{number}", "chaos", f"job {number}")
            if number % 4 == 0:  # a second message, which waits or opens the next turn
                await self.send(job, f"and then {number}")
            await self._follow(job, until)

    async def begin(self, session: str, agent: str, prompt: str) -> Job:
        """A job whose start is accepted."""
        job = Job(session)
        self.jobs.append(job)
        await self._post("/v1/sessions", {"agent": agent, "prompt": prompt, "session": session})
        job.turns = 1
        return job

    async def send(self, job: Job, prompt: str) -> None:
        """Send the job a message, which is accepted."""
        await self._post(f"/v1/sessions/{job.session}/messages", {"prompt": prompt})
        job.turns += 1

    async def _post(self, path: str, body: Mapping[str, object]) -> None:
        """Ask, at whichever gateway answers, until one has taken it; the key sees to it that it is taken once."""
        headers = {"Idempotency-Key": uuid.uuid4().hex}

        async def taken() -> bool:
            url = random.choice(self.gateways).url
            try:
                answer = await self.http.post(url + path, json=body, headers=headers)
            except httpx.TransportError:
                return False
            assert answer.status_code in {202, 409, 500, 502, 503, 504}, answer.text
            return answer.status_code == 202

        await eventually(taken, PATIENCE)

    async def see_end(self, job: Job) -> None:
        """Read the job's events to the end of its last turn; nothing is wrong with the fleet any more."""
        calm = asyncio.Event()
        calm.set()
        await self._follow(job, calm)

    async def _follow(self, job: Job, calm: asyncio.Event) -> None:
        """Read the job's events to its end, over as many connections as it takes; patience begins when it is calm."""
        deadline = math.inf
        while time.monotonic() < deadline:
            if calm.is_set():
                deadline = min(deadline, time.monotonic() + PATIENCE)
            job.connections += 1
            last = str(job.seen[-1]) if job.seen else None
            url = random.choice(self.gateways).url
            try:
                async with (
                    httpx.AsyncClient(base_url=url, timeout=httpx.Timeout(10, read=30)) as http,
                    follow(http, job.session, last) as stream,
                ):
                    async for sent in stream:
                        if sent.id:
                            job.seen.append(int(sent.id))
                        if sent.event == "end" and await self._has_ended(job):
                            return
            except (httpx.TransportError, AssertionError):
                await asyncio.sleep(0.05)  # the gateway is gone or not ready: ask another one
        raise TimeoutError(job.session)

    async def _has_ended(self, job: Job) -> bool:
        turns = await self.store.turns(job.session)
        return len(turns) >= job.turns and all(turn.result is not None for turn in turns)

    async def replace_all(self) -> list[int]:
        """A rolling restart; the exit codes."""
        return [await member.replace(self.http) for member in self.members]

    async def kill_at_random(self, seconds: float, chance: random.Random) -> None:
        """kill -9, every few seconds, of one process or two."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for member in chance.sample(self.members, chance.choice((1, 1, 2))):
                member.end(signal.SIGKILL)
                self.kills["worker" if member in self.workers else "gateway"] += 1
            await asyncio.sleep(chance.uniform(1, 8))

    async def broken(self) -> AsyncIterator[str]:
        """What is wrong with any job or with what was counted; call it when the load has ended."""
        async for said in self.broken_jobs():
            yield said
        may_lose = self.kills["worker"] > 0  # what a kill cut off between a commit and its count
        for said in differences_of(read_counted(self.folder), await self._stored(), may_lose=may_lose):
            yield said

    async def broken_jobs(self) -> AsyncIterator[str]:
        """What is wrong with any job; call it when the load has ended."""
        for member in self.members:
            for code in member.deserted:
                yield f"{member.url}: ended with {code} although nobody had told it to"
        effects = Counter((self.folder / EFFECTS).read_text(encoding="utf-8").splitlines())
        for effect, times in effects.items():
            if times > 1 and effect.startswith("pay "):
                yield f"{effect}: {times} effects of an unsafe call"
        for job in self.jobs:
            for said in [*await self._broken(job, effects), *await self._not_replayed(job)]:
                yield f"{job.session}: {said}"
        opened = [found.id async for found in self.temporal.list_workflows('ExecutionStatus = "Running"')]
        if opened:
            yield f"still open in Temporal: {opened}"

    async def _stored(self) -> Sums:
        """What the store says of all jobs together, in the words of the counters."""
        total = Counter[str]()
        for job in self.jobs:
            log = await self.store.events(job.session, limit=10_000)
            results = [turn.result for turn in await self.store.turns(job.session) if turn.result]
            calls = [
                message for message in await self.store.transcript(job.session) if isinstance(message, ToolMessage)
            ]
            total.update(read_stored(log, results, calls))
        return dict(total)

    async def _broken(self, job: Job, effects: Counter[str]) -> list[str]:
        said: list[str] = []
        turns = await self.store.turns(job.session)
        ends = [turn.result.stop_reason.value if turn.result else "open" for turn in turns]
        if len(ends) != job.turns or set(ends) - job.may_end:
            said.append(f"{job.turns} messages were accepted, the turns ended with {ends}")
        events = await self.store.events(job.session, limit=10_000)
        numbers = [event.seq for event in events]
        if numbers != list(range(1, len(numbers) + 1)):
            said.append(f"the log is numbered {numbers}")
        if job.seen != numbers:
            said.append(f"the follower saw {job.seen} of {len(numbers)} events")
        transcript = await self.store.transcript(job.session)
        for message in transcript:
            if message.role != "tool" or (message.error and message.error.code == ReasonCode.TOOL_EFFECT_UNKNOWN):
                continue
            if message.delegate is None and not any(effect.endswith(f"/{message.call_id}") for effect in effects):
                said.append(f"{message.call_id}: its result says {message.content!r}, and it has had no effect")
        return said

    async def _not_replayed(self, job: Job) -> list[str]:
        replayer = Replayer(
            workflows=[AgentTurn], data_converter=DATA_CONVERTER, workflow_runner=UnsandboxedWorkflowRunner()
        )
        results = [
            await replayer.replay_workflow(history, raise_on_replay_failure=False)
            for history in await self._histories(job.session)
        ]
        return [f"does not replay: {result.replay_failure}" for result in results if result.replay_failure]

    async def _histories(self, session: str) -> list[WorkflowHistory]:
        return [
            await self.temporal.get_workflow_handle(session, run_id=found.run_id).fetch_history()
            async for found in self.temporal.list_workflows(f'WorkflowId = "{session}"')
        ]

    async def summary(self) -> str:
        """What happened, in a few lines."""
        steps = f"{Metric.STEPS} chaos"
        counted, stored = read_counted(self.folder).get(steps, 0), (await self._stored())[steps]
        connections = sum(job.connections for job in self.jobs)
        return (
            f"{len(self.jobs)} jobs of {sum(job.turns for job in self.jobs)} turns, "
            f"{sum(len(job.seen) for job in self.jobs)} events over {connections} connections; "
            f"killed: {dict(self.kills)}; {self.provider.request_count} requests to the model; "
            f"the workers counted {counted:g} of {stored:g} steps"
        )
