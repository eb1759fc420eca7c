"""The gateway over real HTTP: the application on uvicorn at a loopback port, and a client for it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
from fastapi import FastAPI

from perdure.client import Client
from perdure.gateway.app import create_app
from perdure.gateway.callers import Scope
from perdure.gateway.serve import GatewayServer, bind
from perdure.gateway.tokens import make_token
from perdure.tracing import Tracing
from tests.house import House


@dataclass
class Door:
    """A gateway that runs.

    Attributes:
        http: A client of it, without a token.
    """

    url: str
    app: FastAPI
    server: GatewayServer
    http: httpx.AsyncClient

    def holder(self, token: str) -> httpx.AsyncClient:
        """A client that sends a token; to be closed by who asks for it."""
        return httpx.AsyncClient(base_url=self.url, headers={"Authorization": f"Bearer {token}"}, timeout=60)


def token_lines(**tokens: tuple[str, str]) -> tuple[str, dict[str, str]]:
    """Lines of tokens, and the tokens themselves by their names; each is given a tenant and scopes, with commas."""
    made = {
        name: make_token(name, tenant, [Scope(scope) for scope in scopes.split(",")])
        for name, (tenant, scopes) in tokens.items()
    }
    return "\n".join(line for _, line in made.values()), {name: token for name, (token, _) in made.items()}


@asynccontextmanager
async def gateway(house: House, **settings: object) -> AsyncIterator[Door]:
    """A gateway on the house's server and store; settings are those of ``perdure.settings``, by their names."""
    tracing = settings.pop("tracing", None)
    assert tracing is None or isinstance(tracing, Tracing)
    async with Client(house.temporal, house.settings.model_copy(update=settings)) as client:
        app = create_app(client, tracing)
        listener = bind("127.0.0.1:0", has_tokens=app.state.gateway.tokens is not None)
        server = GatewayServer(app, grace=5, proxies=client.settings.gateway_proxies)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        task = asyncio.create_task(server.serve([listener]))
        while not (server.started or task.done()):
            await asyncio.sleep(0.01)
        try:
            async with httpx.AsyncClient(base_url=url, timeout=60) as http:
                yield Door(url=url, app=app, server=server, http=http)
        finally:
            server.stop()
            await task
            listener.close()


def line(text: str) -> dict[str, object]:
    """A line of JSON."""
    read: dict[str, object] = json.loads(text)
    return read
