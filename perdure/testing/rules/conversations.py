"""Rules on conversations that no path can say: which calls have results, in which order, and who speaks when.

Each function yields the places that break its rule, from the first on.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise

from perdure.contracts.values import JsonValue
from perdure.testing.rules.checks import Breach
from perdure.testing.rules.paths import Body, Place

Object = dict[str, JsonValue]

_THINKING = frozenset({"thinking", "redacted_thinking"})


def _objects(value: JsonValue) -> list[Object]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _object(value: JsonValue) -> Object:
    return value if isinstance(value, dict) else {}


def _messages(body: Body) -> list[Object]:
    return _objects(body.body.get("messages"))


def _ids(entries: Iterable[Object], key: str) -> list[str]:
    return [str(entry.get(key)) for entry in entries]


def unanswered_chat_calls(body: Body) -> Iterator[Breach]:
    """An answer's calls whose results do not follow it directly."""
    open_calls: list[str] = []
    asked_at = 0
    for number, message in enumerate([*_messages(body), Object(role="end")]):
        if message.get("role") == "tool":
            call_id = str(message.get("tool_call_id"))
            if call_id not in open_calls:  # which is another rule's
                return
            open_calls.remove(call_id)
        elif open_calls:
            yield Breach(("messages", asked_at), ", ".join(open_calls))
            return
        else:
            open_calls, asked_at = _ids(_objects(message.get("tool_calls")), "id"), number


def orphan_chat_results(body: Body) -> Iterator[Breach]:
    """Results that do not follow an answer that has their call."""
    open_calls: list[str] = []
    for number, message in enumerate(_messages(body)):
        if message.get("role") != "tool":
            open_calls = _ids(_objects(message.get("tool_calls")), "id")
            continue
        call_id = str(message.get("tool_call_id"))
        if call_id not in open_calls:
            yield Breach(("messages", number), call_id)
            return
        open_calls.remove(call_id)


def miscounted_chat_results(body: Body) -> Iterator[Breach]:
    """Answers that are followed by more or fewer results than they have calls."""
    calls = 0
    messages = [*_messages(body), Object(role="end")]
    for number, message in enumerate(messages):
        if message.get("role") == "tool":
            calls -= 1
        elif message.get("role") in {"assistant", "end"}:
            if calls:
                yield Breach(("messages", min(number, len(messages) - 2)))
                return
            calls = len(_objects(message.get("tool_calls")))


def repeated_ids_of_an_answer(body: Body) -> Iterator[Breach]:
    """Two calls of one answer with the same id."""
    for number, message in enumerate(_messages(body)):
        ids = _ids(_objects(message.get("tool_calls")), "id")
        yield from (Breach(("messages", number), each) for at, each in enumerate(ids) if each in ids[:at])


def blank_chat_contents(body: Body) -> Iterator[Breach]:
    """Messages without content that have no calls."""
    for number, message in enumerate(_messages(body)):
        if message.get("content") is None and not message.get("tool_calls"):
            yield Breach(("messages", number))


_MISTRAL_NEXT: Mapping[str, frozenset[str]] = {
    "tool": frozenset({"assistant", "tool"}),
    "user": frozenset({"assistant", "system", "user"}),
    "assistant": frozenset({"assistant", "user", "tool"}),
    "system": frozenset({"user", "assistant", "system"}),
}
"""Roles that may follow each role. Source: mistral-common's validator, and reports on the hosted API."""


def mistral_order(body: Body) -> Iterator[Breach]:
    """Roles that Mistral does not take after the role before them."""
    roles = [str(message.get("role")) for message in _messages(body)]
    for number, (before, role) in enumerate(pairwise(roles), start=1):
        if role not in _MISTRAL_NEXT.get(before, frozenset({role})):
            yield Breach(("messages", number), f"'{role}' after role '{before}'")


def _blocks(message: Object, *kinds: str) -> list[Object]:
    return [block for block in _objects(message.get("content")) if block.get("type") in kinds]


