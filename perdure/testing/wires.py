"""The wire formats of the scripted provider, OpenAI's and Anthropic's: requests in, answers and errors out."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from pydantic import TypeAdapter

from perdure.contracts.values import JsonValue, Value
from perdure.testing.script import ChatRequest, ErrorText, Fault, KnownError, Reply
from perdure.testing.streams import Frame, anthropic_frames, openai_frames


class KnownText(ErrorText):
    """The status and words of a known error; ``{model}``, ``{key}``, ``{tokens}`` and others are filled in."""

    status: int


class Wire(ABC):
    """One wire format, as its provider documents it.

    Args:
        provider: The provider by whose rules requests are refused; None refuses none. The default is the wire's own.
    """

    name: ClassVar[str]
    owner: ClassVar[str]
    path: ClassVar[str]
    known: ClassVar[Mapping[KnownError, KnownText]]

    def __init__(self, provider: str | None = "") -> None:
        self.provider = self.owner if provider == "" else provider

    @abstractmethod
    def request(self, body: bytes) -> ChatRequest:
        """The request of a body.

        Raises:
            ValueError: The body is not a request of this wire.
        """

    @abstractmethod
    def answer(self, request: ChatRequest, reply: Reply) -> dict[str, JsonValue]:
        """The answer as an object; ids and token counts depend on the request alone."""

    @abstractmethod
    def frames(self, request: ChatRequest, answer: dict[str, JsonValue], reply: Reply) -> Iterator[Frame]:
        """The answer as the events of a stream."""

    @abstractmethod
    def without_answer(self, answer: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """The same object with nothing in it."""

    @abstractmethod
    def error(self, status: int, text: ErrorText) -> dict[str, JsonValue]:
        """An error reply."""

    def refusal(self, fault: Fault, filled: Mapping[str, object]) -> tuple[int, JsonValue]:
        """Status and body of an error reply, with the words of a known error filled in."""
        if fault.known is not None:
            text = self.known[fault.known]
            said = ErrorText(message=text.message.format(**filled), type=text.type, code=text.code)
            return fault.sent_as or text.status, self.error(text.status, said)
        said = fault.error or ErrorText(message=f"scripted status {fault.status}", type="scripted")
        return fault.sent_as or fault.status, fault.body or self.error(fault.status, said)


def call_ids(request: ChatRequest, reply: Reply, prefix: str) -> tuple[str, ...]:
    """The ids of the reply's calls, or those that the script sets."""
    own = tuple(f"{prefix}_{request.digest}_{number}" for number in range(len(reply.calls)))
    return own if reply.call_ids is None else reply.call_ids


def count_tokens(reply: Reply) -> int:
    """The size of the answer by the provider's count."""
    return (len(reply.text or "") + sum(len(json.dumps(given)) for _, given in reply.calls)) // 4 + 1


def mask_key(headers: Mapping[str, str]) -> str:
    """The key of a request as OpenAI repeats it: its two ends, and stars between."""
    key = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
    return f"{key[:8]}{'*' * max(4, len(key) - 12)}{key[-4:]}"


