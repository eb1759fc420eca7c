"""What the table of failures must say, written down a second time: no row of it is derived from the table."""

from collections.abc import Iterator, Mapping

from perdure.contracts.errors import REASONS, Reason, ReasonCode
from perdure.engine.failure_table import Evidence
from perdure.engine.failures import TABLE, FailureFacts, Table, is_ambiguous, row_of

Status = int | None

RETRIED = """
llm.rate_limited llm.network_error llm.timeout llm.empty_response llm.truncated
runtime.store_unavailable runtime.tool_missing runtime.worker_lost runtime.worker_shutdown
request.too_early
"""

FINAL = """
llm.auth_error llm.request_error llm.too_many_tools llm.quota_exhausted llm.context_overflow llm.content_filtered
llm.refused llm.missing_key llm.parse_error llm.schema_violation llm.fixture_missing llm.prompt_assembly_error
tool.unknown_tool tool.invalid_input tool.invalid_output tool.timeout tool.network_error tool.execution_error
tool.effect_unknown tool.cancelled tool.denied tool.approval_expired tool.fixture_missing tool.state_lost
tool.delegate_failed
tool.max_turns_exhausted
budget.cost_exhausted budget.llm_calls_exhausted budget.tool_calls_exhausted budget.seconds_exhausted
budget.behavior_calls_exhausted budget.events_exhausted budget.patches_exhausted budget.depth_exhausted
request.invalid request.too_large request.unknown_agent request.unknown_session request.turn_mismatch
runtime.store_refused runtime.mcp_unavailable
runtime.aborted runtime.turn_ended runtime.turn_closed runtime.payload_too_large
runtime.hook_failed runtime.failed_by_hook
"""

ASKED_TO_WAIT = ["llm.rate_limited", "llm.network_error", "llm.timeout"]
"""The codes of failures whose reply may say how long to wait."""

NAMES = {
    "llm.missing_key": "MissingKeyError",
    "llm.empty_response": "EmptyAnswerError",
    "llm.truncated": "TruncatedAnswerError",
    "llm.refused": "RefusedAnswerError",
    "llm.timeout": "DeadlineExceededError",
    "runtime.payload_too_large": "TooManyCallsError",
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
    "llm.request_error": "UnsupportedProtocol InvalidURL",
    "llm.network_error": "TransportError RequestError ClientConnectorError ClientError ConnectionRefusedError gaierror "
    "OSError",
}

NEVER_SENT = """
ConnectTimeout ConnectionTimeoutError ClientConnectorError ConnectionRefusedError gaierror
UnsupportedProtocol InvalidURL
"""

CLASSES = {
    "llm.empty_response": "IndexError",
    "llm.auth_error": "AuthenticationError PermissionDeniedError AwsAuthError XAIOAuthError",
    "llm.rate_limited": "RateLimitError RouterRateLimitError RouterRateLimitErrorBasic",
    "llm.timeout": "Timeout APITimeoutError APIConnectionTimeoutError TimeoutError",
    "llm.request_error": "UnsupportedParamsError BadRequestError NotFoundError UnprocessableEntityError "
    "InvalidRequestError ImageFetchError LiteLLMUnknownProvider VectorStoreSearchError ModelNotMappedError SSRFError "
    "ToolLoopMaxRoundsExceeded AgenticLoopSafetyError AdvisorMaxIterationsError AnthropicContextManagementError "
    "HTTPResponseLimitError",
    "llm.network_error": "ServiceUnavailableError InternalServerError BadGatewayError APIConnectionError "
    "APIStatusError APIError APIResponseValidationError MidStreamFallbackError MockException OpenAIError "
    "BaseLLMException CustomLLMError OpenAILikeError HerokuError AlephAlphaError TextCompletionCodestralError "
    "UpstreamFailure HTTPStatusError OSError",
}

LARGE: frozenset[Status] = frozenset({None, 200, 400, 401, 402, 403, 413, 422, 429, 500})
SMALL: frozenset[Status] = frozenset({None, 200, 400, 403, 413, 422})
IN_A_200: frozenset[Status] = frozenset({200})
GEMINIS_MINUTE = """\
You exceeded your current quota, please check your plan and billing details. For more information on this error, head \
to: https://ai.google.dev/gemini-api/docs/rate-limits.
* Quota exceeded for metric: generativelanguage.googleapis.com/generate_content_free_tier_requests, limit: 5, model: \
gemini-2.5-pro
Please retry in 36.745634386s."""
"""What Gemini says when the quota of this minute is used up."""

