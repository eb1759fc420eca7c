"""``perdure dev``: the embedded server, its UI and a worker, together until Ctrl+C."""

import asyncio
import contextlib
import os
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path

import click

from perdure.cli.child import (
    record_option,
    recording_settings,
    replay_option,
    variables,
    worker_command,
)
from perdure.cli.connection import run
from perdure.cli.errors import CliError
from perdure.cli.server import (
    DEFAULT_PORT,
    DEFAULT_UI_PORT,
    EmbeddedServer,
    ServerOptions,
    check_port,
    open_log,
    spawn,
    stop_process,
    wait_process,
)
from perdure.client.connect import load_config
from perdure.settings import Settings, load_settings, prepare_recordings

FOLDER = Path(".perdure")
"""Where the server, the store and the logs of ``perdure dev`` live, below the working directory."""

READY_TIMEOUT = timedelta(seconds=60)
"""How long the worker may take until it is ready; loading the model library alone takes about five seconds."""

STOP_MARGIN = timedelta(seconds=10)
"""What the worker gets beyond its own grace period before it is killed."""

POLL = timedelta(milliseconds=100)


@click.command("dev")
@click.option("--agents", multiple=True, metavar="MODULE", help="A module or file with agents; may be given again.")
@click.option("--port", type=click.IntRange(1, 65535), default=DEFAULT_PORT, show_default=True, help="Of the server.")
@click.option("--ui-port", type=click.IntRange(1, 65535), default=DEFAULT_UI_PORT, show_default=True, help="Of the UI.")
@click.option(
    "--db",
    type=click.Path(dir_okay=False, path_type=Path),
    default=FOLDER / "temporal.db",
    show_default=True,
    metavar="FILE",
    help="Where the server keeps running jobs.",
)
@click.option("--headless", is_flag=True, help="Without the UI.")
@record_option
@replay_option
def command(  # noqa: PLR0913  # one for each option of the command line
    *,
    agents: tuple[str, ...],
    port: int,
    ui_port: int,
    db: Path,
    headless: bool,
    record: Path | None,
    replay: Path | None,
) -> None:
    """Run the embedded Temporal server, its UI and a worker on this machine. Ctrl+C stops all of them.

    Jobs survive a stop, a crash and kill -9: start again and they go on. After a power failure the last moments
    may be missing, because the server does not wait for the disk.
    """
    worker = worker_command(agents)
    settings = load_settings()
    recordings = recording_settings(record, replay)
    prepare_recordings(settings.model_copy(update=recordings))
    options = ServerOptions(port=port, ui_port=None if headless else ui_port, db=db, log=FOLDER / "server.log")
    run(_dev(options, worker, variables(recordings), settings))


async def _dev(options: ServerOptions, command: list[str], changes: dict[str, str], settings: Settings) -> None:
    stop = _Stop()
    check_port(options.port, "--port")
    _check_metrics_port(settings)
    async with AsyncExitStack() as stack:
        stack.callback(stop.listen())
        server = EmbeddedServer(options)
        if await stop.instead_of(server.start()):
            return
        stack.push_async_callback(server.stop)
        log = FOLDER / "worker.log"
        with open_log(log) as output:
            environment = {name: value for name, value in os.environ.items() if not _of_temporal(name)}
            environment |= changes | own_server(server.address)
            worker = spawn(command, output=output, env=environment)
        stack.push_async_callback(_stop_worker, worker, settings, stop)
        if await stop.instead_of(_ready(worker, settings, log)):
            return
        _say_where(server, settings)
        await _watch(server, worker, log, stop)


def _of_temporal(name: str) -> bool:
    return name.startswith("TEMPORAL_")


def own_server(address: str) -> dict[str, str]:
    """What leads a process to this server, and keeps it from a profile that the user has for a cluster."""
    return {"TEMPORAL_ADDRESS": address, "TEMPORAL_CONFIG_FILE": os.devnull}


