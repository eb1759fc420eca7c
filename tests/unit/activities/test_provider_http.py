"""What of a provider's replies reaches litellm, on every way it has: no redirect, no flood, no endless error."""

import asyncio
import json
import resource
import sys
import zlib
from datetime import UTC, datetime

import pytest

from perdure.activities.models import model_call
from perdure.activities.models.failures import cause_chain, facts_of
from perdure.activities.models.provider_reading import LARGEST_ERROR
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import ReasonCode
from perdure.llm.failures import classify
from perdure.testing import ScriptedProvider, faults
from tests.unit.activities.calls import Way, met
from tests.unit.activities.raw_provider import read_request, reply, serving

MEGABYTE = 1_000_000

LITELLM_OVERHEAD = 3 * LARGEST_ERROR
"""litellm writes a message around the body, and sometimes the body twice."""


def agent(way: Way, address: str) -> AgentDefinition:
    anthropic = way.speaks_anthropic
    name = "anthropic/scripted" if anthropic else "openai/scripted"
    base = address if anthropic else f"{address}/v1"
    return AgentDefinition(name="tester", model=name, generate_params={"api_base": base})


async def error_of(way: Way, address: str) -> Exception:
    """What a call raises."""
    try:
        async with asyncio.timeout(60):
            answer = await model_call.complete(agent(way, address), [{"role": "user", "content": "hello"}])
    except Exception as error:  # noqa: BLE001 - whatever litellm raises is what is tested
        return error
    pytest.fail(f"the call succeeded: {answer}")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_refused_and_nothing_goes_to_the_other_origin(way: Way, status: int) -> None:
    """Neither the key nor the conversation; one request in all, and the failure names the host and the setting."""
    async with ScriptedProvider(always=faults.status(500)) as other:
        target = f"{other.anthropic_url}/v1/messages?token=sk-secret-0123456789"
        facts, requests = await met(way, faults.status(status, headers={"location": target}))
        assert (classify(facts), requests) == (ReasonCode.LLM_REQUEST_ERROR, 1)
        assert (other.connection_count, other.request_count) == (0, 0)
        variable = "ANTHROPIC_BASE_URL" if way.speaks_anthropic else "OPENAI_BASE_URL"
        assert f"redirects to {other.anthropic_url}, " in facts.text
    assert "api_base" in facts.text
    assert variable in facts.text
    assert "sk-secret" not in facts.text


@pytest.mark.parametrize("status", [400, 401, 429, 500])
async def test_the_body_of_an_error_is_cut_before_litellm_masks_it(way: Way, status: int) -> None:
    """Masking takes a second a megabyte on the event loop: 10 MB would cost every other call of the worker its beat."""
    long = json.dumps({"error": {"message": "no " * (10 * MEGABYTE // 3), "type": "invalid_request_error"}}).encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await read_request(reader):
            writer.write(reply(long, status=status))
            await writer.drain()

    async with serving(serve) as address:
        error = await error_of(way, address)
    assert all(len(str(link)) < LITELLM_OVERHEAD for link in (error, *cause_chain(error)))
    assert facts_of(error, datetime.now(UTC)).status == status


@pytest.mark.parametrize(
    "body", ["<html>" + "x" * MEGABYTE, {"error": {"message": "x" * MEGABYTE, "type": "server_error", "code": None}}]
)
async def test_what_is_no_answer_in_a_reply_of_status_200_is_cut_too(way: Way, body: str | dict[str, object]) -> None:
    sent = (body if isinstance(body, str) else json.dumps(body)).encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await read_request(reader):
            writer.write(reply(sent))

    async with serving(serve) as address:
        error = await error_of(way, address)
    assert all(len(str(link)) < LITELLM_OVERHEAD for link in (error, *cause_chain(error)))
    assert classify(facts_of(error, datetime.now(UTC))) == ReasonCode.LLM_NETWORK_ERROR


def packed(megabytes: int) -> bytes:
    """So many megabytes of zeros as gzip sends them: a thousandth of that."""
    packer = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    zeros = bytes(MEGABYTE)
    return b"".join([*(packer.compress(zeros) for _ in range(megabytes)), packer.flush()])


BOMB = packed(400)


def peak_megabytes() -> float:
    """The largest size that this process has ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1_000 if sys.platform == "linux" else MEGABYTE)


@pytest.mark.parametrize(
    ("status", "code"), [(200, ReasonCode.LLM_INVALID_RESPONSE), (400, ReasonCode.LLM_REQUEST_ERROR)]
)
async def test_a_packed_reply_is_unpacked_within_bounds(way: Way, status: int, code: ReasonCode) -> None:
    """400 kB that would become 400 MB."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await read_request(reader):
            writer.write(reply(BOMB, "content-encoding: gzip", status=status))
            await writer.drain()

    async with serving(serve) as address:
        before = peak_megabytes()
        error = await error_of(way, address)
        assert peak_megabytes() - before < 200
    assert classify(facts_of(error, datetime.now(UTC))) == code


async def test_an_answer_is_as_long_as_it_may_be_and_no_longer(way: Way) -> None:
    facts, requests = await met(way, faults.status(200, body=json.dumps({"text": "x" * 33 * MEGABYTE})))
    assert (classify(facts), requests) == (ReasonCode.LLM_INVALID_RESPONSE, 1)
    assert facts.text == "the reply has more than 32 MB, which no answer has"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_packed_answer_is_read(way: Way, encoding: str) -> None:
    """And a provider is asked for no other packing than what is unpacked within bounds."""
    asked: list[bytes] = []
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "input_tokens": 1, "output_tokens": 1}
    message = {"role": "assistant", "content": "hello"}
    answer = {
        "id": "x",
        "model": "scripted",
        "usage": usage,
        **(
            {"type": "message", "content": [{"type": "text", "text": "hello"}], "stop_reason": "end_turn"}
            if way.speaks_anthropic
            else {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        ),
    }
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16 if encoding == "gzip" else -zlib.MAX_WBITS)
    body = packer.compress(json.dumps(answer).encode()) + packer.flush()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while request := await read_request(reader):
            asked.append(request.lower())
            writer.write(reply(body, f"content-encoding: {encoding}"))

    async with serving(serve) as address:
        got = await model_call.complete(agent(way, address), [{"role": "user", "content": "hello"}])
    assert got.text == "hello"
    assert b"accept-encoding: gzip, deflate\r\n" in asked[0]
