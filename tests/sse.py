"""A reader of server-sent events, as a program or a browser has one."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True)
class Sent:
    """An event or a notice, as it came."""

    id: str
    event: str
    data: dict[str, Any]


async def read_sent(response: httpx.Response) -> AsyncIterator[Sent]:
    """What the stream holds, by the rules of the standard; comments are left out."""
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
            continue
        if "data" in fields:
            yield Sent(fields.get("id", ""), fields["event"], json.loads(fields["data"]))
        fields = {}


async def _end(session: str, last: str) -> AsyncIterator[Sent]:
    yield Sent("", "end", {"session": session, "after": last, "code": None, "detail": ""})


@asynccontextmanager
async def follow(
    http: httpx.AsyncClient, session: str, last: str | None = None, **query: str | int
) -> AsyncIterator[AsyncIterator[Sent]]:
    """An open stream of a session, from behind the id that was last seen; who has seen all is told the end."""
    headers = {} if last is None else {"Last-Event-ID": last}
    path = f"/v1/sessions/{session}/events"
    async with http.stream("GET", path, params=query, headers=headers) as response:
        if response.status_code == 204:
            yield _end(session, last or "")
            return
        assert response.status_code == 200, (response.status_code, await response.aread())
        assert response.headers["content-type"].startswith("text/event-stream")
        yield read_sent(response)


async def whole(http: httpx.AsyncClient, session: str, last: str | None = None, **query: str | int) -> list[Sent]:
    """What a stream holds to its end."""
    async with follow(http, session, last, **query) as stream:
        return [sent async for sent in stream]
