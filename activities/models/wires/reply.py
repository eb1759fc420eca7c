"""One whole answer as every wire gives it, and what the readers of all wires share.

Long, because what six wires have in common is written once.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Generic, Literal, Protocol, TypeVar, cast

from perdure.activities.models.error_objects import read_error
from perdure.activities.models.provider_replies import (
    DEEPEST_ARGUMENTS,
    MOST_TOKENS,
    BrokenOffReplyError,
    InvalidReplyError,
    Object,
    has_mark,
    is_deeper,
)
from perdure.activities.models.wires.frames import Frame
from perdure.activities.models.wires.thoughts import split_thoughts, with_thought
from perdure.contracts.budgets import Usage
from perdure.contracts.tools import RawCall
from perdure.contracts.values import JsonValue, replace_surrogates

FinishReason = Literal["stop", "tool_calls", "length", "content_filter", ""]
"""Reason an answer ended, in OpenAI's words; empty if the provider did not say."""

LONGEST_WHY = 500
"""Characters that are told of what a provider says of an answer's end."""

UNREADABLE = "arguments with numbers too long or values nested too deep to be read"
"""Put in place of a call's arguments that cannot be read: the model then reads that they are no JSON object."""


@dataclass(frozen=True)
class Counts:
    """A provider's count of an answer.

    Attributes:
        input_tokens: Tokens of the prompt, those from and for the provider's cache included.
        cached_tokens: Tokens of the prompt that the provider had in its cache.
        stored_tokens: Tokens of the prompt that it put into its cache, which some providers charge more for.
        cost_usd: What the provider itself says that the answer costs; None if it does not say, or says nothing.
        tier: The service tier that the provider used, if it names one.
        estimated: Whether a part of the counts is perdure's estimate.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    stored_tokens: int = 0
    cost_usd: Decimal | None = None
    tier: str = ""
    estimated: bool = False

    @property
    def usage(self) -> Usage:
        """The counts that perdure keeps."""
        return Usage(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=self.cached_tokens,
            estimated=self.estimated,
        )


LONGEST_NAME = 200
"""Longest id or name of a model that is kept of what a provider says."""


@dataclass(frozen=True)
class Source:
    """Source of an answer, as its provider says it; what it does not say is empty.

    Attributes:
        id: The id of the reply.
        model: The model that wrote it.
        server: The host that sent it.
    """

    id: str = ""
    model: str = ""
    server: str = ""

    @classmethod
    def of(cls, reply: Object) -> "Source":
        """The source that a whole reply names, on any wire."""
        told = (reply.get("id") or reply.get("responseId"), reply.get("model") or reply.get("modelVersion"))
        return cls(*(replace_surrogates(to_text(name))[:LONGEST_NAME] for name in told))


@dataclass(frozen=True)
class Answered:
    """A model's answer, whatever wire it came over, whole or in pieces.

    Attributes:
        reasoning: The blocks of its reasoning, in the forms of ``perdure.activities.models.provider_messages``.
        refusal: The model's refusal beside its content.
        why: What the provider says of the answer's end, such as the policy that a refused one broke.
        source: Where it is from; it makes no other answer.
    """

    text: str = ""
    calls: tuple[RawCall, ...] = ()
    reasoning: tuple[dict[str, JsonValue], ...] = ()
    refusal: str = ""
    finish_reason: FinishReason = ""
    counts: Counts = field(default_factory=Counts)
    why: str = ""
    source: Source = field(default_factory=Source, compare=False)

    @property
    def end(self) -> FinishReason:
        """The finish reason; of an answer with calls Gemini, Ollama and others say only that it stopped."""
        return "tool_calls" if self.calls and self.finish_reason == "stop" else self.finish_reason


@dataclass
class Parts:
    """Parts of a reply's answer, in their order; the readers of all wires put an answer together of them."""

    texts: list[str] = field(default_factory=list[str])
    calls: list[RawCall] = field(default_factory=list[RawCall])
    reasoning: list[dict[str, JsonValue]] = field(default_factory=list[dict[str, JsonValue]])
    refusals: list[str] = field(default_factory=list[str])
    why: str = ""

    def call(self, name: object, arguments: object) -> None:
        """Add a tool call as the model wrote it; arguments that are no text become one."""
        self.calls.append(call_of(name, arguments))

    def answered(self, finish_reason: FinishReason, counts: Counts) -> Answered:
        """The answer that these are the parts of; reasoning that a server left in its text is none of the text."""
        text, thought = split_thoughts("".join(self.texts))
        return Answered(
            text=replace_surrogates(text),
            calls=tuple(self.calls),
            reasoning=with_thought(self.reasoning, replace_surrogates(thought)),
            refusal=replace_surrogates("".join(self.refusals)),
            finish_reason=finish_reason,
            counts=counts,
            why=replace_surrogates(self.why),
        )