class _Stop:
    """The wish to stop: the first signal asks for it, a second one insists."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()

    def listen(self) -> Callable[[], None]:
        """Listen for signals; returns what ends it."""
        loop = asyncio.get_running_loop()
        wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in wanted:
            loop.add_signal_handler(number, self._signalled)

        def end() -> None:
            for number in wanted:
                loop.remove_signal_handler(number)

        return end

    def _signalled(self) -> None:
        if self.asked.is_set():
            self.insisted.set()
        else:
            click.echo("stopping: the worker first, then the server; press Ctrl+C again to stop at once")
            self.asked.set()

    async def instead_of(self, work: Coroutine[None, None, None]) -> bool:
        """Do the work unless a stop is asked for first; then the work is cancelled, and this is True."""
        task = asyncio.create_task(work)
        asked = asyncio.create_task(self.asked.wait())
        try:
            await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
        if task.done():
            await task
            return False
        task.cancel()
        await asyncio.wait({task})
        return True


def _check_metrics_port(settings: Settings) -> None:
    _, _, port = settings.metrics_address.rpartition(":")
    if port.isdigit():
        check_port(int(port), "PERDURE_METRICS_ADDRESS")


async def _ready(worker: "subprocess.Popen[bytes]", settings: Settings, log: Path) -> None:
    """Wait until the worker says that it is ready; without its door for metrics, there is nobody to ask."""
    if not settings.metrics_address:
        return
    try:
        async with asyncio.timeout(READY_TIMEOUT.total_seconds()):
            while not await _says_ready(settings.metrics_address):
                if worker.poll() is not None:
                    raise _ended("worker", worker.returncode, log)
                await asyncio.sleep(POLL.total_seconds())
    except TimeoutError:
        msg = f"the worker was not ready within {READY_TIMEOUT.total_seconds():.0f} s; see {log}"
        raise CliError(msg) from None


async def _says_ready(address: str) -> bool:
    def ask() -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/readyz", timeout=5) as reply:
            return bool(reply.status == HTTPStatus.OK)
        return False  # an error status is an OSError too

    return await asyncio.to_thread(ask)


async def _stop_worker(worker: "subprocess.Popen[bytes]", settings: Settings, stop: _Stop) -> None:
    seconds = (settings.shutdown_grace + STOP_MARGIN).total_seconds()
    stopping = asyncio.create_task(stop_process(worker, seconds))
    insisted = asyncio.create_task(stop.insisted.wait())
    await asyncio.wait({stopping, insisted}, return_when=asyncio.FIRST_COMPLETED)
    insisted.cancel()
    if not stopping.done():
        worker.kill()
    await stopping


async def _watch(server: EmbeddedServer, worker: "subprocess.Popen[bytes]", log: Path, stop: _Stop) -> None:
    """Wait until a stop is asked for.

    Raises:
        CliError: The server or the worker ended by itself.
    """
    asked = asyncio.create_task(stop.asked.wait())
    server_end = asyncio.create_task(server.wait())
    worker_end = asyncio.create_task(wait_process(worker))
    waiting = (asked, server_end, worker_end)
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
    if asked.done() and not asked.cancelled():
        return
    if worker.poll() is not None:
        raise _ended("worker", worker.returncode, log)
    raise _ended("Temporal server", server.returncode, server.options.log)


def _ended(what: str, code: int | None, log: Path | None) -> CliError:
    last = ""
    if log is not None and log.is_file():
        rows = log.read_text(errors="replace").strip().splitlines()
        last = f": {rows[-1][:300]}" if rows else ""
    return CliError(f"the {what} ended with code {code}{last}; see {log}")


def _say_where(server: EmbeddedServer, settings: Settings) -> None:
    rows = [("server", server.address), ("UI", server.ui_url or "off"), ("store", settings.store_url)]
    if settings.metrics_address:
        rows.append(("metrics", f"http://{settings.metrics_address}/metrics"))
    rows.append(("logs", str(FOLDER)))
    for name, value in rows:
        click.echo(f"{name:8} {value}")
    wanted = own_server(server.address) if _leads_elsewhere(server) else {}
    prefix = "".join(f"{name}={value} " for name, value in wanted.items())
    click.echo(f"\nready; run a job from this folder with:\n  {prefix}perdure run AGENT 'what it is to do'")
    click.echo("Ctrl+C stops everything")


def _leads_elsewhere(server: EmbeddedServer) -> bool:
    """Whether ``perdure run`` would go to another server, or to this one with the key of another."""
    config = load_config()
    local = {server.address, server.address.replace("127.0.0.1", "localhost")}
    return config.get("target_host") not in local or bool(set(config) - {"target_host"})
