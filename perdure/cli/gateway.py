"""``perdure gateway``: the HTTP gateway for other services, and tokens for them."""

import asyncio
import contextlib
import http.client
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import timedelta
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path

import click

from perdure.cli.connection import connect
from perdure.cli.errors import ExitCode, MistakeError
from perdure.cli.findings import Finding
from perdure.cli.server import wait_process
from perdure.cli.worker import POLL, WorkerProcess, wait_before_start
from perdure.client import Client
from perdure.libraries import NAMES, LibraryMismatchError, check_libraries, settle_heap
from perdure.local_files import find
from perdure.security.redaction import redact_text
from perdure.settings import Settings, is_set, load_settings, secrets_of
from perdure.tracing import Tracing, is_on

DEFAULT_GATEWAY_PORT = 8234
"""The gateway's port on this machine, unless another is chosen."""

PROBE_SECONDS = 8.0
"""Longest time until a gateway says whether it is ready: it asks the server and the store."""

_MOST_READ = 10_000
"""Bytes of what it says that are read."""

_ANOTHER_ADDRESS = "set PERDURE_GATEWAY_ADDRESS to the HOST:PORT of the gateway"
_LOOK_AT_LOG = "look at its log, and start it again if it stays so"

NEEDED = ("fastapi", "uvicorn", "prometheus_client")
"""Modules that the extra ``gateway`` brings."""


def check_installed() -> None:
    """See that the packages of the gateway are installed.

    Raises:
        MistakeError: One is not.
    """
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise MistakeError(
            f"the gateway needs {missing[0]}, which is not installed; install it with: pip install 'perdure[gateway]'"
        )


@click.group("gateway", invoke_without_command=True)
@click.option(
    "--address", metavar="HOST:PORT", help="Listen here, instead of at PERDURE_GATEWAY_ADDRESS (127.0.0.1:8234)."
)
@click.pass_context
def gateway_command(ctx: click.Context, *, address: str | None) -> None:
    """Run the HTTP gateway until it gets SIGTERM or Ctrl+C; open responses may finish.

    Through the gateway, other services start, follow, steer and cancel turns. They need a token, and neither the
    address of Temporal nor that of the store. You can run any number of gateways side by side. Logs are JSON lines on
    stderr, with an audit line for each action.

    Without PERDURE_GATEWAY_TOKENS_FILE or PERDURE_GATEWAY_TOKENS, the gateway listens on this machine only, and every
    caller is admin of all tenants.
    """
    if ctx.invoked_subcommand is not None:
        return
    check_installed()
    try:
        check_libraries(name for name in NAMES if name.library == "uvicorn")
    except LibraryMismatchError as error:
        raise MistakeError(str(error)) from error
    # Loaded here: no other verb needs them, and a client's installation has none of them.
    from perdure.gateway.app import create_app  # noqa: PLC0415
    from perdure.gateway.audit import configure_logging  # noqa: PLC0415
    from perdure.gateway.connections import count_room, raise_file_limit  # noqa: PLC0415
    from perdure.gateway.room import Room  # noqa: PLC0415
    from perdure.gateway.serve import GatewayServer, bind  # noqa: PLC0415
    from perdure.gateway.tokens import load_tokens  # noqa: PLC0415

    settings, secrets = load_settings(), secrets_of()
    is_on(os.environ)  # which refuses variables that cannot be used
    where = address or settings.gateway_address
    listener = bind(where, has_tokens=load_tokens(settings) is not None)
    configure_logging(settings.log_level, secrets)
    files = raise_file_limit()
    tracing = Tracing.started("perdure-gateway", lambda text: redact_text(text, secrets))

    async def serve(client: Client) -> None:
        app, grace = create_app(client, tracing), settings.shutdown_grace.total_seconds()
        app.describe()  # half a second of work, which would hold up every stream at the first request for it
        settle_heap()
        room = Room(count_room(settings.gateway_max_connections, files))
        server = GatewayServer(app, grace=grace, room=room, proxies=settings.gateway_proxies)
        host, port = listener.getsockname()[:2]
        click.echo(f"gateway  http://{f'[{host}]' if ':' in host else host}:{port}")
        await server.serve([listener])

    async def main() -> None:
        async with connect() as client:
            await serve(client)

    with contextlib.closing(listener), contextlib.closing(tracing or listener), contextlib.suppress(KeyboardInterrupt):
        # uvicorn raises the signal again once it has stopped: that was the wish, and is no error.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        asyncio.run(main())


