"""MCP servers behind a URL for tests: both protocol generations, the older transport, and one that wants a login."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perdure.local_ports import find_free_port


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Web:
    """Requests that came, and an application that can be stopped and started at one port."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.running = 0
        self.cancelled = 0
        self.all_here = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def serving(self, app: ASGIApp) -> AsyncIterator["Web"]:
        config = uvicorn.Config(
            self._noting(app), host="127.0.0.1", port=self.port, log_level="critical", timeout_graceful_shutdown=0
        )
        server = _Server(config)
        task = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            yield self
        finally:
            server.should_exit = server.force_exit = True
            await task

    def _noting(self, app: ASGIApp) -> ASGIApp:
        async def noting(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                headers = {name.decode(): value.decode() for name, value in scope["headers"]}
                self.requests.append((scope["method"], scope["path"], headers))
            await app(scope, receive, send)

        return noting

    def server(self) -> MCPServer:
        server = MCPServer("web")

        @server.tool()
        async def echo(text: str) -> str:
            return f"echo: {text}"

        @server.tool()
        async def slow() -> str:
            self.running += 1
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            finally:
                self.running -= 1
            return "slept"

        @server.tool()
        async def meet(parties: int) -> str:
            """Ends once so many of these calls run."""
            self.running += 1
            if self.running >= parties:
                self.all_here.set()
            try:
                await self.all_here.wait()
            finally:
                self.running -= 1
            return "met"

        @server.tool()
        async def big(characters: int) -> str:
            return "x" * characters

        @server.tool()
        async def weather(city: str) -> dict[str, Any]:
            return {"city": city, "degrees": 21}

        return server


def web() -> Web:
    return Web(find_free_port())


def older(app: ASGIApp) -> ASGIApp:
    """The application as one that does not know the newer generation's greeting."""

    async def asked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        request = json.loads(body or b"{}")
        if request.get("method") == "server/discover":
            error = {"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "no such method"}}
            await _json(send, error)
            return
        given = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def again() -> Message:
            return next(given, None) or await receive()

        await app(scope, again, send)

    return asked


def refusing(status: int) -> ASGIApp:
    """An application that answers every request with this status."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b"no"})

    return answer


async def _json(send: Send, value: object) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(value).encode()})
