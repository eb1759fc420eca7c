"""For probes and Prometheus: whether the gateway lives, whether it is ready, and its metrics."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from perdure.gateway.access import GatewayOf
from perdure.gateway.bodies import Router
from perdure.gateway.metrics import HttpMetrics

router = Router(tags=["operations"])

_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"description": "One line", "content": {"text/plain": {"schema": {"type": "string"}}}}
}


@router.get("/healthz", responses=_TEXT, response_class=PlainTextResponse, operation_id="healthz")
async def healthz() -> Response:
    """Whether the process lives."""
    return PlainTextResponse("ok\n")


@router.get(
    "/readyz",
    responses={**_TEXT, 503: {"description": "What does not answer", "content": {"text/plain": {}}}},
    response_class=PlainTextResponse,
    operation_id="readyz",
)
async def readyz(gateway: GatewayOf) -> Response:
    """Whether it can work: the Temporal server and the store answer."""
    if gateway.stopping.is_set():
        return PlainTextResponse("stopping\n", 503)
    client = gateway.client

    async def ask_store() -> None:
        store = await client.store()
        await store.agents()

    async def ask_server() -> None:
        await client.temporal.service_client.check_health()

    checks: Mapping[str, Callable[[], Awaitable[None]]] = {"server": ask_server, "store": ask_store}
    wrong = {name: why for name, check in checks.items() if (why := await _probe(check))}
    if wrong:
        return PlainTextResponse("".join(f"{name}: {why}\n" for name, why in wrong.items()), 503)
    return PlainTextResponse("ready\n")


@router.get("/metrics", responses=_TEXT, response_class=PlainTextResponse, operation_id="metrics")
async def metrics(request: Request) -> Response:
    """Metrics in Prometheus' text format; none names a tenant or a session."""
    page: HttpMetrics = request.app.state.metrics
    return Response(page.page(), media_type="text/plain; version=0.0.4")


async def _probe(check: Callable[[], Awaitable[object]], seconds: float = 5.0) -> str:
    """Run a check: empty if it passes in time, else why not, in one line."""
    try:
        async with asyncio.timeout(seconds):
            await check()
    except TimeoutError:
        return f"no answer within {seconds:.0f} s"
    except Exception as error:  # noqa: BLE001 - a probe says what is wrong, whatever it is
        return " ".join(str(error).split())[:300] or type(error).__name__
    return ""