@gateway_command.command("token")
@click.argument("name")
@click.option(
    "--tenant", default="", metavar="TENANT", help="The tenant whose sessions it may use. [default: the default tenant]"
)
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    type=click.Choice(["read", "run", "approve", "admin", "decrypt"]),
    help="What the token allows; may be repeated. admin includes all but decrypt, which decrypts payloads of every "
    "tenant.",
)
def token_command(*, name: str, tenant: str, scopes: tuple[str, ...]) -> None:
    """Make a token. Print it to stderr, once, and its line for PERDURE_GATEWAY_TOKENS_FILE to stdout.

    NAME appears in the audit log and as the person who approves. The line holds only a hash of the token, so keep the
    token: nobody can show it again.

    Example: perdure gateway token ci --scope run >> tokens
    """
    check_installed()
    from perdure.gateway.callers import Scope  # noqa: PLC0415 - as above
    from perdure.gateway.tokens import make_token  # noqa: PLC0415 - as above

    token, line = make_token(name, tenant, [Scope(scope) for scope in scopes])
    click.echo(f"the token, shown this once: {token}", err=True)
    click.echo(line)


def gateway_url(settings: Settings) -> str | None:
    """Address of the gateway: from PERDURE_GATEWAY_ADDRESS, or from ``perdure dev`` here; None if neither names one."""
    if is_set("gateway_address"):
        return f"http://{settings.gateway_address}"
    file = find()
    return file.addresses.gateway_url if file is not None and file.is_live else None


def find_readiness(url: str) -> Finding:
    """Ask a gateway whether it is ready; one that runs and is not ready names what does not answer to it."""
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=PROBE_SECONDS) as reply:  # noqa: S310 - http, by the caller
            status, said = reply.status, _shorten(reply.read(_MOST_READ))
    except urllib.error.HTTPError as error:
        with error:
            status, said = error.code, _shorten(error.read(_MOST_READ))
    except http.client.HTTPException:
        return _unready(f"what answers at {url} does not speak HTTP", _ANOTHER_ADDRESS)
    except TimeoutError:
        return _unready(f"{url} takes connections and does not answer within {PROBE_SECONDS:.0f} s", _LOOK_AT_LOG)
    except (OSError, ValueError) as error:
        if isinstance(getattr(error, "reason", None), TimeoutError):
            return _unready(f"{url} does not answer within {PROBE_SECONDS:.0f} s", _LOOK_AT_LOG)
        fix = "start it with 'perdure gateway', or set PERDURE_GATEWAY_ADDRESS to its HOST:PORT"
        return _unready(f"{url} does not answer ({error})", fix)
    if said == "ready":
        return Finding(check="gateway", ok=True, text=f"{url} is ready")
    if said == "stopping":
        return _unready(f"{url} is stopping", "wait until it has started again, or start another one")
    if status == HTTPStatus.SERVICE_UNAVAILABLE and said.startswith(("server: ", "store: ")):
        return _unready(f"{url} runs and is not ready: {said}", "mend what it names: it is ready again by itself")
    return _unready(f"what answers at {url} is no gateway (HTTP status {status})", _ANOTHER_ADDRESS)


def _unready(text: str, fix: str) -> Finding:
    return Finding(check="gateway", ok=False, text=text, fix=fix, code=ExitCode.UNREACHABLE)


def _shorten(said: bytes) -> str:
    return " · ".join(said.decode(errors="replace").split("\n")).strip(" ·")


class GatewayProcess:
    """The gateway of ``perdure dev``: a process of its own, so that nothing it does harms the server or the worker."""

    def __init__(self, port: int, environment: Mapping[str, str], log: Path) -> None:
        check_installed()
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._command = [sys.executable, "-P", "-m", "perdure.cli", "gateway", "--address", f"127.0.0.1:{port}"]
        self._environment = environment
        self._log = log
        self._process: WorkerProcess | None = None

    async def keep(self, settings: Settings, say: Callable[[str], None]) -> None:
        """Keep the process running: it begins once a worker has made the store, and when it dies another one starts."""
        deaths = 0
        while settings.store_path is not None and not settings.store_path.exists():  # noqa: ASYNC110 - another process
            await asyncio.sleep(POLL.total_seconds())
        while True:
            process = self._process = WorkerProcess(self._command, self._environment, self._log)
            await wait_process(process.process)
            deaths = 0 if process.was_steady else deaths + 1
            wait = wait_before_start(deaths)
            say(f"✗ the gateway {process.death()}; see {self._log}; another one starts in {wait.total_seconds():.0f} s")
            await asyncio.sleep(wait.total_seconds())

    async def wait_until_ready(self, say: Callable[[str], None]) -> None:
        """Wait until it answers; one that has died is told of by who keeps it."""
        while self._process is None:  # noqa: ASYNC110 - it begins once another process has made the store
            await asyncio.sleep(POLL.total_seconds())
        await self._process.is_ready(f"127.0.0.1:{self.port}", say)

    async def stop(self, keeping: "asyncio.Task[None]", insisted: asyncio.Event) -> None:
        """Stop it, and the task that keeps it running."""
        keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping
        if self._process is not None and not self._process.has_ended:
            await self._process.stop(timedelta(0), insisted)
