"""OpenAI's chat completions, as OpenAI and everybody who copies its format send them: whole, and in chunks.

The copies differ. A call's ``index`` may be 0 for every call or missing, its ``id`` empty, null, or new in each chunk;
content may be a list of parts; a delta may be null; text and calls may stand in different choices; usage may stand in
``x_groq`` or in a choice; the whole message may follow its pieces. All of that is read here, and nothing of it makes a
whole and a streamed answer differ.
"""

import json
from collections.abc import Iterator
from typing import cast

from perdure.activities.models.error_objects import read_error
from perdure.activities.models.provider_replies import Object
from perdure.activities.models.wires.frames import Frame
from perdure.activities.models.wires.reply import (
    Answered,
    Counts,
    FinishReason,
    Parts,
    Shown,
    broken_off,
    call_of,
    clean,
    finish_of,
    has_ended,
    is_error,
    joined,
    merge_ends,
    merge_parts,
    missing_field,
    to_list,
    to_object,
    to_objects,
    to_text,
)
from perdure.activities.models.wires.usage import counts_of, usage_in
from perdure.contracts.tools import RawCall
from perdure.contracts.values import JsonValue, replace_surrogates

PARALLEL = "multi_tool_use.parallel"
"""Name of a call into which OpenAI's models sometimes pack several."""


def read(reply: Object) -> Answered:
    """The answer in a whole chat completion.

    Raises:
        InvalidReplyError: A part is missing, the answer is malformed, or its end is unknown.
        BrokenOffReplyError: The provider says that it broke the answer off.
    """
    counts = counts_of(reply)
    choices = reply.get("choices")
    if not isinstance(choices, list):
        raise missing_field("choices", counts.usage)
    parts = Parts()
    ends: list[FinishReason] = []
    if choices and not to_objects(choices):
        raise missing_field("message", counts.usage)
    for choice in to_objects(choices):
        message = choice.get("message")
        if not isinstance(message, dict):
            raise missing_field("message", counts.usage)
        if is_error(error := choice.get("error")):
            raise broken_off({"error": error}, counts.usage)
        ends.append(finish_of("finish_reason", choice.get("finish_reason"), counts.usage))
        text, thought = _split_content(message.get("content"))
        field, own = next(((name, said) for name in _THOUGHTS if (said := to_text(message.get(name)))), ("", ""))
        parts.texts.append(text)
        parts.refusals.append(to_text(message.get("refusal")) or _refusal_in(message.get("content")))
        parts.reasoning += _reasoning(message, field, own or thought, len(parts.calls))
        parts.calls += _calls(message, counts)
    return parts.answered(merge_ends(ends), counts)


def _split_content(content: JsonValue) -> tuple[str, str]:
    """The text and the reasoning in a content: a text, a part, or a list of parts."""
    parts = to_list(content)
    if not isinstance(parts, list):
        return to_text(content), ""
    texts: list[str] = []
    thoughts: list[str] = []
    for part in cast("list[JsonValue]", parts):
        if isinstance(part, str):
            texts.append(part)
            continue
        fields = to_object(part)
        if fields.get("type") in {"thinking", "reasoning"}:
            inner = fields.get("thinking") or fields.get("text")
            thoughts.append(_split_content(inner)[0])
        elif fields.get("type") != "refusal":
            texts.append(_text_of(fields))
    return "".join(texts), "".join(thoughts)


def _text_of(part: Object) -> str:
    """The text of a part; some servers put it into an object, or name it otherwise."""
    inner = next((part[name] for name in ("text", "content", "parts", "value") if part.get(name)), None)
    return inner if isinstance(inner, str) else _split_content(inner)[0]


def _refusal_in(content: JsonValue) -> str:
    return joined(part.get("refusal") for part in to_objects(to_list(content)))


