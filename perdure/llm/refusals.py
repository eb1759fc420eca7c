"""Codes and words of providers for refusals whose status several kinds of refusals share.

Long, because each code and each pattern has a line, with its source: a page, a public report (an issue on GitHub
without the host), or a repository whose tests or lists have it. Codes are searched before patterns. A pattern names the
failure and not only its subject, because a bad request may speak of context windows, keys and quotas too.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from perdure.contracts.errors import ReasonCode
from perdure.llm.quotas import OF_A_DAY, USED_UP

Statuses = frozenset[int | None]

NOT_FOUND = "NotFoundError"
"""litellm's class for a model that the provider does not have; many providers refuse it with status 400."""

UNSOURCED = "seen; no public report found"

_REFUSED: Statuses = frozenset({None, 200, 400, 403, 413, 422})
_SERVED: Statuses = _REFUSED | {500}  # some servers answer a prompt that is too long with 500
_ANY: Statuses = _SERVED | {401, 402, 412, 429}
_LIMITED: Statuses = frozenset({None, 200, 403, 429})
_WRONG: Statuses = frozenset({None, 200, 400, 422})
_NO_STATUS: Statuses = frozenset({None, 200})
_NO_KEY: Statuses = frozenset({None, 200, 401, 403, 500})  # a 400 that speaks of a key has a parameter of that name
_TOO_LARGE: Statuses = frozenset({413})
_AT_ONCE: Statuses = frozenset({429})
_IN_A_200: Statuses = frozenset({200})  # an error object in a good reply, with the provider's name for it behind
_NEVER_SENT: Statuses = frozenset({None})

_OPENAI = "https://platform.openai.com/docs/guides/error-codes"
_ANTHROPIC = "https://docs.claude.com/en/api/errors"
_ALIBABA = "https://help.aliyun.com/en/model-studio/error-code-start"
_ZAI = "https://docs.z.ai/api-reference/api-code"
_BIGMODEL = "https://docs.bigmodel.cn/cn/api/api-code"
_QIANFAN = "https://cloud.baidu.com/doc/qianfan-api/s/rmwbl43x7"
_MISTRAL = "https://docs.mistral.ai/getting-started/quickstart"
_MINIMAX = "https://platform.minimax.io/docs/api-reference/errorcode"
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
            ("insufficient_balance", "Wei-Shaw/sub2api/issues/890", ""),
            ("blocked_api_access", "https://console.groq.com/docs/spend-limits", ""),
            ("1113", _ZAI, ""),
            *((code, _BIGMODEL, "") for code in ("1304", "1308", "1309")),
            ("1310", "openclaw/openclaw/issues/33785", ""),
            ("accountoverdueerror", "coze-dev/coze-studio/issues/2195", ""),
            ("budget_exceeded", "BerriAI/litellm/pull/4606", ""),
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
            *((code, _QIANFAN, "") for code in ("tokens_too_long", "characters_too_long")),
        ),
    ),
    *_lines(
        ReasonCode.LLM_RATE_LIMITED,
        _NO_STATUS,
        tuple((code, _BIGMODEL, "") for code in ("1302", "1303", "1305", "1312")),
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
            ("model_not_supported", "github/copilot-cli/issues/639", ""),
            ("invalid_model", "tmc/langchaingo/issues/1233", ""),
            ("1211", _ZAI, ""),
        ),
        kind=NOT_FOUND,
    ),
)
"""Codes and types of error objects, in lower case."""

