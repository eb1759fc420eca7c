"""The rules that both providers hold a conversation to; a request that breaks one is refused with status 400."""

import re
from collections.abc import Iterator
from itertools import chain

from perdure.contracts.tools import WIRE_NAME_PATTERN
from perdure.contracts.values import JsonValue
from perdure.testing.script import ChatRequest, ErrorText
from perdure.testing.wires import RuleTexts, Wire

_Message = dict[str, JsonValue]


def broken_rule(request: ChatRequest, wire: Wire) -> ErrorText | None:
    """The first rule that the request breaks, in the wire's words."""
    messages = [*request.messages]
    broken = chain(
        _names(request, wire.rules),
        _ids(messages, wire.rules),
        _results(messages, wire.rules),
        (wire.rules.no_content.format(at=at) for at, message in enumerate(messages) if wire.is_empty(message)),
    )
    said = next(broken, None)
    return None if said is None else ErrorText(message=said, type="invalid_request_error")


def _names(request: ChatRequest, texts: RuleTexts) -> Iterator[str]:
    """Each tool, declared or called, has a name of letters, digits, ``_`` and ``-``."""
    called = [call for message in request.messages for call in _calls(message)]
    for tool in (*request.tools, *called):
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or re.search(WIRE_NAME_PATTERN, name) is None:
            yield texts.bad_name.format(what=repr(name))


def _ids(messages: list[_Message], texts: RuleTexts) -> Iterator[str]:
    """No two calls have the same id."""
    seen: set[str] = set()
    for at, message in enumerate(messages):
        for call_id in _call_ids(message):
            if call_id in seen:
                yield texts.twice.format(at=at, what=call_id)
            seen.add(call_id)


def _results(messages: list[_Message], texts: RuleTexts) -> Iterator[str]:
    """Right after a message with calls comes a result of each, and nowhere else is a result."""
    open_calls: list[str] = []
    asked_at = 0
    for at, message in enumerate([*messages, _Message(role="end")]):
        if message.get("role") == "tool":
            call_id = str(message.get("tool_call_id"))
            if call_id not in open_calls:
                yield texts.orphan.format(at=at, what=call_id)
                return
            open_calls.remove(call_id)
        elif open_calls:
            yield texts.unanswered.format(at=asked_at, what=", ".join(open_calls))
            return
        else:
            open_calls, asked_at = _call_ids(message), at


def _calls(message: _Message) -> list[_Message]:
    calls = message.get("tool_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _call_ids(message: _Message) -> list[str]:
    return [str(call.get("id")) for call in _calls(message)]