class Shown(Protocol):
    """Takes the pieces of an answer while it is written. No method may fail or wait."""

    def begin(self, *, has_calls_in_text: bool) -> None:
        """Start over: a request is about to be sent, and the pieces of an earlier one are void.

        Args:
            has_calls_in_text: Whether the model writes its tool calls into its text.
        """

    def text(self, piece: str) -> None:
        """Take a piece of the answer's text."""

    def thinking(self, piece: str) -> None:
        """Take a piece of the model's reasoning."""

    def tool_call(self, index: int, name: str, characters: int) -> None:
        """Take a piece of a tool call: its place in the answer, the tool's name or none, characters of arguments."""


class Pieces(Protocol):
    """Puts the events of one stream together to the reply that the provider would have sent whole."""

    @property
    def error(self) -> JsonValue:
        """An error in place of the rest of the stream."""

    @property
    def is_over(self) -> bool:
        """Whether the wire's last event has come: nothing behind it is a part of the answer."""
        ...

    def add(self, event: Object, frame: Frame, shown: Shown) -> None:
        """Add an event; ``shown`` takes the pieces of the answer in it."""

    def reply(self) -> Object:
        """The whole reply, as far as it has come."""
        ...

    def missing(self) -> tuple[str, ...]:
        """Parts that the stream still lacks for an answer: a finish reason, usage, an end."""
        ...


class Silent:
    """Shows nothing."""

    def begin(self, *, has_calls_in_text: bool) -> None:
        """Show nothing."""

    def text(self, piece: str) -> None:
        """Show nothing."""

    def thinking(self, piece: str) -> None:
        """Show nothing."""

    def tool_call(self, index: int, name: str, characters: int) -> None:
        """Show nothing."""


def _letters(reason: object) -> str:
    """A finish reason without its spelling: ``TOOL_CALLS``, ``toolCalls`` and ``FinishReason.TOOL_CALLS`` are one."""
    return re.sub(r"[^a-z0-9]", "", str(reason or "").lower()).removeprefix("finishreason")


def _table(**words: str) -> dict[str, str]:
    """Meanings of finish reasons, by their letters."""
    return {_letters(word): end for end, group in words.items() for word in group.split()}


_ENDS = cast(
    "dict[str, FinishReason]",
    _table(
        stop="stop end_turn stop_sequence eos eos_token complete completed done finished",
        tool_calls="tool_calls tool_call tool_use function_call function_calls",
        length="length max_tokens max_output_tokens max_length token_limit model_length model_context_window_exceeded"
        " compaction continuation incomplete",
        content_filter="content_filter content_filtered safety sensitive refusal guardrail_intervened recitation"
        " language blocklist prohibited_content spii error_toxic escalation image_safety image_prohibited_content"
        " image_recitation content_policy_violation model_armor",
    ),
)
"""Finish reasons of all providers of answers that ended, were cut off or filtered."""

_MALFORMED = _table(
    malformed="malformed_function_call malformed_tool_use malformed_model_output malformed_response"
    " unexpected_tool_call too_many_tool_calls missing_thought_signature no_image other image_other"
    " finish_reason_unspecified pause_turn"
)
"""Finish reasons of Gemini, Bedrock and Anthropic for answers that the model did not write as it should."""

