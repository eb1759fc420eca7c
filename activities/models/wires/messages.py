"""Anthropic's messages, from Anthropic and from the clouds that serve its models: whole, and as events of blocks."""

import json
from collections.abc import Iterator
from typing import cast

from perdure.activities.models.provider_replies import Object
from perdure.activities.models.wires.frames import Frame
from perdure.activities.models.wires.reply import (
    Answered,
    Blocks,
    Counts,
    Parts,
    Shown,
    count_of,
    finish_of,
    has_ended,
    is_error,
    missing_field,
    same_json,
    to_object,
    to_objects,
    to_text,
)
from perdure.contracts.values import JsonValue, replace_surrogates


def read(reply: Object) -> Answered:
    """The answer in a whole message.

    Raises:
        InvalidReplyError: A part is missing, the answer is malformed, or its end is unknown.
        BrokenOffReplyError: The provider says that it broke the answer off.
    """
    counts = counts_of(reply)
    blocks = reply.get("content")
    if isinstance(blocks, str):
        blocks = [{"type": "text", "text": blocks}]
    if not isinstance(blocks, list):
        raise missing_field("content", counts.usage)
    if "stop_reason" not in reply:
        raise missing_field("stop_reason", counts.usage)
    why = _why(to_object(reply.get("stop_details")))
    finish_reason = finish_of("stop_reason", reply["stop_reason"], counts.usage, why)
    parts = Parts(why=why)
    for block in to_objects(blocks):
        kind = block.get("type")
        if not isinstance(kind, str):
            raise missing_field("type", counts.usage)
        if kind == "text":
            if not isinstance(block.get("text", 0), str | None):
                raise missing_field("text", counts.usage)
            parts.texts.append(to_text(block["text"]))
        elif kind == "tool_use":
            if not isinstance(block.get("name"), str):
                raise missing_field("name", counts.usage)
            parts.call(block["name"], same_json(block.get("input")))
        elif kind in {"thinking", "redacted_thinking"}:
            parts.reasoning.append({**_thinking(block), **({"calls": len(parts.calls)} if parts.calls else {})})
    return parts.answered(finish_reason, counts)


def _why(details: Object) -> str:
    """Claude's reason for a refusal: its explanation with the category of the policy."""
    category = to_text(details.get("category"))
    return f"{to_text(details.get('explanation'))}{f' [{category}]' if category else ''}".strip()


def _thinking(block: Object) -> dict[str, JsonValue]:
    texts = {
        name: block[name] for name in ("type", "thinking", "signature", "data") if isinstance(block.get(name), str)
    }
    return {name: replace_surrogates(to_text(text)) for name, text in texts.items()}


def counts_of(reply: Object) -> Counts:
    """The usage of a message. Anthropic counts what its cache gave and what it took beside the rest of the prompt."""
    usage = to_object(reply.get("usage"))
    cached, stored = count_of(usage, "cache_read_input_tokens"), count_of(usage, "cache_creation_input_tokens")
    return Counts(
        input_tokens=count_of(usage, "input_tokens") + cached + stored,
        output_tokens=count_of(usage, "output_tokens"),
        cached_tokens=cached,
        stored_tokens=stored,
        tier=to_text(usage.get("service_tier")),
    )


