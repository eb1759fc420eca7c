"""S-86: one call of a client begins one job, however often the client tries again by itself."""

import asyncio
import itertools
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response

from perdure import Agent, tool
from perdure.gateway.doors.responses.places import ResponseId
from perdure.testing import Reply, ScriptedProvider, call, say
from perdure.testing.script import ChatRequest
from tests.gateway import gateway
from tests.house import House, eventually

EFFECTS: list[str] = []


@tool
def effect(name: str) -> str:
    """Do something that cannot be undone."""
    EFFECTS.append(name)
    return f"{name} is done"


AGENT = Agent(name="tester", model="openai/scripted", tools=[effect], stream="always")


def brain(request: ChatRequest) -> Reply:
    last = request.messages[-1]
    if last["role"] == "user":
        return call(("effect", {"name": str(last["content"])}))
    return say(f"read {last['content']}")


class Cutting(httpx.AsyncHTTPTransport):
    """A way to the gateway on which the first tries of each call are lost: before it, or with the whole answer.

    Args:
        lost: What is lost of each try, in order, again and again.
    """

    def __init__(self, *lost: str) -> None:
        super().__init__()
        self._lost = itertools.cycle(lost)
        self.counted: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.counted.append(request.headers.get("x-stainless-retry-count", ""))
        lost = next(self._lost)
        if lost == "request":
            raise httpx.ConnectError("the way is cut", request=request)
        answered = await super().handle_async_request(request)
        if lost == "answer":
            await answered.aread()
            await answered.aclose()
            raise httpx.ReadError("the way is cut", request=request)
        if lost == "connection":
            await answered.aclose()
            raise httpx.ReadTimeout("the way is cut", request=request)
        return answered


def client_of(url: str, transport: httpx.AsyncBaseTransport, **more: Any) -> AsyncOpenAI:
    http: Any = httpx.AsyncClient(transport=transport, timeout=60)
    return AsyncOpenAI(base_url=f"{url}/openai/v1", api_key="x", http_client=http, **more)


def sessions_of(responses: list[Response]) -> set[str]:
    return {place.session for made in responses if (place := ResponseId.parse(made.id)) is not None}


@pytest.mark.parametrize("many", [12, pytest.param(100, marks=pytest.mark.deep)])
async def test_calls_whose_answers_are_lost_begin_one_job_each(house: House, many: int) -> None:
    """Half of them say the same at the same time."""
    EFFECTS.clear()
    async with (
        ScriptedProvider(brain) as provider,
        house.worker(AGENT),
        gateway(house, doors=("responses",)) as door,
    ):
        house.use(provider)

        async def ask(number: int) -> Response:
            lost = itertools.islice(itertools.cycle(["answer", "request", "answer"]), number % 3, number % 3 + 2)
            async with client_of(door.url, Cutting(*lost, ""), max_retries=3) as client:
                text = f"say {number if number % 2 else 'the same'}"
                made: Response = await client.responses.create(model="tester", input=text)
                return made

        made = await asyncio.gather(*(ask(number) for number in range(many)))
        assert {one.status for one in made} == {"completed"}
        assert len(sessions_of(made)) == len(EFFECTS) == many
        assert len(await house.client.sessions(limit=2 * many)) == many


async def test_a_turn_of_a_conversation_and_a_stream_are_joined_too(house: House) -> None:
    EFFECTS.clear()
    async with (
        ScriptedProvider(brain) as provider,
        house.worker(AGENT),
        gateway(house, doors=("responses",)) as door,
    ):
        house.use(provider)
        transport = Cutting("answer", "connection", "")
        async with client_of(door.url, transport) as client:
            for text in ("one", "two"):
                await client.responses.create(model="tester", input=text, conversation="desk")
            stream = await client.responses.create(model="tester", input="three", conversation="desk", stream=True)
            events = [event async for event in stream]
            assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
            first = await client.responses.create(model="tester", input="four")
            shown: list[Any] = [{"role": "user", "content": "four"}]
            shown += [item.model_dump(exclude_none=True) for item in first.output]
            last = await client.responses.create(model="tester", input=[*shown, {"role": "user", "content": "five"}])
        assert transport.counted == ["0", "1", "2"] * 5
        assert EFFECTS == ["one", "two", "three", "four", "five"]
        assert len(await house.client.turns("desk")) == 3
        assert len(sessions_of([first, last])) == 1


COUNTED = {"x-stainless-retry-count": "0"}


