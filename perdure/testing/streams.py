"""Answers as streams: the server-sent events of both wires, piece by piece, and what a fault leaves of them."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from perdure.contracts.values import JsonValue
from perdure.testing.script import Fault, Reply

_WORDS = re.compile(r"\S*\s*", re.DOTALL)
"""A text without pieces of its own is sent word by word."""


@dataclass(frozen=True)
class Frame:
    """One event of a stream.

    Attributes:
        part: ``head``, ``delta`` (a piece of the answer), ``end`` (why it ends), ``usage``, or ``tail``.
        data: The event as it goes over the connection.
    """

    part: Literal["head", "delta", "end", "usage", "tail"]
    data: bytes


@dataclass(frozen=True)
class Stream:
    """A streamed body.

    Attributes:
        frames: What is sent.
        stops: What happens after them: ``end`` closes in good order, ``cut`` breaks the connection off, ``stall``
            says nothing more until the client goes.
    """

    frames: tuple[Frame, ...]
    stops: Literal["end", "cut", "stall"] = "end"


def stream_of(frames: Sequence[Frame], fault: Fault | None) -> Stream:
    """The stream that a fault leaves of these frames; a fault of another kind leaves it whole."""
    match fault and fault.kind:
        case "stream_cut":
            return Stream(_until(frames, fault.after if fault else 0), "cut")
        case "stream_stall":
            return Stream(_until(frames, fault.after if fault else 0), "stall")
        case "stream_without_usage":
            return Stream(tuple(_strip(frame, "usage") for frame in frames if frame.part != "usage"))
        case "stream_without_end":
            return Stream(tuple(_strip(frame, "stop_reason") for frame in frames if not _is_openais_end(frame)))
        case _:
            return Stream(tuple(frames))


def _until(frames: Sequence[Frame], count: int) -> tuple[Frame, ...]:
    """The frames up to and with that many pieces of the answer."""
    kept: list[Frame] = []
    for frame in frames:
        if frame.part in {"end", "usage", "tail"} or (frame.part == "delta" and count == 0):
            break
        count -= frame.part == "delta"
        kept.append(frame)
    return tuple(kept)


def _is_openais_end(frame: Frame) -> bool:
    return frame.part == "end" and not frame.data.startswith(b"event:")


def _strip(frame: Frame, name: str) -> Frame:
    """The last event of Anthropic's wire, which says both, without one of them."""
    if frame.part != "end" or not frame.data.startswith(b"event:"):
        return frame
    event: dict[str, Any] = json.loads(frame.data.partition(b"data: ")[2])
    event.pop(name, None)
    if name in event["delta"]:
        event["delta"][name] = None
    return _named("end", event)


def openai_frames(answer: Mapping[str, Any], reply: Reply, *, with_usage: bool) -> Iterator[Frame]:
    """The chunks of a chat completion."""
    choice = answer["choices"][0]
    message: dict[str, Any] = dict(choice["message"])
    head = {name: answer[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}

    def chunk(part: Literal["head", "delta", "end"], delta: dict[str, Any], reason: str | None = None) -> Frame:
        choices = [{"index": 0, "delta": delta, "finish_reason": reason}]
        return _data(part, {**head, "choices": choices, **({"usage": None} if with_usage else {})})

    text, calls = message.pop("content"), message.pop("tool_calls", [])
    yield chunk("head", {"role": message.pop("role"), "content": ""})
    for name, value in message.items():
        pieces = _words(value) if isinstance(value, str) else [value]
        yield from (chunk("delta", {name: piece}) for piece in pieces)
    yield from (chunk("delta", {"content": piece}) for piece in _pieces(text, reply))
    for index, call in enumerate(calls):
        function = call["function"]
        yield chunk("delta", {"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]})
        for piece in _words(function["arguments"]):
            yield chunk("delta", {"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk("end", {}, choice["finish_reason"])
    if with_usage:
        yield _data("usage", {**head, "choices": [], "usage": answer["usage"]})
    yield Frame("tail", b"data: [DONE]\n\n")


_EMPTY_BLOCKS: Mapping[str, Mapping[str, JsonValue]] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
}
"""First fields of a block of each type."""


def anthropic_frames(answer: Mapping[str, Any], reply: Reply) -> Iterator[Frame]:
    """The events of a message."""
    usage = answer["usage"]
    start: dict[str, Any] = {**answer, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    yield _named("head", {"type": "message_start", "message": start})
    for index, block in enumerate(answer["content"]):
        empty = {**block, **_EMPTY_BLOCKS.get(block["type"], {})}
        yield _named("head", {"type": "content_block_start", "index": index, "content_block": empty})
        for delta in _deltas(block, reply):
            yield _named("delta", {"type": "content_block_delta", "index": index, "delta": delta})
        yield _named("head", {"type": "content_block_stop", "index": index})
    delta = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
    written = {"output_tokens": usage["output_tokens"]}
    yield _named("end", {"type": "message_delta", "delta": delta, "usage": written})
    yield _named("tail", {"type": "message_stop"})


def _deltas(block: Mapping[str, Any], reply: Reply) -> Iterator[Mapping[str, JsonValue]]:
    match block["type"]:
        case "text":
            yield from ({"type": "text_delta", "text": piece} for piece in _pieces(block["text"], reply))
        case "tool_use":
            given = block["input"]
            text = given if isinstance(given, str) else json.dumps(given)
            yield from ({"type": "input_json_delta", "partial_json": piece} for piece in _words(text))
        case "thinking":
            yield from ({"type": "thinking_delta", "thinking": piece} for piece in _words(block["thinking"]))
            yield {"type": "signature_delta", "signature": block.get("signature", "")}
        case _:
            return


def _pieces(text: str | None, reply: Reply) -> Sequence[str]:
    return reply.pieces if reply.pieces and "".join(reply.pieces) == text else _words(text or "")


def _words(text: str) -> list[str]:
    return [word for word in _WORDS.findall(text) if word]


def _data(part: Literal["head", "delta", "end", "usage"], value: Mapping[str, Any]) -> Frame:
    return Frame(part, f"data: {json.dumps(value)}\n\n".encode())


def _named(part: Literal["head", "delta", "end", "tail"], event: Mapping[str, Any]) -> Frame:
    return Frame(part, f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
