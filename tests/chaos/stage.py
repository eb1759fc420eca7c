"""One session on its stage: its own store, task queue, scripted model and workers, and who carries out the fault."""

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from http import HTTPStatus
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import temporalio.client
from temporalio.client import WorkflowExecutionStatus, WorkflowHistory
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from perdure.cli.server import EmbeddedServer
from perdure.client import Client
from perdure.client.connect import DATA_CONVERTER
from perdure.client.errors import ClientError
from perdure.contracts.errors import ReasonCode
from perdure.contracts.names import AGENT_TURN, Signal
from perdure.settings import Settings
from perdure.store import Store, StoreError
from perdure.testing import ChatRequest, Reply, ScriptedProvider
from perdure.testing.connection import Response
from perdure.testing.wires import Wire
from tests.chaos import worker
from tests.chaos.databases import Databases
from tests.chaos.faults import FROM_OUTSIDE, Fault, Kind, dumps
from tests.chaos.outcome import Asked, Heard, Outcome, outcome_of
from tests.chaos.scenarios import Scenario, answers, number
from tests.chaos.trace import Trace
from tests.forked import FORKED
from tests.house import eventually

PATIENCE = 150.0
"""Seconds until a session that has not ended is lost."""

AWAY = 3.0
LOCKED = {Kind.LOCK: 1.0, Kind.LONG_LOCK: 7.0}
"""Seconds; of these faults, the length is what they are."""

SETTLE = 5.0
"""Seconds for a worker that was frozen to do what it had been about to."""

REFUSALS = frozenset({ReasonCode.LLM_RATE_LIMITED, ReasonCode.LLM_NETWORK_ERROR})
"""What a model call of these scenarios fails with before it is sent again."""

KILLED, TERMINATED = -signal.SIGKILL, -signal.SIGTERM

ENDINGS = {
    Kind.KILL: {KILLED},
    Kind.KILL_TWICE: {KILLED},
    Kind.TERM: {0, TERMINATED},  # by the signal itself while it still starts
    Kind.TERM_NOW: {0, TERMINATED},
    Kind.POWER: {KILLED},
}
"""How the workers end that a fault ends."""

UNREACHABLE = 8
"""How a worker ends that starts while server or store are away; whoever runs it starts it again."""


class Model(ScriptedProvider):
    """A scripted model whose usage depends on the number of the answer alone, and that tells of each request."""

    def __init__(self, script: Callable[[ChatRequest], Reply], reached: Callable[[], Awaitable[None]]) -> None:
        super().__init__(script)
        self.asked: list[Asked] = []
        self._reached = reached

    async def answer(self, wire: Wire, body: bytes, headers: dict[str, str]) -> Response:
        """The scripted answer; an error told to the model by a tool does not change what it costs."""
        at = time.time()
        response = await super().answer(wire, body, headers)
        index = number(self.requests[-1].request)
        self.asked.append(Asked(index, at))
        await self._reached()
        usage = {"prompt_tokens": 1000 + index, "completion_tokens": 10 + index, "total_tokens": 1010 + 2 * index}
        if response.status != HTTPStatus.OK:
            return response
        return replace(response, body=json.dumps({**json.loads(response.body), "usage": usage}).encode())


