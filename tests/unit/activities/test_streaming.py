"""A streamed call gives what the whole call gives, or fails; never a part of an answer (S-15).

On every way that litellm has to a provider, against a real HTTP server that streams.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure import Agent
from perdure.activities.models import limits, model_call, provider_packets, provider_reading
from perdure.activities.models.failures import facts_of
from perdure.activities.models.model_call import Answer
from perdure.activities.models.provider_replies import UnusableAnswerError
from perdure.activities.models.wires import CHAT
from perdure.contracts.agents import AgentDefinition, ToolMode
from perdure.contracts.budgets import Paid
from perdure.contracts.errors import ReasonCode
from perdure.contracts.tools import ToolDeclaration
from perdure.contracts.values import replace
from perdure.llm.compaction import CHARACTERS_PER_TOKEN
from perdure.llm.failures import classify
from perdure.testing import Fault, Reply, Script, ScriptedProvider, call, faults, say
from perdure.testing.script import call_in_text
from perdure.testing.streams import openai_frames
from tests.memory import Run
from tests.unit.activities.calls import KEY, NOW, SHORT_SILENCE, Sink, Way, on_each_way
from tests.unit.activities.raw_provider import read_request, serving

TEXT = "Hello big wide world, how are you"

TOOLS = (
    ToolDeclaration(
        name="pay",
        description="Pay.",
        reference="tests:pay",
        parameters={"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]},
    ),
)

THINKING = Reply(
    text="done",
    message={
        "thinking_blocks": [{"type": "thinking", "thinking": "let me see", "signature": "sig=="}],
        "reasoning_content": "let me see",
    },
)

REPLIES: dict[str, Reply] = {
    "text": say(TEXT),
    "one piece": say(TEXT, pieces=[TEXT]),
    "single characters": say(TEXT, pieces=list(TEXT)),
    "calls and text": call(("pay", {"amount": 1}), ("no such tool", {}), text="both"),
    "call without arguments": call(("pay", {})),
    "thinking": THINKING,
    "refusal": Reply(message={"refusal": "I will not"}),
    "nothing": Reply(),
    "blanks": say("  "),
    "cut off": Reply(text="half a", finish_reason="length"),
    "cut off in Anthropic's other word": Reply(text="half a", finish_reason="model_context_window_exceeded"),
    "filtered": Reply(text="so far", finish_reason="content_filter"),
    "an unknown end": Reply(text="so far", finish_reason="tired"),
    "three hundred equal pieces": say("0000" * 300, pieces=["0000"] * 300),
    "beyond the basic plane": say("grüße 😀 ok 中文"),
    "JSON": say('{"name": "Ada", "age": 36}'),
}


def definition_of(way: Way, provider: ScriptedProvider, mode: ToolMode = "auto") -> AgentDefinition:
    anthropic = way.speaks_anthropic
    return AgentDefinition(
        name="tester",
        model="anthropic/claude-sonnet-4-5" if anthropic else "openai/gpt-4o",
        generate_params={"api_base": provider.anthropic_url if anthropic else provider.url},
        tools=TOOLS,
        tool_mode=mode,
    )


async def ask(definition: AgentDefinition, sink: Sink | None) -> Answer | tuple[str, str, object]:
    """The answer, or the class, text and price of the failure."""
    try:
        async with asyncio.timeout(60):
            return await model_call.complete(definition, [{"role": "user", "content": "hello"}], shown=sink)
    except UnusableAnswerError as error:
        return type(error).__name__, str(error), error.paid


async def code_of(way: Way, provider: ScriptedProvider, sink: Sink, **settings: Any) -> str:
    """The reason code of a streamed call that must fail."""
    agent = replace(definition_of(way, provider), **settings)
    try:
        async with asyncio.timeout(60):
            got = await model_call.complete(agent, [{"role": "user", "content": "hello"}], shown=sink)
    except Exception as error:  # noqa: BLE001 - whatever litellm raises is what is tested
        return classify(facts_of(error, NOW, {KEY}))
    pytest.fail(f"the call succeeded: {got}")


@pytest.mark.parametrize("name", REPLIES)
async def test_a_stream_gives_what_the_whole_answer_gives(way: Way, name: str) -> None:
    """S-15: text, calls, reasoning, usage, cost, finish reason; and failures with what they cost."""
    sink = Sink()
    async with ScriptedProvider(Script(replies=(REPLIES[name],))) as provider:
        got = [await ask(definition_of(way, provider), shown) for shown in (None, sink)]
        assert [request.request.stream for request in provider.requests] == [False, True]
    assert got[0] == got[1]
    if isinstance(got[1], Answer):
        assert "".join(sink.texts) == got[1].text
        assert [name for name, _ in sink.calls.values()] == [call.name for call in got[1].calls]


async def test_thinking_is_shown_apart_from_the_text(way: Way) -> None:
    sink = Sink()
    async with ScriptedProvider(Script(replies=(THINKING,))) as provider:
        await ask(definition_of(way, provider), sink)
    assert ("".join(sink.texts), "".join(sink.thoughts)) == ("done", "let me see")


@pytest.mark.parametrize("mode", ["xml", "json", "json-in-xml", "json-with-tag", "pythonic"])
async def test_calls_in_text_are_read_out_of_a_stream(way: Way, mode: ToolMode) -> None:
    reply = call_in_text(mode, ("pay", {"amount": 3}), text="first this")
    sink = Sink()
    async with ScriptedProvider(Script(replies=(reply,))) as provider:
        whole, streamed = [await ask(definition_of(way, provider, mode), shown) for shown in (None, sink)]
    assert isinstance(streamed, Answer)
    assert (whole, len(streamed.calls), sink.begun) == (streamed, 1, [True])


CUTS: dict[str, tuple[Fault, str]] = {
    "before the first piece": (faults.stream_cut(0), ""),
    "in the middle": (faults.stream_cut(3), "Hello big wide "),
    "without finish reason": (faults.stream_without_end(), TEXT),
    "stalled at once": (faults.stream_stall(0), ""),
    "stalled": (faults.stream_stall(2), "Hello big "),
}


@pytest.mark.parametrize(("way", "name"), on_each_way(CUTS), indirect=["way"])
async def test_a_stream_that_is_not_whole_is_no_answer(way: Way, name: str) -> None:
    """S-15: litellm makes up a finish reason; the wire is asked for it instead."""
    fault, shown = CUTS[name]
    sink = Sink()
    async with ScriptedProvider(Script(replies=(say(TEXT),)), always=fault) as provider:
        code = await code_of(way, provider, sink, idle_timeout=SHORT_SILENCE)
        assert provider.request_count == 1
    assert (code, "".join(sink.texts)) == (ReasonCode.LLM_STREAM_CUT, shown)


BROKEN: dict[str, tuple[Fault, ReasonCode]] = {
    "429": (faults.rate_limited(), ReasonCode.LLM_RATE_LIMITED),
    "refused key": (faults.bad_key(), ReasonCode.LLM_AUTH_ERROR),
    "closed": (faults.close_before_reply(), ReasonCode.LLM_NETWORK_ERROR),
    "reset in the body": (faults.reset_in_body(), ReasonCode.LLM_STREAM_CUT),
    "no stream, but an error": (faults.in_a_200(faults.overloaded()), ReasonCode.LLM_NETWORK_ERROR),
    "overloaded in the stream": (
        faults.status(
            200,
            headers={"content-type": "text/event-stream"},
            body='event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n',
        ),
        ReasonCode.LLM_NETWORK_ERROR,
    ),
}


REFUSED_IN_THE_STREAM: dict[str, tuple[dict[str, str], ReasonCode]] = {
    "key": ({"type": "authentication_error", "message": "invalid x-api-key"}, ReasonCode.LLM_AUTH_ERROR),
    "request": ({"type": "invalid_request_error", "message": "roles must alternate"}, ReasonCode.LLM_REQUEST_ERROR),
    "model": ({"type": "not_found_error", "message": "model: x"}, ReasonCode.LLM_REQUEST_ERROR),
    "rate": ({"type": "rate_limit_error", "message": "slow down"}, ReasonCode.LLM_RATE_LIMITED),
    "server": ({"type": "api_error", "message": "odd"}, ReasonCode.LLM_NETWORK_ERROR),
}


@pytest.mark.parametrize("name", REFUSED_IN_THE_STREAM)
async def test_a_refusal_within_a_stream_has_the_code_of_one_before_it(way: Way, name: str) -> None:
    """A key or a request that is wrong is not sent again."""
    error, code = REFUSED_IN_THE_STREAM[name]
    body = f"event: error\ndata: {json.dumps({'type': 'error', 'error': error})}\n\n"
    fault = faults.status(200, headers={"content-type": "text/event-stream"}, body=body)
    async with ScriptedProvider(Script(replies=(say(TEXT),)), always=fault) as provider:
        assert await code_of(way, provider, Sink()) == code


@pytest.mark.parametrize("name", BROKEN)
async def test_other_failures_keep_their_codes(way: Way, name: str) -> None:
    """S-02: a stream changes nothing in what a refusal is called."""
    fault, code = BROKEN[name]
    async with ScriptedProvider(Script(replies=(say(TEXT),)), always=fault) as provider:
        assert await code_of(way, provider, Sink()) == code


async def test_a_stream_without_usage_is_the_answer_that_a_whole_one_without_usage_is(way: Way) -> None:
    async with ScriptedProvider(Script(replies=(say(TEXT),)), always=faults.stream_without_usage()) as provider:
        answer = await ask(definition_of(way, provider), sink := Sink())
        assert [request.request.stream for request in provider.requests] == [True]
    assert isinstance(answer, Answer)
    assert (answer.text, "".join(sink.texts)) == (TEXT, TEXT)
    assert (answer.usage.estimated, answer.usage.output_tokens) == (True, -(-len(TEXT) // CHARACTERS_PER_TOKEN))


async def test_a_model_whose_streams_have_no_end_is_asked_for_whole_answers_from_then_on(way: Way) -> None:
    """Watching must not change a job's fate: the next try goes without a stream."""
    reply = say(TEXT).after(faults.stream_without_end())
    async with ScriptedProvider(Script(replies=(reply,))) as provider:
        assert await code_of(way, provider, Sink()) == ReasonCode.LLM_STREAM_CUT
        answer = await ask(definition_of(way, provider), Sink())
        assert [request.request.stream for request in provider.requests] == [True, False]
    assert isinstance(answer, Answer)
    assert answer.text == TEXT


