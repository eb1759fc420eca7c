"""S-83: a gateway or a worker is killed while an answer is written; each door's client has the whole in the end."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from perdure.contracts.a2a import TaskId
from perdure.gateway.doors.responses.places import ResponseId
from perdure.local_ports import find_free_port
from perdure.testing import ChatRequest, Reply, Script, ScriptedProvider, say
from tests.forked import Forked, forked
from tests.gateway import gateway
from tests.house import House, eventually
from tests.unit.gateway.a2a_rules import shown
from tests.unit.gateway.agui_types import judge_run
from tests.workflow.agents_that_stream import agent
from tests.workflow.test_a2a_door import Peer

pytestmark = pytest.mark.deep

AGENT = agent.clone(stream="always")
AGENTS = "tests.workflow.agents_that_stream"
TEXT = "The quick brown fox jumps over the lazy dog"
LOST = "The quick brown cat sleeps"
SCRIPT = Script(replies=(say(TEXT),))
DOORS = ("responses", "a2a", "agui")


class Reader:
    """A client of one door, whose connection may break; it begins its job with the same key as often as it likes.

    Attributes:
        session: The job's.
        seen: What came, over all connections or over the last one, as the protocol has it.
    """

    def __init__(self, http: httpx.AsyncClient, session: str) -> None:
        self.http = http
        self.session = session
        self.seen: list[dict[str, Any]] = []

    async def read(self) -> None:
        """Begin the job, and read what comes until it ends or the connection does."""
        raise NotImplementedError

    async def come_again(self) -> None:
        """Read on in the door's own manner, to the end."""
        raise NotImplementedError

    async def begin_again(self) -> object:
        """Send the request that began the job once more, and give the name of the job that it gets."""
        raise NotImplementedError

    def check(self, *, lost: bool) -> None:
        """Check that the client has the whole answer, and that of a worker that was lost only what is so named."""
        raise NotImplementedError

    async def writes(self) -> None:
        """Wait until a part of the answer has come."""

        async def there() -> bool:
            return "quick" in json.dumps(self.seen)

        await eventually(there)


class OfResponses(Reader):
    def _client(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.http.base_url}/openai/v1", api_key="x", max_retries=0)

    def _begin(self, client: AsyncOpenAI, **more: Any) -> Any:
        key = {"Idempotency-Key": self.session}
        asked: Any = {"model": "tester", "input": "go", "conversation": self.session, **more}
        return client.responses.create(**asked, extra_headers=key)

    async def read(self) -> None:
        async with self._client() as client:
            async for event in await self._begin(client, stream=True):
                self.seen.append(event.model_dump(mode="json"))

    async def come_again(self) -> None:
        place = {"stream": True, "starting_after": self.seen[-1]["sequence_number"]}
        async with self._client() as client:
            stream: Any = await client.responses.retrieve(str(ResponseId(self.session, 1)), **place)
            async for event in stream:
                self.seen.append(event.model_dump(mode="json"))

    async def begin_again(self) -> object:
        async with self._client() as client:
            return (await self._begin(client, stream=True)).response.status_code

    def check(self, *, lost: bool) -> None:
        numbers = [event["sequence_number"] for event in self.seen]
        assert numbers == sorted(set(numbers))
        last = self.seen[-1]
        assert last["type"] == "response.completed"
        messages = [item for item in last["response"]["output"] if item["status"] == "completed"]
        assert [item["content"][0]["text"] for item in messages] == [TEXT]
        texts: dict[str, str] = {}
        for event in self.seen:
            if event["type"] == "response.output_text.delta":
                texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
        assert texts[messages[0]["id"]] == TEXT
        assert len(texts) == 1 + lost


class OfA2A(Reader):
    async def read(self) -> None:
        asked = {"messageId": self.session, "role": "ROLE_USER", "parts": [{"text": "go"}], "contextId": self.session}
        async with Peer(self.http).stream("/message:stream", {"message": asked}) as items:
            async for item in items:
                self.seen.append(item)

    async def come_again(self) -> None:
        async with Peer(self.http).stream(f"/tasks/{TaskId(self.session, 1)}:subscribe") as items:
            async for item in items:
                self.seen.append(item)

    async def begin_again(self) -> object:
        asked = {"messageId": self.session, "role": "ROLE_USER", "parts": [{"text": "go"}], "contextId": self.session}
        return (await Peer(self.http).rest("POST", "/message:send", json={"message": asked})).status_code

    def check(self, *, lost: bool) -> None:
        told = shown(self.seen)
        assert told["state"] == "TASK_STATE_COMPLETED"
        assert [*told["artifacts"].values()] == [TEXT]  # what a lost call wrote is superseded


