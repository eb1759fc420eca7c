"""An MCP server over bare sockets, so that each of its connections is in the test's hands."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal

from perdure.local_ports import find_free_port

Generation = Literal["newer", "older", "sse"]
Answer = tuple[int, Mapping[str, Any] | None]

NOT_GREETED = (400, {"error": {"code": -32600, "message": "Bad Request: Missing session ID"}})
NO_METHOD = (400, {"error": {"code": -32601, "message": "no such method"}})
TOOLS = ["fast", "slow", "typed", "refused"]
TYPED = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class Bare:
    """A server of one generation or the other.

    Attributes:
        calls: The tools that were carried out.
        asked: The methods that were asked for.
        refusal: What the tool ``refused`` is answered with; it is carried out all the same.
        leaves: No new connection is taken once a call has been carried out.
    """

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.port = find_free_port()
        self.session = "S1"
        self.calls: list[str] = []
        self.asked: list[str] = []
        self.refusal: Answer = (403, None)
        self.leaves = False
        self.may_end = asyncio.Event()
        self.streams: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Bare"]:
        await self.listen()
        try:
            yield self
        finally:
            self.may_end.set()
            self.refuse()

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    def refuse(self) -> None:
        """Take no new connection; those that are open stay so."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request; its answer closes the connection, so that each request needs one of its own."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
            message = json.loads(await reader.readexactly(int(headers.get("content-length", 0))) or b"{}")
            if self.generation == "sse" and head[0].startswith("GET"):
                await self._stream(reader, writer)
                return
            status, answer, more = await self._answered(head[0].split()[0], headers, message)
            body = b"" if answer is None else json.dumps({"jsonrpc": "2.0", "id": message.get("id"), **answer}).encode()
            lines = [f"HTTP/1.1 {status} X", "Content-Type: application/json", "Connection: close", *more]
            writer.write("\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        writer.write(b"event: endpoint\ndata: /messages\n\n")
        self.streams.append(writer)
        await reader.read()
        self.streams.remove(writer)

    async def _answered(
        self, verb: str, headers: Mapping[str, str], message: Mapping[str, Any]
    ) -> tuple[int, Mapping[str, Any] | None, list[str]]:
        method = str(message.get("method"))
        if verb != "POST":
            return 405, None, []
        self.asked.append(method)
        if self.generation == "sse":
            if "mcp-protocol-version" in headers or not self.streams:
                return 405, None, []
            _, answer = await self._result(method, message)
            body = {"jsonrpc": "2.0", "id": message.get("id"), **(answer or {})}
            if "id" in message:
                self.streams[-1].write(f"event: message\ndata: {json.dumps(body)}\n\n".encode())
            return 202, None, []
        if method == "initialize" and self.generation == "older":
            return *(await self._result(method, message)), [f"Mcp-Session-Id: {self.session}"]
        if self.generation == "older" and headers.get("mcp-session-id") != self.session:
            return *NOT_GREETED, []
        if self.generation == "newer" and method == "initialize":
            return *NO_METHOD, []
        return *(await self._result(method, message)), []

    async def _result(self, method: str, message: Mapping[str, Any]) -> Answer:
        newer = {"resultType": "complete", "ttlMs": 0, "cacheScope": "public"} if self.generation == "newer" else {}
        capabilities: dict[str, Any] = {"capabilities": {"tools": {}}}
        match method:
            case "server/discover" if newer:
                return 200, {"result": {"supportedVersions": ["2026-07-28"], **capabilities, **newer}}
            case "initialize":
                info = {"serverInfo": {"name": "bare", "version": "1"}}
                return 200, {"result": {"protocolVersion": "2025-06-18", **capabilities, **info}}
            case "tools/list":
                tools: list[dict[str, Any]] = [
                    {"name": name, "description": "", "inputSchema": {"type": "object"}} for name in TOOLS
                ]
                tools[TOOLS.index("typed")]["outputSchema"] = TYPED
                return 200, {"result": {"tools": tools, **newer}}
            case "tools/call":
                return await self._called(str(message["params"]["name"]), newer)
            case _:
                return (202, None) if "id" not in message else NO_METHOD

    async def _called(self, tool: str, newer: Mapping[str, Any]) -> Answer:
        self.calls.append(tool)
        if self.leaves:
            self.refuse()
        if tool == "slow":
            await self.may_end.wait()
        if tool == "refused":
            return self.refusal
        result = {"content": [{"type": "text", "text": tool}], "structuredContent": {"n": "no number"}, **newer}
        return 200, {"result": result}
