"""Codes and words of providers for refusals whose status several kinds of refusals share.

Long, because each code and each pattern has a line, with its source: a page, a public report (an issue on GitHub
without the host), or a repository whose tests or lists have it. Codes are searched before patterns. A pattern names the
failure and not only its subject, because a bad request may speak of context windows, keys and quotas too.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from perdure.contracts.errors import ReasonCode

Statuses = frozenset[int | None]

NOT_FOUND = "NotFoundError"
"""litellm's class for a model that the provider does not have; many providers refuse it with status 400."""

UNSOURCED = "seen; no public report found"

_REFUSED: Statuses = frozenset({None, 200, 400, 403, 413, 422})
_SERVED: Statuses = _REFUSED | {500}  # some servers answer a prompt that is too long with 500
_ANY: Statuses = _SERVED | {401, 402, 429}
_WRONG: Statuses = frozenset({None, 200, 400, 422})
_NO_KEY: Statuses = frozenset({None, 200, 401, 403, 500})  # a 400 that speaks of a key has a parameter of that name
_TOO_LARGE: Statuses = frozenset({413})
_AT_ONCE: Statuses = frozenset({429})
_IN_A_200: Statuses = frozenset({200})  # an error object in a good reply, with the provider's name for it behind
_NEVER_SENT: Statuses = frozenset({None})

_OPENAI = "https://platform.openai.com/docs/guides/error-codes"
_ANTHROPIC = "https://docs.claude.com/en/api/errors"
_ALIBABA = "https://help.aliyun.com/en/model-studio/error-code-start"
_ZAI = "https://docs.z.ai/api-reference/api-code"
_OPENROUTER = "https://openrouter.ai/docs/api/reference/errors-and-debugging"


class Refusal(NamedTuple):
    """One code or pattern of a provider.

    Attributes:
        code: The reason code of the failure.
        statuses: The statuses with which the row counts; None is an error without a status.
        match: The provider's code in lower case, or a pattern that is searched without regard to case.
        source: The page, report or repository with the code or words.
        example: Words that match the pattern and no other one.
        kind: The precise class of the failure, where litellm raises a more general one.
    """

    code: ReasonCode
    statuses: Statuses
    match: str
    source: str
    example: str
    kind: str


def _lines(
    code: ReasonCode, statuses: Statuses, lines: Iterable[tuple[str, str, str]], kind: str = ""
) -> Iterator[Refusal]:
    for match, source, example in lines:
        yield Refusal(code, statuses, match, source, example, kind)


CODES: tuple[Refusal, ...] = (
    *_lines(
        ReasonCode.LLM_QUOTA_EXHAUSTED,
        _ANY,
        (
            ("insufficient_quota", _OPENAI, ""),
            ("billing_hard_limit_reached", _OPENAI, ""),
            ("billing_not_active", _OPENAI, ""),
            ("exceeded_current_quota_error", "https://forum.moonshot.ai/t/429-insufficient-balance/244", ""),
            ("arrearage", _ALIBABA, ""),
            ("blocked_api_access", "https://console.groq.com/docs/spend-limits", ""),
            ("1113", _ZAI, ""),
            ("1310", "openclaw/openclaw/issues/33785", ""),
        ),
    ),
    *_lines(
        ReasonCode.LLM_CONTEXT_OVERFLOW,
        _SERVED,
        (
            ("context_length_exceeded", _OPENAI, ""),
            ("exceed_context_size_error", "ggml-org/llama.cpp/pull/15780", ""),
        ),
    ),
    *_lines(
        ReasonCode.LLM_CONTEXT_OVERFLOW,
        _REFUSED,
        (
            ("model_max_prompt_tokens_exceeded", "microsoft/copilot-intellij-feedback/issues/94", ""),
            ("tokens_limit_reached", "eslint/tsc-meetings/pull/593", ""),
            ("request_too_large", _ANTHROPIC, ""),
            ("1261", "badlogic/pi-mono", ""),
        ),
    ),
    *_lines(
        ReasonCode.LLM_CONTENT_FILTERED,
        _REFUSED,
        (
            ("content_policy_violation", _OPENROUTER, ""),
            ("content_filter", _ALIBABA, ""),
            ("data_inspection_failed", _ALIBABA, ""),
            ("datainspectionfailed", _ALIBABA, ""),
            ("1301", _ZAI, ""),
        ),
    ),
    *_lines(
        ReasonCode.LLM_AUTH_ERROR,
        _WRONG,
        (
            ("invalid_api_key", _OPENAI, ""),
            ("invalidapikey", _ALIBABA, ""),
            ("api_key_invalid", "cequence-io/openai-scala-client/issues/109", ""),
        ),
    ),
    *_lines(
        ReasonCode.LLM_REQUEST_ERROR,
        _WRONG,
        (
            ("model_not_found", _OPENAI, ""),
            ("model_decommissioned", "crewAIInc/crewAI/issues/1976", ""),
            ("invalid_model", "tmc/langchaingo/issues/1233", ""),
            ("1211", _ZAI, ""),
        ),
        kind=NOT_FOUND,
    ),
)
"""Codes and types of error objects, in lower case."""

