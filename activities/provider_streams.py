"""What a provider's stream says of itself on the wire: why the answer ends, what was counted, and what went wrong.

litellm makes up a reason for the end of a stream that has none, so that half an answer looks like a whole one. The
events are therefore read here too, as they pass, with whatever providers of these wires put into them: chunks of chat
completions, events of Anthropic's messages, and Gemini's. Nothing of the answer is kept.
"""

import json
import time
from collections.abc import Iterator
from typing import Any, cast

from perdure.contracts.values import JsonValue

EVENT_STREAM = "text/event-stream"

LONGEST_LINE = 4_000_000
"""Bytes of one event. A longer one is not read: it may hold an image."""


class StreamRecord:
    """What has been seen of one stream.

    Attributes:
        reason: Why the answer ends, in the provider's own word; None until it is said.
        reason_field: The name under which the provider says it.
        usage: What was counted; None until it is said at the answer's end.
        begun_usage: What was counted before the answer: Anthropic says it first.
        refusal: The model's refusal beside the content, of which litellm makes nothing.
        error: An error that came in place of the rest.
        size: Bytes that have come.
        last_byte: When the last ones came, by this process's monotonic clock; pings count.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.reason_field = ""
        self.usage: dict[str, JsonValue] | None = None
        self.begun_usage: dict[str, JsonValue] = {}
        self.refusal = ""
        self.error: JsonValue = None
        self.size = 0
        self.last_byte = time.monotonic()
        self._rest = b""

    @property
    def is_whole(self) -> bool:
        """Whether the wire has said both that the answer ends and what was counted for it."""
        return self.reason is not None and self.usage is not None and self.error is None

    @property
    def missing(self) -> str:
        """What the stream lacks, in words."""
        lacks = [name for name, found in (("a finish reason", self.reason), ("usage", self.usage)) if found is None]
        return " and without ".join(lacks)

    def read(self, piece: bytes) -> None:
        """Look at the next bytes."""
        self.size += len(piece)
        self.last_byte = time.monotonic()
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            self._read_line(line)
        if len(self._rest) > LONGEST_LINE:
            self._rest = b""

    def end(self) -> None:
        """Look at what came after the last line's end."""
        self._read_line(self._rest)
        self._rest = b""

    def _read_line(self, line: bytes) -> None:
        if not line.startswith(b"data:"):
            return
        try:
            event = json.loads(line[5:])
        except (ValueError, RecursionError):
            return
        if isinstance(event, dict):
            self._read_event(cast("dict[str, Any]", event))

    def _read_event(self, event: dict[str, Any]) -> None:
        for field, reason in _reasons_in(event):
            self.reason_field, self.reason = field, reason
        self.refusal += _refusal_in(event)
        usage = _object(event.get("usage") or event.get("usageMetadata"))
        if usage:
            self.usage = {**(self.usage or {}), **usage}
        self.begun_usage |= _object(_object(event.get("message")).get("usage"))
        if event.get("error"):
            self.error = event["error"]


def _reasons_in(event: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The reason why the answer ends and the name of its field, if this event says it."""
    places = [event.get("delta"), *_objects(event.get("choices")), *_objects(event.get("candidates"))]
    for place in map(_object, places):
        names = ("finish_reason", "stop_reason", "finishReason")
        yield from ((name, str(place[name])) for name in names if place.get(name))


def _refusal_in(event: dict[str, Any]) -> str:
    choices = _objects(event.get("choices"))
    refusal = _object(_object(choices[0]).get("delta")).get("refusal") if choices else None
    return refusal if isinstance(refusal, str) else ""


def _objects(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _object(value: object) -> dict[str, JsonValue]:
    return cast("dict[str, JsonValue]", value) if isinstance(value, dict) else {}
