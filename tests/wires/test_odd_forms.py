"""Forms of answers that no provider documents, and that proxies, gateways and small servers send all the same.

S-15: each is read as the same answer, whole and streamed, in packets of any size.
"""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from perdure.activities.models.model_call import Answer
from tests.wild.test_streams import read
from tests.wires.corpus import (
    DONE,
    PAY,
    USAGE,
    Json,
    Sample,
    binary,
    called,
    chunk,
    chunks,
    completion,
    events,
    message,
    piece,
)
from tests.wires.test_corpus import check, packets_of

OPENAI, CLAUDE, GEMINI = "openai/scripted", "anthropic/scripted", "gemini/scripted"
BEDROCK = "bedrock/converse/anthropic.claude-scripted-v1:0"
BILL: Json = {"choices": [], "usage": USAGE}


def pay(*deltas: Json, calls: Sequence[tuple[str, Json]] = PAY, whole: Json = None) -> Sample:
    """A chat completion with calls."""
    usual = completion(called(*calls), "tool_calls")
    frames = chunks(*deltas, finish="tool_calls")
    return Sample("", OPENAI, whole or usual, frames, calls=tuple(calls), finish="tool_calls")


def hi(*frames: Json, whole: Json = None, **more: Any) -> Sample:
    """A chat completion that says hi."""
    return Sample("", OPENAI, whole or completion({"content": "hi"}), events(*frames), text="hi", **more)


def use(index: Json, own_id: str, to: str, *, at_once: bool = False) -> list[Json]:
    """The events of a block with a call of ``pay``; an index of ``...`` is left out."""
    place = {} if index is ... else {"index": index}
    given = {"to": to} if at_once else {}
    block = {"type": "tool_use", "id": own_id, "name": "pay", "input": given}
    began = {"type": "content_block_start", **place, "content_block": block}
    delta = {"type": "input_json_delta", "partial_json": json.dumps({"to": to})}
    more = [] if at_once else [{"type": "content_block_delta", **place, "delta": delta}]
    return [began, *more, {"type": "content_block_stop", **place}]


USES: list[Json] = [
    {"type": "tool_use", "id": own, "name": "pay", "input": {"to": to}} for own, to in (("a", "Ada"), ("b", "Bob"))
]
SAID: Json = {"type": "text", "text": "hi"}


def claude(*sent: Json, whole: Json, usage: Json = ..., stop: str = "tool_use", **more: Any) -> Sample:
    """A message of Anthropic's."""
    start = {"type": "message_start", "message": {**message(stop=""), "stop_reason": None, "content": []}}
    counted = {"output_tokens": 5} if usage is ... else usage
    end = [{"type": "message_delta", "delta": {"stop_reason": stop}, "usage": counted}, {"type": "message_stop"}]
    frames = tuple(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in (start, *sent, *end))
    calls: dict[str, Any] = {"calls": PAY, "finish": "tool_calls"} if stop == "tool_use" else {}
    return Sample("", CLAUDE, whole, frames, **{**calls, **more})


def bedrock(*indexes: Json) -> Sample:
    """A response of Bedrock's with the two calls of ``PAY`` at these indexes; one of ``...`` is left out."""
    sent = [binary("messageStart", {"role": "assistant"})]
    for index, own_id, (name, given) in zip(indexes, ("a", "b"), PAY, strict=True):
        place = {} if index is ... else {"contentBlockIndex": index}
        start, delta = {"toolUseId": own_id, "name": name}, {"input": json.dumps(given)}
        sent.append(binary("contentBlockStart", {"start": {"toolUse": start}, **place}))
        sent.append(binary("contentBlockDelta", {"delta": {"toolUse": delta}, **place}))
        sent.append(binary("contentBlockStop", place))
    sent.append(binary("messageStop", {"stopReason": "tool_use"}))
    sent.append(binary("metadata", {"usage": {"inputTokens": 7, "outputTokens": 5}}))
    kind = "application/vnd.amazon.eventstream"
    return Sample("", BEDROCK, None, tuple(sent), calls=PAY, finish="tool_calls", kind=kind)


TEXT_BLOCK: list[Json] = [
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": None}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}},
    {"type": "content_block_stop", "index": 0},
]

