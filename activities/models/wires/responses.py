"""OpenAI's Responses: whole, and as events of output items.

The event that ends a stream holds the whole response, and that is what is read. Some servers leave the output out of
it; there the items count as they were told on the way, whole or in pieces.
"""

from collections.abc import Callable
from typing import cast

from perdure.activities.models.provider_replies import Object
from perdure.activities.models.wires.frames import Frame
from perdure.activities.models.wires.reply import (
    Answered,
    Blocks,
    Parts,
    Shown,
    broken_off,
    clean,
    finish_of,
    is_error,
    joined,
    missing_field,
    to_object,
    to_objects,
    to_text,
)
from perdure.activities.models.wires.usage import counts_of
from perdure.contracts.values import JsonValue

_ENDINGS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
"""Events that end a stream, each with the response."""

_CALLS = frozenset({"function_call", "custom_tool_call"})


def read(reply: Object) -> Answered:
    """The answer in a whole response.

    Raises:
        InvalidReplyError: A part is missing, or the answer's end is unknown.
        BrokenOffReplyError: The provider says that it failed, or that the response was cancelled.
    """
    counts = counts_of(reply)
    if is_error(error := reply.get("error")):
        raise broken_off({"error": error}, counts.usage)
    items = reply.get("output")
    if not isinstance(items, list):
        raise missing_field("output", counts.usage)
    finish_reason = finish_of("status", _reason(reply), counts.usage)
    parts = Parts()
    for item in to_objects(items):
        kind = item.get("type")
        if kind == "message":
            contents = to_objects(item.get("content"))
            parts.texts.append(joined(part.get("text") for part in contents))
            parts.refusals.append(joined(part.get("refusal") for part in contents))
        elif kind in _CALLS:
            if not isinstance(item.get("name"), str):
                raise missing_field("name", counts.usage)
            parts.call(item["name"], item.get("input" if kind == "custom_tool_call" else "arguments"))
        elif kind == "reasoning":
            parts.reasoning.append(_reasoning(item, parts))
    return parts.answered(finish_reason, counts)


def _reason(reply: Object) -> JsonValue:
    """Reason for the answer's end: what made it incomplete, or else the response's status."""
    return to_text(to_object(reply.get("incomplete_details")).get("reason")) or reply.get("status")


def _reasoning(item: Object, parts: Parts) -> dict[str, JsonValue]:
    """A reasoning item as it goes back, with its place: OpenAI refuses one whose next item is not the one it had."""
    kept = {name: item[name] for name in ("id", "summary", "content", "encrypted_content") if item.get(name)}
    place: dict[str, JsonValue] = {"calls": len(parts.calls)} if parts.calls else {}
    if any(parts.texts):
        place["behind_text"] = True
    return {"type": "reasoning_item", "item": clean(cast("JsonValue", kept)), **place}


class ResponsePieces:
    """Events of a streamed response, put together to the response."""

    def __init__(self) -> None:
        self._error: JsonValue = None
        self._response: Object = {}
        self._has_ended = False
        self._items = Blocks(_Item)

    @property
    def error(self) -> JsonValue:
        """An error in place of the rest of the stream, or the one that a response ended with."""
        failed = self._response.get("error")
        return self._error or ({"error": failed} if is_error(failed) else None)

    @property
    def is_over(self) -> bool:
        """Whether the event has come that ends a stream, or an error."""
        return self._has_ended or self._error is not None

    def add(self, event: Object, frame: Frame, shown: Shown) -> None:
        """Add an event; kinds that are unknown say nothing."""
        kind = to_text(event.get("type")) or frame.event
        if kind == "error" or (not kind and is_error(event.get("error"))):
            self._error = cast("JsonValue", event)
        elif isinstance(event.get("response"), dict):
            self._response |= to_object(event["response"])
            self._has_ended = self._has_ended or kind in _ENDINGS
        elif kind.startswith("response."):
            self._find(kind, event, shown).add(kind.removeprefix("response."), event)

    def reply(self) -> Object:
        """The response so far."""
        told = self._response.get("output")
        items: list[JsonValue] = [item.whole() for item in self._items]
        return {**self._response, "output": told or items}

    def missing(self) -> tuple[str, ...]:
        """An end and usage, as long as they have not come."""
        has_usage = bool(to_object(self._response.get("usage")))
        return (*([] if self._has_ended else ["a finish reason"]), *([] if has_usage else ["usage"]))

    def _find(self, kind: str, event: Object, shown: Shown) -> "_Item":
        """The item that an event is about, which may begin with it."""
        index, item = event.get("output_index"), to_object(event.get("item"))
        is_new = kind.endswith(".added") and bool(item)
        return self._items.begin(index, item, shown) if is_new else self._items.find(index, shown)


class _Item:
    """One item of a streamed response's output."""

    def __init__(self, place: int, shown: Shown) -> None:
        self._place = place
        self._shown = shown
        self._item: Object = {}
        self._is_done = False
        self._pieces: dict[tuple[str, str], list[str]] = {}
        self._showing: dict[str, Callable[[str], None]] = {
            "output_text": shown.text,
            "reasoning_summary_text": shown.thinking,
            "reasoning_text": shown.thinking,
            "function_call_arguments": self._show_call,
            "custom_tool_call_input": self._show_call,
        }

    def is_another(self, start: Object) -> bool:
        """Whether an item that begins at the place of this one is another."""
        own, other = self._item.get("id"), start.get("id")
        return own != other if own and other else self._is_done

    def add(self, kind: str, event: Object) -> None:
        """Add an event about this item: its beginning, a piece of it, or its end."""
        if kind in {"output_item.added", "output_item.done"}:
            self._item |= to_object(event.get("item"))
            self._is_done = kind == "output_item.done"
            if not self._is_done and self._item.get("type") in _CALLS:
                self._show_call("")
        elif kind.endswith(".delta"):
            field = kind.removesuffix(".delta")
            part = event.get("content_index", event.get("summary_index"))
            piece = to_text(event.get("delta"))
            self._pieces.setdefault((field, str(part or 0)), []).append(piece)
            if piece and (show := self._showing.get(field)) is not None:
                show(piece)

    def whole(self) -> Object:
        """The item so far."""
        if self._is_done:
            return self._item
        kind = self._item.get("type")
        if kind in _CALLS:
            field, name = (
                ("function_call_arguments", "arguments")
                if kind == "function_call"
                else ("custom_tool_call_input", "input")
            )
            return {**self._item, name: self._joined(field) or self._item.get(name)}
        if kind == "reasoning":
            summary: list[JsonValue] = [{"type": "summary_text", "text": self._joined("reasoning_summary_text")}]
            return {**self._item, "summary": summary}
        text, refusal = self._joined("output_text"), self._joined("refusal")
        content: list[JsonValue] = [{"type": "output_text", "text": text}, {"type": "refusal", "refusal": refusal}]
        return {"type": "message", **self._item, "content": content}

    def _joined(self, field: str) -> str:
        return "".join(piece for (name, _), pieces in self._pieces.items() if name == field for piece in pieces)

    def _show_call(self, piece: str) -> None:
        self._shown.tool_call(self._place, to_text(self._item.get("name")), len(piece))
