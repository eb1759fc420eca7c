"""Recorded calls: the form in which requests are hashed, and the first difference between two requests.

A fixture's file shows exactly what was hashed for its name. Secrets are masked before that, so that no name reveals
one. In recorded answers only known secrets are masked, as in the transcript, so that a replayed turn ends in the same
way. Ids of tool calls differ in each session, so they are replaced by numbers in order: then another session's request
has the same hash.
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from perdure.contracts.agents import AgentDefinition, is_destination
from perdure.contracts.ids import DELEGATE_ENDING
from perdure.contracts.messages import AssistantMessage, Message
from perdure.contracts.values import JsonValue, json_object, replace_surrogates
from perdure.llm.openai_format import WireMessage
from perdure.security.redaction import mask_arguments, redact_text, without_known

CanonicalRequest = dict[str, JsonValue]
"""A request in the form in which it is hashed and written."""

SHOWN_CHARACTERS = 60
"""Longest excerpt of a text that differs."""

NOT_SENT = frozenset(
    {
        "name",
        "description",
        "label",
        "tags",
        "instructions",  # in the messages
        "instructions_from",  # its result is in the messages
        "max_steps",
        "max_running",
        "wished",  # their values are among the parameters
        "unwished",
        "generation_timeout",
        "idle_timeout",
        "stream_idle_timeout",
        "retry",
        "on_tool_error",
        "on_unknown_tool",
        "finish_tool",
        "max_tool_turns",
        "budgets",
        "compaction",
        "output_corrections",
        "interactive",  # people's decisions are recorded too
        "approvals",
        "retention",
        "fallback_models",  # a fallback that is called takes the place of the model
        "cache",
        "stream",
        "stream_thinking",
        "inline",
        "on_child_error",
        "stop_conditions",
        "hooks",
        "on_hook_error",
        "skills",  # in the description of the tool that reads them
        "recording",
    }
)
"""Fields of a definition that are not hashed. Any other, also one of a later release, is part of the request."""

_IDS = {
    "call": re.compile(r"call_[0-9a-f]{16}_\d+"),
    "delegate": re.compile(rf"(?<![^\s\"'()\\])[^\s\"'()\\]{{1,160}}{DELEGATE_ENDING}(?![^\s\"'()\\])"),
}
"""Patterns of ids that differ in each session: those of tool calls, and of delegates' sessions."""

_NUMBER = re.compile(r"(?:call|delegate)#\d+")


class CallNumbers:
    """Numbers for the ids of tool calls and delegates' sessions in a text, in the order of their first appearance."""

    def __init__(self, text: str) -> None:
        self._numbers = {
            found: f"{kind}#{number}"
            for kind, pattern in _IDS.items()
            for number, found in enumerate(dict.fromkeys(pattern.findall(text)), start=1)
        }
        self._ids = {number: found for found, number in self._numbers.items()}

    def hide(self, value: JsonValue) -> JsonValue:
        """Replace each id by its number."""
        return _texts(value, self._hidden)

    def show(self, value: JsonValue) -> JsonValue:
        """Replace each number by its id."""
        return _texts(value, lambda text: _NUMBER.sub(lambda found: self._ids.get(found[0], found[0]), text))

    def _hidden(self, text: str) -> str:
        for pattern in _IDS.values():
            text = pattern.sub(self._number, text)
        return text

    def _number(self, found: re.Match[str]) -> str:
        return self._numbers.get(found[0], found[0])


@dataclass(frozen=True)
class Asked:
    """A call as it is looked up and recorded.

    Attributes:
        request: The request in the form that is hashed.
        numbers: The numbers of the ids in the session's conversation.
        occurrence: Ordinal of this call among identical calls of the session, from 1.
    """

    request: CanonicalRequest
    numbers: CallNumbers
    occurrence: int = 1

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the request: the name of its fixture."""
        return hashlib.sha256(canonical(self.request).encode()).hexdigest()


def request_of_generation(
    definition: AgentDefinition, messages: Sequence[WireMessage], secrets: Collection[str] = ()
) -> Asked:
    """The recorded form of a model call."""
    shown: list[JsonValue] = [_message(message, secrets) for message in messages]
    sent = definition.model_dump(mode="json", exclude_defaults=True, exclude=set(NOT_SENT))
    sent["tools"] = [
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in definition.tools
    ]
    params = {name: value for name, value in definition.generate_params.items() if not is_destination(name)}
    sent["generate_params"] = mask_arguments(params, (), secrets)
    numbers = CallNumbers(canonical(shown))
    return Asked({**_object(clean(sent, secrets)), "messages": numbers.hide(shown)}, numbers)


def request_of_tool_call(
    transcript: Iterable[Message], call_id: str, tool: str, secrets: Collection[str] = ()
) -> Asked:
    """The recorded form of a tool call. Arguments and ordinal are the transcript's, so every attempt gets the same."""
    messages = tuple(transcript)
    numbers = CallNumbers("\n".join(message.model_dump_json() for message in messages))
    wanted: JsonValue = {}
    seen: list[JsonValue] = []
    for call in (call for message in messages if isinstance(message, AssistantMessage) for call in message.tool_calls):
        if call.name == tool:
            wanted = numbers.hide(_arguments(call.arguments, secrets))
            seen.append(wanted)
        if call.id == call_id:
            break
    occurrence = sum(other == wanted for other in seen)
    return Asked({"tool": tool, "arguments": wanted}, numbers, occurrence)


