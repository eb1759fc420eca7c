"""S-15: an answer is the same, whole or streamed, in packets of any size, on every wire and through both doors."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from perdure.activities.models import model_call
from perdure.activities.models.failures import facts_of
from perdure.activities.models.model_call import Answer
from perdure.activities.models.provider_packets import HttpReply
from perdure.activities.models.provider_reading import receive
from perdure.activities.models.wires import CHAT, CONVERSE, GEMINI, MESSAGES, OLLAMA
from perdure.activities.models.wires.reply import Silent
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.budgets import Usage
from perdure.contracts.tools import ToolDeclaration
from perdure.llm.failures import classify
from tests.unit.activities.calls import NOW, Sink
from tests.unit.activities.raw_provider import read_request, reply, serving
from tests.wires.corpus import SAMPLES, Sample

SEED = 20261125

TOOLS = tuple(
    ToolDeclaration(name=name, description=name, reference=f"t:{name}", parameters={"type": "object", "properties": {}})
    for name in ("pay", "look", "delete")
)

WIRES = {"anthropic": MESSAGES, "gemini": GEMINI, "bedrock": CONVERSE, "ollama_chat": OLLAMA}
"""The wires of the providers that do not speak like OpenAI."""


def definition(sample: Sample, address: str) -> AgentDefinition:
    provider = sample.model.partition("/")[0]
    access: dict[str, Any] = {"api_base": address, "api_key": "sk-scripted-0123456789"}
    if provider == "bedrock":
        keys = {
            "aws_access_key_id": "AKIASCRIPTED",
            "aws_secret_access_key": "scripted",
            "aws_region_name": "us-east-1",
        }
        access = {"aws_bedrock_runtime_endpoint": address, **keys}
    return AgentDefinition(
        name="t", model=sample.model, tools=TOOLS, tool_mode="api", generate_params={**access, **sample.params}
    )


def packets_of(frames: tuple[bytes, ...], size: int | str) -> list[bytes]:
    """The bytes of a stream in packets: of so many bytes, an event each, everything, or cut anywhere by a seed."""
    stream = b"".join(frames)
    if size == "an event":
        return list(frames)
    if size == "everything":
        return [stream]
    if size == "anywhere":
        cuts = sorted(random.Random(SEED).sample(range(1, len(stream)), min(9, len(stream) - 1)))
        return [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert isinstance(size, int)
    return [stream[at : at + size] for at in range(0, len(stream), size)]


async def outcome(agent: AgentDefinition, sink: Sink | None) -> Answer | str:
    """The answer, or the reason code of one that is none."""
    try:
        async with asyncio.timeout(60):
            return await model_call.complete(agent, [{"role": "user", "content": "hello"}], shown=sink)
    except Exception as error:  # noqa: BLE001 - whatever is raised is what is tested
        return classify(facts_of(error, NOW))


async def asked(sample: Sample, packets: list[bytes] | None, sink: Sink | None) -> tuple[Answer | str, int]:
    """What becomes of the sample over HTTP, whole or in these packets, and the number of requests."""
    requests = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        while await read_request(reader):
            requests += 1
            if packets is None:
                writer.write(reply(json.dumps(sample.whole).encode()))
                continue
            kind = f"content-type: {sample.kind}\r\n" if sample.kind else ""
            writer.write(f"HTTP/1.1 200 OK\r\n{kind}connection: close\r\n\r\n".encode())
            for packet in packets:
                writer.write(packet)
                await writer.drain()
            return

    async with serving(serve) as address:
        return await outcome(definition(sample, address), sink), requests


def check(sample: Sample, got: Answer | str) -> None:
    """The answer is what the corpus says."""
    if sample.code:
        assert got == sample.code
        return
    assert isinstance(got, Answer), got
    assert got.text == sample.text
    assert [(call.name, json.loads(call.arguments)) for call in got.calls] == list(sample.calls)
    assert got.finish_reason == sample.finish
    assert got.usage == Usage(
        input_tokens=sample.usage[0], output_tokens=sample.usage[1], cached_tokens=sample.usage[2]
    )
    if sample.cost is not None:
        assert got.cost_usd == Decimal(sample.cost)


def kept(sample: Sample, got: Answer) -> list[Any]:
    """The reasoning blocks of an answer, as the corpus writes them."""
    blocks = [dict(block) for block in got.thinking if isinstance(block, dict)]
    short: list[Any] = []
    for block in blocks:
        match block["type"]:
            case "thinking":
                short.append((block["thinking"], block["signature"]))
            case "reasoning_details":
                short += block["details"]  # type: ignore[arg-type]
            case _:
                short.append(block.get("data") or block.get("signature") or block.get("text"))
    return short


def placeless(got: Answer | str) -> Answer | str:
    """The answer without the digest of the address that its reasoning came from: each server has a port of its own."""
    if isinstance(got, str):
        return got
    thinking = tuple({**block, "address": ""} if isinstance(block, dict) else block for block in got.thinking)
    return replace(got, thinking=thinking)


@pytest.mark.parametrize("name", SAMPLES)
async def test_an_answer_is_the_same_whole_and_streamed(name: str) -> None:
    """Calls, text, thinking, usage, cost and finish reason; what was shown is what was answered; one request each."""
    sample, sink = SAMPLES[name], Sink()
    whole, once = await asked(sample, None, None)
    streamed, again = await asked(sample, packets_of(sample.frames, "anywhere"), sink)
    assert (once, again) == (1, 1)
    check(sample, whole)
    assert placeless(streamed) == placeless(whole)
    if isinstance(whole, Answer):
        assert [block for block in kept(sample, whole) if block in sample.thinking] == list(sample.thinking)
        shown = "".join(sink.texts)
        assert whole.text in shown  # thoughts that a server left in the text are shown there
        assert [name for name, _ in sink.calls.values() if name] in (
            [call.name for call in whole.calls],
            ["multi_tool_use.parallel"],
            ["web_search", *(call.name for call in whole.calls)][: len(sink.calls)],
        )


async def received(sample: Sample, packets: list[bytes]) -> object:
    """What the reader makes of exactly these packets: the answer, or the failure's class and text."""

    async def raw() -> AsyncIterator[bytes]:
        for packet in packets:
            yield packet

    async def close() -> None: ...

    wire = WIRES.get(sample.model.partition("/")[0], CHAT)
    headers = {"content-type": sample.kind} if sample.kind else {}
    try:
        return await receive(wire, HttpReply(200, headers, raw(), close, "http://x"), Silent())
    except Exception as error:  # noqa: BLE001 - compared with that of other packets
        return type(error), str(error)


@pytest.mark.parametrize("size", [1, 7, "an event", "anywhere"])
@pytest.mark.parametrize("name", SAMPLES)
async def test_the_size_of_packets_changes_nothing(name: str, size: int | str) -> None:
    sample = SAMPLES[name]
    at_once = await received(sample, packets_of(sample.frames, "everything"))
    assert await received(sample, packets_of(sample.frames, size)) == at_once
