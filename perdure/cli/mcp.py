"""``perdure mcp``: the workers' agents as durable jobs, for any MCP host."""

import contextlib
import ipaddress
import signal
import socket
import sys
from typing import TYPE_CHECKING

import click

from perdure.cli.connection import run
from perdure.cli.errors import MistakeError, UnreachableError
from perdure.cli.jobs import INSTRUCTIONS, Jobs, sentence
from perdure.mcp_server import McpMissingError, as_mcp, as_web_application
from perdure.settings import load_settings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

SHUTDOWN_SECONDS = 3
"""What requests get to end after a signal; the jobs they are about go on."""


@click.command("mcp")
@click.option("--http", metavar="HOST:PORT", help="Serve streamable HTTP at http://HOST:PORT/mcp instead of stdio.")
@click.option("--allow-remote", is_flag=True, help="Let HOST be reachable from other machines; there is no login.")
def command(*, http: str | None, allow_remote: bool) -> None:
    """Serve the registered agents to an MCP host: start, wait, status, send, answer, approve, deny, cancel, transcript.

    An MCP host starts this itself, and talks with it over stdin and stdout. The server's address comes from
    TEMPORAL_ADDRESS or a Temporal profile, all else from PERDURE_*.
    """
    load_settings()
    listener = None if http is None else bound(http, allow_remote=allow_remote)

    async def main() -> None:
        jobs = Jobs()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(jobs.close)
            server = as_mcp(*jobs.tools(), instructions=INSTRUCTIONS, describe=sentence)
            if listener is None:
                # The SDK reads stdin on a thread, which keeps an interrupted event loop from ending.
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                if sys.stdin.isatty():
                    click.echo("perdure: an MCP server on stdin and stdout, for an MCP host; Ctrl+C ends it", err=True)
                await server.run_stdio_async()
            else:
                host = str(listener.getsockname()[0])
                await _serve(protected(as_web_application(server, host), host), listener)

    try:
        run(main())
    except McpMissingError as error:
        raise MistakeError(str(error)) from error


def protected(app: "ASGIApp", host: str) -> "ASGIApp":
    """The application, out of reach for web pages that have a name of their own lead a browser here.

    At the usual addresses of loopback the SDK knows the names of clients; at others only pages tell an origin.
    """
    from starlette.responses import PlainTextResponse  # noqa: PLC0415 - comes with the MCP SDK, which is an extra

    async def checked(scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] == "http" and any(name == b"origin" for name, _ in scope["headers"]):
            await PlainTextResponse("no requests of web pages are served here", 403)(scope, receive, send)
            return
        await app(scope, receive, send)

    return app if host in {"127.0.0.1", "::1"} else checked


async def _serve(app: "ASGIApp", listener: socket.socket) -> None:
    import uvicorn  # noqa: PLC0415 - comes with the MCP SDK, which is an extra

    host, port = listener.getsockname()[:2]
    click.echo(f"perdure: MCP at http://{f'[{host}]' if ':' in host else host}:{port}/mcp", err=True)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=SHUTDOWN_SECONDS)
    await uvicorn.Server(config).serve(sockets=[listener])


def bound(address: str, *, allow_remote: bool) -> socket.socket:
    """A listening socket for ``HOST:PORT``."""
    host, _, digits = address.rpartition(":")
    host = host.strip("[]")
    if not host or not digits.isdigit():
        raise MistakeError(f"--http {address!r} is no HOST:PORT, for example 127.0.0.1:8765")
    try:
        family, _, _, _, place = socket.getaddrinfo(host, int(digits), type=socket.SOCK_STREAM)[0]
        if not (allow_remote or ipaddress.ip_address(place[0]).is_loopback):
            msg = (
                f"--http {address} is reachable from other machines, and anybody there could run agents; "
                "use 127.0.0.1, or add --allow-remote behind something that asks for a login"
            )
            raise MistakeError(msg)
        listener = socket.create_server(place[:2], family=family)
    except (OSError, OverflowError) as error:
        raise UnreachableError(f"--http {address} cannot be used ({error}); choose another port") from error
    return listener
