"""Checks a provider's replies of status 200 before litellm reads them: repairs them, or refuses them.

litellm turns a reply that it does not expect into a traceback, or into a success, and then it is hard to say what was
wrong. So replies of the two APIs that most providers speak, OpenAI's chat completions and Anthropic's messages, are
checked here. A reply is repaired if that does not change its meaning. Replies of other APIs pass unchanged.
"""

import json
import re

from perdure.activities.provider_streams import StreamRecord
from perdure.contracts.budgets import Paid, Usage
from perdure.contracts.values import JsonValue

Object = dict[str, JsonValue]

MOST_TOKENS = 10**12
"""Counts of tokens are clamped to 0 … this. A larger one is no search attribute, a negative one would raise budgets."""

DEEPEST = 200
"""Levels of nesting in a reply. Python's JSON parser fails at about a thousand; a dozen is enough for any reply."""

LONGEST_NUMBER = 4_000
"""Digits of an integer in a reply. Python parses up to 4,300."""

UNREADABLE = "arguments with numbers too long or values nested too deep to be read"
"""Put in place of a call's arguments that cannot be read: the model then reads that they are no JSON object."""

_MARK = "\0unreadable\0"
"""Put in place of an unreadable value until it is known which field holds it."""

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)

_ENDED = frozenset(
    {
        *("stop", "end_turn", "stop_sequence", "eos", "eos_token", "complete", "completed"),
        *("tool_calls", "tool_call", "tool_use", "function_call"),
        *("length", "max_tokens", "compaction"),
        *("content_filter", "content_filtered", "safety", "sensitive", "refusal"),
    }
)
"""Finish reasons, in lower case, of answers that ended, were cut off or filtered, and that litellm maps."""

_CUT_OFF = frozenset({"model_context_window_exceeded", "model_length"})
"""Finish reasons of Anthropic and Mistral for answers that were cut off; litellm takes them for a success."""

_FAILED = frozenset({"error", "network_error", "insufficient_system_resource", "abort"})
"""Finish reasons with which OpenRouter, Zhipu, DeepSeek and vLLM say that they broke the answer off."""


class UnusableAnswerError(Exception):
    """An answer that is paid for and cannot be used."""

    paid = Paid()


class UnusableReplyError(UnusableAnswerError):
    """A reply that is no answer; ``usage`` is what the provider counted for it."""

    def __init__(self, text: str, usage: Usage | None = None) -> None:
        super().__init__(text)
        self.usage = usage or Usage()


class InvalidReplyError(UnusableReplyError):
    """A reply that does not have the shape of an answer. A retry may help."""


class StreamCutError(UnusableReplyError):
    """A stream that ended, or went silent, before the answer did.

    Attributes:
        has_ended_well: Whether it ended in good order, without usage: another stream would end in the same way.
    """

    def __init__(self, text: str, usage: Usage | None = None, *, has_ended_well: bool = False) -> None:
        super().__init__(text, usage)
        self.has_ended_well = has_ended_well


class RedirectedError(UnusableReplyError):
    """The provider's address redirects requests; the text names the target's origin."""


class BrokenOffReplyError(UnusableReplyError):
    """The provider failed while the model wrote, and said so inside its answer, perhaps with a status."""

    def __init__(self, text: str, usage: Usage, status: int | None) -> None:
        super().__init__(text, usage)
        self.status_code = status


def check_reply(path: str, body: bytes, largest_error: int) -> tuple[bytes, Usage | None]:
    """Check the body of a reply of status 200, and repair it for litellm.

    Returns:
        The body and the answer's usage. A body that holds an error has no usage, and is cut to ``largest_error`` bytes.

    Raises:
        InvalidReplyError: The body holds neither an answer nor an error.
        BrokenOffReplyError: The provider says that it broke the answer off.
    """
    reply, is_as_sent = _parse_body(body)
    if not isinstance(reply, dict):
        return body[:largest_error], None
    if reply.get("error"):
        return body if len(body) <= largest_error else _cut_error(reply, largest_error), None
    changes = [not is_as_sent, _replace_counts(reply)]
    if path.endswith("/chat/completions"):
        changes.append(_check_completion(reply))
    elif path.endswith("/messages"):
        changes.append(_check_message(reply))
    return json.dumps(reply).encode() if any(changes) else body, usage_of(reply)


