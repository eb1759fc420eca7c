"""``perdure gateway``: the HTTP door for other services, and tokens for them."""

import asyncio
import contextlib
import signal
from importlib.util import find_spec

import click

from perdure.cli.connection import connect
from perdure.cli.errors import MistakeError
from perdure.client import Client
from perdure.settings import load_settings, secrets_of

NEEDED = ("fastapi", "uvicorn", "prometheus_client")
"""What the extra ``gateway`` brings."""


def check_installed() -> None:
    """See that the packages of the gateway are installed.

    Raises:
        MistakeError: One is not.
    """
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise MistakeError(f"the gateway needs {missing[0]}, which is not installed; pip install 'perdure[gateway]'")


@click.group("gateway", invoke_without_command=True)
@click.option("--address", metavar="HOST:PORT", help="Where it listens, instead of PERDURE_GATEWAY_ADDRESS.")
@click.pass_context
def gateway_command(ctx: click.Context, *, address: str | None) -> None:
    """Run the HTTP door until it is told to stop; SIGTERM lets answers finish.

    Other services start, watch, steer and stop jobs through it, with a token and without Temporal's address or the
    store's. Any number of them may run side by side. Logs are JSON lines on stderr, with an audit line for each action.
    Without tokens it listens on this machine only, and everybody is the admin of the default tenant.
    """
    if ctx.invoked_subcommand is not None:
        return
    check_installed()
    # Loaded here: no other verb needs them, and a client's installation has none of them.
    from perdure.gateway.app import create_app  # noqa: PLC0415
    from perdure.gateway.audit import configure_logging  # noqa: PLC0415
    from perdure.gateway.serve import GatewayServer, bind  # noqa: PLC0415
    from perdure.gateway.tokens import load_tokens  # noqa: PLC0415

    settings = load_settings()
    where = address or settings.gateway_address
    listener = bind(where, has_tokens=load_tokens(settings) is not None)
    configure_logging(settings.log_level, secrets_of())

    async def serve(client: Client) -> None:
        server = GatewayServer(create_app(client), grace=settings.shutdown_grace.total_seconds())
        host, port = listener.getsockname()[:2]
        click.echo(f"gateway  http://{f'[{host}]' if ':' in host else host}:{port}")
        await server.serve([listener])

    async def main() -> None:
        async with connect() as client:
            await serve(client)

    with contextlib.closing(listener), contextlib.suppress(KeyboardInterrupt):
        # uvicorn raises the signal again once it has stopped: that was the wish, and is no error.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        asyncio.run(main())


@gateway_command.command("token")
@click.argument("name")
@click.option("--tenant", default="", metavar="TENANT", help="Whose sessions it sees; by default the default tenant's.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    type=click.Choice(["read", "run", "approve", "admin"]),
    help="What it allows; may be given again. admin has all.",
)
def token_command(*, name: str, tenant: str, scopes: tuple[str, ...]) -> None:
    """Make a token: it is printed to stderr, once, and its line for PERDURE_GATEWAY_TOKENS_FILE to stdout.

    NAME stands in the audit log, and is who approves. The line holds a hash; the token itself is kept nowhere.
    """
    check_installed()
    from perdure.gateway.access import Scope  # noqa: PLC0415 - as above
    from perdure.gateway.tokens import make_token  # noqa: PLC0415 - as above

    token, line = make_token(name, tenant, [Scope(scope) for scope in scopes])
    click.echo(f"the token, shown this once: {token}", err=True)
    click.echo(line)