class Crew:
    """The workers of one session; one that is gone is replaced at once."""

    def __init__(self, environment: dict[str, str], fault: Fault | None, folder: Path) -> None:
        self._arguments = (environment, dumps(fault), str(folder / "worker.log"))
        self._size = fault.workers if fault is not None else 1
        self._tasks: list[asyncio.Task[None]] = []
        self.alive: list[ForkServerProcess] = []
        self.ended: list[tuple[int, int]] = []

    def start(self) -> None:
        """Have them come."""
        self._tasks = [asyncio.create_task(self._keep_one()) for _ in range(self._size)]

    async def _keep_one(self) -> None:
        while True:
            process = FORKED.Process(target=worker.run, args=self._arguments)
            process.start()
            self.alive.append(process)
            await _ended(process)
            self.alive.remove(process)
            self.ended.append((process.pid or 0, process.exitcode or 0))

    def signal(self, number: int) -> None:
        """Send a signal to each."""
        for process in self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid or 0, number)

    async def leave(self) -> None:
        """Kill whoever is there."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for process in self.alive:
            process.kill()
            await _ended(process)
            process.close()


async def _ended(process: ForkServerProcess) -> None:
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(process.sentinel, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(process.sentinel)
    process.join()


class Stage:
    """A session and what it needs. It implements what a scenario drives."""

    def __init__(self, scenario: Scenario, fault: Fault | None, session: str, folder: Path) -> None:
        self.scenario = scenario
        self.fault = fault
        self.session = session
        self.folder = folder
        self.trace = Trace(folder, fault)
        self.model = Model(answers(scenario.replies), lambda: self.reached("at model"))
        self.server: EmbeddedServer
        self.temporal: temporalio.client.Client
        self.client: Client
        self.store: Store
        self.crew: Crew
        self._databases: Databases
        self._store_url = ""
        self._first_run: str | None = None

    @asynccontextmanager
    async def set_up(self, server: EmbeddedServer, databases: Databases) -> AsyncIterator["Stage"]:
        """Everything up; the workers come while the session is started."""
        self.server, self._databases = server, databases
        async with AsyncExitStack() as stack:
            postgresql = self.fault is not None and self.fault.store == "postgresql"
            self._store_url = databases.create() if postgresql else f"sqlite:///{self.folder / 'store.db'}"
            settings = Settings(store_url=self._store_url, task_queue=self.session, metrics_address="", agents=())
            self.temporal = await temporalio.client.Client.connect(server.address, data_converter=DATA_CONVERTER)
            self.store = await stack.enter_async_context(await Store.open(self._store_url, upgrade=True))
            self.client = Client(self.temporal, settings)
            stack.push_async_callback(self.client.close)
            await stack.enter_async_context(self.model)
            self.crew = Crew(self._environment(), self.fault, self.folder)
            stack.push_async_callback(self.crew.leave)
            self.crew.start()
            yield self

    def _environment(self) -> dict[str, str]:
        grace = {"PERDURE_SHUTDOWN_GRACE": "0"} if self.fault and self.fault.kind is Kind.TERM_NOW else {}
        return {
            "CHAOS_FOLDER": str(self.folder),
            "TEMPORAL_ADDRESS": self.server.address,
            "OPENAI_API_KEY": "sk-scripted-0123456789",
            "OPENAI_BASE_URL": self.model.url,
            "OPENAI_API_BASE": self.model.url,
            "PERDURE_STORE_URL": self._store_url,
            "PERDURE_TASK_QUEUE": self.session,
            "PERDURE_METRICS_ADDRESS": "",
            **grace,
        }

    async def play(self) -> Outcome:
        """Run the session to its end, with its fault."""
        blow = asyncio.create_task(self._blow())
        try:
            async with asyncio.timeout(PATIENCE):
                await self._patiently(self._start)
                await self.scenario.drive(self)
                # A message that came as its turn ended began the next turn as an execution of its own.
                handle = self.temporal.get_workflow_handle(self.session)
                await self._patiently(handle.result)
                await self._patiently(self._all_turns_ended)
                result = await self._patiently(handle.result)
            if self.trace.struck():
                async with asyncio.timeout(PATIENCE):
                    await blow
        finally:
            blow.cancel()
            await asyncio.gather(blow, return_exceptions=True)
        heard = Heard(result=result, asked=tuple(self.model.asked), trace=self.trace.lines())
        return await outcome_of(self.store, self.session, self.folder, heard)

    def deserters(self) -> list[str]:
        """Workers that ended although nobody had ended them, or not as they were told to."""
        strikes = self.trace.struck()
        kind = self.fault.kind if self.fault is not None and strikes else None
        told = {line.pid for line in strikes}
        everyone = 0 in told or kind is Kind.POWER
        return [
            f"a worker ended with code {code}"
            for pid, code in self.crew.ended
            if not (code == UNREACHABLE and kind in FROM_OUTSIDE)
            and not (kind in ENDINGS and code in ENDINGS[kind] and (everyone or pid in told))
        ]

    async def histories(self) -> list[WorkflowHistory]:
        """Of every run of the session."""
        found: dict[str, WorkflowHistory] = {}
        run: str | None = (await self.temporal.get_workflow_handle(self.session).describe()).run_id
        while run and run not in found:
            found[run] = await self._history(run)
            run = found[run].events[0].workflow_execution_started_event_attributes.continued_execution_run_id
        run = self._first_run
        while run and run not in found:
            found[run] = await self._history(run)
            run = found[run].events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id
        return list(found.values())

    async def _history(self, run: str) -> WorkflowHistory:
        return await self.temporal.get_workflow_handle(self.session, run_id=run).fetch_history()

    async def requested(self, index: int) -> None:
        """Wait until the model was asked for its answer of this number."""

        async def asked() -> bool:
            return any(request.index == index for request in self.model.asked)

        await eventually(asked, PATIENCE)

    async def waits_to_retry(self) -> None:
        """Wait until Temporal waits before it sends a failed model call again, or the session has ended."""

        async def waiting() -> bool:
            with contextlib.suppress(RPCError):
                described = await self.temporal.get_workflow_handle(self.session).describe()
                pending = described.raw_description.pending_activities
                refused = any(activity.last_failure.application_failure_info.type in REFUSALS for activity in pending)
                return refused or described.status is not WorkflowExecutionStatus.RUNNING
            return False

        await eventually(waiting, PATIENCE)

    async def cancel(self) -> None:
        """Send the signal."""
        handle = self.temporal.get_workflow_handle(self.session)
        await self._patiently(lambda: handle.signal(Signal.CANCEL, {"reason": "no longer needed"}))

    async def send(self, prompt: str) -> None:
        """Send a message for the next turn, until it is taken."""
        await self._patiently(lambda: self.client.send(self.session, prompt, request_id=prompt))

    async def reached(self, label: str) -> None:
        """The session has come to a boundary that no worker can see."""
        if not self.trace.reached(label, pid=0):
            return
        assert self.fault is not None
        if self.fault.kind in FROM_OUTSIDE:
            go_on = self.folder / worker.GO_ON
            await eventually(lambda: asyncio.to_thread(go_on.exists))
        else:
            with self.trace.blow():
                self.crew.signal(worker.SIGNALS[self.fault.kind])

    async def _start(self) -> None:
        request = {"agent": "chaos", "prompt": "first", "request_id": "first", **self.scenario.request}
        handle = await self.temporal.start_workflow(AGENT_TURN, request, id=self.session, task_queue=self.session)
        self._first_run = handle.first_execution_run_id

    async def _all_turns_ended(self) -> bool:
        return bool(await eventually(self._ended_already, PATIENCE))

    async def _patiently(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do it again while server or store are away, as any client would."""

        async def done() -> tuple[Any] | None:
            try:
                return (await work(),)
            except WorkflowAlreadyStartedError:
                return (None,)
            except (OSError, RPCError, RuntimeError, ClientError, StoreError):
                return None

        (value,) = await eventually(done, PATIENCE)
        return value

    async def _blow(self) -> None:
        """Carry out the fault, if it is one that comes from outside, once the session has come to its point."""
        fault = self.fault
        if fault is None or (fault.kind not in FROM_OUTSIDE and fault.kind is not Kind.FREEZE):
            return
        await eventually(self._has_struck, PATIENCE)
        match fault.kind:
            case Kind.FREEZE:
                await self._thaw()
            case Kind.SERVER | Kind.POWER:
                await self._restart_the_server(with_workers=fault.kind is Kind.POWER)
            case Kind.AWAY:
                with self._databases.away(self._store_url):
                    self._go_on()
                    await asyncio.sleep(AWAY)
            case _:
                with self._locked():
                    self._go_on()
                    await asyncio.sleep(LOCKED[fault.kind])

    async def _has_struck(self) -> bool:
        return bool(self.trace.struck())

    def _go_on(self) -> None:
        (self.folder / worker.GO_ON).touch()

    async def _restart_the_server(self, *, with_workers: bool) -> None:
        assert self.server.pid is not None
        with self.trace.blow():
            os.kill(self.server.pid, signal.SIGKILL)
            await self.server.wait()
            if with_workers:
                self.crew.signal(signal.SIGKILL)
        self._go_on()
        await self.server.start()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        connection = sqlite3.connect(self.folder / "store.db", isolation_level=None, timeout=30)
        connection.execute("BEGIN EXCLUSIVE")
        try:
            yield
        finally:
            connection.close()

    async def _thaw(self) -> None:
        """Let the frozen worker go on once another one has taken over, or the session has ended without it."""
        struck = self.trace.struck()[0]

        async def taken_over() -> bool:
            others = any(line.at > struck.at and line.pid not in {0, struck.pid} for line in self.trace.lines())
            return others or await self._ended_already()

        await eventually(taken_over, PATIENCE)
        self.crew.signal(signal.SIGCONT)
        thawed = time.time()

        async def moved() -> bool:
            return any(line.at > thawed and line.pid == struck.pid for line in self.trace.lines())

        with contextlib.suppress(TimeoutError):
            await eventually(moved, SETTLE)

    async def _ended_already(self) -> bool:
        turns = await self.store.turns(self.session)
        return len(turns) >= self.scenario.turns and all(turn.result is not None for turn in turns)
