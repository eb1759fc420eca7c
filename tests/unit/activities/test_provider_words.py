"""What providers say when they refuse, as their replies have it: the code, on both wires, after one request."""

from typing import NamedTuple

import pytest

from perdure.contracts.errors import ReasonCode
from perdure.contracts.values import JsonValue
from perdure.llm.failures import class_of, classify
from perdure.testing import faults
from tests.unit.activities.calls import Way, met

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
    ("a limit of the model's", 400, error("Your request exceeded the model's token limit", type="x")),
    ("a limit in words", 400, error("This model only supports up to 32,768 tokens, and your request has 40,000")),
    (
        "Vertex, newer",
        400,
        error("Unable to submit request because the input token count is 9 but model only supports up to 8"),
    ),
    ("Nova", 400, {"message": "Input Tokens Exceeded: Number of input tokens exceeds maximum length."}),
    ("AI21", 422, {"detail": "Prompt has too many tokens"}),
    (
        "SambaNova, sequence",
        400,
        error("The prompt is 20000 tokens long, but the maximum supported sequence length is just 4096!"),
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
    "Groq, spend in words": Said(
        400, error("The spend limit of your organization has been reached", type="x"), R.LLM_QUOTA_EXHAUSTED
    ),
    "Groq, spend at once": Said(
        429, error("Your organization reached its spending cap.", type="x"), R.LLM_QUOTA_EXHAUSTED
    ),
    "Fireworks": Said(
        412,
        error("Account x is suspended, possibly due to reaching the monthly spending limit or failure to pay"),
        R.LLM_QUOTA_EXHAUSTED,
    ),
    "Zhipu, without its code": Said(429, error("余额不足或无可用资源包,请充值。", type="x"), R.LLM_QUOTA_EXHAUSTED),
    "of this hour": Said(429, error("You hit your usage limit. Try again in 5 hours."), R.LLM_RATE_LIMITED),
    # A policy.
    "OpenAI, safety": Said(
        400,
        error("Your request was rejected as a result of our safety system: content_policy_violation", type="x"),
        R.LLM_CONTENT_FILTERED,
    ),
    "OpenAI, by its code": Said(
        400, error("Your request was rejected (content_policy_violation)", type="x"), R.LLM_CONTENT_FILTERED
    ),
    "Vertex, practices": Said(
        400,
        error("The prompt contains sensitive words that violate Google's Responsible AI practices.", code=400),
        R.LLM_CONTENT_FILTERED,
    ),
    "MiniMax, sensitive": Said(400, error("input new_sensitive (1026)", type="x"), R.LLM_CONTENT_FILTERED),
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
    "policy value": Said(400, error("content_policy_violation is no valid finish"), R.LLM_REQUEST_ERROR),
    "policy field": Said(400, error("rejected: safety_settings is no field"), R.LLM_REQUEST_ERROR),
    "limit of the answer": Said(400, error("max_tokens exceeds the model's token limit"), R.LLM_REQUEST_ERROR),
    "tools of a model": Said(400, error("the model is not supported with tools"), R.LLM_REQUEST_ERROR),
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


IN_A_200: dict[str, tuple[JsonValue, ReasonCode, int | None, str]] = {
    # No other field of an answer is there, so what is there is the error.
    "detail": ({"detail": "Rate limit exceeded, slow down"}, R.LLM_RATE_LIMITED, None, "slow down"),
    "message": ({"message": "Your account has insufficient balance"}, R.LLM_QUOTA_EXHAUSTED, None, "balance"),
    "words": ({"error": "Incorrect API key provided: x"}, R.LLM_AUTH_ERROR, None, "Incorrect API key"),
    "words and a status": ({"error": "Go away", "code": 429}, R.LLM_RATE_LIMITED, 429, "Go away"),
    "name and words": (
        {"error": "context_length_exceeded", "error_description": "No"},
        R.LLM_CONTEXT_OVERFLOW,
        None,
        "No [context_length_exceeded]",
    ),
    "details": (
        {"detail": [{"loc": ["body", "messages"], "msg": "field required", "type": "value_error.missing"}]},
        R.LLM_REQUEST_ERROR,
        422,
        "body.messages: field required",
    ),
    "details in words": ({"detail": ["no such field"]}, R.LLM_REQUEST_ERROR, 422, "no such field"),
    "errors": ({"errors": [{"message": "prompt is too long", "code": "x"}]}, R.LLM_CONTEXT_OVERFLOW, None, "too long"),
    "MiniMax": (
        {"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}},
        R.LLM_QUOTA_EXHAUSTED,
        None,
        "insufficient balance",
    ),
    "Zhipu": ({"msg": "nothing there", "code": "1211"}, R.LLM_REQUEST_ERROR, None, "nothing there"),
    "problem": ({"title": "Slower", "status": 429}, R.LLM_RATE_LIMITED, 429, "Slower"),
    "flag": ({"error": True, "message": "Content Exists Risk"}, R.LLM_CONTENT_FILTERED, None, "Risk"),
    "vLLM": ({"object": "error", "message": "no", "code": 404}, R.LLM_REQUEST_ERROR, 404, "no"),
    "list": ([{"error": {"code": 429, "message": "quota"}}], R.LLM_RATE_LIMITED, 429, "quota"),
    "error without a message": ({"error": {"detail": "no such field", "code": "400"}}, R.LLM_REQUEST_ERROR, 400, "no"),
    "unknown": ({"detail": "something odd"}, R.LLM_NETWORK_ERROR, None, "something odd"),
    "NestJS": ({"message": ["model must be a text"], "statusCode": 400}, R.LLM_REQUEST_ERROR, 400, "must be a text"),
    "NestJS with a title": (
        {"message": ["model must be a text"], "statusCode": 400, "error": "Bad Request"},
        R.LLM_REQUEST_ERROR,
        400,
        "must be a text",
    ),
    "Rails": ({"errors": {"model": ["is unknown", "is short"]}}, R.LLM_REQUEST_ERROR, 422, "model: is unknown"),
    "ASP.NET": (
        {"title": "Errors occurred.", "status": 400, "errors": {"model": ["is unknown"]}},
        R.LLM_REQUEST_ERROR,
        400,
        "model: is unknown",
    ),
    "Django": ({"non_field_errors": ["no such field"]}, R.LLM_REQUEST_ERROR, 422, "no such field"),
    "errors in words": ({"errors": ["too short", "too odd"]}, R.LLM_REQUEST_ERROR, 422, "too short; too odd"),
    "error as a list": ({"error": ["no such field"]}, R.LLM_REQUEST_ERROR, 422, "no such field"),
    "Apigee": (
        {"fault": {"faultstring": "Rate limit exceeded", "detail": {"errorcode": "policies.ratelimit"}}},
        R.LLM_RATE_LIMITED,
        None,
        "Rate limit exceeded",
    ),
    "AWS in XML's words": (
        {"Error": {"Code": "x", "Message": "prompt is too long"}},
        R.LLM_CONTEXT_OVERFLOW,
        None,
        "long",
    ),
    "error in an error": ({"error": {"error": {"message": "slow", "code": 429}}}, R.LLM_RATE_LIMITED, 429, "slow"),
    "error in a detail": ({"detail": {"error": {"message": "slow", "code": 429}}}, R.LLM_RATE_LIMITED, 429, "slow"),
    "error in a response": ({"response": {"error": {"message": "slow", "code": 429}}}, R.LLM_RATE_LIMITED, 429, "slow"),
    "message in an object": ({"error": {"message": {"text": "odd", "code": 429}}}, R.LLM_RATE_LIMITED, 429, "odd"),
    "a field that nobody knows": ({"utterance": "come back later"}, R.LLM_INVALID_RESPONSE, None, "come back later"),
}


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


@pytest.mark.parametrize("name", IN_A_200)
async def test_an_error_in_a_200_keeps_its_words_wherever_it_stands(way: Way, name: str) -> None:
    """S-02 S-13: it has the code that the same words have under ``error``, and is no reply of another shape."""
    body, code, status, words = IN_A_200[name]
    facts, requests = await met(way, faults.status(200, body=body))
    assert (classify(facts), requests) == (code, 1)
    assert status in {None, facts.status}
    assert words in facts.text


async def test_a_page_in_a_200_keeps_its_words(way: Way) -> None:
    facts, _ = await met(way, faults.page(200))
    assert "<h1>200</h1>" in facts.text