class OpenAI(Wire):
    """``POST /v1/chat/completions``."""

    name, owner = "chat", "openai"
    path = "/v1/chat/completions"
    known: ClassVar[Mapping[KnownError, KnownText]] = {
        "rate_limited": KnownText(
            status=429,
            message="Rate limit reached for {model} on tokens per min (TPM): Limit 200000, Used 199000, Requested "
            "{tokens}. Please try again in 1ms. Visit https://platform.openai.com/account/rate-limits to learn more.",
            type="tokens",
            code="rate_limit_exceeded",
        ),
        "overloaded": KnownText(
            status=503,
            message="The engine is currently overloaded, please try again later.",
            type="server_error",
        ),
        "quota_exhausted": KnownText(
            status=429,
            message="You exceeded your current quota, please check your plan and billing details.",
            type="insufficient_quota",
            code="insufficient_quota",
        ),
        "context_overflow": KnownText(
            status=400,
            message="This model's maximum context length is {window} tokens. However, your messages resulted in "
            "{tokens} tokens. Please reduce the length of the messages.",
            type="invalid_request_error",
            code="context_length_exceeded",
        ),
        "too_many_tools": KnownText(
            status=400,
            message="Invalid 'tools': array too long. Expected an array with maximum length {max_tools}, but got an "
            "array with length {tools} instead.",
            type="invalid_request_error",
            code="array_above_max_length",
        ),
        "policy_violation": KnownText(
            status=400,
            message="Your request was rejected as a result of our safety system.",
            type="invalid_request_error",
            code="content_policy_violation",
        ),
        "bad_key": KnownText(
            status=401,
            message="Incorrect API key provided: {key}. You can find your API key at "
            "https://platform.openai.com/account/api-keys.",
            type="invalid_request_error",
            code="invalid_api_key",
        ),
        "unknown_model": KnownText(
            status=404,
            message="The model `{model}` does not exist or you do not have access to it.",
            type="invalid_request_error",
            code="model_not_found",
        ),
    }

    def request(self, body: bytes) -> ChatRequest:
        """The request as it came."""
        return ChatRequest.model_validate_json(body)

    def answer(self, request: ChatRequest, reply: Reply) -> dict[str, JsonValue]:
        """A chat completion object."""
        calls: list[JsonValue] = [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)},
            }
            for call_id, (name, given) in zip(call_ids(request, reply, "call"), reply.calls, strict=True)
        ]
        message: dict[str, JsonValue] = {"role": "assistant", "content": reply.text, **reply.message}
        if calls:
            message["tool_calls"] = calls
        read, written = request.tokens, count_tokens(reply)
        finish_reason = reply.finish_reason or ("tool_calls" if calls else "stop")
        return {
            "id": f"chatcmpl-{request.digest}",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": request.model,
            "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
            "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
        }

    def frames(self, request: ChatRequest, answer: dict[str, JsonValue], reply: Reply) -> Iterator[Frame]:
        """Chunks; usage comes only if the request asks for it."""
        return openai_frames(answer, reply, with_usage=request.asks_for_usage)

    def without_answer(self, answer: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """A completion without choices."""
        return {**answer, "choices": []}

    def error(self, status: int, text: ErrorText) -> dict[str, JsonValue]:
        """Message, type and code."""
        del status  # stands in the reply's head only
        return {"error": {"message": text.message, "type": text.type, "param": None, "code": text.code}}


STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
"""By OpenAI's finish reason; any other is sent as it is."""

ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""By HTTP status; any other of 400 to 499 is ``invalid_request_error``, of 500 and up ``api_error``."""


_Blocks = list[dict[str, JsonValue]]


class _Message(Value):
    role: Literal["user", "assistant"]
    content: str | _Blocks


class _Request(Value):
    model: str
    max_tokens: int
    messages: tuple[_Message, ...]
    system: str | _Blocks = ""
    tools: tuple[dict[str, JsonValue], ...] = ()
    stream: bool = False


_CONTENT: TypeAdapter[str | _Blocks | None] = TypeAdapter(str | _Blocks | None)


class Anthropic(Wire):
    """``POST /v1/messages``."""

    name, owner = "messages", "anthropic"
    path = "/v1/messages"
    known: ClassVar[Mapping[KnownError, KnownText]] = {
        "rate_limited": KnownText(
            status=429,
            message="This request would exceed your organization's rate limit of 50,000 input tokens per minute.",
            type="rate_limit_error",
        ),
        "overloaded": KnownText(status=529, message="Overloaded", type="overloaded_error"),
        "quota_exhausted": KnownText(
            status=400,
            message="Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to "
            "upgrade or purchase credits.",
            type="invalid_request_error",
        ),
        "context_overflow": KnownText(
            status=400,
            message="prompt is too long: {tokens} tokens > {window} maximum",
            type="invalid_request_error",
        ),
        "too_many_tools": KnownText(
            status=400,
            message="tools: List should have at most {max_tools} items after validation, not {tools}",
            type="invalid_request_error",
        ),
        "policy_violation": KnownText(
            status=400, message="Output blocked by content filtering policy", type="invalid_request_error"
        ),
        "bad_key": KnownText(status=401, message="invalid x-api-key", type="authentication_error"),
        "unknown_model": KnownText(status=404, message="model: {model}", type="not_found_error"),
    }

    def request(self, body: bytes) -> ChatRequest:
        """The request in OpenAI's form."""
        asked = _Request.model_validate_json(body)
        system: _Blocks = [{"role": "system", "content": _text(asked.system)}] if asked.system else []
        return ChatRequest(
            model=asked.model,
            stream=asked.stream,
            messages=(*system, *(part for message in asked.messages for part in _messages(message))),
            tools=tuple(
                {
                    "type": "function",
                    "function": {
                        "name": tool.get("name"),
                        "description": tool.get("description", ""),
                        "parameters": tool.get("input_schema", {}),
                    },
                }
                for tool in asked.tools
            ),
        )

    def answer(self, request: ChatRequest, reply: Reply) -> dict[str, JsonValue]:
        """A message object. Arguments that are no JSON object are sent as a text, as they came."""
        refused = reply.message.get("refusal")
        text = refused if isinstance(refused, str) else reply.text
        content: list[JsonValue] = []
        thinking = reply.message.get("thinking_blocks")
        if isinstance(thinking, list):
            content += thinking
        if text:
            content.append({"type": "text", "text": text})
        content += [
            {"type": "tool_use", "id": call_id, "name": name, "input": _input(given)}
            for call_id, (name, given) in zip(call_ids(request, reply, "toolu"), reply.calls, strict=True)
        ]
        finish_reason = reply.finish_reason or ("tool_calls" if reply.calls else "stop")
        return {
            "id": f"msg_{request.digest}",
            "type": "message",
            "role": "assistant",
            "model": request.model,
            "content": content,
            "stop_reason": "refusal" if refused else STOP_REASONS.get(finish_reason, finish_reason),
            "stop_sequence": None,
            "usage": {"input_tokens": request.tokens, "output_tokens": count_tokens(reply)},
        }

    def frames(self, request: ChatRequest, answer: dict[str, JsonValue], reply: Reply) -> Iterator[Frame]:
        """Events of a message and its blocks."""
        del request
        return anthropic_frames(answer, reply)

    def without_answer(self, answer: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """A message without content."""
        return {**answer, "content": []}

    def error(self, status: int, text: ErrorText) -> dict[str, JsonValue]:
        """Type by the status, and message."""
        kind = ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": text.message}}


def _input(given: JsonValue) -> JsonValue:
    if not isinstance(given, str):
        return given
    try:
        value: JsonValue = json.loads(given)
    except ValueError:
        return given
    return value


def _text(content: str | _Blocks | None) -> str:
    """The text of a content: a string, or the texts of its blocks."""
    if isinstance(content, list):
        return "".join(str(block.get("text", "")) for block in content)
    return content or ""


def _messages(message: _Message) -> Iterator[dict[str, JsonValue]]:
    """The messages of one: results first come first, and each text of the user is a message of its own.

    litellm puts what the user says in a row into one message; a script sees it as it was said.
    """
    content = message.content
    blocks: _Blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if message.role == "assistant":
        yield _assistant(blocks)
        return
    for block in blocks:
        if block.get("type") == "tool_result":
            result = _text(_CONTENT.validate_python(block.get("content")))
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": result}
        elif block.get("type") == "text":
            yield {"role": "user", "content": block.get("text")}
        else:
            yield {"role": "user", "content": [dict(block)]}


def _assistant(blocks: _Blocks) -> dict[str, JsonValue]:
    texts = [str(block.get("text", "")) for block in blocks if block.get("type") == "text"]
    message: dict[str, JsonValue] = {"role": "assistant", "content": "".join(texts) if texts else None}
    calls: list[JsonValue] = [
        {
            "id": block.get("id"),
            "type": "function",
            "function": {"name": block.get("name"), "arguments": json.dumps(block.get("input"))},
        }
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    if calls:
        message["tool_calls"] = calls
    thinking: list[JsonValue] = [block for block in blocks if str(block.get("type", "")).endswith("thinking")]
    if thinking:
        message["thinking_blocks"] = thinking
    return message