def canonical(value: JsonValue) -> str:
    """The canonical JSON text of a value: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def clean(value: JsonValue, secrets: Collection[str] = ()) -> JsonValue:
    """The value with every text redacted (see :func:`perdure.security.redaction.redact_text`)."""
    return _texts(value, lambda text: redact_text(replace_surrogates(text), secrets))


def without_secrets(value: JsonValue, secrets: Collection[str] = ()) -> JsonValue:
    """The value without known secrets only, because a replay returns it as content."""
    return _texts(value, lambda text: without_known(replace_surrogates(text), secrets))


def _message(message: WireMessage, secrets: Collection[str]) -> WireMessage:
    shown = _object(clean({name: part for name, part in message.items() if name != "tool_calls"}, secrets))
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        asked: list[JsonValue] = []
        for call in map(_object, calls):
            function = _object(call.get("function"))
            arguments = _arguments(str(function.get("arguments") or "{}"), secrets)
            asked.append({"id": call.get("id"), "name": function.get("name"), "arguments": arguments})
        shown["tool_calls"] = asked
    return shown


def _arguments(text: str, secrets: Collection[str]) -> JsonValue:
    """Arguments as an object, so that spaces do not matter; arguments that are not JSON stay text."""
    try:
        return mask_arguments(json_object(text or "{}"), (), secrets)
    except ValueError:
        return clean(text, secrets)


def _object(value: JsonValue) -> dict[str, JsonValue]:
    return dict(value) if isinstance(value, dict) else {}


def _texts(value: JsonValue, change: Callable[[str], str]) -> JsonValue:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: _texts(inner, change) for name, inner in value.items()}
    if isinstance(value, list):
        return [_texts(inner, change) for inner in value]
    return value


def find_nearest(asked: CanonicalRequest, recorded: Iterable[CanonicalRequest]) -> CanonicalRequest | None:
    """The recorded request that has most in common with this one; None without recorded requests."""

    def likeness(other: CanonicalRequest) -> tuple[int, bool, int]:
        ours, theirs = _list(asked.get("messages")), _list(other.get("messages"))
        same = sum(mine == yours for mine, yours in zip(ours, theirs, strict=False))
        others = sum(other.get(name) == value for name, value in asked.items())
        arguments = _object(other.get("arguments"))
        others += sum(arguments.get(name) == value for name, value in _object(asked.get("arguments")).items())
        return same, len(ours) == len(theirs), others

    return max(recorded, key=likeness, default=None)


def difference(asked: CanonicalRequest, recorded: CanonicalRequest) -> str:
    """The first thing in which a request differs from a recorded one, in words."""
    for name in sorted({*asked, *recorded} - {"arguments", "generate_params", "messages", "tools"}):
        if asked.get(name) != recorded.get(name):
            return f"{name} is {_format_value(asked.get(name))}, recorded was {_format_value(recorded.get(name))}"
    ours, theirs = _list(asked.get("messages")), _list(recorded.get("messages"))
    if _system(ours) != _system(theirs):
        return f"the system prompt {_describe_difference(_system(ours), _system(theirs))}"
    if asked.get("tools") != recorded.get("tools"):
        return _tools(_list(asked.get("tools")), _list(recorded.get("tools")))
    for part in ("generate_params", "arguments"):
        if asked.get(part) != recorded.get(part):
            now, then = _object(asked.get(part)), _object(recorded.get(part))
            for name in sorted({*now, *then}):
                if now.get(name) != then.get(name):
                    where = f"argument {name!r}" if part == "arguments" else f"{part} {name!r}"
                    return f"{where} is {_format_value(now.get(name))}, recorded was {_format_value(then.get(name))}"
            return f"{part} is {_format_value(asked.get(part))}, recorded was {_format_value(recorded.get(part))}"
    first = 0 if _system(ours) else 1
    for number, (mine, yours) in enumerate(zip(ours, theirs, strict=False), start=first):
        if mine != yours:
            role = _object(mine).get("role")
            said, before = (_object(message).get("content") or "" for message in (mine, yours))
            parting = _describe_difference(said, before) if said != before else _describe_difference(mine, yours)
            return f"message {number} ({role}) {parting}"
    return f"the conversation has {len(ours) + first - 1} messages, recorded were {len(theirs) + first - 1}"


def _system(messages: list[JsonValue]) -> JsonValue:
    first = _object(messages[0]) if messages else {}
    return first.get("content") if first.get("role") == "system" else ""


def _tools(ours: list[JsonValue], theirs: list[JsonValue]) -> str:
    mine, yours = ({str(_object(tool).get("name")): tool for tool in tools} for tools in (ours, theirs))
    if new := sorted(mine.keys() - yours.keys()):
        return f"the tool {new[0]!r} is new"
    if gone := sorted(yours.keys() - mine.keys()):
        return f"the tool {gone[0]!r} is gone"
    for name, tool in mine.items():
        if tool != yours[name]:
            same = _object(tool).get("parameters") == _object(yours[name]).get("parameters")
            return f"the tool {name!r} has another {'description' if same else 'schema'}"
    return "the tools stand in another order"


def _describe_difference(ours: JsonValue, theirs: JsonValue) -> str:
    """Excerpts of both texts, from shortly before the first difference."""
    mine, yours = (value if isinstance(value, str) else canonical(value) for value in (ours, theirs))
    same = next((at for at, (a, b) in enumerate(zip(mine, yours, strict=False)) if a != b), min(len(mine), len(yours)))
    begin = max(0, same - SHOWN_CHARACTERS // 3)
    return f"has {_format_value(mine[begin:])} at character {same + 1}, recorded was {_format_value(yours[begin:])}"


def _format_value(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []
