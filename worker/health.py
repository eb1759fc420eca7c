"""``/metrics``, ``/healthz`` and ``/readyz`` of a worker."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route


class AddressError(Exception):
    """The address of the metrics page cannot be used; the message names the way out."""


def bind(address: str) -> socket.socket:
    """A listening socket for ``HOST:PORT``, taken before anything else starts.

    Raises:
        AddressError: The address is malformed or in use.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        msg = f"PERDURE_METRICS_ADDRESS={address!r} is no HOST:PORT, for example 127.0.0.1:9464"
        raise AddressError(msg)
    taken = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind((host.strip("[]"), int(port)))
    except (OSError, OverflowError) as error:
        taken.close()
        msg = f"the metrics address {address} cannot be used ({error}); choose another with PERDURE_METRICS_ADDRESS"
        raise AddressError(msg) from error
    return taken


class _Server(uvicorn.Server):
    """A server that leaves signals alone: they are the worker's business."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


class Health:
    """Whether this worker is alive and ready; set by the application, read by the probes."""

    def __init__(self) -> None:
        self.ready = False
        self.reason = "starting"
        self.notes: Callable[[], list[str]] = list
        """What else an operator should know; it does not make the worker unready."""


@asynccontextmanager
async def serving(listener: socket.socket, health: Health, page: Callable[[], bytes]) -> AsyncIterator[None]:
    """Serve the three pages on the socket until the block ends."""

    async def metrics(_: Request) -> Response:
        body = await asyncio.to_thread(page)
        return Response(body, media_type="text/plain; version=0.0.4")

    async def alive(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_: Request) -> Response:
        lines = ["ready" if health.ready else health.reason, *health.notes()]
        return PlainTextResponse("".join(f"{line}\n" for line in lines), 200 if health.ready else 503)

    app = Starlette(routes=[Route("/metrics", metrics), Route("/healthz", alive), Route("/readyz", ready)])
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=1)
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not (server.started or task.done()):  # noqa: ASYNC110 - uvicorn tells its start by a plain attribute
            await asyncio.sleep(0.01)
        yield
    finally:
        server.should_exit = True
        await task