WORDS: tuple[Refusal, ...] = (
    *_lines(
        ReasonCode.LLM_QUOTA_EXHAUSTED,
        _ANY,
        (
            (r"\binsufficient_quota\b", _OPENAI, "no more calls [insufficient_quota]"),
            (r"\bbilling_hard_limit_reached\b", _OPENAI, "stopped [billing_hard_limit_reached]"),
            (r"\bbilling_not_active\b", _OPENAI, "Your account is not active [billing_not_active]"),
            (r"\binsufficient credits\b", _OPENROUTER, "Insufficient credits. Add more to go on."),
            ("credit balance is too low", _ANTHROPIC, "Your credit balance is too low to access the Anthropic API."),
            ("billing hard limit has been reached", _OPENAI, "Billing hard limit has been reached"),
            # The same words come with a time to wait, lines below, when only the quota of this minute is used up.
            (
                r"\A(?!(?s:.*)\b(retry|try again) (in|after) \d)(?s:.*)"
                r"(exceeded your current quota|check your (plan and )?billing details)",
                _OPENAI,
                "You exceeded your current quota, please check your plan and billing details.",
            ),
            (
                "used all available credits",
                "continuedev/continue/issues/10373",
                "Your team has either used all available credits or reached its monthly spending limit.",
            ),
            (
                "doesn't have any credits",
                "continuedev/continue/issues/12670",
                "Your newly created team doesn't have any credits or licenses yet.",
            ),
            (
                "run out of credits",
                "Wei-Shaw/sub2api/issues/4069",
                "You have run out of credits or need a Grok subscription.",
            ),
            (
                r"\Akey limit exceeded",
                "RooCodeInc/Roo-Code/issues/515",
                "Key limit exceeded (total limit). Manage it using https://openrouter.ai/settings/keys",
            ),
            (
                "reached your specified API usage limits",
                "anthropics/claude-code/issues/38035",
                "You have reached your specified API usage limits. You will regain access on 2026-04-01 at 00:00 UTC.",
            ),
            (
                "insufficient balance",
                "https://forum.moonshot.ai/t/429-insufficient-balance/244",
                "Your account is suspended due to insufficient balance.",
            ),
        ),
    ),
    *_lines(
        ReasonCode.LLM_CONTEXT_OVERFLOW,
        _SERVED,
        (
            (r"\bcontext_length_exceeded\b", _OPENAI, "too long [context_length_exceeded]"),
            ("maximum context length", _OPENAI, "This model's maximum context length is 128000 tokens."),
            (r"(prompt|input) is too long", _ANTHROPIC, "prompt is too long: 210000 tokens > 200000 maximum"),
            (
                "longer than the maximum model length",
                "vllm-project/vllm",
                "The decoder prompt (length 5951) is longer than the maximum model length of 4096.",
            ),
            (
                r"context length is only \d+ tokens",
                "anomalyco/opencode",
                "You passed 100 input tokens. However, the model's context length is only 64 tokens.",
            ),
            (
                r"input length.{0,40} exceeds? (the )?context (length|limit)",
                "ollama/ollama",
                "the input length exceeds the context length",
            ),
            (
                "prompt too long; exceeded",
                "badlogic/pi-mono",
                "prompt too long; exceeded max context length by 100918 tokens",
            ),
            (
                "greater than the context length",
                "badlogic/pi-mono",
                "The number of tokens to keep from the initial prompt is greater than the context length.",
            ),
            (
                r"context length of only \d+ tokens",
                "lmstudio-ai/lmstudio-bug-tracker/issues/546",
                "the model is loaded with context length of only 32768 tokens, which is not enough.",
            ),
            (
                "context size has been exceeded",
                "NousResearch/hermes-agent/issues/348",
                "Context size has been exceeded.",
            ),
            (
                "exceeds the available context size",
                "ggml-org/llama.cpp/issues/17284",
                "the request exceeds the available context size, try increasing it.",
            ),
        ),
    ),
    *_lines(
        ReasonCode.LLM_CONTEXT_OVERFLOW,
        _REFUSED,
        (
            (
                r"(exceed|larger|longer|over|fit|beyond).{0,40}context window",
                "anomalyco/opencode",
                "The request does not fit the context window",
            ),
            (
                r"context window (exceeds|exceeded|limit|is full)",
                "badlogic/pi-mono",
                "invalid params, context window exceeds limit",
            ),
            (
                r"\A(?!(?s:.*)(throttling|max_\w+tokens))(?s:.*)too many (input )?tokens",
                "badlogic/pi-mono",
                "Too many input tokens: 9000",
            ),
            (
                "exceeds? the maximum number of tokens",
                "googleapis/python-genai/issues/2050",
                "The input exceeds the maximum number of tokens allowed (1048576).",
            ),
            (
                r"maximum prompt length is \d+",
                "cline/cline/issues/3120",
                "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
            ),
            (
                "range of input length should be",
                "QwenLM/qwen-code/issues/3652",
                "Range of input length should be [1, 983616]",
            ),
            (
                r"prompt token count of \d+ exceeds the limit",
                "opencode-ai/opencode/issues/305",
                "prompt token count of 146270 exceeds the limit of 128000",
            ),
            (
                r"token count is \d+ but the model only supports up to \d+",
                "NousResearch/hermes-agent/pull/99701",
                "The input token count is 32825 but the model only supports up to 32768",
            ),
            (
                "exceeds the maximum allowed input length",
                "badlogic/pi-mono/issues/4943",
                "Input length 131393 exceeds the maximum allowed input length of 131040 tokens.",
            ),
            (
                "is longer than the model's context length",
                "getkimchi/kimchi/issues/794",
                "The input (1492905 tokens) is longer than the model's context length (1048576 tokens).",
            ),
            (
                "exceeded model token limit",
                "MoonshotAI/kimi-cli/issues/2011",
                "Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)",
            ),
            (
                r"configured context size is \d+",
                "anomalyco/opencode",
                "Prompt has 256468 tokens, but the configured context size is 131072 tokens",
            ),
            (
                "tokens in request more than max tokens allowed",
                "anomalyco/opencode",
                "tokens in request more than max tokens allowed",
            ),
            ("prompt exceeds max length", "badlogic/pi-mono", "Prompt exceeds max length"),
            (
                "exceeds maximum allowed token size",
                "run-llama/llama_index/issues/15180",
                "Input length 600 exceeds maximum allowed token size 512",
            ),
            (
                "cannot exceed the total tokens limit",
                UNSOURCED,
                "the number of input tokens 9000 cannot exceed the total tokens limit 8192 for this model",
            ),
            (
                "reduce the length of the messages",
                "badlogic/pi-mono",
                "Please reduce the length of the messages or completion.",
            ),
        ),
    ),
    *_lines(
        ReasonCode.LLM_CONTEXT_OVERFLOW,
        _TOO_LARGE,
        (
            (
                r"\btoo large\b",
                "continuedev/continue/issues/10218",
                "Request too large for model on tokens per minute (TPM): Limit 12000, Requested 14137",
            ),
        ),
    ),
    *_lines(
        ReasonCode.LLM_CONTEXT_OVERFLOW,
        _AT_ONCE,
        (
            # More than a minute may have: no wait helps.
            (
                "request too large for",
                "vanna-ai/vanna-flask/issues/11",
                "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 342389.",
            ),
        ),
    ),
    *_lines(
        ReasonCode.LLM_TOO_MANY_TOOLS,
        _REFUSED,
        (
            (
                "'tools': array too long",
                _OPENAI,
                "Invalid 'tools': array too long. Expected an array with maximum length 128, but got one of 129.",
            ),
            ("'tools' ?: maximum number of items", UNSOURCED, "'tools' : maximum number of items is 128"),
            (
                r"\btools: list should have at most",
                UNSOURCED,
                "tools: List should have at most 128 items after validation, not 129",
            ),
            (
                "function declarations can be specified",
                UNSOURCED,
                "tools[0].function_declarations: [FIELD_INVALID] At most 512 function declarations can be specified.",
            ),
            (r"more than \d+ tools\b", UNSOURCED, "You may not include more than 128 tools in your request."),
            ("number of tools exceeds", UNSOURCED, "number of tools exceeds 128"),
            (r"\btoo many tools\b", UNSOURCED, "There are too many tools."),
        ),
    ),
    *_lines(
        ReasonCode.LLM_CONTENT_FILTERED,
        _REFUSED,
        (
            (r"\[content_policy", _OPENAI, "rejected [content_policy_violation]"),
            (r"\[content_filter", _OPENAI, "rejected [content_filter]"),
            (
                "content management policy",
                UNSOURCED,
                "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
            ),
            ("content filter", _ANTHROPIC, "stopped by the content filter"),
            (
                "flagged as potentially violating",
                "BeehiveInnovations/pal-mcp-server/issues/178",
                "Invalid prompt: your prompt was flagged as potentially violating our usage policy.",
            ),
            ("may contain inappropriate content", _ALIBABA, "Input data may contain inappropriate content."),
            ("content exists risk", "deepseek-ai/awesome-deepseek-integration/issues/13", "Content Exists Risk"),
            (
                "violates usage guidelines",
                "UKGovernmentBEIS/inspect_ai/pull/2267",
                "Content violates usage guidelines. Failed check: SAFETY_CHECK_TYPE_BIO",
            ),
            ("your input was flagged", _OPENROUTER, "Your chosen model requires moderation and your input was flagged"),
            (r"blocked by (the |a )?guardrail", UNSOURCED, "The request was blocked by a guardrail."),
        ),
    ),
    *_lines(
        ReasonCode.LLM_MISSING_KEY,
        _NO_KEY,
        (
            (
                r"\bapi_key client option must be set",
                "openai/openai-python",
                "The api_key client option must be set either by passing api_key or by an environment variable",
            ),
            (r"\bmissing credentials", "openai/openai-python", "Missing credentials. Please pass one."),
            (r"\bmissing .{0,40}\bapi.?key", "BerriAI/litellm", "Missing Anthropic API Key"),
            (r"\bapi.?key .{0,60}(not set|is missing|required)", "BerriAI/litellm", "API key is not set"),
            (r"(didn't|did not) provide an api.?key", _OPENAI, "You didn't provide an API key."),
            ("no auth credentials found", _OPENROUTER, "No auth credentials found"),
        ),
    ),
    *_lines(
        ReasonCode.LLM_AUTH_ERROR,
        _WRONG,
        (
            (
                "pass a valid API key",
                "google-gemini/gemini-cli/issues/25198",
                "API key not valid. Please pass a valid API key.",
            ),
            (
                "incorrect API key provided",
                "continuedev/continue/issues/10778",
                "Incorrect API key provided: xa***YA. You can obtain an API key from https://console.x.ai.",
            ),
        ),
    ),
    *_lines(
        ReasonCode.LLM_REQUEST_ERROR,
        _WRONG,
        (
            (
                "is not a valid model ID",
                "OpenRouterTeam/openrouter-examples/issues/74",
                "claude-sonnet-4-6 is not a valid model ID",
            ),
            (r"\bmodel not exist\b", "langbot-app/LangBot/issues/1643", "Model Not Exist"),
            (r"\Ainvalid model\b", "tmc/langchaingo/issues/1233", "Invalid model: mistral-huge"),
            (
                r"\bmodel .{0,100}has been decommissioned",
                "crewAIInc/crewAI/issues/1976",
                "The model `gemma2-9b-it` has been decommissioned and is no longer supported.",
            ),
        ),
        kind=NOT_FOUND,
    ),
    *_lines(
        ReasonCode.LLM_REQUEST_ERROR,
        _NEVER_SENT,
        (
            (r"\A(?!https?:)\w+://", "aiohttp", "ftp://127.0.0.1:9/v1/chat/completions"),
            (r"\Ainvalid ipv6 url", "Python's urllib.parse", "Invalid IPv6 URL"),
            (r"\Aport out of range", "Python's urllib.parse", "Port out of range 0-65535"),
        ),
    ),
    *_lines(
        ReasonCode.LLM_RATE_LIMITED,
        _IN_A_200,
        ((r"\[rate_limit_(error|exceeded)\]", _ANTHROPIC, "slow down [rate_limit_error]"),),
    ),
    *_lines(
        ReasonCode.LLM_AUTH_ERROR,
        _IN_A_200,
        (
            (r"\[(authentication_error|invalid_api_key)\]", _ANTHROPIC, "no [authentication_error]"),
            (r"\[permission_error\]", _ANTHROPIC, "not yours [permission_error]"),
        ),
    ),
    *_lines(
        ReasonCode.LLM_REQUEST_ERROR,
        _IN_A_200,
        (
            (r"\[(not_found_error|model_not_found)\]", _ANTHROPIC, "none such [model_not_found]"),
            (r"\[invalid_request_error\]", _ANTHROPIC, "no such field [invalid_request_error]"),
        ),
    ),
    *_lines(ReasonCode.LLM_TIMEOUT, _IN_A_200, ((r"\[timeout_error\]", _ANTHROPIC, "took too long [timeout_error]"),)),
)
"""Patterns over the provider's message."""
