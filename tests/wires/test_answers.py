"""S-15: what 119 answers of five wires mean, whole and streamed, over HTTP in packets of any size.

The cases are data (``tests/wires/answers``), each with its meaning. A finished answer that is not what was sent is the
worst that can come out; so nothing here is compared with another reading of the same bytes.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

from perdure.activities.models import model_call
from perdure.activities.models.failures import facts_of
from perdure.activities.models.model_call import Answer
from perdure.activities.models.provider_packets import HttpReply
from perdure.activities.models.provider_reading import receive
from perdure.activities.models.wires import CHAT, CONVERSE, GEMINI, MESSAGES, RESPONSES
from perdure.activities.models.wires.reply import Answered, Silent
from perdure.contracts.agents import AgentDefinition
from perdure.llm.failures import FailureFacts, classify
from tests.unit.activities.calls import NOW, Sink
from tests.unit.activities.raw_provider import read_request, serving
from tests.wires.answers import Case, cases, events_of
from tests.wires.random_answers import answers
from tests.wires.test_corpus import packets_of

CASES = {case["name"]: case for case in cases()}

SIZES: Sequence[int | str] = (1, 7, "an event", "everything")

MODELS = {
    "chat": "openai/scripted",
    "anthropic": "anthropic/scripted",
    "gemini": "gemini/scripted",
    "bedrock": "bedrock/converse/anthropic.claude-scripted-v1:0",
    "responses": "openai/responses/scripted",
}

ENDS = {
    "end": {"stop", "llm.empty_response"},
    "calls": {"tool_calls", "llm.invalid_response"},  # an end in calls, and none, is no answer
    "length": {"llm.truncated"},
    "filter": {"llm.content_filtered"},
    "refusal": {"llm.refused"},
    "failed": {"llm.invalid_response"},
    "none": {"", "llm.invalid_response"},
}
"""What perdure makes of an end: a finish reason, or the code of an answer that is none."""

WIRES = {"chat": CHAT, "anthropic": MESSAGES, "gemini": GEMINI, "bedrock": CONVERSE, "responses": RESPONSES}

KINDS = {"bedrock": "application/vnd.amazon.eventstream"}
"""Content types of streams that are no event streams."""


def definition(wire: str, address: str) -> AgentDefinition:
    """An agent whose calls go to this address, over this wire."""
    if wire == "bedrock":
        access: dict[str, Any] = {
            "aws_bedrock_runtime_endpoint": address,
            "aws_access_key_id": "AKIASCRIPTED",
            "aws_secret_access_key": "scripted",
            "aws_region_name": "us-east-1",
        }
    else:
        access = {"api_base": address, "api_key": "sk-scripted-0123456789"}
    return AgentDefinition(name="t", model=MODELS[wire], generate_params=access)


def head_of(part: Case, size: int | None) -> bytes:
    """The head of a reply, with the length of its body or without one."""
    length = [] if size is None else [f"content-length: {size}"]
    headers = [f"{name}: {value}" for name, value in part["headers"].items()]
    return "\r\n".join((f"HTTP/1.1 {part['status']} Said", *headers, *length, "connection: close", "", "")).encode()


async def ask(case: Case, size: int | str | None) -> tuple[Answer | FailureFacts, int]:
    """What becomes of a case, whole or streamed in packets of a size, and the number of requests."""
    requests = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        if not await read_request(reader):
            return
        requests += 1
        if size is None:
            body = case["whole"]["body"].encode()
            writer.write(head_of(case["whole"], len(body)) + body)
            return
        is_lost = case["stream"].get("end") == "reset"  # a body that ends before its length does
        writer.write(head_of(case["stream"], 10**6 if is_lost else None))
        for packet in packets_of(events_of(case["stream"]), size):
            writer.write(packet)
            await writer.drain()
            await asyncio.sleep(0)

    async with serving(serve) as address:
        agent = definition(case["wire"], address)
        try:
            async with asyncio.timeout(60):
                got: Answer | FailureFacts = await model_call.complete(
                    agent, [{"role": "user", "content": "hello"}], shown=None if size is None else Sink()
                )
        except Exception as error:  # noqa: BLE001 - whatever is raised is what is tested
            got = facts_of(error, NOW)
    return got, requests


def check(case: Case, got: Answer | FailureFacts) -> None:
    """It is what the case means."""
    if isinstance(got, FailureFacts):
        check_failure(case, got)
        return
    assert "meant" in case, f"no answer was meant, and this came: {got}"
    meant = case["meant"]
    if "text_ascii" in meant:
        assert "".join(character for character in got.text if character.isascii()) == meant["text_ascii"]
    else:
        assert got.text == meant["text"]
    assert len(got.calls) == len(meant["calls"])
    for call, sent in zip(got.calls, meant["calls"], strict=True):
        assert call.name == sent["name"]
        if "args" in sent:
            assert json.loads(call.arguments) == sent["args"]
        else:
            assert call.arguments == sent["raw"]
    assert got.finish_reason in set[str]().union(*(ENDS[end] for end in meant["end"]))
    counted = meant.get("usage", {})
    usage = got.usage
    if not usage.estimated:
        read = {"in": usage.input_tokens, "out": usage.output_tokens, "cached": usage.cached_tokens}
        assert {name: count for name, count in read.items() if name in counted} == {
            name: count for name, count in counted.items() if name in read
        }
    if "sig" in meant:
        assert meant["sig"] in json.dumps(got.thinking)


def check_failure(case: Case, got: FailureFacts) -> None:
    """It is the failure that the case means."""
    code = classify(got)
    if "meant_error" in case:
        meant = case["meant_error"]
        assert meant["words"] in got.text
        if "status" in meant and meant["status"] != 307:  # a redirect is told as such
            assert got.status == meant["status"]
        if "retry_after" in meant:
            assert got.retry_after_seconds == float(meant["retry_after"])
        return
    if case.get("cut") or case.get("either"):
        return
    assert code in set[str]().union(*(ENDS[end] for end in case["meant"]["end"])), f"{code}: {got.text}"


WHOLE = [name for name, case in CASES.items() if "whole" in case]
STREAMED = [name for name, case in CASES.items() if "stream" in case]


@pytest.mark.parametrize("name", WHOLE)
async def test_a_whole_answer_is_read_as_it_is_meant(name: str) -> None:
    got, requests = await ask(CASES[name], None)
    check(CASES[name], got)
    assert requests == 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", STREAMED)
async def test_a_streamed_answer_is_read_as_it_is_meant(name: str, size: int | str) -> None:
    got, requests = await ask(CASES[name], size)
    check(CASES[name], got)
    assert requests == 1


THINKING = [
    name for name, case in CASES.items() if (meant := case.get("meant", {})).get("thinking") or "order" in meant
]


async def fold(case: Case, packets: Sequence[bytes] | None = None) -> Answered:
    """The answer that the wire's reader makes of a case, with all its reasoning; streamed, if it comes in packets."""
    part = case["whole" if packets is None else "stream"]
    body = [part["body"].encode()] if packets is None else packets

    async def raw() -> AsyncIterator[bytes]:
        for packet in body:
            yield packet

    async def close() -> None: ...

    reply = HttpReply(200, part["headers"], raw(), close)
    return await receive(WIRES[case["wire"]], reply, None if packets is None else Silent())


