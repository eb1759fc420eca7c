"""Histories as every provider takes them, out of what clients send."""

import json
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from perdure.contracts.messages import LONGEST_CALL_ID, MAX_HISTORY_BYTES
from perdure.gateway.doors.responses.requests import Object

LEFT_OUT: Object = {"role": "user", "content": "[what was said before is left out]"}
NO_RESULT = "[the result of this call is not known]"

_SPARE = 1024
"""Bytes of the longest history that are left for what stands between its messages."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


def fit(history: Sequence[Object]) -> list[Object]:
    """The history, or its end if it is long, with a result behind each call and ids that are all different."""
    told = _cut([*_pair(history)])
    return told if not told or told[0]["role"] == "user" else [LEFT_OUT, *told]


def _pair(history: Sequence[Object]) -> Iterator[Object]:
    """The messages, each call with the first result that was sent for it behind it; other results are left out."""
    results: dict[str, deque[tuple[int, Object]]] = defaultdict(deque)
    for at, message in enumerate(history):
        if message["role"] == "tool":
            results[str(message["tool_call_id"])].append((at, message))
    taken: set[str] = set()
    for at, message in enumerate(history):
        if message["role"] == "tool":
            continue
        calls = [_named(call, taken) for call in cast("Sequence[Object]", message.get("tool_calls") or ())]
        yield {**message, "tool_calls": [call for call, _ in calls]} if calls else message
        for call, was in calls:
            waiting = results[was]
            while waiting and waiting[0][0] < at:
                waiting.popleft()
            result = waiting.popleft()[1] if waiting else {"role": "tool", "content": NO_RESULT}
            yield {**result, "tool_call_id": call["id"]}


def _named(call: Object, taken: set[str]) -> tuple[Object, str]:
    """A call with an id that no other has, and a name that providers take; and the id that it had."""
    was = str(call["id"])
    name = _NOT_IN_NAMES.sub("_", was)[:LONGEST_CALL_ID]
    if not name or name in taken:
        name = f"call_{len(taken) + 1}"
        while name in taken:
            name += "_"
    taken.add(name)
    function = cast("Mapping[str, object]", call["function"])
    tool = _NOT_IN_NAMES.sub("_", str(function["name"]))[:LONGEST_CALL_ID] or "tool"
    return {**call, "id": name, "function": cast("Object", {**function, "name": tool})}, was


def _cut(history: list[Object]) -> list[Object]:
    """The end of a history that is longer than a request may bring, from a message of the user on."""
    size, begin = 0, len(history)
    for at in reversed(range(len(history))):
        size += len(json.dumps(history[at], ensure_ascii=False).encode(errors="replace")) + 2
        if size > MAX_HISTORY_BYTES - _SPARE:
            break
        begin = at if history[at]["role"] == "user" else begin
    else:
        return history
    return [LEFT_OUT, *history[begin:]]