_FAILED = _table(
    failed="error network_error insufficient_system_resource abort aborted cancelled canceled failed server_error"
    " engine_error timeout"
)
"""Finish reasons with which OpenRouter, Zhipu, DeepSeek, vLLM and others say that they broke the answer off."""


def has_ended(reason: JsonValue) -> bool:
    """Whether a finish reason says that the answer has ended; some servers write the word null before it has."""
    return _letters(reason) not in {"", "null", "none"}


def finish_of(field_name: str, reason: JsonValue, usage: Usage, why: str = "") -> FinishReason:
    """The finish reason in OpenAI's words.

    Args:
        field_name: The field that it stands in.
        reason: The provider's reason.
        usage: What the answer has cost.
        why: What else the provider says of the end.

    Raises:
        BrokenOffReplyError: The provider broke the answer off.
        InvalidReplyError: The model's answer is malformed, or the reason is unknown.
    """
    if not has_ended(reason):
        return ""
    said, told = _letters(reason), f"{field_name} {reason}{f': {why[:LONGEST_WHY]}' if why else ''}"
    if said in _FAILED:
        raise BrokenOffReplyError(f"the provider broke the answer off ({told})", usage)
    if said in _MALFORMED:
        raise InvalidReplyError(f"the model's answer is malformed ({told})", usage)
    if said not in _ENDS:
        msg = f"the answer ends with {field_name} {str(reason)[:100]!r}, which is no end that perdure knows"
        raise InvalidReplyError(msg, usage)
    return _ENDS[said]


def merge_ends(ends: Iterable[FinishReason]) -> FinishReason:
    """The finish reason of an answer whose parts stand in several choices: the worst one decides."""
    found = set(ends)
    worst: tuple[FinishReason, ...] = ("content_filter", "length", "tool_calls", "stop")
    for end in worst:
        if end in found:
            return end
    return ""


def broken_off(body: Object, usage: Usage) -> BrokenOffReplyError:
    """The failure of an answer in whose place, or in whose middle, the provider sent an error; ``body`` holds it."""
    return BrokenOffReplyError("the provider broke the answer off", usage, read_error(body))


def missing_field(name: str, usage: Usage) -> InvalidReplyError:
    """The failure of a reply that lacks a field, or has one of another kind in its place."""
    return InvalidReplyError(f"the reply has no {name!r}, or one of another kind", usage)


def to_object(value: object) -> Object:
    """The value if it is an object; otherwise an empty one."""
    return cast("Object", value) if isinstance(value, dict) else {}


def to_objects(value: object) -> list[Object]:
    """The objects in a list; empty if the value is not a list."""
    return (
        [cast("Object", part) for part in cast("list[object]", value) if isinstance(part, dict)]
        if isinstance(value, list)
        else []
    )


def to_list(value: object) -> object:
    """The value, or a list of it if it is an object where a list belongs."""
    return [cast("object", value)] if isinstance(value, dict) else value


def is_error(value: JsonValue) -> bool:
    """Whether the value of a field for errors is one; an object without a word or a code beside 0 says nothing."""
    return any(value.values()) if isinstance(value, dict) else bool(value)


def to_text(value: object) -> str:
    """The value if it is a text; otherwise an empty one."""
    return value if isinstance(value, str) else ""


def to_count(value: object) -> int:
    """A count of tokens, between 0 and ``MOST_TOKENS``: of a number, or of digits in a text."""
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value[:16])
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return 0
    return int(min(max(value, 0), MOST_TOKENS))


def count_of(counts: Object, *names: str) -> int:
    """The first of these counts that is not zero."""
    return next((found for name in names if (found := to_count(counts.get(name)))), 0)


def count_both(
    usage: Object, read: int, written: int, *, beside: int = 0, total: str = "total_tokens"
) -> tuple[int, int]:
    """Tokens of the prompt and of the answer. Where a total is larger than their sum, the total counts.

    The rest of it is of the answer, as reasoning that is counted beside it is, unless the prompt has no count, or the
    rest are the tokens that the provider's cache has ``beside`` the prompt.
    """
    rest = count_of(usage, total) - read - written
    if rest <= 0:
        return read, written
    if not read:
        return rest, written
    return (read + rest, written) if rest == beside else (read, written + rest)


