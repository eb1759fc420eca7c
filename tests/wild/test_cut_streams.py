"""S-83: no reader of a gateway that stops, or whose token was taken out, can take what it has for the whole."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from perdure import Agent
from perdure.testing import Script, ScriptedProvider, say
from tests.gateway import Door, gateway
from tests.house import House

AGENT = Agent(name="tester", model="openai/scripted", stream="always")
TEXT = "The quick brown fox jumps over the lazy dog"


async def read(http: httpx.AsyncClient, path: str, body: dict[str, Any], seen: asyncio.Event) -> list[Any]:
    """The data of all events of a stream."""
    told: list[Any] = []
    async with http.stream("POST", path, json=body, headers={"A2A-Version": "1.0"}) as answered:
        async for line in answered.aiter_lines():
            if line.startswith("data: "):
                told.append(json.loads(line.removeprefix("data: ")))
                if "quick" in line:
                    seen.set()
    return told


async def through_responses(door: Door, seen: asyncio.Event) -> Any:
    last = (await read(door.http, "/openai/v1/responses", {"model": "tester", "input": "go", "stream": True}, seen))[-1]
    assert last["type"] == "error"
    return last["code"]


async def through_its_client(door: Door, seen: asyncio.Event) -> Any:
    """Any client of OpenAI's: the event is an exception there, so that no framework takes half an answer."""

    async def consume(client: AsyncOpenAI) -> None:
        made = client.responses.create(model="tester", input="go", stream=True, conversation="desk")
        async for event in await made:
            if "quick" in str(event):
                seen.set()

    async with AsyncOpenAI(base_url=f"{door.url}/openai/v1", api_key="x", max_retries=0) as client:
        with pytest.raises(openai.APIError, match="goes on without it; read on behind") as cut:
            await consume(client)
    assert isinstance(cut.value.body, dict)
    return cut.value.body["code"]


async def through_agui(door: Door, seen: asyncio.Event) -> Any:
    user = {"id": "m1", "role": "user", "content": "go"}
    body = {"threadId": "t1", "runId": "r1", "messages": [user], "state": {}, "tools": [], "context": []}
    last = (await read(door.http, "/agui/tester", body, seen))[-1]
    assert last["type"] == "RUN_ERROR"
    return last["code"]


async def through_a2a(door: Door, seen: asyncio.Event) -> Any:
    message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "go"}]}
    last = (await read(door.http, "/a2a/tester/message:stream", {"message": message}, seen))[-1]
    assert (last["error"]["code"], last["error"]["status"]) == (503, "UNAVAILABLE")
    return last["error"]["details"][0]["metadata"]["code"]


async def through_json_rpc(door: Door, seen: asyncio.Event) -> Any:
    message = {"messageId": "m2", "role": "ROLE_USER", "parts": [{"text": "go"}]}
    body = {"jsonrpc": "2.0", "id": 7, "method": "SendStreamingMessage", "params": {"message": message}}
    last = (await read(door.http, "/a2a/tester", body, seen))[-1]
    assert (last["id"], "result" in last) == (7, False)
    return last["error"]["data"][0]["metadata"]["code"]


Through = Callable[[Door, asyncio.Event], Awaitable[Any]]


async def test_a_gateway_that_stops_ends_each_stream_with_an_error(house: House) -> None:
    doors: list[Through] = [through_responses, through_its_client, through_agui, through_a2a, through_json_rpc]
    async with (
        ScriptedProvider(Script(replies=(say(TEXT),))) as provider,
        house.worker(AGENT),
        gateway(house, doors=("responses", "agui", "a2a")) as door,
    ):
        house.use(provider)
        provider.hold_streams(after=4)
        seen = [asyncio.Event() for _ in doors]
        reading = [asyncio.ensure_future(through(door, one)) for through, one in zip(doors, seen, strict=True)]
        async with asyncio.timeout(60):
            await asyncio.gather(*(one.wait() for one in seen))
        door.server.stop()
        assert await asyncio.gather(*reading) == ["runtime.gateway_stops"] * len(doors)
        await provider.release_streams()