class MessagePieces:
    """Events of a streamed message, put together to the message."""

    def __init__(self) -> None:
        self.error: JsonValue = None
        self._has_stopped = False
        self._message: Object = {}
        self._usage: Object = {}
        self._has_final_usage = False
        self._blocks = Blocks(_Block)

    @property
    def is_over(self) -> bool:
        """Whether the message has stopped, or an error has come."""
        return self._has_stopped or self.error is not None

    def add(self, event: Object, frame: Frame, shown: Shown) -> None:
        """Add an event; pings and kinds that are unknown say nothing."""
        kind = event.get("type") or frame.event
        if kind == "error" or is_error(event.get("error")):
            self.error = cast("JsonValue", event)
        elif kind == "message_start":
            start = to_object(event.get("message"))
            self._message |= start
            self._add_usage(start.get("usage"))
            for place, block in enumerate(to_objects(start.get("content"))):
                self._blocks.find(place, shown).begin(block)
        elif kind == "content_block_start":
            start = to_object(event.get("content_block"))
            self._blocks.begin(event.get("index"), start, shown).begin(start, is_event=True)
        elif kind == "content_block_delta":
            self._blocks.find(event.get("index"), shown).add(to_object(event.get("delta")))
        elif kind == "message_delta":
            delta = {"stop_details": event.get("stop_details"), **to_object(event.get("delta"))}
            self._message |= {name: value for name, value in delta.items() if value is not None}
            self._has_final_usage = self._add_usage(event.get("usage")) or self._has_final_usage
        elif kind == "message_stop":
            self._has_stopped = True

    def reply(self) -> Object:
        """The message so far."""
        content: list[JsonValue] = [block.whole() for block in self._blocks]
        return {"stop_reason": None, **self._message, "content": content, "usage": self._usage}

    def missing(self) -> tuple[str, ...]:
        """A stop reason and the usage of the answer, as long as they have not come."""
        lacks = [] if has_ended(self._message.get("stop_reason")) else ["a finish reason"]
        return (*lacks, *([] if self._has_final_usage else ["usage"]))

    def _add_usage(self, usage: JsonValue) -> bool:
        """Add counts; those that come later replace earlier ones. Whether there were any."""
        counts = {name: value for name, value in to_object(usage).items() if value is not None}
        self._usage |= counts
        is_odd = usage is not None and not isinstance(usage, dict)  # it counts nothing, but none follows it
        return bool(counts) or is_odd


_TEXT_OF: dict[str, str] = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}
"""The field with the piece, by the type of a delta."""


class _Block:
    """One block of a streamed message."""

    def __init__(self, place: int, shown: Shown) -> None:
        self._place = place
        self._shown = shown
        self._start: Object = {}
        self._has_event = False
        self._pieces: dict[str, list[str]] = {}

    def begin(self, block: Object, *, is_event: bool = False) -> None:
        """Take the block as it begins; a tool's input may stand in it whole."""
        self._start, self._has_event = dict(block), is_event
        self._show(to_text(block.get("text")), to_text(block.get("thinking")))
        if block.get("type") == "tool_use":
            given = block.get("input")
            self._shown.tool_call(self._place, to_text(block.get("name")), len(json.dumps(given)) if given else 0)

    def is_another(self, start: Object) -> bool:
        """Whether a block that begins at the place of this one is another, and not the same once more."""
        own_id = start.get("id")
        return self._has_event and not (own_id and own_id == self._start.get("id"))

    def add(self, delta: Object) -> None:
        """Add a piece to the block."""
        for name in _names(delta):
            piece = to_text(delta.get(name))
            self._pieces.setdefault(name, []).append(piece)
            if name == "partial_json":
                self._shown.tool_call(self._place, to_text(self._start.get("name")), len(piece))
            else:
                self._show(piece if name == "text" else "", piece if name == "thinking" else "")

    def whole(self) -> Object:
        """The block so far."""
        block = dict(self._start)
        for name, pieces in self._pieces.items():
            text = "".join(pieces)
            if name == "partial_json":
                if text.strip():  # what came whole at the start stays, if no piece follows it
                    block["input"] = text
            else:
                block[name] = to_text(block.get(name)) + text
        if "type" not in block:
            block["type"] = next((kind for kind in ("text", "thinking") if kind in block), "tool_use")
        return block

    def _show(self, text: str, thought: str) -> None:
        if text:
            self._shown.text(text)
        if thought:
            self._shown.thinking(thought)


def _names(delta: Object) -> Iterator[str]:
    """The fields of a delta that hold pieces, by its type, or by what is there without one."""
    kind = delta.get("type")
    if isinstance(kind, str):
        if kind in _TEXT_OF:
            yield _TEXT_OF[kind]
        return
    yield from (name for name in _TEXT_OF.values() if isinstance(delta.get(name), str))
