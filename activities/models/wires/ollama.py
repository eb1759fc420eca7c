"""Ollama's ``/api/chat``: whole, and as lines of JSON."""

from typing import cast

from perdure.activities.models.provider_replies import Object
from perdure.activities.models.wires.frames import Frame
from perdure.activities.models.wires.reply import (
    Answered,
    Counts,
    Parts,
    Shown,
    count_of,
    finish_of,
    missing_field,
    to_object,
    to_objects,
    to_text,
)
from perdure.contracts.values import JsonValue, replace_surrogates


def read(reply: Object) -> Answered:
    """The answer in a whole response.

    Raises:
        InvalidReplyError: A part is missing, or the answer's end is unknown.
    """
    counts = counts_of(reply)
    message = reply.get("message")
    if not isinstance(message, dict):
        raise missing_field("message", counts.usage)
    end = finish_of("done_reason", reply.get("done_reason"), counts.usage) or ("stop" if reply.get("done") else "")
    parts = Parts([to_text(message.get("content"))])
    for call in to_objects(message.get("tool_calls")):
        function = to_object(call.get("function"))
        parts.call(function.get("name"), function.get("arguments"))
    if thought := to_text(message.get("thinking")):
        parts.reasoning.append({"type": "reasoning_content", "text": replace_surrogates(thought)})
    return parts.answered(end, counts)


def counts_of(reply: Object) -> Counts:
    """The usage of a response."""
    return Counts(
        input_tokens=count_of(reply, "prompt_eval_count"),
        output_tokens=count_of(reply, "eval_count"),
    )


class OllamaPieces:
    """Lines of a streamed response, put together to the response."""

    def __init__(self) -> None:
        self.error: JsonValue = None
        self._end: Object = {}
        self._texts: dict[str, list[str]] = {}
        self._calls: list[JsonValue] = []

    @property
    def is_over(self) -> bool:
        """Whether the line has come that says so, or an error."""
        return bool(self._end) or self.error is not None

    def add(self, event: Object, frame: Frame, shown: Shown) -> None:
        """Add a line."""
        del frame
        if event.get("error"):
            self.error = cast("JsonValue", event)
            return
        message = to_object(event.get("message"))
        for name, show in (("content", shown.text), ("thinking", shown.thinking)):
            if piece := to_text(message.get(name)):
                self._texts.setdefault(name, []).append(piece)
                show(piece)
        for call in to_objects(message.get("tool_calls")):
            function = to_object(call.get("function"))
            characters = len(str(function.get("arguments") or ""))
            shown.tool_call(len(self._calls), to_text(function.get("name")), characters)
            self._calls.append(call)
        if event.get("done") is True:
            self._end = {name: part for name, part in event.items() if name != "message"}

    def reply(self) -> Object:
        """The response so far."""
        texts: Object = {name: "".join(pieces) for name, pieces in self._texts.items()}
        return {**self._end, "message": {**texts, **({"tool_calls": self._calls} if self._calls else {})}}

    def missing(self) -> tuple[str, ...]:
        """The last line, as long as it has not come. Usage is in it, or does not come."""
        return () if self._end else ("a finish reason",)