def to_cost(value: object) -> Decimal | None:
    """An amount of US dollars, if the value is one above zero."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        cost = Decimal(str(value))
    except InvalidOperation:
        return None
    return cost if cost.is_finite() and cost > 0 else None


class StreamedBlock(Protocol):
    """A block of a streamed answer, made with its place among the blocks and who is shown it."""

    def __init__(self, place: int, shown: Shown, /) -> None: ...

    def is_another(self, start: Object, /) -> bool:
        """Whether a block that begins with the number of this one is another."""
        ...


Block = TypeVar("Block", bound=StreamedBlock)


class Blocks(Generic[Block]):
    """The blocks of a streamed answer, in the order in which they begin.

    Servers number them; some leave the numbers out, or give several blocks one number.
    """

    def __init__(self, kind: type[Block]) -> None:
        self._kind = kind
        self._all: list[Block] = []
        self._at: dict[str, Block] = {}

    def __iter__(self) -> Iterator[Block]:
        return iter(self._all)

    def find(self, index: JsonValue, shown: Shown) -> Block:
        """The block of a number, which may begin with it; without a number the last that began."""
        if index is None and self._all:
            return self._all[-1]
        place = str(index or 0)
        if place not in self._at:
            self._at[place] = self._kind(len(self._all), shown)
            self._all.append(self._at[place])
        return self._at[place]

    def begin(self, index: JsonValue, start: Object, shown: Shown) -> Block:
        """The block that begins, a new one also if it has the number of another, or none."""
        place = str(len(self._all) if index is None else index)
        if place in self._at and self._at[place].is_another(start):
            del self._at[place]
        return self.find(place, shown)


def merge_parts(before: JsonValue, pieces: list[Object]) -> JsonValue:
    """Parts of a streamed list with more pieces; texts of a part with the same index and type are joined."""
    parts = [dict(part) for part in to_objects(before)]
    for piece in pieces:
        key = (piece.get("index"), piece.get("type"))
        same = next((part for part in reversed(parts) if (part.get("index"), part.get("type")) == key), None)
        if same is None or (key[0] is None and same is not parts[-1]):
            parts.append(dict(piece))
            continue
        for name, value in piece.items():
            is_piece = name in {"text", "summary", "thinking", "data"} and isinstance(same.get(name), str)
            same[name] = (
                to_text(same[name]) + to_text(value) if is_piece else (value if value is not None else same.get(name))
            )
    return cast("JsonValue", parts)


def call_of(name: object, arguments: object) -> RawCall:
    """A tool call as the model wrote it; arguments that are no text become one."""
    return RawCall(name=replace_surrogates(to_text(name)), arguments=replace_surrogates(arguments_text(arguments)))


def arguments_text(arguments: object) -> str:
    """The arguments of a call as text; ``{}`` without any, or for ``null``."""
    if arguments is None or (isinstance(arguments, str) and arguments.strip() in {"", "null"}):
        return "{}"
    if isinstance(arguments, str) and not is_deeper(arguments, DEEPEST_ARGUMENTS):
        return arguments
    if isinstance(arguments, str):
        return json.dumps(UNREADABLE)
    return json.dumps(UNREADABLE if has_mark(cast("JsonValue", arguments)) else arguments)


def same_json(given: JsonValue) -> JsonValue:
    """The text of an object as ``json.dumps`` writes it, so that whole and streamed arguments are equal.

    Anything but such a text is returned as it is.
    """
    if not isinstance(given, str):
        return given
    try:
        value: Any = json.loads(given)
    except (ValueError, RecursionError):
        return given
    return json.dumps(value) if isinstance(value, dict) else given


def clean(value: JsonValue) -> JsonValue:
    """The value with a replacement for each half of a character."""
    if isinstance(value, dict):
        return {replace_surrogates(name): clean(part) for name, part in value.items()}
    if isinstance(value, list):
        return [clean(part) for part in value]
    return replace_surrogates(value) if isinstance(value, str) else value


def joined(texts: Iterable[object]) -> str:
    """The texts among these values, as one."""
    return "".join(text for text in texts if isinstance(text, str))
