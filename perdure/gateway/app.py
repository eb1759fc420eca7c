"""The gateway's application: routes, guard, problem documents and the OpenAPI document, around one client."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.requests import Request
from starlette.responses import Response

from perdure.client import Client
from perdure.gateway.access import Gateway
from perdure.gateway.doors import open_doors
from perdure.gateway.guard import Guard
from perdure.gateway.hub import Hub
from perdure.gateway.limits import Limits
from perdure.gateway.metrics import HttpMetrics
from perdure.gateway.problems import DOCUMENTED, Problem, handle_errors
from perdure.gateway.routes import CODEC_ROUTER, OPEN_ROUTERS, ROUTERS
from perdure.gateway.tokens import load_tokens, watch_tokens
from perdure.tracing import Tracing

DESCRIPTION = """Start, watch, steer and stop agents' jobs.

Every answer that is no success is a problem document (RFC 9457) whose `code` stays the same."""


class GatewayApp(FastAPI):
    """FastAPI with our problem documents in its OpenAPI document."""

    _document: bytes | None = None

    def openapi(self) -> dict[str, Any]:
        """The document, made once."""
        if self.openapi_schema is None:
            made = get_openapi(
                title=self.title,
                version=self.version,
                description=DESCRIPTION,
                routes=self.routes,
                separate_input_output_schemas=self.separate_input_output_schemas,
            )
            schemas = made.setdefault("components", {}).setdefault("schemas", {})
            schemas["Problem"] = Problem.model_json_schema()
            for schema in schemas.values():
                if schema.get("additionalProperties") is False:  # a body: generators send or demand what has a default
                    for field in schema.get("properties", {}).values():
                        field.pop("default", None)
            self.openapi_schema = made
        return self.openapi_schema

    def describe(self) -> bytes:
        """The document as it is sent, made once."""
        if self._document is None:
            self._document = json.dumps(self.openapi(), ensure_ascii=False, separators=(",", ":")).encode()
        return self._document


async def _describe(request: Request) -> Response:
    app: GatewayApp = request.app
    return Response(app.describe(), media_type="application/json")


async def _watch_tokens(gateway: Gateway, metrics: HttpMetrics) -> None:
    if gateway.tokens is not None:
        await watch_tokens(gateway.tokens, gateway.client.settings, metrics.note_tokens)


def create_app(client: Client, tracing: Tracing | None = None) -> GatewayApp:
    """The application for a connected client; its settings say which tokens and limits there are.

    With ``tracing`` each request that acts has a span.

    Raises:
        SettingsError: The tokens cannot be read, or a door cannot be opened with its settings.
    """
    settings = client.settings
    doors = open_doors(settings.doors)
    for door in doors:
        door.check(settings)
    tokens = load_tokens(settings)
    limits = Limits(settings)
    gateway = Gateway(client=client, tokens=tokens, limits=limits, hub=Hub(client), tracing=tracing)
    metrics = HttpMetrics(build_id=settings.build_id)
    metrics.streams.set_function(lambda: gateway.limits.open_streams)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.create_task(_watch_tokens(gateway, metrics), name="perdure-tokens")
        try:
            yield
        finally:
            watching.cancel()
            gateway.stopping.set()
            await gateway.hub.close()
            await gateway.tries.close()
            gateway.bodies.shutdown(wait=False)

    app = GatewayApp(
        title="perdure",
        version=version("perdure"),
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # the guard's span is the one of a request
        separate_input_output_schemas=False,  # one name for one value: generators of clients know no two
        lifespan=lifespan,
    )
    app.state.gateway = gateway
    app.state.metrics = metrics
    app.state.forms = {door.prefix: door.form for door in doors}
    for router in OPEN_ROUTERS:
        app.include_router(router)
    for router in ROUTERS:
        app.include_router(router, responses=DOCUMENTED)
    others = (CODEC_ROUTER, *(door.router for door in doors))
    for router in others:
        app.include_router(router)
    app.add_route("/openapi.json", _describe, include_in_schema=False)
    # FastAPI's own list is of routers, which name their routes to nobody.
    app.state.known_routes = [route for router in (*OPEN_ROUTERS, *ROUTERS, *others) for route in router.routes]
    handle_errors(app)
    app.add_middleware(
        Guard,
        gateway=gateway,
        metrics=metrics,
        max_body=settings.gateway_max_body_bytes,
        doors=[door.prefix for door in doors],
    )
    return app