async def test_a_cancelled_stream_closes_its_connection(way: Way) -> None:
    """S-15: a stream that nobody reads on is not written on, and not paid."""
    sink = Sink()
    async with ScriptedProvider(Script(replies=(say(TEXT),))) as provider:
        provider.hold_streams(after=2)
        running = asyncio.create_task(ask(definition_of(way, provider), sink))
        await provider.wait_for_held_streams()
        await asyncio.wait_for(sink.came.wait(), 30)
        running.cancel()
        await asyncio.wait([running])
        await provider.wait_for_disconnect()
    assert running.cancelled()


async def test_the_usage_of_a_cut_stream_is_paid(way: Way) -> None:
    """Anthropic says at the beginning what it has read; of OpenAI's wire nothing is known, and all is estimated."""
    async with ScriptedProvider(Script(replies=(say(TEXT),)), always=faults.stream_cut(2)) as provider:
        failed = await ask(definition_of(way, provider), Sink())
    assert isinstance(failed, tuple)
    paid = failed[2]
    assert isinstance(paid, Paid)
    assert paid.usage.input_tokens > 0
    assert paid.usage.output_tokens > 1
    assert paid.usage.estimated


async def test_a_turn_in_memory_streams_too(run: Run) -> None:
    """What an agent's author tests without a server is the same: answers, calls and usage."""
    for model in ("openai/gpt-4o", "anthropic/claude-sonnet-4-5"):
        results = []
        for mode in ("off", "always"):
            agent = Agent(name="tester", model=model, stream=mode)
            results.append(await run(agent, say(TEXT).after(faults.rate_limited()), after=None))
        plain, streamed = ({**result, "session": "", "request_id": "", "tip": ""} for result in results)
        assert (streamed["output"], streamed["usage"], streamed["cost_usd"]) == (
            plain["output"],
            plain["usage"],
            plain["cost_usd"],
        )
        assert streamed["output"] == TEXT