def unanswered_uses(body: Body) -> Iterator[Breach]:
    """Tool uses without a result at the head of the next message."""
    messages = _messages(body)
    for number, message in enumerate(messages):
        uses = _ids(_blocks(message, "tool_use"), "id")
        if not uses:
            continue
        following = messages[number + 1] if number + 1 < len(messages) else Object()
        results: list[str] = []
        for block in _objects(following.get("content")):
            if block.get("type") != "tool_result":
                break
            results.append(str(block.get("tool_use_id")))
        missing = [use for use in uses if use not in results]
        if missing:
            yield Breach(("messages", number), ", ".join(missing))


def orphan_results(body: Body) -> Iterator[Breach]:
    """Results without a tool use in the message before."""
    uses: list[str] = []
    for number, message in enumerate(_messages(body)):
        for at, block in enumerate(_objects(message.get("content"))):
            if block.get("type") == "tool_result" and str(block.get("tool_use_id")) not in uses:
                yield Breach(("messages", number, "content", at), str(block.get("tool_use_id")))
        uses = _ids(_blocks(message, "tool_use"), "id") if message.get("role") == "assistant" else []


def repeated_results(body: Body) -> Iterator[Breach]:
    """Two results of one tool use in a message."""
    for number, message in enumerate(_messages(body)):
        ids = _ids(_blocks(message, "tool_result"), "tool_use_id")
        yield from (Breach(("messages", number), each) for at, each in enumerate(ids) if each in ids[:at])


def empty_messages(body: Body) -> Iterator[Breach]:
    """Messages without content, but for an answer at the end."""
    messages = _messages(body)
    for number, message in enumerate(messages):
        is_last_answer = number == len(messages) - 1 and message.get("role") == "assistant"
        if message.get("content") in (None, "", []) and not is_last_answer:
            yield Breach(("messages", number))


def unthinking_last_answer(body: Body) -> Iterator[Breach]:
    """A last answer in a loop of tools that does not begin with thinking, while thinking is enabled."""
    messages = _messages(body)
    is_loop = bool(messages) and bool(_blocks(messages[-1], "tool_result"))
    if not is_loop or len(messages) < 2:
        return
    blocks = _objects(messages[-2].get("content"))
    if blocks and blocks[0].get("type") not in _THINKING:
        yield Breach(("messages", len(messages) - 2, "content", 0), str(blocks[0].get("type")))


def cache_order(body: Body) -> Iterator[Breach]:
    """A cache mark of an hour behind one of five minutes, in the order tools, system, messages."""
    seen_short = False
    for path in ("tools[].cache_control", "system[].cache_control", "messages[].content[].cache_control"):
        for place, mark in body.find(path):
            lasts = _object(mark).get("ttl", "5m")
            if lasts == "1h" and seen_short:
                yield Breach(place)
            seen_short = seen_short or lasts == "5m"


def _parts(content: Object, kind: str) -> list[Object]:
    return [_object(part[kind]) for part in _objects(content.get("parts")) if kind in part]


def uneven_responses(body: Body) -> Iterator[Breach]:
    """Contents of function calls that are followed by another number of function responses."""
    contents = [*_objects(body.body.get("contents")), Object()]
    for number, (content, following) in enumerate(pairwise(contents)):
        calls, responses = _parts(content, "functionCall"), _parts(following, "functionResponse")
        if calls and following and len(calls) != len(responses):
            yield Breach(("contents", number + 1))


def misplaced_function_calls(body: Body) -> Iterator[Breach]:
    """Contents of function calls that follow neither the user nor responses."""
    before: Object = {}
    for number, content in enumerate(_objects(body.body.get("contents"))):
        if _parts(content, "functionCall") and before.get("role") != "user":
            yield Breach(("contents", number))
        before = content


def misplaced_function_responses(body: Body) -> Iterator[Breach]:
    """Contents of function responses that do not follow their calls."""
    before: Object = {}
    for number, content in enumerate(_objects(body.body.get("contents"))):
        if _parts(content, "functionResponse") and not _parts(before, "functionCall"):
            yield Breach(("contents", number))
        before = content


