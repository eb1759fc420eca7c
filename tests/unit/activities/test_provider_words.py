"""What providers say when they refuse, as their replies have it: the code, on both wires, after one request."""

from typing import NamedTuple

import pytest

from perdure.contracts.errors import ReasonCode
from perdure.contracts.values import JsonValue
from perdure.llm.failures import class_of, classify
from perdure.testing import faults
from tests.unit.activities.calls import Way, met, take

R = ReasonCode


class Said(NamedTuple):
    """A refusal: its status, its body, and what it is."""

    status: int
    body: JsonValue
    code: ReasonCode


def error(message: str, **fields: JsonValue) -> JsonValue:
    return {"error": {"message": message, **fields}}


LONG_PROMPTS: tuple[tuple[str, int, JsonValue], ...] = (
    (
        "xAI",
        400,
        {
            "code": "invalid-argument",
            "error": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        },
    ),
    (
        "DashScope",
        400,
        error(
            "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]",
            type="invalid_request_error",
            code="invalid_parameter_error",
        ),
    ),
    ("Copilot", 400, error("prompt token count of 138898 exceeds the limit of 64000", code="")),
    ("Copilot's code", 400, error("no", code="model_max_prompt_tokens_exceeded")),
    (
        "Poolside",
        400,
        error("Provider returned error: Input length 9 exceeds the maximum allowed input length of 8 tokens."),
    ),
    ("Vertex", 400, error("The input token count is 32825 but the model only supports up to 32768", code=400)),
    ("Gemini", 400, error("The input token count (5) exceeds the maximum number of tokens allowed (4).", code=400)),
    (
        "Gemini, OpenAI's path",
        400,
        [error("The input exceeds the maximum number of tokens allowed (4).", code=400)],
    ),
    ("Kimi", 400, error("Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)")),
    ("Ollama", 400, {"error": "the input length exceeds the context length"}),
    ("Ollama's cloud", 400, error("prompt too long; exceeded max context length by 65590 tokens")),
    (
        "LM Studio",
        400,
        {"error": "The number of tokens to keep from the initial prompt is greater than the context length"},
    ),
    ("LM Studio, loaded", 400, {"error": "the model is loaded with context length of only 4096 tokens, which"}),
    ("LM Studio, MLX", 400, {"error": "Context size has been exceeded."}),
    (
        "vLLM",
        400,
        {
            "object": "error",
            "message": "The decoder prompt (length 5951) is longer than the maximum model length of 4096.",
            "type": "BadRequestError",
            "code": 400,
        },
    ),
    ("vLLM, short", 400, error("the model's context length is only 64 tokens", type="BadRequestError", code=400)),
    ("GLM at a hub", 400, error("tokens in request more than max tokens allowed", code="1210")),
    ("Z.ai", 400, error("Prompt exceeds max length", code="1261")),
    ("Z.ai's code", 400, error("no", code="1261")),
    ("DS4", 400, error("Prompt has 256468 tokens, but the configured context size is 131072 tokens")),
    ("MiniMax", 400, error("invalid params, context window exceeds limit (2013)")),
    ("OpenAI", 400, error("Your input exceeds the context window of this model. Please adjust your input.")),
    ("Together", 400, error("The input (9 tokens) is longer than the model's context length (8 tokens).")),
    ("llama.cpp", 400, error("try it", code=400, type="exceed_context_size_error", n_ctx=256)),
    ("llama.cpp's words", 500, error("the request exceeds the available context size, try increasing it.")),
    ("Groq", 400, error("Please reduce the length of the messages or completion.", type="invalid_request_error")),
    (
        "Groq, of a minute",
        413,
        error(
            "Request too large for model `m` on tokens per minute (TPM): Limit 12000, Requested 14137",
            type="tokens",
            code="rate_limit_exceeded",
        ),
    ),
    (
        "OpenAI, of a minute",
        429,
        error("Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 342389.", type="tokens"),
    ),
    ("GitHub Models", 413, error("Request body too large for gpt-4o model.", code="tokens_limit_reached")),
    (
        "Anthropic",
        413,
        {"type": "error", "error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}},
    ),
    (
        "Anthropic, with the answer",
        400,
        error("input length and `max_tokens` exceed context limit: 174167 + 64000 > 200000, decrease either"),
    ),
    ("nginx", 413, "<html><head><title>413 Request Entity Too Large</title></head></html>"),
    ("NIM", 400, error("Input length 600 exceeds maximum allowed token size 512")),
    (
        "watsonx",
        400,
        {"errors": [{"code": "x", "message": "the number of input tokens 9 cannot exceed the total tokens limit 8"}]},
    ),
    ("SambaNova", 400, error("The maximum context length of M is 32768. However, it will take 39732 tokens.")),
    (
        "OpenRouter",
        400,
        error(
            "Provider returned error",
            code=400,
            metadata={"raw": '{"error":{"message":"prompt is too long: 9 tokens > 8 maximum"}}'},
        ),
    ),
)
CONTEXT = {name: Said(status, body, R.LLM_CONTEXT_OVERFLOW) for name, status, body in LONG_PROMPTS}

OTHERS: dict[str, Said] = {
    # An account that is used up.
    "Kimi's code": Said(429, error("no", type="exceeded_current_quota_error"), R.LLM_QUOTA_EXHAUSTED),
    "Kimi": Said(
        429, error("Your account is suspended due to insufficient balance, please recharge"), R.LLM_QUOTA_EXHAUSTED
    ),
    "xAI, credits": Said(
        429,
        {
            "code": "x",
            "error": "Your team has either used all available credits or reached its monthly spending limit.",
        },
        R.LLM_QUOTA_EXHAUSTED,
    ),
    "xAI, no credits yet": Said(
        403,
        {
            "code": "The caller does not have permission to execute the specified operation",
            "error": "Your newly created team doesn't have any credits yet.",
        },
        R.LLM_QUOTA_EXHAUSTED,
    ),
    "xAI, out of credits": Said(403, {"error": "You have run out of credits or need"}, R.LLM_QUOTA_EXHAUSTED),
    "Zhipu, empty": Said(429, error("余额不足或无可用资源包,请充值。", code="1113"), R.LLM_QUOTA_EXHAUSTED),
    "Zhipu, month": Said(429, error("Weekly/Monthly Limit Exhausted.", code="1310"), R.LLM_QUOTA_EXHAUSTED),
    "OpenRouter, key limit": Said(403, error("Key limit exceeded (total limit).", code=403), R.LLM_QUOTA_EXHAUSTED),
    "Anthropic, limits": Said(
        400, error("You have reached your specified API usage limits. You will", type="x"), R.LLM_QUOTA_EXHAUSTED
    ),
    "Groq, spend": Said(400, error("no", code="blocked_api_access"), R.LLM_QUOTA_EXHAUSTED),
    "DashScope, arrears": Said(400, error("Access denied", type="Arrearage", code="Arrearage"), R.LLM_QUOTA_EXHAUSTED),
    # A policy.
    "OpenAI, flagged": Said(
        400,
        error("Invalid prompt: your prompt was flagged as potentially violating our usage policy.", code="x"),
        R.LLM_CONTENT_FILTERED,
    ),
    "DashScope, inspected": Said(400, error("Input data", code="data_inspection_failed"), R.LLM_CONTENT_FILTERED),
    "DashScope's own path": Said(400, {"code": "DataInspectionFailed", "message": "no"}, R.LLM_CONTENT_FILTERED),
    "DashScope's words": Said(400, error("Output data may contain inappropriate content."), R.LLM_CONTENT_FILTERED),
    "DeepSeek, risk": Said(400, error("Content Exists Risk", code="invalid_request_error"), R.LLM_CONTENT_FILTERED),
    "DeepSeek, older": Said(400, {"detail": "Content Exists Risk"}, R.LLM_CONTENT_FILTERED),
    "Zhipu, sensitive": Said(400, error("系统检测到", code="1301"), R.LLM_CONTENT_FILTERED),
    "OpenRouter, flagged": Said(
        403, error('"m" requires moderation. Your input was flagged for "violence".', code=403), R.LLM_CONTENT_FILTERED
    ),
    "xAI, guidelines": Said(
        403,
        {"code": "The caller does not have permission", "error": "Content violates usage guidelines. Failed check: X"},
        R.LLM_CONTENT_FILTERED,
    ),
    # A key that is refused with another status than 401.
    "Gemini, key": Said(400, error("API key not valid. Please pass a valid API key.", code=400), R.LLM_AUTH_ERROR),
    "Gemini, reason": Said(
        400,
        error("no", code=400, status="INVALID_ARGUMENT", details=[{"reason": "API_KEY_INVALID"}]),
        R.LLM_AUTH_ERROR,
    ),
    "xAI, key": Said(400, {"code": "x", "error": "Incorrect API key provided: na***ys. You can"}, R.LLM_AUTH_ERROR),
    # The false friends: what is wrong is the request.
    "context field": Said(400, error("context window is no field"), R.LLM_REQUEST_ERROR),
    "tokens field": Said(400, error("too many tokens in max_completion_tokens"), R.LLM_REQUEST_ERROR),
    "completion tokens": Said(
        400, error("max_tokens is too large: 50000. This model supports 16384"), R.LLM_REQUEST_ERROR
    ),
    "window of a value": Said(
        400, error("the maximum value for max_tokens is less than the context_window"), R.LLM_REQUEST_ERROR
    ),
    "throttling": Said(400, error("ThrottlingException: Too many tokens, please wait"), R.LLM_REQUEST_ERROR),
    "key parameter": Said(400, error("the tool parameter api_key is required"), R.LLM_REQUEST_ERROR),
    "key field": Said(422, error("missing required field api_key"), R.LLM_REQUEST_ERROR),
    "filter value": Said(400, error("content_filter is no valid finish"), R.LLM_REQUEST_ERROR),
    "billing address": Said(400, error("check your billing address"), R.LLM_REQUEST_ERROR),
    "rate limit field": Said(400, error("the field rate limit is not allowed here"), R.LLM_REQUEST_ERROR),
    "policy behind a 401": Said(401, error("prompt is too long"), R.LLM_AUTH_ERROR),
}

UNKNOWN_MODELS: dict[str, JsonValue] = {
    "OpenRouter": error("nobody/nothing is not a valid model ID", code=400),
    "DeepSeek": error("Model Not Exist", code="invalid_request_error"),
    "Mistral": {"object": "error", "message": "Invalid model: x", "type": "invalid_model", "code": "1500"},
    "Groq": error("The model `m` has been decommissioned and is no longer supported.", code="x"),
    "Groq's code": error("no", code="model_decommissioned"),
    "OpenAI's code": error("no", code="model_not_found"),
    "Z.ai": error("Model does not exist, please check the model code", code="1211"),
}


@pytest.fixture(params=[Way.HANDLER, Way.ANTHROPIC])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Way:
    taken: Way = request.param
    take(taken, monkeypatch)
    return taken


@pytest.mark.parametrize("name", CONTEXT)
async def test_a_prompt_that_is_too_long_is_told_from_other_bad_requests(way: Way, name: str) -> None:
    """S-41: whatever the provider calls it, so that the conversation is summarised."""
    said = CONTEXT[name]
    facts, requests = await met(way, faults.status(said.status, body=said.body))
    assert (classify(facts), facts.status, requests) == (said.code, said.status, 1)


@pytest.mark.parametrize("name", OTHERS)
async def test_a_refusal_has_the_code_of_its_cause_and_the_replys_own_status(way: Way, name: str) -> None:
    """S-02 S-13: by the provider's code first, then by its words; words alone make no bad request another failure."""
    said = OTHERS[name]
    facts, requests = await met(way, faults.status(said.status, body=said.body))
    assert (classify(facts), facts.status, requests) == (said.code, said.status, 1)


@pytest.mark.parametrize("name", UNKNOWN_MODELS)
async def test_a_model_that_is_not_there_is_known_also_from_a_400(way: Way, name: str) -> None:
    """S-02: so that a fallback is asked."""
    facts, _ = await met(way, faults.status(400, body=UNKNOWN_MODELS[name]))
    assert (classify(facts), class_of(facts), facts.status) == (R.LLM_REQUEST_ERROR, "NotFoundError", 400)
