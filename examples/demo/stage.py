"""What runs for the demo: the embedded server, the scripted model, a worker that can be replaced, and a client."""

import asyncio
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from examples.demo.agent import CHECKOUT, SCRATCH
from examples.demo.script import answer
from perdure.cli.errors import CliError
from perdure.cli.output import show
from perdure.cli.render import Line, Tone
from perdure.cli.server import (
    DEFAULT_PORT,
    DEFAULT_UI_PORT,
    EmbeddedServer,
    ServerOptions,
    check_port,
    open_log,
    spawn,
    stop_process,
)
from perdure.cli.worker import worker_arguments
from perdure.client import Client
from perdure.local_ports import find_free_port
from perdure.settings import Settings
from perdure.testing import ScriptedProvider

START_SECONDS = 60.0
"""How long a worker may take until it polls."""

_FOREIGN = ("TEMPORAL_", "PERDURE_", "OPENAI_", "LITELLM_")


class DemoError(Exception):
    """The demo cannot go on; the message is one line."""


def say(text: str = "", tone: Tone = Tone.PLAIN) -> None:
    """A line of the demo itself."""
    show(Line(text, tone))
    sys.stdout.flush()


@contextmanager
def own_folder(session: str) -> Iterator[Path]:
    """The folder of this run, so that several may run at once; those of demos that have ended are removed."""
    folder = SCRATCH / session
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        with (SCRATCH / ".lock").open("a") as turnstile:
            fcntl.flock(turnstile, fcntl.LOCK_EX)
            for lock in SCRATCH.glob("*/lock"):
                with lock.open("a") as file, suppress(OSError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(lock.parent)
            folder.mkdir()
            fcntl.flock(held.enter_context((folder / "lock").open("a")), fcntl.LOCK_EX)
        yield folder


class Workers:
    """The demo's one worker process, and its replacement."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.started: list[int] = []
        self._folder = folder
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> int:
        """Start a worker and wait until it polls; returns its process id.

        Raises:
            DemoError: It ended, or does not poll within a minute.
        """
        log = self._folder / f"worker-{len(self.started) + 1}.log"
        with open_log(log) as output:
            command = worker_arguments([str(CHECKOUT / "examples" / "demo" / "agent.py")])
            process = self._process = spawn(command, output=output, env=self._environment)
        self.started.append(process.pid)
        try:
            async with asyncio.timeout(START_SECONDS):
                while '"polling"' not in log.read_text(encoding="utf-8"):
                    if process.poll() is not None:
                        raise DemoError(f"the worker ended with code {process.returncode}; see {log}")
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise DemoError(f"the worker did not poll within {START_SECONDS:.0f} s; see {log}") from None
        return process.pid

    def kill(self) -> int:
        """Kill -9; returns the process id."""
        if self._process is None:
            raise DemoError("no worker runs")
        self._process.kill()
        self._process.wait()
        return self._process.pid

    async def stop(self) -> None:
        """SIGTERM, and wait for the end."""
        if self._process is not None:
            await stop_process(self._process)


class Stage(NamedTuple):
    """All that runs for the demo."""

    server: EmbeddedServer
    provider: ScriptedProvider
    workers: Workers
    client: Client


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[Stage]:
    """Everything the demo needs, on this machine only."""
    leave_out_what_is_set_here()
    options = ServerOptions(
        port=port(DEFAULT_PORT), ui_port=port(DEFAULT_UI_PORT), db=folder / "temporal.db", log=folder / "server.log"
    )
    settings = Settings(store_url=f"sqlite:///{folder / 'store.db'}")
    async with EmbeddedServer(options) as server, ScriptedProvider(answer) as provider:
        os.environ |= {"TEMPORAL_ADDRESS": server.address, "TEMPORAL_CONFIG_FILE": os.devnull}
        environment = {
            **os.environ,
            "PYTHONPATH": str(CHECKOUT),
            "OPENAI_BASE_URL": provider.url,
            "OPENAI_API_BASE": provider.url,
            "OPENAI_API_KEY": "sk-scripted-model-of-the-demo",
            "PERDURE_STORE_URL": settings.store_url,
            "PERDURE_METRICS_ADDRESS": "",
            "PERDURE_SHUTDOWN_GRACE": "2",
        }
        workers = Workers(folder, environment)
        try:
            say(f"  server  {server.address}, the real Temporal server, for this demo only")
            say(f"  UI      {server.ui_url}")
            say("  model   SCRIPTED: no provider is called and no key is used. The replies come from")
            say(f"          {provider.url}, by real HTTP through litellm.")
            say("  worker  starting, some seconds …")
            say(f"  worker  process {await workers.start()} is ready")
            async with await Client.connect(settings) as client:
                yield Stage(server, provider, workers, client)
        finally:
            await workers.stop()


def leave_out_what_is_set_here() -> None:
    """Forget addresses, keys and proxies of this shell: the demo talks to its own processes on loopback only."""
    for name in list(os.environ):
        if name.startswith(_FOREIGN) or name.lower().endswith("_proxy"):
            del os.environ[name]


def port(wished: int) -> int:
    """The usual port, or a free one when something listens there."""
    try:
        check_port(wished, "")
    except CliError:
        return find_free_port()
    return wished