def test_a_model_is_asked_for_streams_again_after_a_while() -> None:
    """One stream without an end must not take the preview from every follower until the worker's end."""
    now = [1_000.0]
    whole_only = limits.WholeOnly(lambda: now[0])
    agent = AgentDefinition(name="a", model="openai/scripted", generate_params={"api_base": "http://one"})
    elsewhere = AgentDefinition(name="a", model="openai/scripted", generate_params={"api_base": "http://two"})
    whole_only.add(agent, "no end")
    assert (whole_only.has(agent), whole_only.has(elsewhere)) == (True, False)
    now[0] += limits.WHOLE_FOR.total_seconds()
    assert not whole_only.has(agent)


async def test_a_whole_answer_in_place_of_a_stream_is_taken_and_shown_as_one_piece(way: Way) -> None:
    """A provider that ignores ``stream``: one request, and the next one asks for a stream again."""
    sink, anthropic = Sink(), way.speaks_anthropic
    text = {"type": "text", "text": TEXT}
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "input_tokens": 1, "output_tokens": 2}
    message = {"type": "message", "model": "m", "content": [text], "stop_reason": "end_turn", "usage": usage}
    choice = {"message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
    body: Any = message if anthropic else {"choices": [choice], "usage": usage}
    async with ScriptedProvider(always=faults.status(200, body=body)) as provider:
        answers = [await ask(definition_of(way, provider), sink) for _ in range(2)]
        assert provider.request_count == 2
        assert [request.request.stream for request in provider.requests] == [True, True]
    assert [isinstance(answer, Answer) and answer.text for answer in answers] == [TEXT, TEXT]
    assert sink.texts == [TEXT, TEXT]


async def test_other_jobs_have_their_turn_while_a_stream_is_read_that_has_come_at_once() -> None:
    """20,000 pieces in one packet: beats and cancels of a worker's other calls go on."""
    piece = b'data: {"choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n'
    end = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"completion_tokens": 1}}\n\n'

    async def raw() -> AsyncIterator[bytes]:
        yield piece * 20_000 + end

    async def close() -> None: ...

    turns, ended = 0, asyncio.Event()

    async def take_turns() -> None:
        nonlocal turns
        while not ended.is_set():
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(take_turns())
    reply = provider_packets.HttpReply(200, {"content-type": "text/event-stream"}, raw(), close)
    answered = await provider_reading.receive(CHAT, reply, Sink())
    ended.set()
    await other
    assert len(answered.text) == 20_000
    assert turns > 300


