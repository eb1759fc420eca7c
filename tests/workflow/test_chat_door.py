"""S-89: the door of Chat Completions, to the unmodified ``openai`` client, over HTTP with a real worker."""

import threading
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import timedelta
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

from perdure import Agent, ask_user, tool
from perdure.testing import Script, ScriptedProvider, call, faults, say
from perdure.testing.script import Reply
from tests.gateway import Door, gateway, token_lines
from tests.house import House, eventually

pytestmark = pytest.mark.judged("OpenAI Chat Completions", "openai")

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
LOOK: Any = {"type": "function", "function": {"name": "look", "description": "Look up.", "parameters": SCHEMA}}
USER: Any = {"role": "user", "content": "go"}


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


SPACES = threading.Event()  # tools run beside the test's event loop


@tool
def wait_for_spaces() -> str:
    """Wait until the client has got something."""
    return "some" if SPACES.wait(60) else "none"


AGENT = Agent(name="tester", model="openai/scripted", tools=[add, pay, wait_for_spaces, ask_user])


@asynccontextmanager
async def opened(
    house: House, *replies: Reply, retries: int = 0, **settings: Any
) -> AsyncIterator[tuple[AsyncOpenAI, Door]]:
    async with (
        ScriptedProvider(Script(replies=replies)) as provider,
        house.worker(AGENT),
        gateway(house, doors=("chat",), **settings) as door,
        AsyncOpenAI(base_url=f"{door.url}/openai/v1", api_key="any", max_retries=retries, timeout=60) as client,
    ):
        house.use(provider)
        yield client, door


async def ask(client: AsyncOpenAI, *messages: Any, **more: Any) -> ChatCompletion:
    made: ChatCompletion = await client.chat.completions.create(model="tester", messages=[*messages] or [USER], **more)
    return made


def text_of(made: ChatCompletion) -> str | None:
    return made.choices[0].message.content


async def sessions(house: House) -> list[str]:
    return sorted(record.session for record, _ in await house.store.sessions(limit=100))