def _reasoning(message: Object, field: str, thought: str, before: int) -> Iterator[dict[str, JsonValue]]:
    """The blocks of reasoning in a message, behind ``before`` calls of other choices.

    A thought names the ``field`` that it came in, unless that is the usual one; it may have stood inside the content.
    """
    for block in to_objects(message.get("thinking_blocks")):
        texts = {name: text for name in ("type", "thinking", "signature", "data") if (text := to_text(block.get(name)))}
        if "type" in texts:
            yield {name: replace_surrogates(text) for name, text in texts.items()}
    if thought:
        origin: dict[str, JsonValue] = {"field": field} if field else {"inside": True}
        usual = field == "reasoning_content"
        yield {"type": "reasoning_content", "text": replace_surrogates(thought), **({} if usual else origin)}
    if details := to_objects(message.get("reasoning_details")):
        yield {"type": "reasoning_details", "details": clean(cast("JsonValue", details))}
    for place, call in enumerate(to_objects(to_list(message.get("tool_calls")))):
        google = to_object(to_object(call.get("extra_content")).get("google"))
        signature = google.get("thought_signature") or call.get("thought_signature")
        if isinstance(signature, str) and signature:
            yield {"type": "thought_signature", "call": before + place, "signature": replace_surrogates(signature)}


def _calls(message: Object, counts: Counts) -> Iterator[RawCall]:
    calls = to_list(message.get("tool_calls"))
    if not isinstance(calls, list | None):
        raise missing_field("tool_calls", counts.usage)
    for call in to_objects(cast("object", calls)):
        function = _function_in(call)
        if function is None:
            raise missing_field("function", counts.usage)
        yield from _unpack(function)
    if legacy := to_object(message.get("function_call")):
        yield call_of(legacy.get("name"), legacy.get("arguments"))


def _function_in(call: Object) -> Object | None:
    """The object with the name and the arguments of a call, or of a piece of one; they may stand beside its id."""
    if custom := to_object(call.get("custom")):
        return {"name": custom.get("name"), "arguments": custom.get("input")}
    function = call.get("function")
    if isinstance(function, dict):
        return function
    return call if isinstance(call.get("name"), str) or "arguments" in call else None


def _unpack(function: Object) -> Iterator[RawCall]:
    """The call of a function, or the calls that a model packed into one."""
    if function.get("name") == PARALLEL:
        try:
            packed = to_objects(json.loads(to_text(function.get("arguments"))).get("tool_uses"))
        except (ValueError, AttributeError, RecursionError):
            packed = []
        inner = [
            (to_text(use.get("recipient_name")).removeprefix("functions."), use.get("parameters")) for use in packed
        ]
        if inner and all(name for name, _ in inner):
            yield from (call_of(name, arguments) for name, arguments in inner)
            return
    yield call_of(function.get("name"), function.get("arguments"))


class ChatPieces:
    """Chunks of a chat completion, put together to the completion."""

    def __init__(self) -> None:
        self._error: JsonValue = None
        self._suspect: JsonValue = None
        self._head: Object = {}
        self._has_usage = False
        self._choices: dict[str, _Choice] = {}

    @property
    def error(self) -> JsonValue:
        """An error in place of a chunk. An event that only reads like one counts if the answer has no end."""
        return self._error or (self._suspect if not self._has_ended else None)

    @property
    def is_over(self) -> bool:
        """No chunk says that it is the last one. ``[DONE]`` does, which is none."""
        return False

    def add(self, event: Object, frame: Frame, shown: Shown) -> None:
        """Add a chunk."""
        if error := _error_in(event, frame):
            self._error = error
            return
        if not isinstance(event.get("choices"), list) and read_error(event).message:
            self._suspect = cast("JsonValue", event)
        if usage := usage_in(event):
            counted = {name: count for name, count in usage.items() if count}  # a later zero is no count
            self._head["usage"] = {**to_object(self._head.get("usage")), **counted} or usage
            self._has_usage = True
        if tier := to_text(event.get("service_tier")):
            self._head["service_tier"] = tier
        for choice in to_objects(event.get("choices")):
            added = self._choices.setdefault(str(choice.get("index") or 0), _Choice())
            added.add(choice, shown, is_first=len(self._choices) == 1)
        # One of an odd form counts nothing, but none follows it.
        self._has_usage = self._has_usage or (self._has_ended and event.get("usage") is not None)

    def reply(self) -> Object:
        """The completion so far."""
        return {**self._head, "choices": [choice.whole() for choice in self._choices.values()]}

    def missing(self) -> tuple[str, ...]:
        """A finish reason, or an error in its place, and usage, as long as they have not come."""
        has_ended = self._has_ended or self._error is not None
        return (*([] if has_ended else ["a finish reason"]), *([] if self._has_usage else ["usage"]))

    @property
    def _has_ended(self) -> bool:
        return any("finish_reason" in choice.ends for choice in self._choices.values())