async def test_the_connection_of_a_stream_is_used_again(way: Way) -> None:
    """A stream is over with its last event; its connection is read to its end, which a new one would cost more than."""
    async with ScriptedProvider(Script(replies=(say(TEXT),))) as provider:
        agent = definition_of(way, provider)
        answers = [await ask(agent, Sink()) for _ in range(3)]
        assert (provider.request_count, provider.connection_count) == (3, 1)
    assert [isinstance(answer, Answer) and answer.text for answer in answers] == [TEXT] * 3


async def test_a_connection_that_stays_open_behind_an_answer_is_closed() -> None:
    """A gateway lingers behind the last event of each stream: one request a call, and its connection is given up."""
    chunks = openai_frames(
        {"id": "x", "created": 0, "model": "m", "choices": [ENDED], "usage": {}}, say(TEXT), with_usage=False
    )
    requests, closed = 0, 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests, closed
        while await read_request(reader):
            requests += 1
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + sent)
        closed += 1

    sent = b"".join(frame.data for frame in chunks)
    async with serving(serve) as address:
        agent = AgentDefinition(name="tester", model="openai/scripted", generate_params={"api_base": f"{address}/v1"})
        answers = [await ask(agent, Sink()) for _ in range(2)]
        async with asyncio.timeout(30):
            while closed < 2:
                await asyncio.sleep(0)
    assert [isinstance(answer, Answer) and answer.text for answer in answers] == [TEXT] * 2
    assert requests == 2


ENDED: dict[str, Any] = {"message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