async def test_a_completion_comes_whole_and_in_pieces_with_the_usage_of_hidden_steps(house: House) -> None:
    """S-89."""
    async with opened(house, call(("add", {"a": 1, "b": 2})), say("three")) as (client, _):
        made = await ask(client, metadata={"team": "sums"})
        assert (text_of(made), made.choices[0].finish_reason, made.model) == ("three", "stop", "tester")
        assert made.usage is not None
        message: Any = made.choices[0].message
        assert message.reasoning_content == 'add({"a": 1, "b": 2})\n\n→ 3\n'
        assert made.metadata == {"team": "sums", "stop_reason": "finished"}
        stream = await client.chat.completions.create(
            model="tester", messages=[USER], stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "three"
        assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
        assert chunks[-1].usage == made.usage
        assert len({chunk.id for chunk in chunks}) == 1
        assert [model.id async for model in client.models.list()] == ["tester"]
    assert len(await sessions(house)) == 2


async def test_calls_of_this_door_lead_back_to_their_session(house: House) -> None:
    """S-89: a chat with functions of the client is one session, whose turns go on with what it has sent."""
    replies = call(("look", {"id": 7}), ("look", {"id": 8})), say("both"), say("more")
    async with opened(house, *replies) as (client, _):
        first = await ask(client, tools=[LOOK])
        message = first.choices[0].message
        assert (first.choices[0].finish_reason, message.content) == ("tool_calls", None)
        one, two = message.tool_calls or []
        results = [{"role": "tool", "tool_call_id": found.id, "content": "Ann"} for found in (one, two)]
        part = await ask(client, USER, message, results[0], tools=[LOOK])
        (left,) = part.choices[0].message.tool_calls or []
        assert left.id.partition("-")[0] == two.id.partition("-")[0]
        second = await ask(client, USER, message, *results, tools=[LOOK])
        assert text_of(second) == "both"
        again = await ask(client, USER, message, *results, tools=[LOOK])
        assert (text_of(again), again.id) == ("both", second.id)
        behind = [USER, message, *results, second.choices[0].message, {"role": "user", "content": "on"}]
        assert text_of(await ask(client, *behind, tools=[LOOK])) == "more"
        other = (await ask(client, tools=[LOOK])).choices[0].message
        with pytest.raises(openai.BadRequestError, match="no output found"):
            await ask(client, USER, other, USER, tools=[LOOK])
    assert len(await sessions(house)) == 2


@pytest.mark.parametrize("streams", [False, True])
async def test_functions_that_the_agent_has_too_give_way_and_are_named(house: House, streams: bool) -> None:
    """S-89: front ends offer the same functions to each model, such as Open WebUI its `ask_user`."""
    tools = [LOOK, {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]
    async with opened(house, call(("add", {"a": 1, "b": 2})), say("three")) as (client, _):
        made: Any = await ask(client, tools=tools, seed=1, stream=streams)
        if streams:
            made = [chunk async for chunk in made][-1]
        assert made.metadata["left_alone"] == "seed, tools.add"


async def test_without_such_ids_each_request_is_a_session_of_its_own(house: House) -> None:
    """S-89: one key stands for all people of a front end, and two of them may begin with the same words."""
    async with opened(house, say("Hi!"), say("You said hello.")) as (client, _):
        one = await ask(client, {"role": "user", "content": "hello"})
        chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": text_of(one)}]
        for _ in range(2):
            assert text_of(await ask(client, *chat, {"role": "user", "content": "and?"})) == "You said hello."
    assert len(await sessions(house)) == 3


async def test_an_answer_fits_its_form(house: House) -> None:
    """S-89."""

    class River(BaseModel):
        name: str

    async with opened(house, say('{"name": "Rhine"}')) as (client, _):
        parsed = await client.chat.completions.parse(model="tester", messages=[USER], response_format=River)
        assert parsed.choices[0].message.parsed == River(name="Rhine")


async def test_people_are_asked_in_words_and_decide_on_the_page(house: House) -> None:
    """S-89: a word of a chat is no decision; the job waits, and goes on behind it."""
    replies = call(("pay", {"amount": 7})), say("done")
    async with opened(house, *replies, gateway_url="https://perdure.example") as (client, _):
        made = await ask(client)
        (session,) = await sessions(house)
        link = f"https://perdure.example/ui/sessions/{session}?asked=1.1"
        assert text_of(made) == f'pay waits for an approval: {{"amount": 7}}\n{link}'
        assert made.choices[0].finish_reason == "stop"
        (request,) = (await house.client.session_view(session)).requests
        await house.client.approve(session, request.request_id, by="ann")

        async def has_ended() -> bool:
            return (await house.client.session_view(session)).open_turn is None

        await eventually(has_ended)
        result = (await house.client.turn_view(session, 1)).result
        assert result is not None
        assert result.output == "done"


async def test_a_chat_with_calls_goes_on_behind_what_people_decide(house: House) -> None:
    """S-89: what a waiting turn has told is no answer of another model; the chat keeps its session."""
    replies = call(("look", {"id": 7})), call(("pay", {"amount": 7})), say("paid"), say("more")
    async with opened(house, *replies) as (client, _):
        message = (await ask(client, tools=[LOOK])).choices[0].message
        (found,) = message.tool_calls or []
        chat = [USER, message, {"role": "tool", "tool_call_id": found.id, "content": "Ann"}]
        for words in ("", "yes"):
            chat += [{"role": "user", "content": words}] if words else []
            waits = (await ask(client, *chat, tools=[LOOK])).choices[0]
            assert (waits.finish_reason, "pay waits for an approval" in str(waits.message.content)) == ("stop", True)
            chat.append({"role": "assistant", "content": str(waits.message.content).strip()})
        (session,) = await sessions(house)
        (request,) = (await house.client.session_view(session)).requests
        await house.client.approve(session, request.request_id, by="ann")

        async def has_ended() -> bool:
            return (await house.client.session_view(session)).open_turn is None

        await eventually(has_ended)
        made = await ask(client, *chat[:4], {"role": "user", "content": "and?"}, tools=[LOOK])
        assert text_of(made) == "more"
    assert await sessions(house) == [session]


async def test_failures_are_errors_of_openai(house: House) -> None:
    """S-89: an answer that is none is told as such, streamed or whole, and is not asked for again."""
    async with opened(house, say("x").after(faults.bad_key(), faults.bad_key()), retries=2) as (client, _):
        with pytest.raises(openai.BadRequestError, match="refused the key"):
            await ask(client)
        with pytest.raises(openai.APIError, match="refused the key"):
            async for _chunk in await client.chat.completions.create(model="tester", messages=[USER], stream=True):
                pass
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="nobody", messages=[USER])
        with pytest.raises(openai.BadRequestError, match="n: this door cannot do that"):
            await ask(client, n=2)
    assert len(await sessions(house)) == 2


@pytest.mark.parametrize("fails", [False, True])
async def test_bytes_come_while_a_job_takes_long(house: House, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """S-89: spaces before the JSON keep proxies and clients waiting; what fails then is told to the try behind it."""
    monkeypatch.setattr("perdure.gateway.hub.PING_EVERY", timedelta(milliseconds=20))
    last = say("x").after(faults.bad_key()) if fails else say("done")
    SPACES.clear()
    async with opened(house, call(("wait_for_spaces", {})), last) as (_, door):
        told = b""
        broken = pytest.raises(httpx.RemoteProtocolError) if fails else nullcontext()
        with broken:
            async with post(door, tries=0) as raw:
                assert raw.headers["content-type"] == "application/json"
                async for piece in raw.aiter_raw():
                    told += piece
                    SPACES.set()
        assert told.startswith(b" ")
        if not fails:
            assert text_of(ChatCompletion.model_validate_json(told)) == "done"
            return
        async with post(door, tries=1) as again:
            assert again.status_code == 400
            assert b"refused the key" in await again.aread()
    assert len(await sessions(house)) == 1


def post(door: Door, tries: int) -> AbstractAsyncContextManager[httpx.Response]:
    """A request as the ``openai`` client sends it when it has tried so often before."""
    body, headers = {"model": "tester", "messages": [USER]}, {"X-Stainless-Retry-Count": str(tries)}
    return door.http.stream("POST", "/openai/v1/chat/completions", json=body, headers=headers)


async def test_a_call_of_another_tenant_is_a_call_of_nobody(house: House) -> None:
    """S-89, T-01: whoever has seen the id of a call gets nothing of its session, and gives it nothing."""
    lines, tokens = token_lines(ann=("acme", "admin"), eve=("evil", "admin"))
    async with opened(house, call(("look", {"id": 7})), say("hers"), gateway_tokens=lines) as (client, _):
        ann, eve = (client.with_options(api_key=tokens[name]) for name in ("ann", "eve"))
        message = (await ask(ann, tools=[LOOK])).choices[0].message
        (found,) = message.tool_calls or []
        result = {"role": "tool", "tool_call_id": found.id, "content": "Eve"}
        with pytest.raises(openai.BadRequestError, match="no turn waits for"):
            await ask(eve, USER, message, result, tools=[LOOK])
        assert text_of(await ask(eve, USER, message, result, {"role": "user", "content": "on"})) == "hers"
        await ask(ann, USER, message, {**result, "content": "Ann"}, tools=[LOOK])
        (hers, his) = sorted([record async for record in tenants(house)])
    assert (hers[0], his[0]) == ("acme", "evil")
    told = [str(one.content) for one in await house.client.transcript(hers[1]) if one.role == "tool"]
    assert told == ["Ann"]


async def tenants(house: House) -> AsyncIterator[tuple[str, str]]:
    for record, _ in await house.store.sessions(limit=100):
        yield record.tenant, record.session