def _error_in(event: Object, frame: Frame) -> JsonValue:
    """The chunk, if it holds an error in place of a piece of the answer."""
    is_told = frame.event == "error" or event.get("object") == "error" or event.get("type") == "error"
    has_error = is_error(event.get("error")) or (is_told and not event.get("choices"))
    return cast("JsonValue", event) if has_error else None


_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Fields of a delta with a piece of reasoning, by provider."""


class _Choice:
    """One choice of a streamed completion.

    Attributes:
        ends: Its finish reason and its error, if they have come.
    """

    def __init__(self) -> None:
        self.ends: Object = {}
        self._has_deltas = False
        self._texts: dict[str, list[str]] = {}
        self._parts: list[JsonValue] = []
        self._lists: dict[str, JsonValue] = {}
        self._calls: list[_StreamedCall] = []

    def add(self, choice: Object, shown: Shown, *, is_first: bool) -> None:
        """Add a chunk's part of this choice; the pieces of the first choice are shown."""
        self._add_ends(choice)
        delta = to_object(choice.get("delta"))
        self._has_deltas = self._has_deltas or bool(delta)
        if not self._has_deltas:  # a message behind deltas repeats them
            delta = to_object(choice.get("message"))
        for name in (*_THOUGHTS, "refusal"):
            if piece := to_text(delta.get(name)):
                self._texts.setdefault(name, []).append(piece)
        text, thought = self._add_content(delta.get("content"))
        if is_first:
            if thought := thought or next(filter(None, (to_text(delta.get(name)) for name in _THOUGHTS)), ""):
                shown.thinking(thought)
            if text:
                shown.text(text)
        for name in ("reasoning_details", "thinking_blocks"):
            if parts := to_objects(delta.get(name)):
                self._lists[name] = merge_parts(self._lists.get(name), parts)
        begun: list[_StreamedCall] = []
        for place, call in enumerate(to_objects(to_list(delta.get("tool_calls")))):
            self._add_call(call, place, shown, begun)
        if legacy := to_object(delta.get("function_call")):
            self._add_call({"index": "function_call", "function": legacy}, 0, shown, begun)

    def whole(self) -> Object:
        """The choice so far, as it stands in a completion."""
        message: Object = {name: "".join(pieces) for name, pieces in self._texts.items()}
        if self._parts:
            message["content"] = self._parts
        if self._calls:
            message["tool_calls"] = [call.whole() for call in self._calls]
        return {"message": {"role": "assistant", **message, **self._lists}, **self.ends}

    def _add_ends(self, choice: Object) -> None:
        if has_ended(reason := choice.get("finish_reason")):
            self.ends["finish_reason"] = reason
        if is_error(error := choice.get("error")):
            self.ends["error"] = error

    def _add_content(self, content: JsonValue) -> tuple[str, str]:
        """Add a piece of content; the text and the reasoning in it."""
        if isinstance(content, str) and content and not self._parts:
            self._texts.setdefault("content", []).append(content)
            return content, ""
        content = cast("JsonValue", to_list(content))
        if not content:
            return "", ""
        text_before = self._texts.pop("content", [])
        self._parts += list(text_before)
        self._parts += content if isinstance(content, list) else [content]
        return _split_content(content)

    def _add_call(self, piece: Object, place: int, shown: Shown, begun: "list[_StreamedCall]") -> None:
        """Add a piece of a call; ``begun`` are the calls that this delta begins."""
        call = self._find(piece, place)
        if call is None or call.is_another(piece, is_fresh=call in begun):
            call = _StreamedCall(piece.get("index"))
            self._calls.append(call)
            begun.append(call)
        characters = call.add(piece)
        shown.tool_call(self._calls.index(call), call.name, characters)

    def _find(self, piece: Object, place: int) -> "_StreamedCall | None":
        """The call that a piece continues; None if it begins one.

        A piece with a name begins a call, unless it repeats the id of one, or the name of one that is not complete, or
        goes on with its name. One without a name continues the call of its id, its index, or the last.
        """
        function = _function_in(piece) or {}
        name, own_id, index = to_text(function.get("name")), to_text(piece.get("id")), piece.get("index")
        if own_id and (same := [call for call in self._calls if own_id in call.ids]):
            exact = [call for call in same if call.index == index]
            if exact or not name or index is None:  # two calls may have one id, and differ in their index
                return (exact or same)[-1]
        placed = [call for call in self._calls if index is None or call.index == index]
        last = placed[-1] if placed else None
        if last is None:
            return None if name or own_id or not self._calls else self._calls[-1]
        if not name:
            is_next = bool(own_id) and bool(last.ids) and last.is_complete and index is None and place > 0
            if last is not self._calls[-1] and not own_id and last.is_complete:  # the index was the tool's
                return self._calls[-1]
            return None if is_next else last
        if not last.name or last.takes_name(own_id, index):
            return last
        if (own_id and last.ids) or name != last.name or last.is_complete:
            return None
        return last