def thought_of(block: Mapping[str, Any]) -> str:
    """The words of a block of reasoning."""
    match block["type"]:
        case "reasoning_details":
            return "".join(detail.get("text") or detail.get("summary") or "" for detail in block["details"])
        case "reasoning_item":
            return "".join(part["text"] for part in block["item"].get("summary", ()))
        case _:
            return str(block.get("thinking") or block.get("text") or "")


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", THINKING)
async def test_thoughts_are_read_in_their_order(name: str, is_streamed: bool) -> None:
    meant = CASES[name]["meant"]
    answered = await fold(CASES[name], events_of(CASES[name]["stream"]) if is_streamed else None)
    blocks = [dict(block) for block in answered.reasoning if block["type"] != "thought_signature"]
    thoughts = [thought_of(block) for block in blocks]
    # A server that sends its thoughts twice, as a text and as details, means one of them.
    assert meant["thinking"] in {"".join(thoughts), *thoughts}
    if "order" in meant:
        calls = Counter(block.get("calls", 0) for block in blocks)
        order = ["thinking"] * calls[0] + ["text"] * bool(answered.text)
        for number in range(1, len(answered.calls) + 1):
            order += ["call", *["thinking"] * calls[number]]
        assert order == meant["order"]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("count", [25, pytest.param(400, marks=pytest.mark.deep)])
async def test_random_answers_are_read_as_they_are_meant(wire: str, count: int) -> None:
    """Whole, and streamed in packets of each size."""
    for seed, meant, whole, stream in answers(wire, range(count)):
        case: Case = {
            "wire": wire,
            "whole": {"headers": {"content-type": "application/json"}, "body": json.dumps(whole)},
            "stream": {"headers": {"content-type": KINDS.get(wire, "text/event-stream")}},
        }
        for size in (None, *SIZES):
            packets = None if size is None else packets_of(stream, size)
            answered = await fold(case, packets)
            assert answered.text == meant.said("text"), (seed, size)
            assert [(call.name, json.loads(call.arguments)) for call in answered.calls] == meant.calls, (seed, size)
            assert "".join(map(thought_of, answered.reasoning)) == meant.said("thinking"), (seed, size)
            assert (answered.counts.input_tokens, answered.counts.output_tokens) == (meant.read, meant.written)
            assert answered.end == ("tool_calls" if meant.calls else "stop"), (seed, size)
