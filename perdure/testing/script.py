"""What a scripted model answers, and which faults come first. Plain values, so that a script may be a JSON file."""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Literal

from pydantic import Field

from perdure.contracts.values import JsonValue, Value


class Fault(Value):
    """Something that goes wrong with one request.

    Attributes:
        kind: ``status``: an error reply. ``hang``: no reply until the client goes. ``close``: the connection is closed
            before the reply. ``reset``: likewise with a TCP reset. ``cut``: the body ends half-way. ``garbage``: a
            200 that is no JSON. ``empty_choices``: a 200 without choices. ``drip``: the reply comes a byte at a time.
            ``delay``: the reply comes late.
        seconds: Between two bytes of ``drip``, or before the reply of ``delay``.
    """

    kind: Literal["status", "hang", "close", "reset", "cut", "garbage", "empty_choices", "drip", "delay"]
    status: int = Field(default=500, ge=200, le=599)
    headers: Mapping[str, str] = {}
    body: JsonValue = None
    seconds: float = Field(default=0.05, ge=0)


class Reply(Value):
    """One answer of the model; ``faults`` come first, one for each request, before the answer itself.

    Attributes:
        text: None is sent as ``null``.
        calls: Pairs of a tool's name and its arguments; text arguments are sent as they are, broken or not.
        call_ids: Ids to send in place of unique ones, for providers that repeat them or leave them empty.
        finish_reason: Sent in place of the one that fits the answer.
        message: Further fields of the message, such as ``refusal`` or ``reasoning_content``.
    """

    text: str | None = None
    calls: tuple[tuple[str, JsonValue], ...] = ()
    call_ids: tuple[str, ...] | None = None
    finish_reason: str | None = None
    message: Mapping[str, JsonValue] = {}
    faults: tuple[Fault, ...] = ()

    def after(self, *faults: Fault) -> "Reply":
        """The same answer, after these faults."""
        return self.model_copy(update={"faults": (*self.faults, *faults)})


class ChatRequest(Value):
    """A request as a script sees it."""

    model: str
    messages: tuple[dict[str, JsonValue], ...]
    tools: tuple[dict[str, JsonValue], ...] = ()

    @property
    def index(self) -> int:
        """The number of answers the conversation already holds: what chooses the reply.

        It depends on the request alone, so a request that is sent again, by a retry or by another worker, gets the
        same answer.
        """
        return sum(message.get("role") == "assistant" for message in self.messages)


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
        error: JsonValue = {
            "error": {"message": f"script exhausted at reply {request.index + 1}", "type": "script_exhausted"}
        }
        return Reply(faults=(Fault(kind="status", status=400, body=error),))


Answers = Script | Callable[[ChatRequest], Reply]
"""A script, or a function that makes the answer; the function must depend on the request alone."""


def say(text: str) -> Reply:
    """A text answer."""
    return Reply(text=text)


def call(*calls: tuple[str, JsonValue], text: str | None = None) -> Reply:
    """An answer that asks for tools."""
    return Reply(text=text, calls=calls)


def completion(request: ChatRequest, reply: Reply) -> dict[str, JsonValue]:
    """The answer as OpenAI's chat completion object; ids and token counts depend on the request alone."""
    digest = hashlib.sha256(json.dumps([*request.messages], sort_keys=True).encode()).hexdigest()[:16]
    ids = reply.call_ids or tuple(f"call_{digest}_{number}" for number in range(len(reply.calls)))
    calls: list[JsonValue] = [
        {
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)},
        }
        for call_id, (name, given) in zip(ids, reply.calls, strict=True)
    ]
    message: dict[str, JsonValue] = {"role": "assistant", "content": reply.text, **reply.message}
    if calls:
        message["tool_calls"] = calls
    read = sum(len(str(message.get("content") or "")) for message in request.messages) // 4 + 1
    written = (len(reply.text or "") + sum(len(json.dumps(given)) for _, given in reply.calls)) // 4 + 1
    return {
        "id": f"chatcmpl-{digest}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": request.model,
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": reply.finish_reason or ("tool_calls" if calls else "stop"),
            }
        ],
        "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
    }
