"""``perdure dev``: the embedded server, its UI, a worker and the HTTP gateway, together until Ctrl+C."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import click

from perdure.cli.errors import CliError, MistakeError
from perdure.cli.gateway import DEFAULT_GATEWAY_PORT, GatewayProcess
from perdure.cli.render import clean
from perdure.cli.server import DEFAULT_PORT, DEFAULT_UI_PORT, EmbeddedServer, ServerOptions, check_port, wait_process
from perdure.cli.watched import WatchedFiles
from perdure.cli.worker import (
    SAID,
    LoadedAgent,
    WorkerProcess,
    find_missing_keys,
    load_agents,
    record_option,
    recording_settings,
    replay_option,
    variables,
    wait_before_start,
    with_port,
    worker_arguments,
)
from perdure.client.connect import load_config
from perdure.local_files import FILE, FOLDER, AlreadyRunningError, DevAddresses, hold_address
from perdure.security.redaction import redact_text
from perdure.settings import Settings, load_settings, prepare_recordings, secrets_of
from perdure.store.database import Address

GRACE = timedelta(seconds=20)
"""Time of running calls after a save or Ctrl+C, if nobody has set another: somebody waits at a terminal."""


@click.command("dev")
@click.option("--agents", multiple=True, metavar="MODULE", help="A module or file with agents; may be repeated.")
@click.option("--reload", is_flag=True, help="Restart the worker when a Python file or a file with agents is saved.")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=DEFAULT_PORT, show_default=True, help="Port of the server."
)
@click.option(
    "--ui-port", type=click.IntRange(1, 65535), default=DEFAULT_UI_PORT, show_default=True, help="Port of the UI."
)
@click.option(
    "--gateway-port",
    type=click.IntRange(1, 65535),
    help=f"Port of the HTTP gateway and its web page. [default: {DEFAULT_GATEWAY_PORT}; with --headless, no gateway]",
)
@click.option("--metrics-port", type=click.IntRange(1, 65535), help="Port of the worker's metrics. [default: 9464]")
@click.option(
    "--db",
    type=click.Path(dir_okay=False, path_type=Path),
    default=FOLDER / "temporal.db",
    show_default=True,
    metavar="FILE",
    help="SQLite file of the Temporal server: running turns and their histories.",
)
@click.option("--headless", is_flag=True, help="Start no UI, and no gateway unless --gateway-port is given.")
@record_option
@replay_option
def dev_command(
    *,
    agents: tuple[str, ...],
    reload: bool,
    port: int,
    ui_port: int,
    gateway_port: int | None,
    metrics_port: int | None,
    db: Path,
    headless: bool,
    record: Path | None,
    replay: Path | None,
) -> None:
    """Run the embedded Temporal server, its UI, a worker and the gateway on this machine. Ctrl+C stops all of them.

    In this folder and below it, other verbs find the server and the store without any setting. A worker that dies is
    restarted. Turns survive a stop, a crash and kill -9: start 'perdure dev' again and they go on. A power failure may
    lose the last moments, because the server does not wait for the disk.
    """
    worker = worker_arguments(agents)
    settings = load_settings(of_folder=False)
    changes: dict[str, object] = {**recording_settings(record, replay)}
    if metrics_port is not None:
        changes["metrics_address"] = with_port(settings.metrics_address, metrics_port)
    if "shutdown_grace" not in settings.model_fields_set:
        changes["shutdown_grace"] = GRACE
    settings = settings.model_copy(update=changes)
    prepare_recordings(settings)
    sources = agents or settings.agents
    port_of_gateway = gateway_port or (None if headless else DEFAULT_GATEWAY_PORT)
    options = ServerOptions(
        port=port,
        ui_port=None if headless else ui_port,
        codec_endpoint=codec_endpoint_of(settings, None if headless else port_of_gateway),
        db=db,
        log=FOLDER / "server.log",
    )
    watched = WatchedFiles.of(sources) if reload else None
    asyncio.run(Dev(options, worker, settings, watched, port_of_gateway).run())


def codec_endpoint_of(settings: Settings, gateway_port: int | None) -> str | None:
    """Address at which the UI has payloads decrypted: the gateway beside it. None without keys, or without one."""
    has_keys = settings.encryption_keys or settings.encryption_keys_file is not None
    return f"http://127.0.0.1:{gateway_port}/codec" if has_keys and gateway_port is not None else None


def codec_variables_of(options: ServerOptions, settings: Settings) -> dict[str, str]:
    """Variables that let the pages of this UI, and no others, have the gateway decrypt."""
    if options.codec_endpoint is None:
        return {}
    ours = [f"http://{name}:{options.ui_port}" for name in ("localhost", "127.0.0.1")]
    return {"PERDURE_CODEC_ORIGINS": ",".join([*settings.codec_origins, *ours])}


def address_variables_of(address: str) -> dict[str, str]:
    """Variables that lead a process to this server, and keep it from a profile that the user has for a cluster."""
    return {"TEMPORAL_ADDRESS": address, "TEMPORAL_CONFIG_FILE": os.devnull}


def say(line: str) -> None:
    """Print a line if somebody still reads them: a closed terminal neither ends the work nor keeps it."""
    with contextlib.suppress(OSError):
        click.echo(line)


class Dev:
    """Server, worker and gateway of one ``perdure dev``."""

    def __init__(
        self,
        options: ServerOptions,
        command: Sequence[str],
        settings: Settings,
        watched: WatchedFiles | None,
        gateway_port: int | None,
    ) -> None:
        self._server = EmbeddedServer(options)
        self._command = command
        self._settings = settings
        self._watched = watched
        self._stop = _Stop()
        self._saved = asyncio.Event()
        self._worker: WorkerProcess | None = None
        self._agents: Sequence[LoadedAgent] = ()
        self._deaths = 0
        self._told: tuple[str, list[str]] = ("", [])
        self._secrets = secrets_of()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL_")}
        names = ("store_url", "task_queue", "metrics_address", "recordings", "recording_mode")
        chosen = {name: getattr(self._settings, name) for name in names}
        chosen["shutdown_grace"] = f"{settings.shutdown_grace.total_seconds():g}"
        ours = variables({name: value for name, value in chosen.items() if value is not None})
        self._environment = kept | ours | address_variables_of(self._server.address)
        of_gateway = self._environment | codec_variables_of(options, settings)
        self._gateway = (
            None if gateway_port is None else GatewayProcess(gateway_port, of_gateway, FOLDER / "gateway.log")
        )

    async def run(self) -> None:
        """Start both, and keep them until a stop is asked for."""
        async with AsyncExitStack() as stack:
            stack.callback(self._stop.listen())
            try:
                file = stack.enter_context(hold_address())
            except AlreadyRunningError as error:
                raise MistakeError(str(error)) from None
            check_port(self._server.options.port, "--port")
            _, _, port = self._settings.metrics_address.rpartition(":")
            if port.isdigit():
                check_port(int(port), "--metrics-port")
            if self._gateway is not None:
                check_port(self._gateway.port, "--gateway-port")
            if self._watched is not None:
                watching = asyncio.create_task(self._watch_files(self._watched))
                stack.callback(watching.cancel)
            if await self._stop.interrupts(self._load()):
                return
            stack.push_async_callback(self._server.stop)
            if await self._stop.interrupts(self._server.start(self._say)):
                return
            file.write(self._addresses())
            stack.push_async_callback(self._stop_worker)
            if self._gateway is not None:
                keeping = asyncio.create_task(self._gateway.keep(self._settings, self._say))
                stack.push_async_callback(self._gateway.stop, keeping, self._stop.insisted)
            if await self._stop.interrupts(self._begin()):
                return
            await self._keep_running()

    def _addresses(self) -> DevAddresses:
        return DevAddresses(
            pid=os.getpid(),
            temporal_address=self._server.address,
            namespace="default",
            task_queue=self._settings.task_queue,
            store_url=Address(self._settings.store_url).public_url,
            ui_url=self._server.ui_url,
            metrics_address=self._settings.metrics_address,
            gateway_url=self._gateway.url if self._gateway is not None else None,
        )

    async def _begin(self) -> None:
        """Start the worker if its agents were loaded, and say where everything is."""
        is_ready = False
        if self._agents:
            self._worker = self._start_worker()
            is_ready = await self._is_ready(self._worker)
            if self._worker.has_ended and self._watched is None:
                # The worker's own words, if it has said why it cannot start.
                lines = self._worker.last_lines()
                if lines and lines[-1].startswith(SAID):
                    raise CliError(lines[-1].removeprefix(SAID), self._worker.process.returncode)
                text = " | ".join(lines) or "it wrote nothing"
                raise CliError(f"the worker {self._worker.death()}: {text}; see {self._worker.log}")
            if self._server.returncode is not None:
                return
            if is_ready and self._gateway is not None:
                await self._unless_event(self._gateway.wait_until_ready(self._say))
        self._say_where(is_ready=is_ready)

    async def _load(self) -> bool:
        """Load the agents and name them; where files are watched, a mistake in them is told and waited for."""
        try:
            agents = await self._load_saved()
        except CliError as error:
            if self._watched is None:
                raise
            self._say(f"✗ {error.message}")
            return False
        self._agents = agents
        for title, agent in zip(["agents", *[""] * len(agents)], agents, strict=False):
            self._say(f"{title:8} {agent.line()}")
        if self._settings.recording_mode != "replay":  # then no model is called
            for sentence in find_missing_keys(agents):
                self._say(f"{'missing':8} {sentence}; set it and start 'perdure dev' again")
        for agent in agents:
            for sentence in agent.unknown_providers:
                self._say(f"{'unknown':8} agent {agent.name}: {sentence}")
        return True

    async def _load_saved(self) -> tuple[LoadedAgent, ...]:
        """Load the agents; what is saved meanwhile is loaded instead."""
        while True:
            self._saved.clear()
            loading = asyncio.create_task(load_agents(self._command, self._environment, self._say))
            saved = asyncio.create_task(self._saved.wait())
            try:
                await asyncio.wait({loading, saved}, return_when=asyncio.FIRST_COMPLETED)
                if loading.done():
                    return await loading
            finally:
                loading.cancel()
                saved.cancel()

    def _start_worker(self) -> WorkerProcess:
        return WorkerProcess(self._command, self._environment, FOLDER / "worker.log")

    async def _stop_worker(self) -> None:
        if self._worker is not None:
            await self._worker.stop(self._settings.shutdown_grace, self._stop.insisted)

    async def _keep_running(self) -> None:
        """Keep a worker running until a stop is asked for."""
        while True:
            await self._wait_for_event()
            if self._stop.asked.is_set():
                return
            if (code := self._server.returncode) is not None:
                raise CliError(f"the Temporal server ended with code {code}; see {self._server.options.log}")
            if self._saved.is_set():
                self._saved.clear()
                await self._stop.interrupts(self._reload())
            elif self._worker is not None:
                await self._replace(self._worker)

    async def _wait_for_event(self, patience: timedelta | None = None) -> None:
        """Wait for a stop, the end of the server or the worker, or a saved file; with patience, until that is up."""
        waiting = [self._stop.asked.wait(), self._saved.wait(), self._server.wait()]
        if self._worker is not None:
            waiting.append(wait_process(self._worker.process))
        tasks = [asyncio.ensure_future(awaited) for awaited in waiting]
        timeout = None if patience is None else patience.total_seconds()
        try:
            await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def _replace(self, dead: WorkerProcess) -> None:
        """Say why the worker died, and start another one: at once, or later if workers die in a row."""
        reason = f"the worker {dead.death()}"
        last = [f"  {line}" for line in dead.last_lines()]
        self._deaths = 0 if dead.was_steady else self._deaths + 1
        self._worker = None
        wait = wait_before_start(self._deaths)
        when = f"in {wait.total_seconds():.0f} s" if wait else "now"
        if (reason, last) == self._told:
            self._say("✗ the worker died in the same way again")
        else:
            for line in (f"✗ {reason}; its last lines, of {dead.log}:", *(last or ["  none"])):
                self._say(line)
        self._told = (reason, last)
        self._say(f"  another one starts {when}{'' if self._watched is None else ', or at the next save'}")
        if wait:
            await self._wait_for_event(wait)
        if self._stop.asked.is_set() or self._saved.is_set() or self._server.returncode is not None:
            return
        self._worker = self._start_worker()
        await self._stop.interrupts(self._say_ready(self._worker))

    async def _say_ready(self, worker: WorkerProcess) -> None:
        if await self._is_ready(worker):
            self._say("✓ a worker is ready")

    async def _is_ready(self, worker: WorkerProcess) -> bool:
        """Wait until the worker is ready, has ended, or something else comes first: a saved file, the server's end."""
        ready = worker.is_ready(self._settings.metrics_address, self._say)
        return bool(await self._unless_event(ready))

    async def _unless_event(self, work: Coroutine[None, None, object]) -> object:
        """Return the work's result; None if a stop, the end of the server or the worker, or a saved file came first."""
        working, event = asyncio.create_task(work), asyncio.create_task(self._wait_for_event())
        try:
            await asyncio.wait({working, event}, return_when=asyncio.FIRST_COMPLETED)
            return await working if working.done() else None
        finally:
            working.cancel()
            event.cancel()

    async def _reload(self) -> None:
        """Try the saved files first: the old worker goes on unless they load."""
        if not await self._load():
            goes_on = self._worker is not None and not self._worker.has_ended
            self._say(f"  {'the old worker goes on; ' if goes_on else ''}waiting for the next save")
            return
        if self._worker is not None and not self._worker.has_ended:
            seconds = self._settings.shutdown_grace.total_seconds()
            self._say(f"the old worker stops; running calls get up to {seconds:.0f} s")
            await self._stop_worker()
        self._deaths, self._told = 0, ("", [])
        self._worker = self._start_worker()
        await self._say_ready(self._worker)

    async def _watch_files(self, watched: WatchedFiles) -> None:
        try:
            async for names in watched.watch():
                self._say(f"saved: {', '.join(names)}")
                self._saved.set()
        except (OSError, RuntimeError) as error:
            self._say(f"✗ files cannot be watched any more: {error}; set WATCHFILES_FORCE_POLLING=1 and start again")

    def _say(self, text: str) -> None:
        say(clean(redact_text(text, self._secrets)))

    def _say_where(self, *, is_ready: bool) -> None:
        address = Address(self._settings.store_url)
        rows = [("server", self._server.address), ("UI", self._server.ui_url or "off"), ("store", str(address))]
        if self._gateway is not None:
            rows.append(("gateway", f"{self._gateway.url}, its page at {self._gateway.url}/ui"))
        if self._settings.metrics_address:
            rows.append(("metrics", f"http://{self._settings.metrics_address}/metrics"))
        rows.append(("logs", str(FOLDER)))
        for name, value in rows:
            self._say(f"{name:8} {value}")
        if address.has_secrets:
            self._say(f"{FILE} holds no password: set PERDURE_STORE_URL for other verbs, too")
        wanted = address_variables_of(self._server.address) if _is_led_elsewhere(self._server) else {}
        prefix = "".join(f"{name}={value} " for name, value in wanted.items())
        if not is_ready:
            self._say("\nno worker runs yet: waiting for the next save")
        else:
            name = self._agents[0].name if self._agents else "AGENT"
            self._say("\nready; run a job from this folder with:")
            self._say(f"  {prefix}perdure run {name} 'what it is to do'")
        self._say("Ctrl+C stops everything")


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
            loop.add_signal_handler(number, self._note_signal)

        def end() -> None:
            for number in wanted:
                loop.remove_signal_handler(number)

        return end

    def _note_signal(self) -> None:
        if self.asked.is_set():
            self.insisted.set()
            return
        self.asked.set()
        say("stopping: the worker first, then the server; press Ctrl+C again to stop at once")

    async def interrupts(self, work: Coroutine[None, None, object]) -> bool:
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


def _is_led_elsewhere(server: EmbeddedServer) -> bool:
    """Whether variables lead ``perdure run`` to another server or namespace, or here with the key of another server."""
    config = load_config()
    local = {server.address, server.address.replace("127.0.0.1", "localhost")}
    other = config.get("namespace", "default") != "default" or bool(set(config) - {"target_host", "namespace"})
    return other or config.get("target_host") not in local