def unsigned_function_calls(body: Body) -> Iterator[Breach]:
    """First function calls of the current turn's steps that have no signature."""
    contents = _objects(body.body.get("contents"))
    said = [
        at for at, each in enumerate(contents) if each.get("role") == "user" and not _parts(each, "functionResponse")
    ]
    for number in range(said[-1] if said else 0, len(contents)):
        calls = [part for part in _objects(contents[number].get("parts")) if "functionCall" in part]
        if calls and not calls[0].get("thoughtSignature"):
            yield Breach(("contents", number), str(_object(calls[0]["functionCall"]).get("name")))


def missing_tool_results(body: Body) -> Iterator[Breach]:
    """Tool uses of Converse without a result in the next message."""
    messages = _messages(body)
    for number, message in enumerate(messages):
        uses = _ids(_members(message, "toolUse"), "toolUseId")
        following = messages[number + 1] if number + 1 < len(messages) else Object()
        results = _ids(_members(following, "toolResult"), "toolUseId")
        missing = [use for use in uses if use not in results]
        if missing:
            yield Breach(("messages", number + 1, "content"), ", ".join(missing))


def surplus_tool_results(body: Body) -> Iterator[Breach]:
    """Messages of Converse with more results than the message before has tool uses."""
    uses = 0
    for number, message in enumerate(_messages(body)):
        if len(_members(message, "toolResult")) > uses:
            yield Breach(("messages", number, "content"))
        uses = len(_members(message, "toolUse"))


def repeated_roles(body: Body) -> Iterator[Breach]:
    """Messages of the same side as the message before."""
    before: JsonValue = None
    for number, message in enumerate(_messages(body)):
        if message.get("role") == before:
            yield Breach(("messages", number))
        before = message.get("role")


def _members(message: Object, kind: str) -> list[Object]:
    return [_object(block[kind]) for block in _objects(message.get("content")) if kind in block]


def _items(body: Body, *kinds: str) -> list[tuple[Place, Object]]:
    return [
        (("input", at), item) for at, item in enumerate(_objects(body.body.get("input"))) if item.get("type") in kinds
    ]


def missing_outputs(body: Body) -> Iterator[Breach]:
    """Function calls without an output."""
    outputs = {str(item.get("call_id")) for _, item in _items(body, "function_call_output")}
    for place, item in _items(body, "function_call"):
        if str(item.get("call_id")) not in outputs:
            yield Breach(place, str(item.get("call_id")))


def orphan_outputs(body: Body) -> Iterator[Breach]:
    """Outputs without a function call before them, where no response before has it."""
    if body.body.get("previous_response_id") or body.body.get("conversation"):
        return
    calls: list[JsonValue] = []
    for place, item in _items(body, "function_call", "function_call_output"):
        if item["type"] == "function_call":
            calls.append(item.get("call_id"))
        elif item.get("call_id") not in calls:
            yield Breach(place, str(item.get("call_id")))


def reasoning_without_following_item(body: Body) -> Iterator[Breach]:
    """Reasoning items that are not followed by what they came with: an answer, a call, or more reasoning."""
    items = _objects(body.body.get("input"))
    for number, item in enumerate(items):
        if item.get("type") != "reasoning":
            continue
        following = items[number + 1] if number + 1 < len(items) else Object()
        comes_with = following.get("role") == "assistant" or str(following.get("type", "")).endswith(
            ("_call", "reasoning")
        )
        if not comes_with:
            yield Breach(("input", number), str(item.get("id") or "rs_"))


FUNCTIONS: Mapping[str, Callable[[Body], Iterator[Breach]]] = {
    function.__name__: function
    for function in (
        unanswered_chat_calls,
        orphan_chat_results,
        miscounted_chat_results,
        repeated_ids_of_an_answer,
        blank_chat_contents,
        mistral_order,
        unanswered_uses,
        orphan_results,
        repeated_results,
        empty_messages,
        unthinking_last_answer,
        cache_order,
        uneven_responses,
        misplaced_function_calls,
        misplaced_function_responses,
        unsigned_function_calls,
        missing_tool_results,
        surplus_tool_results,
        repeated_roles,
        missing_outputs,
        orphan_outputs,
        reasoning_without_following_item,
    )
}
"""By the name that a rule file says."""