class OfAgUi(Reader):
    where = ""

    def _body(self) -> dict[str, Any]:
        messages = [{"id": "m", "role": "user", "content": "go"}]
        return {"threadId": self.session, "runId": "r1", "messages": messages}

    async def read(self) -> None:
        async with self.http.stream("POST", "/agui/tester", json=self._body()) as stream:
            self.where = stream.headers["content-location"]
            await self._note(stream)

    async def come_again(self) -> None:
        async with self.http.stream("GET", self.where) as stream:
            await self._note(stream)

    async def _note(self, stream: httpx.Response) -> None:
        async for line in stream.aiter_lines():
            if line.startswith("data: "):
                self.seen.append(json.loads(line.removeprefix("data: ")))

    async def begin_again(self) -> object:
        return (await self.http.post("/agui/tester", json=self._body())).status_code

    def check(self, *, lost: bool) -> None:
        judge_run(self.seen)
        texts: dict[str, str] = {}
        for event in self.seen:
            if event["type"] == "TEXT_MESSAGE_CONTENT":
                texts[event["messageId"]] = texts.get(event["messageId"], "") + event["delta"]
        assert [*texts.values()][-1] == TEXT
        assert len(texts) == 1 + lost
        assert self.seen[-1]["outcome"] == {"type": "success"}


READERS = {"responses": OfResponses, "a2a": OfA2A, "agui": OfAgUi}


async def is_ready(http: httpx.AsyncClient, process: Forked, log: Path) -> bool:
    if process.poll() is not None:
        pytest.fail(log.read_text())
    try:
        return (await http.get("/readyz")).status_code == 200
    except httpx.TransportError:
        return False


async def gateway_process(house: House, http: httpx.AsyncClient) -> Forked:
    """A gateway that can be killed, at the address of the client."""
    log = house.folder / "gateway.log"
    address = f"127.0.0.1:{http.base_url.port}"
    environment = {**os.environ, "PERDURE_DOORS": ",".join(DOORS)}
    process = forked("perdure.cli", ("gateway", "--address", address), environment, log)
    house.processes.append(process)
    await eventually(lambda: is_ready(http, process, log))
    return process


async def check_ends(house: House, readers: list[Reader], *, lost: bool) -> None:
    """Check what each client has, and that each has one job of one turn."""
    for reader in readers:
        reader.check(lost=lost)
        assert await reader.begin_again() == 200
        (turn,) = await house.client.turn_views(reader.session)
        assert turn.result is not None
        assert (turn.result.stop_reason, turn.result.output) == ("finished", TEXT)
    assert {record.session for record, _ in await house.client.sessions()} == {one.session for one in readers}


async def test_a_gateway_that_is_killed_costs_its_clients_nothing_but_the_connection(house: House) -> None:
    """S-83: all doors at once; the gateway starts again at the same address, as a replica behind a balancer has it."""
    url = f"http://127.0.0.1:{find_free_port()}"
    async with (
        ScriptedProvider(SCRIPT) as provider,
        house.worker(AGENT),
        httpx.AsyncClient(base_url=url, timeout=60) as http,
    ):
        house.use(provider)
        provider.hold_streams(after=4)
        first = await gateway_process(house, http)
        readers = [READERS[name](http, f"job-{name}") for name in DOORS]
        reading = [asyncio.create_task(reader.read()) for reader in readers]
        await asyncio.gather(*(reader.writes() for reader in readers))
        first.kill()
        broken = await asyncio.gather(*reading, return_exceptions=True)
        assert all(isinstance(error, httpx.TransportError | openai.APIError) for error in broken), broken
        await gateway_process(house, http)
        for reader in readers[1:]:  # their streams begin anew, with what has come so far
            reader.seen.clear()
        coming = [asyncio.create_task(reader.come_again()) for reader in readers]
        await asyncio.gather(*(reader.writes() for reader in readers))
        await provider.release_streams()
        await asyncio.gather(*coming)
        await check_ends(house, readers, lost=False)
        assert provider.request_count == len(DOORS)


async def test_a_worker_that_is_killed_in_mid_stream_costs_a_second_answer_that_is_told_apart(house: House) -> None:
    """S-80, S-83: the streams stay open, and what the lost worker's call had written is not mixed with what stands."""

    is_killed = asyncio.Event()

    def write(_: ChatRequest) -> Reply:
        return say(TEXT if is_killed.is_set() else LOST)

    async with ScriptedProvider(write) as provider, gateway(house, doors=DOORS) as door:
        house.use(provider)
        provider.hold_streams(after=4)
        first = house.spawn_worker(AGENTS)
        await first.polling()
        readers = [READERS[name](door.http, f"job-{name}") for name in DOORS]
        reading = [asyncio.create_task(reader.read()) for reader in readers]
        await asyncio.gather(*(reader.writes() for reader in readers))
        first.kill()
        is_killed.set()
        await provider.release_streams()
        await house.spawn_worker(AGENTS).polling()
        await asyncio.gather(*reading)
        await check_ends(house, readers, lost=True)