def usage_of_stream(record: StreamRecord) -> Usage:
    """The usage that a stream has reported so far."""
    reply: Object = {"usage": {**record.begun_usage, **(record.usage or {})}}
    _replace_counts(reply)
    return usage_of(reply)


def check_stream(record: StreamRecord) -> bool:
    """Check a stream that has ended. True if its answer was cut off, for a finish reason that litellm does not map.

    Raises:
        BrokenOffReplyError: The provider said in the stream that it failed.
        StreamCutError: The stream ended before the answer did: usage or finish reason is missing.
        InvalidReplyError: The finish reason is unknown.
    """
    usage = usage_of_stream(record)
    if record.error is not None:
        broken = _error_of_broken_off(record.error, {})
        kind = record.error.get("type") if isinstance(record.error, dict) else None
        raise BrokenOffReplyError(f"{broken} [{kind}]" if kind else str(broken), usage, broken.status_code)
    if not record.is_whole:
        msg = f"the stream ended without {record.missing}"
        raise StreamCutError(msg, usage, has_ended_well=record.reason is not None)
    place: Object = {record.reason_field: record.reason}
    return _check_end(place, record.reason_field, {"usage": {**record.begun_usage, **(record.usage or {})}})


def _parse_body(body: bytes) -> tuple[JsonValue, bool]:
    """The JSON value at the beginning of a body, and whether the body is that value alone; None without a value."""
    marked: list[str] = []

    def integer(digits: str) -> JsonValue:
        if len(digits) <= LONGEST_NUMBER:
            return int(digits)
        marked.append(digits)
        return _MARK

    decoder = json.JSONDecoder(parse_int=integer)
    try:
        text = body.decode("utf-8-sig").lstrip()
        try:
            value, end = decoder.raw_decode(text)
        except RecursionError:
            marked.append(text)
            value, end = decoder.raw_decode(text := _without_depths(text))
    except ValueError:
        return None, True
    return value, not marked and not text[end:].strip()


def _without_depths(text: str) -> str:
    """The JSON text with a mark in place of each value that is nested too deep."""
    parts: list[str] = []
    depth, since = 0, 0
    for token in _TOKEN.finditer(text):
        if token[0] in "[{":
            depth += 1
            if depth == DEEPEST:
                parts.append(text[since : token.start()])
        elif token[0] in "]}":
            if depth == DEEPEST:
                parts.append(json.dumps(_MARK))
                since = token.end()
            depth -= 1
    return "".join(parts) + text[since:]


def _cut_error(reply: Object, largest: int) -> bytes:
    """The body of an error, with its message cut so that litellm can mask it quickly."""
    error = reply["error"]
    parts: Object = error if isinstance(error, dict) else {"message": str(error)}
    short = {name: parts[name] for name in ("code", "type", "status", "message") if name in parts}
    cut = {name: value[:largest] if isinstance(value, str) else value for name, value in short.items()}
    kind = {"type": reply["type"]} if isinstance(reply.get("type"), str) else {}
    return json.dumps({"error": cut, **kind}).encode()


def _clamp(value: JsonValue) -> JsonValue:
    """Counts of tokens, clamped to 0 … ``MOST_TOKENS``; they may be nested in groups."""
    if isinstance(value, dict):
        return {name: _clamp(part) for name, part in value.items()}
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value if 0 <= value <= MOST_TOKENS else (MOST_TOKENS if value > 0 else 0)
    return 0 if value == _MARK else value


def _replace_counts(reply: Object) -> bool:
    """Clamp the reply's counts of tokens in place; True if that changed any."""
    if not isinstance(reply.get("usage"), dict):
        return False
    usage = _clamp(before := reply["usage"])
    reply["usage"] = usage
    return usage != before


def usage_of(reply: Object) -> Usage:
    """The usage in a reply, by the field names of either API."""
    usage = reply.get("usage")
    counts = usage if isinstance(usage, dict) else {}

    def count(name: str) -> int:
        found = counts.get(name)
        return int(found) if isinstance(found, int | float) else 0

    cached = count("cache_read_input_tokens")
    read = count("input_tokens") + cached + count("cache_creation_input_tokens")
    written = count("completion_tokens") or count("output_tokens")
    return Usage(input_tokens=count("prompt_tokens") or read, output_tokens=written, cached_tokens=cached)


