"""Records the finish reason, the usage and the errors of a provider's stream as its events pass.

litellm makes up a finish reason if the stream has none, so that half an answer looks like a whole one. The record is
therefore made from the provider's own events: chunks of chat completions, events of Anthropic's messages, and Gemini's.
Nothing of the answer is kept.
"""

import json
from collections.abc import Iterator
from typing import Any, cast

from perdure.contracts.values import JsonValue

EVENT_STREAM = "text/event-stream"

LONGEST_LINE = 4_000_000
"""Largest event that is read, in bytes. A larger one may hold an image."""


class StreamRecord:
    """What one stream has said so far.

    Attributes:
        reason: The provider's finish reason; None until it has come.
        reason_field: The name of its field.
        usage: The usage at the answer's end; None until it has come.
        begun_usage: The usage of the prompt, which Anthropic sends first.
        refusal: The model's refusal beside the content, which litellm drops.
        error: An error in place of the rest of the stream.
        size: Bytes that have come.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.reason_field = ""
        self.usage: dict[str, JsonValue] | None = None
        self.begun_usage: dict[str, JsonValue] = {}
        self.refusal = ""
        self.error: JsonValue = None
        self.size = 0
        self._rest = b""

    @property
    def is_whole(self) -> bool:
        """Whether both finish reason and usage have come, and no error."""
        return self.reason is not None and self.usage is not None and self.error is None

    @property
    def missing(self) -> str:
        """What the stream lacks, in words."""
        lacks = [name for name, found in (("a finish reason", self.reason), ("usage", self.usage)) if found is None]
        return " and without ".join(lacks)

    def read(self, piece: bytes) -> None:
        """Read the next bytes."""
        self.size += len(piece)
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            self._read_line(line)
        if len(self._rest) > LONGEST_LINE:
            self._rest = b""

    def end(self) -> None:
        """Read the rest after the last line's end: the stream is over."""
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
    """The name of the field and the finish reason in it, if this event has one."""
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