@pytest.mark.parametrize("headers", [{}, COUNTED], ids=["uncounted", "always the first"])
async def test_a_gateway_that_stops_is_asked_again_elsewhere_and_begins_no_second_job(
    house: House, headers: dict[str, str]
) -> None:
    """Of a client that counts its tries, of one that does not (Vercel's AI SDK), and of one in a loop (LangChain)."""
    EFFECTS.clear()
    async with (
        ScriptedProvider(brain) as provider,
        house.worker(AGENT),
        gateway(house, doors=("responses",)) as other,
        gateway(house, doors=("responses",)) as door,
    ):
        house.use(provider)
        provider.hold_streams(after=1)
        body = {"model": "tester", "input": "uncounted"}
        uncounted = asyncio.ensure_future(door.http.post("/openai/v1/responses", json=body, headers=headers))

        class Switching(httpx.AsyncHTTPTransport):
            async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
                if request.headers["x-stainless-retry-count"] != "0":
                    request.url = request.url.copy_with(port=httpx.URL(other.url).port)
                return await super().handle_async_request(request)

        async with client_of(door.url, Switching()) as client:
            counted = asyncio.ensure_future(client.responses.create(model="tester", input="counted"))

            async def have_begun() -> bool:
                return len(await house.client.sessions()) == 2

            await eventually(have_begun)
            door.server.stop()
            told = await uncounted
            assert (told.status_code, told.json()["error"]["code"]) == (503, "runtime.gateway_stops")
            again = asyncio.ensure_future(other.http.post("/openai/v1/responses", json=body, headers=headers))
            await provider.release_streams()
            assert ((await counted).status, (await again).json()["status"]) == ("completed", "completed")
        more = (await other.http.post("/openai/v1/responses", json=body, headers=headers)).json()
        assert more["status"] == "completed"
        assert sorted(EFFECTS) == ["counted", "uncounted", "uncounted"]
        assert len(await house.client.sessions()) == 3


async def test_a_try_that_was_refused_is_no_job_to_be_joined(house: House) -> None:
    """A double click: one of two is told that the session is busy, and its retry goes another way."""
    async with (
        ScriptedProvider(brain) as provider,
        house.worker(AGENT),
        gateway(house, doors=("responses",)) as door,
        AsyncOpenAI(base_url=f"{door.url}/openai/v1", api_key="x", max_retries=5, timeout=60) as client,
    ):
        house.use(provider)
        for number in range(3):
            first = await client.responses.create(model="tester", input=f"one {number}")
            shown: list[Any] = [{"role": "user", "content": f"one {number}"}]
            shown += [item.model_dump(exclude_none=True) for item in first.output]
            shown.append({"role": "user", "content": "two"})
            both = await asyncio.gather(*(client.responses.create(model="tester", input=shown) for _ in range(2)))
            assert [one.status for one in both] == ["completed"] * 2
            assert len({one.id for one in both}) == 2


async def test_who_hangs_up_and_says_the_same_again_has_two_jobs_unless_the_client_counts_its_tries(
    house: House,
) -> None:
    async with (
        ScriptedProvider(brain) as provider,
        house.worker(AGENT),
        gateway(house, doors=("responses",)) as door,
    ):
        house.use(provider)
        provider.hold_streams(after=1)

        async def hang_up(text: str, number: int) -> None:
            body = {"model": "tester", "input": text}
            asking = asyncio.ensure_future(door.http.post("/openai/v1/responses", json=body, headers=COUNTED))

            async def has_begun() -> bool:
                return len(await house.client.sessions()) == number

            await eventually(has_begun)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

        async def is_counted() -> bool:
            return 'status="499"' in (await door.http.get("/metrics")).text

        await hang_up("one", 1)
        await eventually(is_counted)
        assert 'status="503"' not in (await door.http.get("/metrics")).text
        again = asyncio.ensure_future(door.http.post("/openai/v1/responses", json={"model": "tester", "input": "one"}))
        await hang_up("two", 3)
        body = {"model": "tester", "input": "two"}
        retry = {"x-stainless-retry-count": "1"}
        joined = asyncio.ensure_future(door.http.post("/openai/v1/responses", json=body, headers=retry))
        await provider.release_streams()
        assert [one.json()["status"] for one in await asyncio.gather(again, joined)] == ["completed"] * 2
        assert len(await house.client.sessions()) == 3


async def test_a_key_outranks_the_count_and_a_window_is_the_operators(house: House) -> None:
    EFFECTS.clear()
    async with (
        ScriptedProvider(brain) as provider,
        house.worker(AGENT),
        gateway(house, doors=("responses",), gateway_retry_window=timedelta(minutes=1)) as door,
    ):
        house.use(provider)

        async def ask(text: str, **headers: str) -> Mapping[str, Any]:
            body = {"model": "tester", "input": text}
            answered = await door.http.post("/openai/v1/responses", json=body, headers=headers)
            told: dict[str, Any] = answered.json()
            return told

        retry = {"x-stainless-retry-count": "1"}
        first = await ask("one", **{"Idempotency-Key": "k1"})
        other = await ask("one", **retry, **{"Idempotency-Key": "k2"})
        third = await ask("one", **retry)
        assert len({first["id"], other["id"], third["id"]}) == 3
        begun = await ask("two")
        assert (await ask("two"))["id"] == begun["id"]
        assert (await ask("two", **{"x-stainless-retry-count": "0"}))["id"] != begun["id"]
        assert len(EFFECTS) == 5
