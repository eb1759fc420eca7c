"""The gateway's process: its address, its server, and a stop that lets answers finish."""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from functools import partial
from types import FrameType

import uvicorn
from fastapi import FastAPI

from perdure.gateway.access import Gateway
from perdure.gateway.connections import BoundedProtocol, prepare
from perdure.gateway.room import Room
from perdure.settings import SettingsError

BACKLOG, AT_ONCE = 2048, 64
"""Connections that wait to be accepted, and those that are accepted in one turn of the event loop."""


def read_address(address: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``.

    Raises:
        SettingsError: It is none.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise SettingsError(f"the gateway's address {address!r} is no HOST:PORT; write for example 127.0.0.1:8234")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(address: str, *, has_tokens: bool) -> socket.socket:
    """A socket at the address, taken before anything else starts.

    Raises:
        SettingsError: It cannot be used; or others reach it, and there are no tokens.
    """
    host, port = read_address(address)
    if not has_tokens and not is_loopback(host):
        raise SettingsError(
            f"the gateway's address {address} is reached from other machines, and no tokens are configured: everybody "
            "there could run jobs; set PERDURE_GATEWAY_TOKENS_FILE, or listen on 127.0.0.1"
        )
    # The protocol is named, or asyncio leaves out TCP_NODELAY, and each answer waits 40 ms for an acknowledgement.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    prepare(taken)
    try:
        taken.bind((host, port))
    except (OSError, OverflowError) as error:
        taken.close()
        msg = f"the gateway's address {address} cannot be used ({error}); choose another with --address"
        raise SettingsError(msg) from error
    return taken


class GatewayServer(uvicorn.Server):
    """A server that tells the application at once that it is to stop, so that streams end and no answer is cut."""

    def __init__(self, app: FastAPI, *, grace: float, room: Room | None = None, proxies: Sequence[str] = ()) -> None:
        """Prepare to serve.

        Args:
            app: The application.
            grace: How many seconds answers get to finish.
            room: Bounds the connections.
            proxies: From whom the address of a caller is believed.
        """
        self._gateway: Gateway = app.state.gateway
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                http=partial(BoundedProtocol, room=room or Room(0)),  # type: ignore[arg-type]  # called as a class is
                server_header=False,
                proxy_headers=bool(proxies),
                forwarded_allow_ips=list(proxies),
                timeout_graceful_shutdown=max(1, round(grace)),
                backlog=AT_ONCE,
                h11_max_incomplete_event_size=64 * 1024,
            )
        )
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal or :meth:`stop`."""
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; asyncio has one number for those that wait and those that are accepted in a row."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at the first signal, and at once at a second Ctrl+C."""
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._gateway.stopping.set)

    def stop(self) -> None:
        """Stop as a signal does."""
        self._gateway.stopping.set()
        self.should_exit = True
