"""What ``make demo`` runs: server, worker, scripted model and one job, with a worker killed in the middle of it.

The model is always scripted, also when a provider's key is set: the worker gets an address and a key of the demo's own.
"""

import asyncio
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from examples.demo.agent import CHECKOUT, JOURNAL, SCRATCH, agent
from examples.demo.script import answer
from perdure.cli.child import worker_command, worker_environment
from perdure.cli.errors import CliError
from perdure.cli.live import Printer, show
from perdure.cli.render import Line, Tone
from perdure.cli.server import (
    DEFAULT_PORT,
    DEFAULT_UI_PORT,
    EmbeddedServer,
    ServerOptions,
    check_port,
    free_port,
    open_log,
    spawn,
    stop_process,
)
from perdure.client import Client, Turn
from perdure.contracts.events import AgentEnd, GenerationContent, GenerationRetry, GenerationStart, ToolEnd, ToolStart
from perdure.settings import Settings
from perdure.testing import ScriptedProvider

START_SECONDS = 60.0
"""How long a worker may take until it polls."""

STEP_OF_THE_KILL = 3
REQUESTS_BEFORE_THE_KILL = 4
"""Three answers were asked for, and the second one twice: its first request got a 429."""

STORE_URL = f"sqlite:///{SCRATCH / 'store.db'}"
LOG = SCRATCH / "worker.log"


def say(text: str = "") -> None:
    """A line of the demo itself."""
    show(Line(text, Tone.HEAD))


def port(wished: int) -> int:
    """The usual port, or a free one when something listens there."""
    try:
        check_port(wished, "")
    except CliError:
        return free_port()
    return wished


class Workers:
    """The demo's one worker process, and its replacement."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> int:
        """Start a worker and wait until it polls; returns its process id."""
        LOG.unlink(missing_ok=True)
        with open_log(LOG) as output:
            command = worker_command([str(CHECKOUT / "examples" / "demo" / "agent.py")])
            self._process = spawn(command, output=output, env=self._environment)
        async with asyncio.timeout(START_SECONDS):
            while '"polling"' not in LOG.read_text(encoding="utf-8"):
                if self._process.poll() is not None:
                    raise SystemExit(f"the worker ended with code {self._process.returncode}; see {LOG}")
                await asyncio.sleep(0.1)
        return self._process.pid

    def kill(self) -> int:
        """Kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        return self._process.pid

    async def stop(self) -> None:
        """SIGTERM, and wait for the end."""
        if self._process is not None:
            await stop_process(self._process)


@asynccontextmanager
async def started() -> AsyncIterator[tuple[EmbeddedServer, ScriptedProvider, Workers, Client]]:
    """Everything the demo needs, on this machine only."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    JOURNAL.unlink(missing_ok=True)
    options = ServerOptions(
        port=port(DEFAULT_PORT), ui_port=port(DEFAULT_UI_PORT), db=SCRATCH / "temporal.db", log=SCRATCH / "server.log"
    )
    async with EmbeddedServer(options) as server, ScriptedProvider(answer) as provider:
        for name in [name for name in os.environ if name.startswith(("TEMPORAL_", "PERDURE_"))]:
            del os.environ[name]  # the demo has its own server and store, whatever else is set here
        os.environ |= {"TEMPORAL_ADDRESS": server.address, "PERDURE_STORE_URL": STORE_URL}
        environment = worker_environment(
            CHECKOUT,
            OPENAI_BASE_URL=provider.url,
            OPENAI_API_BASE=provider.url,
            OPENAI_API_KEY="sk-scripted-model-of-the-demo",
            PERDURE_METRICS_ADDRESS="",
        )
        workers = Workers(environment)
        try:
            say(f"Temporal server {server.address} · UI {server.ui_url}")
            say(f"The model is SCRIPTED: its replies come from {provider.url}, over real HTTP through litellm.")
            say(f"Worker {await workers.start()} polls.")
            async with await Client.connect(Settings(store_url=STORE_URL)) as client:
                yield server, provider, workers, client
        finally:
            await workers.stop()


async def watch(turn: Turn, provider: ScriptedProvider, workers: Workers) -> "Seen":
    """Print the turn as it happens, and replace the worker while the model is asked for its third answer."""
    printer, seen = Printer(as_json=False), Seen()
    async for envelope in turn.events():
        printer.event(envelope)
        seen.note(envelope.event)
        if isinstance(envelope.event, GenerationStart) and envelope.step == STEP_OF_THE_KILL:
            await provider.wait_for_requests(REQUESTS_BEFORE_THE_KILL)
            say(f"… kill -9 {workers.kill()}: the worker is gone, in the middle of a model call")
            say(f"… worker {await workers.start()} takes over, once the lost one has missed its heartbeats for 8 s")
    return seen


class Seen:
    """What the events have shown, to be checked at the end."""

    def __init__(self) -> None:
        self.retries: list[GenerationRetry] = []
        self.parallel = 0
        self.tool_errors = 0
        self.started: list[str] = []
        self.end: AgentEnd | None = None

    def note(self, event: object) -> None:
        """Take one event into account."""
        match event:
            case GenerationRetry():
                self.retries.append(event)
            case GenerationContent():
                self.parallel = max(self.parallel, len(event.tool_calls))
            case ToolStart():
                self.started.append(event.call_id)
            case ToolEnd():
                self.tool_errors += event.error is not None
            case AgentEnd():
                self.end = event
            case _:
                pass


def check(seen: Seen, provider: ScriptedProvider) -> None:
    """The demo is over only if it has shown everything it promises."""
    bodies = [line.split()[0] for line in JOURNAL.read_text(encoding="utf-8").splitlines()]
    assert seen.end is not None
    assert seen.end.stop_reason == "finished", seen.end
    assert [retry.code for retry in seen.retries] == ["llm.rate_limited"], seen.retries
    assert seen.retries[0].wait_seconds >= 2, "the wait is at least what Retry-After asked for"
    assert seen.parallel == 2, "two tool calls of one answer run in parallel"
    assert seen.tool_errors == 1, "the missing page is an error result that the model has read"
    assert provider.request_count == 7, "five answers, one 429 and one call lost with its worker"
    assert len(bodies) == len(set(bodies)) == len(seen.started) == 5, "each tool body has run exactly once"
    say(f"{len(bodies)} tool calls and {len(bodies)} bodies run, none twice; {provider.request_count} model requests:")
    say("5 answers, one 429 sent again after its Retry-After, one lost with the killed worker and asked again.")


async def demo() -> None:
    """Run the job and check what it has shown."""
    async with started() as (server, provider, workers, client):
        say()
        turn = await client.start(agent.name, "Look around in this project and write a report.", session=new_session())
        seen = await watch(turn, provider, workers)
        result = await turn.result()
        say()
        say(f"{result.stop_reason}: {result.output}")
        check(seen, provider)
        say(f"The job in the UI: {server.ui_url}/namespaces/default/workflows/{turn.session}")
        if sys.stdin.isatty() and "--exit" not in sys.argv:
            say("The UI stays until you press Ctrl+C.")
            await asyncio.Event().wait()


def new_session() -> str:
    """A session of its own for each run of the demo."""
    return f"demo-{uuid.uuid4().hex[:6]}"


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(demo())