WORDS: dict[tuple[str, frozenset[Status]], list[str]] = {
    ("llm.quota_exhausted", LARGE): [
        "stop [insufficient_quota]",
        "stop [billing_hard_limit_reached]",
        "stop [billing_not_active]",
        "Insufficient credits, add more",
        "Your credit balance is too low to access the Anthropic API.",
        "Billing hard limit has been reached",
        "You exceeded your current quota",
        "please check your billing details",
        "Sorry.\nYou exceeded your current quota.",
        "You exceeded your current quota, and nothing is sent by an autoretry in 3 s",
        "You exceeded your current quota; to retry in a minute is of no use",
    ],
    ("llm.context_overflow", SMALL | {500}): [
        "no [context_length_exceeded]",
        "This model's maximum context length is 128000 tokens",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "Input is too long for requested model.",
    ],
    ("llm.context_overflow", SMALL): [
        "larger than the context window",
        "too many tokens",
        "too many input tokens",
        "exceeds the maximum number of tokens",
        "inputs that exceed the maximum number of tokens",
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
    ],
    ("llm.missing_key", SMALL | {401, 500}): [
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
    ("llm.rate_limited", IN_A_200): ["no [rate_limit_error]", "no [rate_limit_exceeded]"],
    ("llm.auth_error", IN_A_200): [
        "no [authentication_error]",
        "no [invalid_api_key]",
        "no [permission_error]",
    ],
    ("llm.request_error", IN_A_200): [
        "no [not_found_error]",
        "no [model_not_found]",
        "no [invalid_request_error]",
    ],
    ("llm.timeout", IN_A_200): ["no [timeout_error]"],
}
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
    *(f"x{word}" for word in (*BOUNDED, *BEGUN)),
    *(f"{word}x" for word in BOUNDED),
    *(text.replace("[", "[x") for (_, statuses), texts in WORDS.items() if statuses == IN_A_200 for text in texts),
    *(text.replace("]", "x]") for (_, statuses), texts in WORDS.items() if statuses == IN_A_200 for text in texts),
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
    for first, last, code in STATUSES:
        for status in range(first, last + 1):
            facts = FailureFacts(status=status, classes=("IndexError",), causes=("ReadTimeout", "TimeoutException"))
            yield facts, Evidence.STATUS, code
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
    if seen is Evidence.WORDS:
        yield from _wrong_words(table)
    if seen is Evidence.CAUSE:
        yield from _wrong_proofs(table)


def _wrong_proofs(table: Table) -> Iterator[str]:
    for name, _ in by_name(CAUSES):
        if is_ambiguous(FailureFacts(causes=(name,)), "llm.network_error", table) is (name in NEVER_SENT.split()):
            yield f"{name}: whether it was sent"


def _wrong_words(table: Table) -> Iterator[str]:
    rows = [(row, next(iter(row.statuses), None)) for row in table.rows if row.seen is Evidence.WORDS]
    for text in NO_WORDS:
        yield from (f"{text}: {row.match}" for row, status in rows if row.has_words(status, text))
    for (code, statuses), texts in WORDS.items():
        for text in texts:
            found = {status: table.by_words(Evidence.WORDS, status, text) for status in PROBED}
            decided = {status: row.code for status, row in found.items() if row is not None}
            if decided != dict.fromkeys(statuses, code):
                yield f"{text}: {decided}, not {code} for {statuses}"


def _wrong_reasons(reasons: Mapping[ReasonCode, Reason]) -> Iterator[str]:
    if sorted(reasons) != sorted([*RETRIED.split(), *FINAL.split()]):
        yield f"codes: {sorted(set(reasons) ^ {*RETRIED.split(), *FINAL.split()})}"
    for code, reason in reasons.items():
        if reason.transient is not (code in RETRIED.split()):
            yield f"{code}: transient is {reason.transient}"
        if (reason.retry_after != "none") is not (code in ASKED_TO_WAIT):
            yield f"{code}: retry-after {reason.retry_after}"