def _check_completion(reply: Object) -> bool:
    """Repair and check a chat completion; True if it was changed. One without any choice is an empty answer."""
    choices = reply.get("choices")
    if not isinstance(choices, list):
        raise _missing_field("choices", reply)
    if not choices:
        return False
    choice = choices[0]
    if not isinstance(choice, dict) or not isinstance(message := choice.get("message"), dict):
        raise _missing_field("message", reply)
    if (error := choice.get("error")) is not None:
        raise _error_of_broken_off(error, reply)
    changed = _check_end(choice, "finish_reason", reply)
    for name, usual in (("finish_reason", None), ("index", 0)):
        if name not in choice:
            choice[name], changed = usual, True
    if message.get("role") != "assistant":
        message["role"], changed = "assistant", True
    text = _join_texts(message.get("content"))
    if text != message.get("content"):
        message["content"], changed = text, True
    return _check_calls(message.get("tool_calls"), reply) or changed


def _check_calls(calls: JsonValue, reply: Object) -> bool:
    """Turn arguments that are not a text into one: they are the model's mistake, which it should read."""
    if calls is not None and not isinstance(calls, list):
        raise _missing_field("tool_calls", reply)
    changed = False
    for call in calls or ():
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise _missing_field("function", reply)
        arguments = function.get("arguments")
        if arguments is not None and not isinstance(arguments, str):
            function["arguments"], changed = json.dumps(UNREADABLE if _has_mark(arguments) else arguments), True
    return changed


def _check_message(reply: Object) -> bool:
    """Repair and check a message of Anthropic's API; True if it was changed."""
    for name, kind in (("content", list), ("usage", dict)):
        if not isinstance(reply.get(name), kind):
            raise _missing_field(name, reply)
    if "stop_reason" not in reply:
        raise _missing_field("stop_reason", reply)
    changed = _check_end(reply, "stop_reason", reply)
    if not isinstance(reply.get("model"), str):
        reply["model"], changed = "", True
    content = reply["content"]
    for block in content if isinstance(content, list) else ():
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise _missing_field("type", reply)
        if block["type"] == "tool_use":
            if not isinstance(block.get("name"), str):
                raise _missing_field("name", reply)
            if not isinstance(block.get("id"), str):
                block["id"], changed = "", True  # unused: each call gets an id of perdure's
            if "input" not in block or _has_mark(block["input"]):
                block["input"], changed = (UNREADABLE if "input" in block else {}), True
    return changed


def _check_end(place: Object, name: str, reply: Object) -> bool:
    """Refuse an answer that was broken off; True if its finish reason was replaced by one that litellm maps."""
    reason = place.get(name)
    if not reason:
        return False
    said = str(reason).lower()
    if said in _FAILED:
        text = f"the provider broke the answer off ({name} {reason})"
        raise BrokenOffReplyError(text, usage_of(reply), None)
    if said in _CUT_OFF:
        place[name] = "max_tokens" if name == "stop_reason" else "length"
        return True
    if said not in _ENDED:
        msg = f"the answer ends with {name} {str(reason)[:100]!r}, which is no end that perdure knows"
        raise InvalidReplyError(msg, usage_of(reply))
    return False


def _error_of_broken_off(error: JsonValue, reply: Object) -> BrokenOffReplyError:
    parts: Object = error if isinstance(error, dict) else {"message": str(error)}
    code = parts.get("code")
    status = code if isinstance(code, int) and 400 <= code <= 599 else None
    text = str(parts.get("message") or "the provider broke the answer off")
    return BrokenOffReplyError(text, usage_of(reply), status)


def _missing_field(name: str, reply: Object) -> InvalidReplyError:
    return InvalidReplyError(f"the reply has no {name!r}, or one of another kind", usage_of(reply))


def _join_texts(content: JsonValue) -> JsonValue:
    """The content as one text if it is a list of texts; otherwise unchanged."""
    if not isinstance(content, list) or not content:
        return content
    texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
    joined = [text for text in texts if isinstance(text, str)]
    return "".join(joined) if len(joined) == len(content) else content


def _has_mark(value: JsonValue) -> bool:
    if isinstance(value, dict):
        return any(map(_has_mark, value.values()))
    return any(map(_has_mark, value)) if isinstance(value, list) else value == _MARK