WORDS: tuple[Refusal, ...] = (
    *_lines(ReasonCode.LLM_QUOTA_EXHAUSTED, _LIMITED, OF_A_DAY),
    *_lines(ReasonCode.LLM_QUOTA_EXHAUSTED, _ANY, USED_UP),
    *_lines(
        ReasonCode.LLM_CONTEXT_OVERFLOW,
        _SERVED,
        (
            (r"\bcontext_length_exceeded\b", _OPENAI, "too long [context_length_exceeded]"),
            (
                r"\b(prompt|input|conversation|context) (tokens )?(is )?too (long|large)",
                _ANTHROPIC,
                "prompt is too long: 210000 tokens > 200000 maximum",
            ),
            (
                "too long to fit into the model",
                "vllm-project/vllm/issues/12165",
                "The prompt (total length 25938) is too long to fit into the model (context length 4096).",
            ),
            # What is too long, and its unit; but not how much may come in a minute.
            (
                r"\A(?!(?s:.*)per (min|day))(?s:.*)\b(prompt|input)\b.{0,40}\b(length|tokens|count)\b.{0,40} "
                r"(exceed|only supports|longer than)",
                "sgl-project/sglang/issues/4048",
                "Input length (160062 tokens) passes what exceeds the maximum allowed length (59862 tokens).",
            ),
            # A limit of the model's, but not that of its answer.
            (
                r"\A(?!(?s:.*)max_\w*tokens)(?s:.*)exceed(s|ed)? (the |this |model |model's |available |max )+"
                r"(context|token) (length|limit|size)",
                "ollama/ollama",
                "it exceeded max context length by 100918 tokens",
            ),
            (
                r"(maximum|max) (supported )?sequence length",
                "sambanova",
                "the maximum supported sequence length is 4096",
            ),
            ("maximum context length", _OPENAI, "This model's maximum context length is 128000 tokens."),
            (
                r"context length is only \d+ tokens",
                "anomalyco/opencode",
                "You passed 100 input tokens. However, the model's context length is only 64 tokens.",
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
                r"context (length|size) (has been )?exceeded",
                "NousResearch/hermes-agent/issues/348",
                "Context size has been exceeded.",
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
                r"\A(?!(?s:.*)(throttling|please wait|per (min|day)|max_\w+tokens))(?s:.*)too many (input )?tokens",
                "badlogic/pi-mono",
                "Too many input tokens: 9000",
            ),
            (
                r"maximum prompt length is \d+",
                "cline/cline/issues/3120",
                "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
            ),
            (
                r"\bprompt is \d+ tokens but",
                "jaylfc/taOS/issues/1738",
                "Prompt is 11543 tokens but the model context window is 4096 tokens.",
            ),
            (
                r"\bmax context: \d",
                "NotPunchnox/rkllama/issues/25",
                "prompt gather than max context (prompt: 1299 tokens, max context: 1020)",
            ),
            (
                "exceeded max_prompt_tokens",
                "continuedev/continue/issues/9971",
                "number of tokens sent (83121) have exceeded max_prompt_tokens (65536) limit.",
            ),
            (
                "range of input length should be",
                "QwenLM/qwen-code/issues/3652",
                "Range of input length should be [1, 983616]",
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
            (
                r"\A(?!(?s:.*)max_\w*tokens)(?s:.*)only supports (up to )?[\d,]+ (input |context )?tokens",
                "NousResearch/hermes-agent/pull/99701",
                "This model only supports up to 32768 tokens",
            ),
            (
                "exceeds? the maximum number of tokens",
                "googleapis/python-genai/issues/2050",
                "This exceeds the maximum number of tokens allowed (1048576).",
            ),
            (
                r"`inputs` (tokens \+|must have less than \d)",
                "huggingface/text-generation-inference/issues/695",
                "Input validation error: `inputs` must have less than 1024 tokens. Given: 1168",
            ),
            (
                "exceed max message tokens",
                "bytedance/deer-flow/issues/583",
                "Total tokens of image and text exceed max message tokens.",
            ),
            (
                "exceeds the maximum message tokens",
                "bytedance/deer-flow/issues/583",
                "Total tokens of text and images exceeds the maximum message tokens.",
            ),
            (
                r"total message size \d+ exceeds limit",
                "MoonshotAI/kimi-code/issues/1862",
                "total message size 2100954 exceeds limit 2097152",
            ),
            ("prompt exceeds max length", "badlogic/pi-mono", "Prompt exceeds max length"),
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
            (
                "exceeds the maximum size",
                "anthropics/anthropic-sdk-python/issues/938",
                "Request exceeds the maximum size",
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
            (r"\[content_policy", _OPENAI, "stopped [content_policy_violation]"),
            (r"\[content_filter", _OPENAI, "rejected [content_filter]"),
            (
                "content management policy",
                UNSOURCED,
                "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
            ),
            # A verb of refusal, and a policy. A policy alone may be a field of the request.
            (
                r"(rejected|blocked|flagged|violat).{0,80}(content_policy_violation|(usage|content) polic|"
                r"safety\b|usage guidelines|prohibited.content|responsible ai)",
                "machinewrapped/llm-subtrans/issues/292",
                "Your request was rejected as a result of our safety system (content_policy_violation)",
            ),
            (
                "(inappropriate|sensitive|unsafe|prohibited) (content|words)|敏感内容|new_sensitive",
                _ALIBABA,
                "Input data may contain inappropriate content.",
            ),
            ("content filter", _ANTHROPIC, "stopped by the content filter"),
            ("content exists risk", "deepseek-ai/awesome-deepseek-integration/issues/13", "Content Exists Risk"),
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
            (r"\bmissing (?!\d).{0,40}\bapi.?key", "BerriAI/litellm", "Missing Anthropic API Key"),
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
            (
                r"\bmodel( \W\S{1,100})? "
                r"(not exist\b|does not exist|not found|is not supported(?! \w))",
                "github/copilot-cli/issues/639",
                "The requested model is not supported.",
            ),
            (
                "model identifier is invalid",
                "strands-agents/harness-sdk/issues/38",
                "The provided model identifier is invalid.",
            ),
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
        (
            (r"(?<!/)\brate.?limit(ed|s|_error|_exceeded)?\b", _ANTHROPIC, "slow down [rate_limit_error]"),
            ("too many requests", "fastapi's detail, of status 429", "Too many requests"),
        ),
    ),
    *_lines(
        ReasonCode.LLM_AUTH_ERROR,
        _IN_A_200,
        (
            (r"\[(authentication_error|invalid_api_key)\]", _ANTHROPIC, "no [authentication_error]"),
            (r"\[permission_error\]", _ANTHROPIC, "not yours [permission_error]"),
            ("unauthori[sz]ed", _MISTRAL, "Unauthorized"),
            ("login fail", _MINIMAX, "login fail"),
            ("invalid api.?key", _MINIMAX, "invalid api key"),
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