PARTS: list[Json] = [{"candidates": [{"content": {"parts": [{"text": part}]}}]} for part in ("h", "i")]
PARTS[1]["candidates"][0]["finishReason"] = "STOP"
PARTS[1]["usageMetadata"] = {"promptTokenCount": 7, "candidatesTokenCount": 5}
GEMINIS: Json = {
    "candidates": [{"content": {"parts": [{"text": "hi"}]}, "finishReason": "STOP"}],
    "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 5},
}
CHUNKS: list[Json] = [chunk({"content": "h"}), chunk({"content": "i"}), chunk({}, "stop"), BILL]


def lines(*values: Json, end: str = "\n") -> tuple[bytes, ...]:
    """Lines of JSON."""
    return tuple(f"{json.dumps(value)}{end}".encode() for value in values)


def array(*values: Json) -> tuple[bytes, ...]:
    """A list of JSON that is written item by item."""
    items = [json.dumps(value).encode() for value in values]
    return (b"[" + items[0], *(b",\n" + item for item in items[1:]), b"\n]\n")


def without_index(delta: Json) -> Json:
    """The delta whose call has null for an index."""
    return {"tool_calls": [{**delta["tool_calls"][0], "index": None}]}


ONE_ID = (piece(0, "call", "pay", '{"to": "Ada"}'), piece(0, "call", "pay", '{"to": "Bob"}'))
FLAT: Json = {"id": "a", "name": "pay", "arguments": {"to": "Ada"}}
LOOKS: tuple[tuple[str, Json], ...] = (("look", {}), ("look", {}))
NAMED: Json = [{"function": {"name": "look"}}, {"function": {"name": "look"}}]

FORMS: dict[str, Sample] = {
    "blocks of one index": claude(*use(0, "a", "Ada"), *use(0, "b", "Bob"), whole=message(*USES, stop="tool_use")),
    "blocks without an index": claude(
        *use(..., "a", "Ada"), *use(..., "b", "Bob"), whole=message(*USES, stop="tool_use")
    ),
    "whole blocks without an index": claude(
        *use(..., "a", "Ada", at_once=True), *use(..., "b", "Bob", at_once=True), whole=message(*USES, stop="tool_use")
    ),
    "Bedrock's blocks of one index": bedrock(0, 0),
    "Bedrock's blocks without an index": bedrock(..., ...),
    "an index that only the starts have": claude(
        *(
            {name: part for name, part in event.items() if name != "index" or "content_block" in event}
            for at, (own, to) in enumerate((("a", "Ada"), ("b", "Bob")))
            for event in use(at, own, to)
        ),
        whole=message(*USES, stop="tool_use"),
    ),
    "a block that begins twice": claude(
        use(0, "a", "Ada")[0], *use(0, "a", "Ada"), *use(1, "b", "Bob"), whole=message(*USES, stop="tool_use")
    ),
    "a null block and a null text": claude(
        *TEXT_BLOCK,
        whole=message(None, {"type": "text", "text": None}, SAID),
        stop="end_turn",
        text="hi",
    ),
    "a content that is a text": claude(*TEXT_BLOCK, whole={**message(), "content": "hi"}, stop="end_turn", text="hi"),
    "one id and one index for both calls": pay(*ONE_ID),
    "one id and no index for both calls": pay(*(without_index(part) for part in ONE_ID)),
    "calls without id, index and arguments in one delta": pay(
        {"tool_calls": NAMED}, calls=LOOKS, whole=completion({"tool_calls": NAMED}, "tool_calls")
    ),
    "a call that is no list": pay(
        {"tool_calls": called(PAY[0])["tool_calls"][0]},
        calls=PAY[:1],
        whole=completion({"tool_calls": called(PAY[0])["tool_calls"][0]}, "tool_calls"),
    ),
    "a call without the object of its function": pay(
        {"tool_calls": [{**FLAT, "index": 0, "arguments": '{"to": '}]},
        {"tool_calls": [{"index": 0, "arguments": '"Ada"}'}]},
        calls=PAY[:1],
        whole=completion({"tool_calls": [FLAT]}, "tool_calls"),
    ),
    "a call that is null": pay(
        {"tool_calls": [None, *piece(0, "a", "pay", '{"to": "Ada"}')["tool_calls"]]},
        calls=PAY[:1],
        whole=completion({"tool_calls": [None, *called(PAY[0])["tool_calls"]]}, "tool_calls"),
    ),
    "a content that is one part": hi(
        chunk({"content": {"type": "text", "text": "hi"}}, "stop"),
        BILL,
        whole=completion({"content": {"type": "text", "text": "hi"}}),
    ),
    "a choice that is null": hi(
        {"choices": [None, chunk({"content": "hi"})["choices"][0]]},
        chunk({}, "stop"),
        BILL,
        whole={**completion({}), "choices": [None, completion({"content": "hi"})["choices"][0]]},
    ),
    "the word null for no end": hi(
        chunk({"content": "h"}, "null"), chunk({"content": "i"}, "None"), chunk({}, "stop"), BILL, DONE
    ),
    "another spelling of the end": Sample(
        "",
        OPENAI,
        completion(called(*PAY[:1]), "toolUse"),
        chunks(piece(0, "a", "pay", '{"to": "Ada"}'), finish="FinishReason.TOOL_CALLS"),
        calls=PAY[:1],
        finish="tool_calls",
    ),
    "an error that says nothing": hi(
        chunk({"content": "hi"}, error={"code": 0, "message": ""}),
        chunk({}, "stop"),
        BILL,
        whole=completion({"content": "hi"}, error={"code": 0, "message": "", "type": None}),
    ),
    "usage that is a list": hi(
        chunk({"content": "hi"}),
        chunk({}, "stop"),
        {"choices": [], "usage": []},
        whole=completion({"content": "hi"}) | {"usage": []},
        usage=(0, 0, 0),
    ),
    "usage that is a word": hi(
        chunk({"content": "hi"}),
        chunk({}, "stop", usage="free"),
        whole=completion({"content": "hi"}) | {"usage": "free"},
        usage=(0, 0, 0),
    ),
    "lines of JSON": Sample(
        "", OPENAI, completion({"content": "hi"}), lines(*CHUNKS), text="hi", kind="application/x-ndjson"
    ),
    "lines of JSON, CRLF, empty ones": Sample(
        "", OPENAI, completion({"content": "hi"}), lines(*CHUNKS, end="\r\n\r\n"), text="hi", kind=""
    ),
    "a list of JSON": Sample(
        "", OPENAI, completion({"content": "hi"}), array(*CHUNKS), text="hi", kind="application/json"
    ),
    "Gemini's stream without alt=sse": Sample("", GEMINI, GEMINIS, array(*PARTS), text="hi", kind="application/json"),
    "Gemini's stream as lines": Sample("", GEMINI, GEMINIS, lines(*PARTS), text="hi", kind="application/json"),
    "Gemini's candidates, the second filtered": Sample(
        "",
        GEMINI,
        {**GEMINIS, "candidates": [*GEMINIS["candidates"], {"index": 1, "finishReason": "SAFETY"}]},
        events(*PARTS, {"candidates": [{"index": 1, "finishReason": "SAFETY"}]}),
        code="llm.content_filtered",
    ),
    "half a list of JSON": Sample(
        "", GEMINI, None, array(PARTS[0], PARTS[0]), code="llm.stream_cut", kind="application/json"
    ),
    "half of the lines": Sample("", OPENAI, None, lines(*CHUNKS[:2]), code="llm.stream_cut", kind="application/json"),
}


