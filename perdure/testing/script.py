"""Script of a model: its answers, and the faults that come first. Plain values, so that a script may be a JSON file."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Literal

from pydantic import Field, ValidationError

from perdure.contracts.agents import ToolMode
from perdure.contracts.values import JsonValue, Value, replace
from perdure.llm.text_tools import write_calls

KnownError = Literal[
    "rate_limited",
    "quota_exhausted",
    "context_overflow",
    "too_many_tools",
    "policy_violation",
    "bad_key",
    "unknown_model",
    "overloaded",
]
"""Errors of which each provider has its own status and words."""


class ErrorText(Value):
    """Text of an error reply; each wire puts it in its own form, and one without types or codes leaves them out."""

    message: str
    type: str
    code: str | None = None


class Fault(Value):
    """Something that goes wrong with one request.

    Attributes:
        kind: ``status``: an error reply. ``answer``: another answer in place of the script's. ``hang``: no reply until
            the client goes. ``close``: the connection is closed before the reply. ``reset``: likewise with a TCP reset.
            ``cut``, ``reset_in_body``, ``hang_in_body``: likewise half-way through the body. ``garbage``: a 200 that
            is not JSON. ``empty_choices``: a 200 without an answer in it. ``drip``: the reply comes a byte at a time.
            ``delay``: the reply comes late. Of a request that asks for a stream, and else the answer as it is:
            ``stream_cut``: the connection breaks after ``after`` pieces. ``stream_stall``: silence from there on.
            ``stream_without_usage``, ``stream_without_end``: all pieces, and an end in good order without what was
            counted, or without the reason why it ends.
        status: Of an error reply; one that is ``known`` has its own.
        sent_as: The status that the reply is sent with in place of its own.
        body: Sent as it is; otherwise the wire writes one, of ``known`` or of ``error``.
        seconds: Between two bytes of ``drip``, or before the reply of ``delay``.
        after: Pieces of the answer that a broken stream has sent.
        reply: The answer of ``answer``.
    """

    kind: Literal[
        "status",
        "answer",
        "hang",
        "close",
        "reset",
        "cut",
        "reset_in_body",
        "hang_in_body",
        "garbage",
        "empty_choices",
        "drip",
        "delay",
        "stream_cut",
        "stream_stall",
        "stream_without_usage",
        "stream_without_end",
    ]
    status: int = Field(default=500, ge=200, le=599)
    sent_as: int | None = Field(default=None, ge=200, le=599)
    headers: Mapping[str, str] = {}
    body: JsonValue = None
    error: ErrorText | None = None
    known: KnownError | None = None
    seconds: float = Field(default=0.05, ge=0)
    after: int = Field(default=0, ge=0)
    reply: "Reply | None" = None


class Reply(Value):
    """One answer of the model; ``faults`` come first, one for each request, before the answer itself.

    Attributes:
        text: None is sent as ``null``.
        calls: Pairs of a tool's name and its arguments; text arguments are sent as they are, broken or not.
        call_ids: Ids to send in place of unique ones, for providers that repeat them or leave them empty.
        finish_reason: OpenAI's word for why the answer ends, in place of the one that fits it.
        message: Further fields of OpenAI's message, such as ``refusal`` or ``thinking_blocks``.
        pieces: The text in the pieces in which a stream sends it, in place of its words.
    """

    text: str | None = None
    calls: tuple[tuple[str, JsonValue], ...] = ()
    call_ids: tuple[str, ...] | None = None
    finish_reason: str | None = None
    message: Mapping[str, JsonValue] = {}
    pieces: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()

    def after(self, *faults: Fault) -> "Reply":
        """The same answer, after these faults."""
        return replace(self, faults=(*self.faults, *faults))


Fault.model_rebuild()


class ChatRequest(Value):
    """A request as a script sees it: in OpenAI's form, whichever wire it came over."""

    model: str
    messages: tuple[dict[str, JsonValue], ...]
    tools: tuple[dict[str, JsonValue], ...] = ()
    response_format: JsonValue = None
    tool_choice: JsonValue = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = None
    stream: bool = False
    stream_options: JsonValue = None

    @property
    def asks_for_usage(self) -> bool:
        """Whether a stream is to say at its end what was counted, on OpenAI's wire."""
        return isinstance(self.stream_options, dict) and self.stream_options.get("include_usage") is True

    @property
    def system(self) -> str:
        """The system prompt, where an agent's tools stand if its tool mode is not the provider's."""
        return "\n\n".join(str(message.get("content")) for message in self.messages if message.get("role") == "system")

    @property
    def index(self) -> int:
        """The number of answers the conversation already holds: what chooses the reply.

        It depends on the request alone, so a request that is sent again, by a retry or by another worker, gets the
        same answer.
        """
        return sum(message.get("role") == "assistant" for message in self.messages)

    @cached_property
    def digest(self) -> str:
        """Digest that ids are made of: the same for the same messages."""
        return hashlib.sha256(json.dumps([*self.messages], sort_keys=True).encode()).hexdigest()[:16]

    @property
    def tokens(self) -> int:
        """The size of the prompt by the provider's count: four characters are a token, an image or file is 1,000."""
        return sum(_size(message.get("content")) for message in self.messages) // 4 + 1


def _size(content: JsonValue) -> int:
    if not isinstance(content, list):
        return len(str(content or ""))
    texts = [str(part["text"]) for part in content if isinstance(part, dict) and "text" in part]
    return sum(map(len, texts)) + 4_000 * (len(content) - len(texts))


class Script(Value):
    """The answers of a model, in order; when they are used up, the last one is repeated if ``repeat`` says so."""

    replies: tuple[Reply, ...] = ()
    repeat: bool = False

    def reply(self, request: ChatRequest) -> Reply:
        """The answer to a request."""
        if request.index < len(self.replies):
            return self.replies[request.index]
        if self.repeat and self.replies:
            return self.replies[-1]
        exhausted = ErrorText(message=f"script exhausted at reply {request.index + 1}", type="script_exhausted")
        return Reply(faults=(Fault(kind="status", status=400, error=exhausted),))


Answers = Script | Sequence[Reply] | Callable[[ChatRequest], Reply]
"""A script, its replies, or a function that makes the reply; the function must depend on the request alone."""


def read_answers(answers: Answers) -> Script | Callable[[ChatRequest], Reply]:
    """Replies as a script; a script and a function as they are.

    Raises:
        TypeError: They are neither.
    """
    if isinstance(answers, Script) or callable(answers):
        return answers
    try:
        return Script(replies=tuple(answers))
    except (TypeError, ValidationError) as error:
        msg = f"a script is a list of replies (say, call), a Script or a function of the request, not {answers!r}"
        raise TypeError(msg) from error


def say(text: str, *, pieces: Sequence[str] = ()) -> Reply:
    """A text answer; a stream sends it in these pieces, if they make it up, or else word by word."""
    return Reply(text=text, pieces=tuple(pieces))


def call(*calls: tuple[str, JsonValue], text: str | None = None) -> Reply:
    """An answer that asks for tools."""
    return Reply(text=text, calls=calls)


def call_in_text(mode: ToolMode, *calls: tuple[str, dict[str, JsonValue]], text: str = "") -> Reply:
    """The same of a model that writes its calls into its answer, as an agent of this ``tool_mode`` is told to."""
    if mode in {"auto", "api"}:
        return call(*calls, text=text or None)
    said = write_calls(mode, calls, {})
    return Reply(text=f"{text}\n\n{said}" if text else said)
