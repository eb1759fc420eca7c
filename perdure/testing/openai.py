"""OpenAI's chat completions, as the scripted provider speaks them."""

import json
from collections.abc import Mapping
from typing import ClassVar

from perdure.contracts.values import JsonValue
from perdure.testing.script import ChatRequest, ErrorText, KnownError, Reply
from perdure.testing.wires import KnownText, RuleTexts, Wire, call_ids, written_tokens


class OpenAI(Wire):
    """``POST /v1/chat/completions``."""

    path = "/v1/chat/completions"
    known: ClassVar[Mapping[KnownError, KnownText]] = {
        "rate_limited": KnownText(
            status=429,
            message="Rate limit reached for {model} on tokens per min (TPM): Limit 200000, Used 199000, Requested "
            "{tokens}. Please try again in 1s. Visit https://platform.openai.com/account/rate-limits to learn more.",
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
    rules = RuleTexts(
        unanswered="An assistant message with 'tool_calls' must be followed by tool messages responding to each "
        "'tool_call_id'. The following tool_call_ids did not have response messages: {what}",
        orphan="Invalid parameter: messages with role 'tool' must be a response to a preceding message with "
        "'tool_calls' (messages[{at}], tool_call_id {what}).",
        twice="Invalid parameter: duplicate value for the id of a tool call in messages[{at}]: {what}",
        bad_name="Invalid name {what}: string does not match pattern. Expected a string that matches the pattern "
        "'^[a-zA-Z0-9_-]+$'.",
        no_content="Invalid value for 'content' of messages[{at}]: expected a string, got null.",
    )

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
        read, written = request.tokens, written_tokens(reply)
        finish_reason = reply.finish_reason or ("tool_calls" if calls else "stop")
        return {
            "id": f"chatcmpl-{request.digest}",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": request.model,
            "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
            "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
        }

    def without_answer(self, answer: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """A completion without choices."""
        return {**answer, "choices": []}

    def is_empty(self, message: Mapping[str, JsonValue]) -> bool:
        """Only an answer with calls may be without."""
        return message.get("content") is None and not message.get("tool_calls")

    def error(self, status: int, text: ErrorText) -> dict[str, JsonValue]:
        """Message, type and code."""
        del status  # stands in the reply's head only
        return {"error": {"message": text.message, "type": text.type, "param": None, "code": text.code}}