def _arguments_in(function: Object) -> str | None:
    """The text of the arguments in a piece, or of an object in their place; None without any."""
    arguments = function.get("arguments")
    return arguments if isinstance(arguments, str | None) else json.dumps(arguments)


class _StreamedCall:
    """One tool call of a stream."""

    def __init__(self, index: JsonValue) -> None:
        self.index = index
        self.ids: set[str] = set()
        self.name = ""
        self._is_custom = False
        self._arguments: list[str] = []
        self._extra: Object = {}

    def add(self, piece: Object) -> int:
        """Add a piece; the number of characters of arguments in it."""
        if own_id := to_text(piece.get("id")):
            self.ids.add(own_id)
        self._is_custom = self._is_custom or bool(to_object(piece.get("custom")))
        function = _function_in(piece) or {}
        name = to_text(function.get("name"))
        if name != self.name and not self._has_arguments:
            self.name += name
        self._extra |= {name: piece[name] for name in ("extra_content", "thought_signature") if piece.get(name)}
        text = _arguments_in(function)
        if text is None:
            return 0
        if name and own_id and text.startswith("{") and self.is_complete and text == "".join(self._arguments):
            return 0  # the whole call once more
        if self._arguments == ["{}"] and text.startswith("{"):  # the empty input of a call that has just begun
            self._arguments.clear()
        self._arguments.append(text)
        return len(text)

    def whole(self) -> Object:
        """The call so far, as it stands in a completion."""
        function: Object = {"name": self.name, "arguments": "".join(self._arguments)}
        if self._is_custom:
            return {**self._extra, "custom": {"name": self.name, "input": function["arguments"]}}
        return {**self._extra, "function": function}

    def is_another(self, piece: Object, *, is_fresh: bool) -> bool:
        """Whether a piece begins another call, although its id or its index are this one's.

        Args:
            piece: The piece.
            is_fresh: Whether this call began in the same delta, which parts no call in two.
        """
        function, same_id = _function_in(piece) or {}, to_text(piece.get("id")) in self.ids
        if not to_text(function.get("name")):
            return False
        if is_fresh and not same_id:
            return True
        text, so_far = _arguments_in(function) or "", "".join(self._arguments)
        return same_id and text.startswith("{") and text != so_far and so_far.strip() != "{}" and self.is_complete

    def takes_name(self, own_id: str, index: JsonValue) -> bool:
        """Whether a name goes on with the one so far: it has no id where the first piece had one, and no arguments."""
        return not own_id and index is not None and bool(self.ids) and not self._has_arguments

    @property
    def _has_arguments(self) -> bool:
        return any(self._arguments)

    @property
    def is_complete(self) -> bool:
        """Whether its arguments so far are a JSON object."""
        last = next((piece for piece in map(str.rstrip, reversed(self._arguments)) if piece), "")
        if not last.endswith("}"):  # parses long arguments a few times only
            return False
        try:
            return isinstance(json.loads("".join(self._arguments)), dict)
        except (ValueError, RecursionError):
            return False
