"""What the table of failures must say, written down a second time: no row of it is derived from the table."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from perdure.contracts.errors import REASONS, Reason, ReasonCode
from perdure.llm.failures import TABLE, Evidence, FailureFacts, Row, Table, is_ambiguous, row_of
from tests.contract.quota_words import OF_A_DAY, OF_A_MINUTE, USED_UP

Status = int | None

RETRIED = """
llm.rate_limited llm.network_error llm.timeout llm.stream_cut llm.empty_response llm.truncated llm.invalid_response
runtime.store_unavailable runtime.store_mismatch runtime.tool_missing runtime.worker_lost runtime.worker_shutdown
runtime.queued
request.too_early request.session_busy webhook.undelivered
"""

FINAL = """
llm.auth_error llm.request_error llm.too_many_tools llm.quota_exhausted llm.context_overflow llm.content_filtered
llm.refused llm.missing_key llm.parse_error llm.schema_violation llm.fixture_missing llm.prompt_assembly_error
tool.unknown_tool tool.invalid_input tool.invalid_output tool.timeout tool.network_error tool.execution_error
tool.effect_unknown tool.cancelled tool.denied tool.approval_expired tool.fixture_missing tool.state_lost
tool.delegate_failed
tool.max_turns_exhausted
budget.exhausted budget.cost_exhausted budget.llm_calls_exhausted budget.tool_calls_exhausted budget.seconds_exhausted
budget.behavior_calls_exhausted budget.events_exhausted budget.patches_exhausted budget.depth_exhausted
request.blocked request.invalid request.reserved_id
request.too_large request.unknown_agent request.unknown_session request.turn_mismatch
runtime.store_refused runtime.store_behind runtime.mcp_unavailable
runtime.aborted runtime.turn_ended runtime.turn_closed runtime.payload_too_large
runtime.hook_failed runtime.failed_by_hook runtime.internal webhook.gone session.erased
"""

ASKED_TO_WAIT = ["llm.rate_limited", "llm.network_error", "llm.timeout"]
"""The codes of failures whose reply may say how long to wait."""

NAMES = {
    "llm.missing_key": "MissingKeyError",
    "llm.empty_response": "EmptyAnswerError",
    "llm.truncated": "TruncatedAnswerError",
    "llm.stream_cut": "StreamCutError",
    "llm.invalid_response": "InvalidReplyError",
    "llm.request_error": "RedirectedError",
    "llm.refused": "RefusedAnswerError",
    "llm.timeout": "DeadlineExceededError",
    "runtime.payload_too_large": "TooManyCallsError",
    "llm.prompt_assembly_error": "PromptAssemblyError",
    "llm.content_filtered": "ContentFilteredError ContentPolicyViolationError GuardrailRaisedException "
    "BlockedPiiEntityError SensitiveDataRouteException ModifyResponseException RejectedRequestError "
    "UnappliableRequestRewrite",
    "llm.context_overflow": "ContextWindowExceededError",
    "llm.quota_exhausted": "PaymentRequiredError BudgetExceededError",
    "llm.schema_violation": "JSONSchemaValidationError",
}

STATUSES: list[tuple[int, int, str]] = [
    (400, 400, "llm.request_error"),
    (401, 401, "llm.auth_error"),
    (402, 402, "llm.quota_exhausted"),
    (403, 403, "llm.auth_error"),
    (404, 407, "llm.request_error"),
    (408, 408, "llm.timeout"),
    (409, 409, "llm.network_error"),
    (410, 424, "llm.request_error"),
    (425, 425, "llm.network_error"),
    (426, 428, "llm.request_error"),
    (429, 429, "llm.rate_limited"),
    (430, 499, "llm.request_error"),
    (500, 503, "llm.network_error"),
    (504, 504, "llm.timeout"),
    (505, 999, "llm.network_error"),
]

CAUSES = {
    "llm.timeout": "ConnectTimeout TimeoutException ConnectionTimeoutError ServerTimeoutError TimeoutError",
    "llm.request_error": "UnsupportedProtocol InvalidURL NonHttpUrlClientError",
    "llm.network_error": "TransportError RequestError ClientConnectorError ClientError ConnectionRefusedError gaierror "
    "OSError",
}

NEVER_SENT = """
ConnectTimeout ConnectionTimeoutError ClientConnectorError ConnectionRefusedError gaierror
UnsupportedProtocol InvalidURL NonHttpUrlClientError
"""

FAULTS = """
TypeError AttributeError NameError ImportError AssertionError LookupError ValueError ArithmeticError SyntaxError
RecursionError NotImplementedError BufferError SystemError ReferenceError StopIteration StopAsyncIteration
FileNotFoundError NotADirectoryError IsADirectoryError PermissionError SSLError
"""

CLASSES = {
    "llm.empty_response": "IndexError",
    "llm.auth_error": "AuthenticationError PermissionDeniedError AwsAuthError XAIOAuthError "
    "CallerCredentialAuthenticationError OAuthTokenExchangeError",
    "llm.rate_limited": "RateLimitError RouterRateLimitError RouterRateLimitErrorBasic CallerCredentialRateLimitError",
    "llm.timeout": "Timeout APITimeoutError APIConnectionTimeoutError TimeoutError",
    "llm.request_error": "UnsupportedParamsError BadRequestError NotFoundError UnprocessableEntityError "
    "InvalidRequestError ImageFetchError LiteLLMUnknownProvider VectorStoreSearchError ModelNotMappedError SSRFError "
    "ToolLoopMaxRoundsExceeded AgenticLoopSafetyError AdvisorMaxIterationsError AnthropicContextManagementError "
    "HTTPResponseLimitError UnsupportedEndpointError EndpointNotSupportedByModelError MalformedRequestFieldError "
    "UnsupportedContentTypeError TotalTimeoutNotApplicable",
    "llm.network_error": "ServiceUnavailableError InternalServerError BadGatewayError APIConnectionError "
    "NoReplyError ProviderError "
    "APIStatusError APIError APIResponseValidationError MidStreamFallbackError MockException OpenAIError "
    "BaseLLMException CustomLLMError OpenAILikeError HerokuError AlephAlphaError TextCompletionCodestralError "
    "UpstreamFailure HTTPStatusError OSError StreamClosed",
}

LARGE: frozenset[Status] = frozenset({None, 200, 400, 401, 402, 403, 412, 413, 422, 429, 500})
SMALL: frozenset[Status] = frozenset({None, 200, 400, 403, 413, 422})
SERVED: frozenset[Status] = SMALL | {500}
LIMITED: frozenset[Status] = frozenset({None, 200, 403, 429})
WRONG: frozenset[Status] = frozenset({None, 200, 400, 422})
NO_KEY: frozenset[Status] = frozenset({None, 200, 401, 403, 500})
"""Not 400: a bad request that speaks of a key has a parameter of that name."""
IN_A_200: frozenset[Status] = frozenset({200})
GEMINIS_MINUTE = """\
You exceeded your current quota, please check your plan and billing details. For more information on this error, head \
to: https://ai.google.dev/gemini-api/docs/rate-limits.
* Quota exceeded for metric: generativelanguage.googleapis.com/generate_content_free_tier_requests, limit: 5, model: \
gemini-2.5-pro
Please retry in 36.745634386s."""
"""What Gemini says when the quota of this minute is used up."""

CODES: dict[tuple[str, frozenset[Status]], str] = {
    ("llm.quota_exhausted", LARGE): "insufficient_quota billing_hard_limit_reached billing_not_active "
    "exceeded_current_quota_error arrearage insufficient_balance blocked_api_access 1113 1310 budget_exceeded "
    "accountoverdueerror 1304 1308 1309",
    ("llm.context_overflow", SERVED): "context_length_exceeded exceed_context_size_error",
    ("llm.context_overflow", SMALL): "model_max_prompt_tokens_exceeded tokens_limit_reached request_too_large 1261 "
    "tokens_too_long characters_too_long",
    ("llm.rate_limited", frozenset({None, 200})): "1302 1303 1305 1312",
    ("llm.content_filtered", SMALL): "content_policy_violation content_filter data_inspection_failed "
    "datainspectionfailed 1301",
    ("llm.auth_error", WRONG): "invalid_api_key invalidapikey api_key_invalid",
    ("llm.request_error", WRONG): "model_not_found model_decommissioned model_not_supported invalid_model 1211",
}
"""Codes and types of error objects."""

WORDS: dict[tuple[str, frozenset[Status]], list[str]] = {
    ("llm.quota_exhausted", LIMITED): OF_A_DAY,
    ("llm.quota_exhausted", LARGE): USED_UP,
    ("llm.context_overflow", SERVED): [
        "no [context_length_exceeded]",
        "This model's maximum context length is 128000 tokens",
        "prompt token count of 146270 exceeds the limit of 128000",
        "The input token count is 32825 but the model only supports up to 32768",
        "Input length 9 exceeds the maximum allowed input length of 8 tokens.",
        "The input (9 tokens) is longer than the model's context length (8 tokens).",
        "Your request exceeded model token limit: 8",
        "Input length 6 exceeds maximum allowed token size 5",
        "the number of input tokens 9 cannot exceed the total tokens limit 8",
        "Your request exceeded the model's token limit",
        "This exceeds this model's context length",
        *(
            "Sorry.\nThe input length exceeds 8",
            "The input token count of 9 exceeds 8",
            "Sorry.\nIt exceeds the token limit",
        ),
        "exceed max token size",
        "Unable to submit request because the input token count is 9 but model only supports up to 8.",
        "Input Tokens Exceeded: Number of input tokens exceeds maximum length.",
        f"prompt {'x' * 38} tokens {'y' * 38} exceed",
        "requires 20001, but the maximum supported sequence length is just 4096!",
        "max sequence length",
        "the conversation is too long",
        "the context is too long",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "Input is too long for requested model.",
        "The decoder prompt (length 5951) is longer than the maximum model length of 4096.",
        "the model's context length is only 64 tokens",
        "the input length exceeds the context length",
        "input length and `max_tokens` exceed context limit: 174167 + 64000 > 200000",
        f"input length {'x' * 39} exceeds context limit",
        "prompt too long; exceeded max context length by 3 tokens",
        "the initial prompt is greater than the context length",
        "loaded with context length of only 32768 tokens",
        "Context size has been exceeded.",
        *(
            "context length exceeded",
            "prompt tokens too long",
            "prompt too large",
            "The prompt is too large for this model",
            "input too large",
        ),
        "The prompt (total length 9) is too long to fit into the model (context length 8).",
        "the request exceeds the available context size",
    ],
    ("llm.context_overflow", SMALL): [
        *(f"{word} the context window" for word in ("exceed", "exceeds", "larger than", "longer than", "over")),
        *("does not fit the context window", "beyond this model's context window"),
        f"exceed{'x' * 40}context window",
        *(f"context window {word}" for word in ("exceeds limit", "exceeded", "limit", "is full")),
        "too many tokens",
        "too many input tokens",
        "Prompt is 11543 tokens but the model context window is 4096 tokens.",
        "prompt gather than max context (prompt: 9 tokens, max context: 8)",
        "number of tokens (9) have exceeded max_prompt_tokens (8) limit.",
        "Sorry.\nToo many tokens.",
        "exceeds the maximum number of tokens",
        "inputs that exceed the maximum number of tokens",
        "This model's maximum prompt length is 131072 but",
        "Range of input length should be [1, 983616]",
        *("This model only supports up to 32,768 tokens", "Sorry.\nIt only supports 8 tokens"),
        *("it only supports 8 input tokens", "it only supports 8 context tokens"),
        "`inputs` tokens + `max_new_tokens` must be <= 8",
        "`inputs` must have less than 8 tokens",
        "the configured context size is 8 tokens",
        "tokens in request more than max tokens allowed",
        "Total tokens of image and text exceed max message tokens.",
        "Total tokens of text and images exceeds the maximum message tokens.",
        "Prompt exceeds max length",
        "total message size 2100954 exceeds limit 2097152",
        "Please reduce the length of the messages or completion.",
    ],
    ("llm.context_overflow", frozenset({413})): [
        *("Request Entity Too Large", "Request too large on tokens per minute", "Request exceeds the maximum size"),
    ],
    ("llm.context_overflow", frozenset({413, 429})): [
        "Request too large for gpt-4o on tokens per min (TPM)",
        "Request too large for gpt-4o on tokens per day (TPD): Limit 1, Requested 2.",
        "1 tokens per day\nRequest too large for gpt-4o",
    ],
    ("llm.too_many_tools", SMALL): [
        "Invalid 'tools': array too long. Expected an array with maximum length 128, but got one with length 129.",
        "'tools' : maximum number of items is 128",
        "'tools': maximum number of items is 128",
        "tools: List should have at most 128 items after validation, not 129",
        "At most 512 function declarations can be specified.",
        "You may not include more than 128 tools in your request.",
        "more than 1 tools",
        "the number of tools exceeds 128",
        "too many tools",
    ],
    ("llm.content_filtered", SMALL): [
        "no [content_policy_violation]",
        "no [content_filter]",
        "triggering Azure OpenAI's content management policy",
        "hit the content filter",
        "your prompt was flagged as potentially violating our usage policy",
        "Your request was rejected as it has a content_policy_violation",
        *("rejected by our usage policies", "flagged by the content policy", "it violated prohibited_content"),
        *("Message is being blocked for reason: SAFETY", "It violates Google's Responsible AI practices"),
        f"rejected {'x' * 78} content_policy_violation",
        *("sensitive words", "unsafe content", "prohibited content", "敏感内容", "output new_sensitive (1027)"),
        "Output data may contain inappropriate content.",
        "Content Exists Risk",
        "Content violates usage guidelines. Team: x",
        "Your input was flagged for violence.",
        *("blocked by the guardrail", "blocked by a guardrail", "Blocked by guardrail x"),
    ],
    ("llm.auth_error", WRONG): [
        "API key not valid. Please pass a valid API key.",
        "Incorrect API key provided: na***ys.",
    ],
    ("llm.request_error", WRONG): [
        "a/b is not a valid model ID",
        "Model Not Exist",
        *(
            "The model `x` does not exist",
            "model 'x' not found",
            'model "x" not found',
            "The requested model is not supported.",
        ),
        "The model `x` is not supported",
        f"model `{'x' * 99}` not found",
        "The provided model identifier is invalid.",
        "Invalid model: x",
        "The model `m` has been decommissioned and is no longer supported.",
        f"model {'x' * 100}has been decommissioned",
    ],
    ("llm.request_error", frozenset({None})): [
        "Invalid IPv6 URL",
        "Port out of range 0-65535",
        "ftp://127.0.0.1:9/v1/chat/completions",
    ],
    ("llm.missing_key", NO_KEY): [
        "The api_key client option must be set",
        "Missing credentials, pass some",
        "Missing Anthropic API Key",
        "missing an apikey",
        "the API key was not set",
        "the apikey was not set",
        "an API-key is missing",
        "api_key field required",
        "You didn't provide an API key.",
        "You did not provide an apikey.",
        "No auth credentials found",
    ],
    ("llm.rate_limited", IN_A_200): [
        *("no [rate_limit_error]", "no [rate_limit_exceeded]"),
        *("rate limit", "ratelimit", "Rate limits apply", "You are rate-limited"),
        "Too many requests",
    ],
    ("llm.auth_error", IN_A_200): [
        "no [authentication_error]",
        "no [invalid_api_key]",
        "no [permission_error]",
        *("Unauthorized", "unauthorised", "login fail", "Invalid API key", "invalid apikey"),
    ],
    ("llm.request_error", IN_A_200): [
        "no [not_found_error]",
        "no [model_not_found]",
        "no [invalid_request_error]",
    ],
    ("llm.timeout", IN_A_200): ["no [timeout_error]"],
}
FRIENDS = [
    "a limit per minute: the input tokens exceed it",
    "Sorry.\nThe input tokens exceed a limit per minute",
    *OF_A_MINUTE,
    "the message size is 8",
    *("max_tokens exceeds the token limit", "Sorry.\nmax_tokens exceeds the token limit"),
    *("max_completion_tokens: it only supports 8 tokens", "Sorry.\nmax_tokens: it only supports 8 tokens"),
    *("xprompt length exceeds", "promptx length exceeds", "prompt xlength exceeds", "prompt lengthx exceeds"),
    f"prompt {'x' * 40} length exceeds",
    *("You hit your usage limit, retry in 3 s", "You hit your usage limit, try again after 3 s"),
    *("Retry in 3 s: you hit your usage limit", "Sorry.\nYou hit your usage limit\nretry in 3 s"),
    *("whit a usage limit", f"hit {'x' * 41} usage limit", f"usage limit {'x' * 41} reached"),
    *("rejected: safety_settings is no field", f"rejected {'x' * 81} usage policy"),
    "the model is not supported with tools",
    "call() missing 1 required keyword argument: 'api_key'",
    "context window is no field",
    f"exceed{'x' * 41}context window",
    "throttling: too many tokens",
    "Sorry.\nThrottlingException: Too many tokens, please wait",
    "too many tokens in max_completion_tokens",
    "content_filter is no valid finish",
    "content_policy is no field",
    *("check your billing address", "lacks the scope billing.accounts.get", "nonbilling not active"),
    *("call the billing API", f"billing account for {'x' * 101} is disabled", "billing account for  is disabled"),
    *("xoverdue balance", "without credits", "rout of credits", "xinvalid_payment_instrument"),
    *("invalid_payment_instruments", "a supercontext too long"),
    *("the systemprompt is too long", "myprompt is 8 tokens but", "climax context: 8"),
    "API key limit exceeded",
    f"input length {'x' * 40} exceeds context limit",
    "max_tokens must be less than the context_window",
    "no model not existing",
    "a supermodel not exist",
    "an invalid model",
    "Invalid modelling",
    f"model {'x' * 101}has been decommissioned",
    "remodel x has been decommissioned",
    "not too larger",
    "untoo large",
    "an invalid ipv6 url",
    "a port out of range",
    "http://127.0.0.1:9/v1",
    "https://127.0.0.1:9/v1",
    "see ftp://127.0.0.1:9",
]
"""What speaks of the same and is another mistake."""

PROBED: frozenset[Status] = LARGE | {404, 408, 409, 425, 499, 502, 503, 529}
BOUNDED = [
    "insufficient_quota",
    "billing_hard_limit_reached",
    "billing_not_active",
    "insufficient credits",
    "context_length_exceeded",
]
BEGUN = [
    "content_policy",
    "content_filter",
    "api_key client option must be set",
    "missing credentials",
    "missing an API key",
    "API key is not set",
]
NO_WORDS = [
    *FRIENDS,
    *(f"x{word}" for word in (*BOUNDED, *BEGUN)),
    *(f"{word}x" for word in BOUNDED),
    *(
        text.replace("[", "[x")
        for (_, statuses), texts in WORDS.items()
        if statuses == IN_A_200
        for text in texts
        if "[" in text
    ),
    *(
        text.replace("]", "x]")
        for (_, statuses), texts in WORDS.items()
        if statuses == IN_A_200
        for text in texts
        if "]" in text
    ),
    GEMINIS_MINUTE,
    "Invalid 'messages': array too long. Expected an array with maximum length 2048.",
    "'messages' : maximum number of items is 128",
    "tools.0.name: String should have at most 128 characters",
    "mytools: List should have at most 3 items",
    "more than 3 toolsets",
    "more than x tools",
    "xtoo many tools",
    "too many toolsx",
    "You exceeded your current quota, retry in 3s",
    "You exceeded your current quota, retry after 3 s",
    "You exceeded your current quota, try again in 3 s",
    "Check your billing, or try again after 3 s",
    "Please retry in 3 s: you exceeded your current quota",
    "missing an xAPI key",
    f"missing {'x' * 40} API key",
    f"the API key {'x' * 61}required",
]
"""Words within longer ones or too far apart, and the words of a used-up account with a time to wait."""

MESSAGES = {
    "llm.rate_limited": ["got 429", "rate limit", "ratelimit", "Rate-Limited"],
    "llm.timeout": ["ETIMEDOUT", "timeout", "timed out", "time-out"],
    "llm.network_error": [
        "HTTP 500",
        "HTTP 502",
        "HTTP 503",
        "ECONNRESET",
        "ECONNREFUSED",
        "network down",
        "Overloaded",
        "server_error",
    ],
}
BOUNDED_IN_MESSAGES = ["429", "ETIMEDOUT", "timeout", "500", "502", "503"]
BOUNDED_IN_MESSAGES += ["ECONNRESET", "ECONNREFUSED", "network", "overloaded", "server_error"]
NO_MESSAGES = [
    *("order 14290", "15000 tokens", "networking", "unoverloadedly", "lifetimeouts", "prorate limits"),
    *(f"x{word}" for word in BOUNDED_IN_MESSAGES),
    *(f"{word}x" for word in BOUNDED_IN_MESSAGES),
]
"""A number or a word within a longer one."""


def _expected() -> Iterator[tuple[FailureFacts, Evidence, str]]:
    """Facts, the kind of evidence that must decide, and the code; what is asked later would say otherwise."""
    for name, code in by_name(NAMES):
        yield FailureFacts(status=429, classes=(name, "APIError"), text="insufficient_quota"), Evidence.NAME, code
    said = FailureFacts(status=429, classes=("RateLimitError",), causes=("OSError",), text="no [insufficient_quota]")
    yield said, Evidence.WORDS, "llm.quota_exhausted"
    for (code, statuses), names in CODES.items():
        for name in names.split():
            status = 400 if 400 in statuses else 200
            facts = FailureFacts(status=status, classes=("APIError",), names=("odd", name), text="prompt is too long")
            yield facts, Evidence.CODE, code
            yield facts.model_copy(update={"status": 409, "text": ""}), Evidence.STATUS, "llm.network_error"
            assert status in statuses
    for first, last, code in STATUSES:
        for status in range(first, last + 1):
            facts = FailureFacts(status=status, classes=("IndexError",), causes=("ReadTimeout", "TimeoutException"))
            yield facts, Evidence.STATUS, code
    for name in FAULTS.split():
        facts = FailureFacts(classes=("OSError",), fault=("X", name), causes=("TimeoutError",), text="429")
        yield facts, Evidence.FAULT, "runtime.internal"
    for name, code in by_name(CAUSES):
        yield FailureFacts(classes=("IndexError",), causes=("X", name), text="429"), Evidence.CAUSE, code
    for name, code in by_name(CLASSES):
        yield FailureFacts(classes=("X", name), text="got 418, not 429"), Evidence.CLASS, code
    yield from _expected_at_last()


def _expected_at_last() -> Iterator[tuple[FailureFacts, Evidence, str]]:
    for code, texts in MESSAGES.items():
        yield from ((FailureFacts(classes=("X",), text=text), Evidence.MESSAGE, code) for text in texts)
    for text in NO_MESSAGES:
        yield FailureFacts(text=text), Evidence.NONE, "llm.network_error"
    for status in (None, 0, 200, 302, 399):
        yield FailureFacts(status=status, classes=("X",), causes=("Y",)), Evidence.NONE, "llm.network_error"


def by_name(names: Mapping[str, str]) -> list[tuple[str, str]]:
    """Each class with its code."""
    return [(name, code) for code, several in names.items() for name in several.split()]


EXPECTED = {seen: [(facts, code) for facts, decider, code in _expected() if decider is seen] for seen in Evidence}


def problems(table: Table = TABLE, reasons: Mapping[ReasonCode, Reason] = REASONS) -> Iterator[str]:
    """Where a table says something else."""
    yield from _wrong_reasons(reasons)
    for seen in Evidence:
        yield from wrong(seen, table)


def wrong(seen: Evidence, table: Table = TABLE) -> Iterator[str]:
    """Where the rows that go by this evidence say something else."""
    for facts, code in EXPECTED[seen]:
        try:
            found = row_of(facts, table)
        except IndexError:
            yield f"{facts}: no row at all"
            continue
        if (found.seen, found.code) != (seen, code):
            yield f"{facts}: {found.seen} {found.match} {found.code}, not {seen} {code}"
    if seen is Evidence.CODE:
        yield from _wrong_codes(table)
    if seen is Evidence.WORDS:
        yield from _wrong_words(table)
    if seen is Evidence.CAUSE:
        yield from _wrong_proofs(table)


def _wrong_proofs(table: Table) -> Iterator[str]:
    for name, _ in by_name(CAUSES):
        if is_ambiguous(FailureFacts(causes=(name,)), "llm.network_error", table) is (name in NEVER_SENT.split()):
            yield f"{name}: whether it was sent"


def _wrong_codes(table: Table) -> Iterator[str]:
    for (code, statuses), names in CODES.items():
        for name in names.split():
            found = {status: table.find_by_code(status, ("odd", name)) for status in PROBED}
            decided = {status: row.code for status, row in found.items() if row is not None}
            if decided != dict.fromkeys(statuses, code):
                yield f"{name}: {decided}, not {code} for {statuses}"
            yield from (f"x{name}" for status in PROBED if table.find_by_code(status, (f"x{name}", f"{name}x")))
            yield from _wrong_kinds(name, list(found.values()))


def _wrong_kinds(said: str, found: Sequence[Row | None]) -> Iterator[str]:
    """A model that is not there has the class by which a fallback is asked."""
    for row in found:
        if row is not None and bool(row.kind) is not (row.code == "llm.request_error" and row.statuses == WRONG):
            yield f"{said}: {row.kind}"


def _wrong_words(table: Table) -> Iterator[str]:
    rows = [row for row in table.rows if row.seen is Evidence.WORDS]
    for text in NO_WORDS:
        yield from (f"{text}: {row.match}" for row in rows if _is_found(row.match, text))
    for (code, statuses), texts in WORDS.items():
        for text in texts:
            fitting = [row for row in rows if _is_found(row.match, text)]
            found = {status: next((row for row in fitting if status in row.statuses), None) for status in PROBED}
            decided = {status: row.code for status, row in found.items() if row is not None}
            if decided != dict.fromkeys(statuses, code):
                yield f"{text}: {decided}, not {code} for {statuses}"
            yield from _wrong_kinds(text, list(found.values()))


@cache
def _is_found(pattern: str, text: str) -> bool:
    """Like the table looks; hundreds of changed tables look for the same patterns."""
    return Row(seen=Evidence.WORDS, match=pattern, code=ReasonCode.LLM_REFUSED).has_words(None, text)


def _wrong_reasons(reasons: Mapping[ReasonCode, Reason]) -> Iterator[str]:
    if sorted(reasons) != sorted([*RETRIED.split(), *FINAL.split()]):
        yield f"codes: {sorted(set(reasons) ^ {*RETRIED.split(), *FINAL.split()})}"
    for code, reason in reasons.items():
        if reason.transient is not (code in RETRIED.split()):
            yield f"{code}: transient is {reason.transient}"
        if (reason.retry_after != "none") is not (code in ASKED_TO_WAIT):
            yield f"{code}: retry-after {reason.retry_after}"
