"""Plays replies of providers through the readers of their wires, without a socket: whole, and as streams."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from perdure.activities.models.failures import facts_of
from perdure.activities.models.provider_http import exchange
from perdure.activities.models.provider_packets import HttpReply
from perdure.activities.models.wires import CHAT, CONVERSE, GEMINI, MESSAGES, OLLAMA, RESPONSES, Wire
from perdure.activities.models.wires.reply import Answered, Silent
from perdure.llm.failures import FailureFacts
from tests.unit.activities.calls import NOW
from tests.wires.corpus import binary, chunks, completion, events

Json = Any

ADDRESS = "https://provider.example/v1"

KINDS = {CONVERSE: "application/vnd.amazon.eventstream", OLLAMA: "application/x-ndjson"}
"""Content types of streams that are no event streams."""

BEGUN: dict[str, tuple[Wire, tuple[bytes, ...]]] = {
    "chat": (CHAT, events({"choices": [{"index": 0, "delta": {"content": "half a"}, "finish_reason": None}]})),
    "anthropic": (
        MESSAGES,
        events(
            {"type": "message_start", "message": {"usage": {"input_tokens": 7, "output_tokens": 1}}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "half a"}},
        ),
    ),
    "gemini": (GEMINI, events({"candidates": [{"content": {"parts": [{"text": "half a"}]}}]})),
    "bedrock": (CONVERSE, (binary("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "half a"}}),)),
    "ollama": (OLLAMA, (b'{"message": {"content": "half a"}, "done": false}\n',)),
    "responses": (RESPONSES, events({"type": "response.output_text.delta", "output_index": 0, "delta": "half a"})),
}
"""Each wire with the beginning of a stream."""


async def play(
    wire: Wire, body: bytes | tuple[bytes, ...], status: int = 200, headers: Mapping[str, str] | None = None
) -> Answered | FailureFacts:
    """The answer, or the facts of the failure, in a reply; a tuple of packets is a stream."""
    is_streamed = isinstance(body, tuple)
    packets = body if isinstance(body, tuple) else (body,)

    async def raw() -> AsyncIterator[bytes]:
        for packet in packets:
            yield packet

    async def close() -> None: ...

    async def ask() -> HttpReply:
        kind = KINDS.get(wire, "text/event-stream") if is_streamed else "application/json"
        return HttpReply(status, {"content-type": kind, **(headers or {})}, raw(), close, ADDRESS)

    try:
        return await exchange(wire, ADDRESS, ask, Silent() if is_streamed else None)
    except Exception as error:  # noqa: BLE001 - whatever is raised is what is tested
        return facts_of(error, NOW)


async def failure(
    wire: Wire, body: bytes | tuple[bytes, ...], status: int = 200, headers: Mapping[str, str] | None = None
) -> FailureFacts:
    """The facts of the failure in a reply."""
    got = await play(wire, body, status, headers)
    assert isinstance(got, FailureFacts), got
    return got


def frame_of(wire: Wire, error: Json) -> bytes:
    """The event with which a wire tells an error in the middle of a stream."""
    if wire is OLLAMA:
        return json.dumps({"error": error}).encode() + b"\n"
    if wire is CONVERSE:
        return binary("", error, **{":exception-type": error.get("type", "modelStreamErrorException")})
    if wire is RESPONSES:
        code = error.get("code", error.get("type"))
        return events({"type": "error", "message": error["message"], **({"code": code} if code else {})})[0]
    return events({"type": "error", "error": error} if wire is MESSAGES else {"error": error})[0]


def answer_in(name: str, text: str) -> tuple[Wire, bytes, tuple[bytes, ...]]:
    """A wire with a good answer of this text, whole and as a stream in pieces of three characters."""
    wire, pieces = BEGUN[name][0], [text[at : at + 3] for at in range(0, len(text), 3)]
    if wire is MESSAGES:
        usage = {"input_tokens": 7, "output_tokens": 5}
        content = [{"type": "text", "text": text}]
        whole: Json = {"type": "message", "content": content, "stop_reason": "end_turn", "usage": usage}
        frames = events(
            {"type": "message_start", "message": {"usage": usage}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            *(
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
                for piece in pieces
            ),
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        )
    elif wire is GEMINI:
        end: Json = {"finishReason": "STOP"}
        counts = {"usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 5}}
        whole = {"candidates": [{"content": {"parts": [{"text": text}]}, **end}], **counts}
        frames = events(
            *({"candidates": [{"content": {"parts": [{"text": piece}]}}]} for piece in pieces),
            {"candidates": [end], **counts},
        )
    elif wire is CONVERSE:
        usage = {"inputTokens": 7, "outputTokens": 5}
        message = {"content": [{"text": text}]}
        whole = {"output": {"message": message}, "stopReason": "end_turn", "usage": usage}
        frames = (
            *(binary("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": piece}}) for piece in pieces),
            binary("messageStop", {"stopReason": "end_turn"}),
            binary("metadata", {"usage": usage}),
        )
    elif wire is OLLAMA:
        end = {"done": True, "done_reason": "stop", "prompt_eval_count": 7, "eval_count": 5}
        whole = {"message": {"content": text}, **end}
        lines = [*({"message": {"content": piece}, "done": False} for piece in pieces), {"message": {}, **end}]
        frames = tuple(json.dumps(line).encode() + b"\n" for line in lines)
    elif wire is RESPONSES:
        output = [{"type": "message", "content": [{"type": "output_text", "text": text}]}]
        usage = {"input_tokens": 7, "output_tokens": 5}
        whole = {"status": "completed", "output": output, "usage": usage}
        frames = events(
            *({"type": "response.output_text.delta", "output_index": 0, "delta": piece} for piece in pieces),
            {"type": "response.completed", "response": whole},
        )
    else:
        whole = completion({"content": text})
        frames = chunks(*({"content": piece} for piece in pieces))
    return wire, json.dumps(whole).encode(), frames