@pytest.mark.parametrize("size", ["everything", "an event", "anywhere", 7, 1])
@pytest.mark.parametrize("name", FORMS)
async def test_an_odd_stream_is_read(name: str, size: int | str) -> None:
    sample = FORMS[name]
    check(sample, await read(sample, packets_of(sample.frames, size)))


@pytest.mark.parametrize("name", [name for name, sample in FORMS.items() if sample.whole])
async def test_an_odd_reply_is_read_as_its_stream_is(name: str) -> None:
    sample = FORMS[name]
    body = json.dumps(sample.whole).encode()
    whole = await read(Sample("", sample.model, None, (), kind="application/json"), [body])
    streamed = await read(sample, list(sample.frames))
    if isinstance(whole, Answer) and isinstance(streamed, Answer):
        assert whole == streamed
    check(sample, whole)


@pytest.mark.parametrize("usage", [[], "none", 5, None])
async def test_usage_of_an_odd_form_costs_no_message(usage: Json) -> None:
    """What the start of a stream counted stays."""
    whole = {**message(SAID), "usage": usage}
    got = await read(Sample("", CLAUDE, None, (), kind="application/json"), [json.dumps(whole).encode()])
    check(Sample("", CLAUDE, None, (), text="hi", usage=(0, 0, 0)), got)
    if usage is not None:
        sample = claude(*TEXT_BLOCK, whole=None, usage=usage, stop="end_turn", text="hi")
        check(sample, await read(sample, list(sample.frames)))
