"""An MCP server over HTTP whose answers a test writes byte by byte, and one over standard input and output."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perdure import StdioServerConfig
from perdure.local_ports import find_free_port

PIPE = Path(__file__).parents[2] / "mcp_pipe.py"

Json = dict[str, Any]
ANY = {"type": "object"}
EMPTY: Json = {"content": [{"type": "text", "text": "done"}]}


@dataclass(frozen=True)
class Reply:
    """An HTTP answer."""

    body: Any = None
    """Text as it is; anything else as JSON. ``$ID`` in it is the request's id."""
    status: int = 200
    events: bool = False
    """Whether the body is sent as a stream of events."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def bytes(self, number: object) -> bytes:
        body = b"" if self.body is None else as_text(self.body, number).encode(errors="surrogatepass")
        kind = "text/event-stream" if self.events else "application/json"
        more = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        head = f"HTTP/1.1 {self.status} X\r\nContent-Type: {kind}\r\nConnection: close\r\n{more}"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def as_text(body: object, number: object) -> str:
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=True)
    return text.replace('"$ID"', json.dumps(number)).replace("$ID", json.dumps(number))


def result(value: object) -> Json:
    return {"jsonrpc": "2.0", "id": "$ID", "result": value}


def error(code: object, message: object, **more: object) -> Json:
    return {"jsonrpc": "2.0", "id": "$ID", "error": {"code": code, "message": message, **more}}


def event(value: object) -> str:
    return f"event: message\ndata: {value if isinstance(value, str) else json.dumps(value)}\n\n"


Answers = Callable[[str, Json, str], Reply | None]
"""Gives the answer to a method with its parameters in a session; None leaves it to the server."""


class Scripted:
    """A server of the older generation with sessions.

    Attributes:
        tools: What it lists, as raw JSON.
        session: The session that it knows; a new one begins with each greeting.
        answers: Asked before the server answers itself.
        asked: The method of each request, with the session it came in.
        called: The names of the tools that were carried out.
    """

    def __init__(self, answers: Answers | None = None, tools: Any = None) -> None:
        self.port = find_free_port()
        self.answers = answers or (lambda *_: None)
        self.tools = [{"name": "pay", "inputSchema": ANY}] if tools is None else tools
        self.result: Any = EMPTY
        self.session = 0
        self.asked: list[tuple[str, str]] = []
        self.called: list[str] = []
        self.arguments: list[Json] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Scripted"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
            message = json.loads(await reader.readexactly(int(headers.get("content-length", 0))) or b"{}")
            reply = Reply(status=405)
            if head[0].startswith("POST"):
                reply = self._reply(message, headers.get("mcp-session-id", ""))
            writer.write(reply.bytes(message.get("id")))
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _reply(self, message: Json, session: str) -> Reply:
        method, params = str(message.get("method")), message.get("params") or {}
        self.asked.append((method, session))
        if "id" not in message:
            return Reply(status=202)
        if (reply := self.answers(method, params, session)) is not None:
            return reply
        match method:
            case "initialize":
                self.session += 1
                return Reply(result(GREETING), headers={"Mcp-Session-Id": f"S{self.session}"})
            case "tools/list":
                return Reply(result({"tools": self.tools}))
            case "tools/call":
                self.called.append(params["name"])
                self.arguments.append(params.get("arguments") or {})
                return Reply(result(self.result))
            case _:
                return Reply(error(-32601, f"no method {method}"))


GREETING = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "scripted", "version": "1"},
}


def pipe(folder: Path, answers: Mapping[str, Any], **settings: Any) -> StdioServerConfig:
    """A server over standard input and output that answers each method with these lines, where ``$ID`` is the id."""
    lines = {
        method: [as_text(line, "$ID") for line in (value if isinstance(value, list) else [value])]
        for method, value in {
            "initialize": result(GREETING),
            "tools/list": result({"tools": [{"name": "pay", "inputSchema": ANY}]}),
            "tools/call": result(EMPTY),
            **answers,
        }.items()
    }
    file = folder / "answers.json"
    file.write_text(json.dumps(lines))
    return StdioServerConfig(**{"name": "odd", "command": sys.executable, "args": (str(PIPE), str(file)), **settings})
