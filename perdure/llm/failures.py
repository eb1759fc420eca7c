"""Failures of model calls: their facts, and the one table that turns them into reason codes.

The rows are searched in the order of :class:`Evidence`. ``perdure errors --faults`` prints them, ``docs/errors.md`` is
made from them, and a test breaks each in turn. Sources: Dreadnode's agent API (classes), Dawn's retry (words of the
message), the providers' own codes and words (``llm.refusals``), and what litellm raises for OpenAI's and Anthropic's
APIs. There the status of the reply is the most reliable fact, then the cause chain, then litellm's class.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

from perdure.contracts.errors import NOTHING, REASONS, TOLD, Reason, ReasonCode
from perdure.contracts.values import Value
from perdure.llm.quotas import without_denials
from perdure.llm.refusals import CODES, WORDS


class Evidence(StrEnum):
    """The kinds of evidence that rows match, in the order in which they are searched."""

    NAME = "class, whatever the status"
    """The class of the exception or one of its bases, if it is raised for one reason only."""
    CODE = "status and code"
    """The provider's own code for the failure, with a status that several kinds of refusals share."""
    WORDS = "status and words"
    """The provider's words with such a status, if it has no code for the failure or too general a one."""
    STATUS = "status"
    """The HTTP status of the reply."""
    FAULT = "class, if no provider answered"
    """The class of an exception that code raises by a mistake; ``activities.faults`` tells it from an odd reply."""
    CAUSE = "cause"
    """A class in the cause chain: the real httpx, aiohttp or OS error, under a class that says less."""
    CLASS = "class"
    """The class of the exception or one of its bases, the most derived first."""
    MESSAGE = "words"
    """The words of the message, if nothing else decides."""
    NONE = "anything else"


class Row(Value):
    """One row of the table.

    Attributes:
        seen: The kind of evidence that the row matches.
        match: The class, the status or its range, the provider's code in lower case, or a pattern that is searched
            without regard to case.
        code: The reason code of the failure.
        statuses: The statuses with which the provider's code or words count; None is an error without a status.
        never_sent: Whether the cause proves that the connection was never made.
        example: Words that match the pattern and no other row.
        kind: The precise class of the failure, where litellm raises a more general one.
        source: The page or report with the provider's code or words.
        name: The usual name of the failure, for people: that of the class in most providers' libraries.
    """

    seen: Evidence
    match: str
    code: ReasonCode
    statuses: frozenset[int | None] = frozenset()
    never_sent: bool = False
    example: str = ""
    kind: str = ""
    source: str = ""
    name: str = ""

    def has_status(self, status: int | None) -> bool:
        """Whether the range of a status row contains this status."""
        low, _, high = self.match.partition("-")
        return status is not None and int(low) <= status <= int(high or low)

    def has_words(self, status: int | None, text: str) -> bool:
        """Whether the text matches and the words count with this status; a row without statuses takes any."""
        return (not self.statuses or status in self.statuses) and re.search(self.match, text, re.IGNORECASE) is not None


_FOR_ONE_REASON: dict[ReasonCode, str] = {
    # perdure's own
    ReasonCode.LLM_MISSING_KEY: "MissingKeyError",
    ReasonCode.LLM_EMPTY: "EmptyAnswerError",
    ReasonCode.LLM_TRUNCATED: "TruncatedAnswerError",
    ReasonCode.LLM_STREAM_CUT: "StreamCutError",
    ReasonCode.LLM_INVALID_RESPONSE: "InvalidReplyError",
    ReasonCode.LLM_REQUEST_ERROR: "RedirectedError",
    ReasonCode.LLM_REFUSED: "RefusedAnswerError",
    ReasonCode.LLM_TIMEOUT: "DeadlineExceededError",
    ReasonCode.RUNTIME_PAYLOAD_TOO_LARGE: "TooManyCallsError",
    ReasonCode.LLM_PROMPT_ASSEMBLY_ERROR: "PromptAssemblyError",
    # litellm's, except for the first
    ReasonCode.LLM_CONTENT_FILTERED: "ContentFilteredError ContentPolicyViolationError GuardrailRaisedException "
    "BlockedPiiEntityError SensitiveDataRouteException ModifyResponseException RejectedRequestError "
    "UnappliableRequestRewrite",
    ReasonCode.LLM_CONTEXT_OVERFLOW: "ContextWindowExceededError",
    ReasonCode.LLM_QUOTA_EXHAUSTED: "PaymentRequiredError BudgetExceededError",
    ReasonCode.LLM_SCHEMA_VIOLATION: "JSONSchemaValidationError",
}

_STATUSES: tuple[tuple[str, ReasonCode, str], ...] = (
    ("400", ReasonCode.LLM_REQUEST_ERROR, "BadRequestError"),
    ("401", ReasonCode.LLM_AUTH_ERROR, "AuthenticationError"),
    ("402", ReasonCode.LLM_QUOTA_EXHAUSTED, "PaymentRequiredError"),
    ("403", ReasonCode.LLM_AUTH_ERROR, "PermissionDeniedError"),
    ("404", ReasonCode.LLM_REQUEST_ERROR, "NotFoundError"),
    ("405-407", ReasonCode.LLM_REQUEST_ERROR, "BadRequestError"),
    ("408", ReasonCode.LLM_TIMEOUT, "Timeout"),
    ("409", ReasonCode.LLM_NETWORK_ERROR, "BadRequestError"),
    ("410-412", ReasonCode.LLM_REQUEST_ERROR, "BadRequestError"),
    ("413", ReasonCode.LLM_REQUEST_ERROR, "BadRequestError"),
    ("414-421", ReasonCode.LLM_REQUEST_ERROR, "BadRequestError"),
    ("422", ReasonCode.LLM_REQUEST_ERROR, "BadRequestError"),
    ("423-424", ReasonCode.LLM_REQUEST_ERROR, "BadRequestError"),
    ("425", ReasonCode.LLM_NETWORK_ERROR, "BadRequestError"),
    ("426-428", ReasonCode.LLM_REQUEST_ERROR, "BadRequestError"),
    ("429", ReasonCode.LLM_RATE_LIMITED, "RateLimitError"),
    ("430-499", ReasonCode.LLM_REQUEST_ERROR, "BadRequestError"),
    ("500", ReasonCode.LLM_NETWORK_ERROR, "InternalServerError"),
    ("501", ReasonCode.LLM_NETWORK_ERROR, "APIError"),
    ("502", ReasonCode.LLM_NETWORK_ERROR, "BadGatewayError"),
    ("503", ReasonCode.LLM_NETWORK_ERROR, "ServiceUnavailableError"),
    ("504", ReasonCode.LLM_TIMEOUT, "Timeout"),
    ("505-528", ReasonCode.LLM_NETWORK_ERROR, "APIError"),
    ("529", ReasonCode.LLM_NETWORK_ERROR, "OverloadedError"),
    ("530-999", ReasonCode.LLM_NETWORK_ERROR, "APIError"),
)
"""Statuses, each with the name that most libraries have for it."""

_CAUSES: tuple[tuple[str, ReasonCode, bool], ...] = (
    # httpx
    ("ConnectTimeout", ReasonCode.LLM_TIMEOUT, True),
    ("TimeoutException", ReasonCode.LLM_TIMEOUT, False),
    ("UnsupportedProtocol", ReasonCode.LLM_REQUEST_ERROR, True),
    ("InvalidURL", ReasonCode.LLM_REQUEST_ERROR, True),  # aiohttp has one too
    ("TransportError", ReasonCode.LLM_NETWORK_ERROR, False),
    ("RequestError", ReasonCode.LLM_NETWORK_ERROR, False),
    # aiohttp
    ("ConnectionTimeoutError", ReasonCode.LLM_TIMEOUT, True),
    ("NonHttpUrlClientError", ReasonCode.LLM_REQUEST_ERROR, True),
    ("ServerTimeoutError", ReasonCode.LLM_TIMEOUT, False),
    ("ClientConnectorError", ReasonCode.LLM_NETWORK_ERROR, True),
    ("ClientError", ReasonCode.LLM_NETWORK_ERROR, False),
    # Python
    ("ConnectionRefusedError", ReasonCode.LLM_NETWORK_ERROR, True),
    ("gaierror", ReasonCode.LLM_NETWORK_ERROR, True),
    ("TimeoutError", ReasonCode.LLM_TIMEOUT, False),
    ("OSError", ReasonCode.LLM_NETWORK_ERROR, False),
)
"""httpx's ConnectError proves nothing: litellm's transport raises it for a reset after the request too."""

_FAULTS = (
    # code
    "TypeError AttributeError NameError ImportError AssertionError LookupError ValueError ArithmeticError SyntaxError "
    "RecursionError NotImplementedError BufferError SystemError ReferenceError StopIteration StopAsyncIteration "
    # the worker's own files: certificates, credentials
    "FileNotFoundError NotADirectoryError IsADirectoryError PermissionError SSLError"
)
"""Exceptions that no provider raises; what wraps them says less."""

TRANSPORT = frozenset(
    {
        *("TransportError", "RequestError", "InvalidURL", "HTTPStatusError", "HTTPError", "ClientError"),
        *("ConnectionError", "TimeoutError", "gaierror", "RequestException"),
        *("SSLEOFError", "SSLZeroReturnError", "SSLSyscallError", "SSLCertVerificationError"),
    }
)
"""Exceptions of a connection, or of a reply: whatever else is in their cause chain, no code is to blame."""

_CLASSES: dict[ReasonCode, str] = {
    ReasonCode.LLM_EMPTY: "IndexError",  # an answer without choices
    ReasonCode.LLM_AUTH_ERROR: "AuthenticationError PermissionDeniedError AwsAuthError XAIOAuthError "
    "CallerCredentialAuthenticationError OAuthTokenExchangeError",
    ReasonCode.LLM_RATE_LIMITED: "RateLimitError RouterRateLimitError RouterRateLimitErrorBasic "
    "CallerCredentialRateLimitError",
    ReasonCode.LLM_TIMEOUT: "Timeout APITimeoutError APIConnectionTimeoutError TimeoutError",
    ReasonCode.LLM_REQUEST_ERROR: "UnsupportedParamsError BadRequestError NotFoundError UnprocessableEntityError "
    "InvalidRequestError ImageFetchError LiteLLMUnknownProvider VectorStoreSearchError ModelNotMappedError SSRFError "
    "ToolLoopMaxRoundsExceeded AgenticLoopSafetyError AdvisorMaxIterationsError AnthropicContextManagementError "
    "HTTPResponseLimitError UnsupportedEndpointError EndpointNotSupportedByModelError MalformedRequestFieldError "
    "UnsupportedContentTypeError TotalTimeoutNotApplicable",
    ReasonCode.LLM_NETWORK_ERROR: "ServiceUnavailableError InternalServerError BadGatewayError APIConnectionError "
    "NoReplyError ProviderError "
    "APIStatusError APIError APIResponseValidationError MidStreamFallbackError MockException OpenAIError "
    "BaseLLMException CustomLLMError OpenAILikeError HerokuError AlephAlphaError TextCompletionCodestralError "
    "UpstreamFailure HTTPStatusError OSError StreamClosed",
}

WRAPPERS = frozenset(_CLASSES[ReasonCode.LLM_NETWORK_ERROR].split()) - {"CustomLLMError", "OSError"} | {
    "StreamCutError"
}
"""Exceptions that libraries make of whatever they meet."""

_MESSAGES: tuple[tuple[ReasonCode, str, str], ...] = (
    (ReasonCode.LLM_RATE_LIMITED, r"\b429\b", "got 429"),
    (ReasonCode.LLM_RATE_LIMITED, r"\brate.?limit", "Rate limit exceeded"),
    (ReasonCode.LLM_TIMEOUT, r"\bETIMEDOUT\b", "connect ETIMEDOUT"),
    (ReasonCode.LLM_TIMEOUT, r"\btime(d)?[ -]?out\b", "timeout of 5 s"),
    (ReasonCode.LLM_NETWORK_ERROR, r"\b50[023]\b", "HTTP 502"),
    (ReasonCode.LLM_NETWORK_ERROR, r"\bECONNRESET\b", "read ECONNRESET"),
    (ReasonCode.LLM_NETWORK_ERROR, r"\bECONNREFUSED\b", "connect ECONNREFUSED"),
    (ReasonCode.LLM_NETWORK_ERROR, r"\bnetwork\b", "network unreachable"),
    (ReasonCode.LLM_NETWORK_ERROR, r"\boverloaded\b", "Overloaded"),
    (ReasonCode.LLM_NETWORK_ERROR, r"\bserver_error\b", "failed [server_error]"),
)
"""Source: Dawn's list, with word boundaries."""


def _rows() -> Iterator[Row]:
    for code, names in _FOR_ONE_REASON.items():
        yield from (Row(seen=Evidence.NAME, match=name, code=code) for name in names.split())
    for seen, refusals in ((Evidence.CODE, CODES), (Evidence.WORDS, WORDS)):
        for refusal in refusals:
            yield Row(
                seen=seen,
                match=refusal.match,
                code=refusal.code,
                statuses=refusal.statuses,
                example=refusal.example,
                kind=refusal.kind,
                source=refusal.source,
            )
    for status, code, name in _STATUSES:
        yield Row(seen=Evidence.STATUS, match=status, code=code, name=name)
    for name in _FAULTS.split():
        yield Row(seen=Evidence.FAULT, match=name, code=ReasonCode.RUNTIME_INTERNAL)
    for name, code, never_sent in _CAUSES:
        yield Row(seen=Evidence.CAUSE, match=name, code=code, never_sent=never_sent)
    for code, names in _CLASSES.items():
        yield from (Row(seen=Evidence.CLASS, match=name, code=code) for name in names.split())
    for code, pattern, example in _MESSAGES:
        yield Row(seen=Evidence.MESSAGE, match=pattern, code=code, example=example)
    yield Row(seen=Evidence.NONE, match="", code=ReasonCode.LLM_NETWORK_ERROR)


ROWS: tuple[Row, ...] = tuple(_rows())
"""Every row. An unknown failure counts as a network error, so that it is retried."""


class FailureFacts(Value):
    """A failed model call as plain facts, redacted and bounded.

    Attributes:
        status: The HTTP status of the provider's reply, if there is one.
        retry_after_seconds: The wait that the provider asked for.
        class_name: The class of the exception.
        classes: The class and its bases.
        fault: The class and the bases of the exception, if it is a fault of code.
        fault_place: The module that raised it, and the release of litellm.
        causes: The classes of the cause chain and their bases, outermost first.
        names: The provider's own codes and types for the failure, in lower case.
        text: The message.
        own_code: The ``reason_code`` of the exception, or of one that it was raised from.
        own_transient: Whether that exception has ``transient`` set.
    """

    status: int | None = None
    retry_after_seconds: float | None = None
    class_name: str = ""
    classes: tuple[str, ...] = ()
    fault: tuple[str, ...] = ()
    fault_place: str = ""
    causes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    text: str = ""
    own_code: str | None = None
    own_transient: bool = False


class Table:
    """Rows with an index for each kind of evidence."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self._by_kind = {seen: [row for row in rows if row.seen is seen] for seen in Evidence}
        self._by_match = {seen: {row.match: row for row in kind} for seen, kind in self._by_kind.items()}

    def find_by_class(self, seen: Evidence, names: Iterable[str]) -> Row | None:
        """The row for the first of these classes that has one."""
        known = self._by_match[seen]
        return next((known[name] for name in names if name in known), None)

    def find_by_code(self, status: int | None, names: Iterable[str]) -> Row | None:
        """The first row for one of the provider's codes."""
        known = frozenset(names)
        return next(
            (row for row in self._by_kind[Evidence.CODE] if row.match in known and status in row.statuses), None
        )

    def find_by_words(self, seen: Evidence, status: int | None, text: str) -> Row | None:
        """The first row whose pattern the text matches."""
        return next((row for row in self._by_kind[seen] if row.has_words(status, text)), None)

    def find_by_status(self, status: int | None) -> Row | None:
        """The row for this status."""
        return next((row for row in self._by_kind[Evidence.STATUS] if row.has_status(status)), None)

    def get_default(self) -> Row:
        """The row for failures that no other row matches."""
        return self._by_kind[Evidence.NONE][0]

    def proves_never_sent(self, causes: Iterable[str]) -> bool:
        """Whether the cause chain has a class which proves that no connection was made."""
        known = self._by_match[Evidence.CAUSE]
        return any(name in known and known[name].never_sent for name in causes)


TABLE = Table(ROWS)

FAULTS = frozenset(_FAULTS.split())
"""Classes of exceptions that are faults of code."""


def class_of_status(status: int, table: Table = TABLE) -> str:
    """The usual name of a provider's error with this status; ``ProviderError`` without one."""
    row = table.find_by_status(status)
    return row.name if row is not None else "ProviderError"


EXCEPTION = "exception."
"""Prefix of the code of an unforeseen exception; the name of its class follows."""

UNKEPT = Reason(transient=True, text="the model's answer could not be kept", model=TOLD, most_retries=4)
"""The reason of a paid answer that could not be kept: a retry may help, and five tries are enough."""


def classify(facts: FailureFacts) -> str:
    """The reason code of a failed model call. An unknown failure counts as a network error, so that it is retried."""
    if facts.own_code is not None:
        return ReasonCode(facts.own_code) if facts.own_code in REASONS else facts.own_code
    return row_of(facts).code


def class_of(facts: FailureFacts) -> str:
    """The class of the failure for people: that of the exception, unless the matching row names a more precise one."""
    return (facts.own_code is None and row_of(facts).kind) or facts.class_name


def reason_of(facts: FailureFacts) -> Reason:
    """The facts about the failure's reason code; for a custom provider's own code, those that its exception gives."""
    code = classify(facts)
    if code in REASONS:
        return REASONS[ReasonCode(code)]
    if code.startswith(EXCEPTION):
        return UNKEPT
    return Reason(
        transient=facts.own_transient,
        text=f"the agent's own model provider failed with {code}",
        model=TOLD if facts.own_transient else NOTHING,
    )


def row_of(facts: FailureFacts, table: Table = TABLE) -> Row:
    """The row that matches these facts, by the first kind of evidence with one."""
    said = without_denials(facts.text)
    return (
        table.find_by_class(Evidence.NAME, facts.classes)
        or table.find_by_code(facts.status, facts.names)
        or table.find_by_words(Evidence.WORDS, facts.status, said)
        or table.find_by_status(facts.status)
        or table.find_by_class(Evidence.FAULT, facts.fault)
        or table.find_by_class(Evidence.CAUSE, facts.causes)
        or table.find_by_class(Evidence.CLASS, facts.classes)
        or table.find_by_words(Evidence.MESSAGE, facts.status, said)
        or table.get_default()
    )


def is_ambiguous(facts: FailureFacts, code: str, table: Table = TABLE) -> bool:
    """Whether the provider may have carried out the call although no answer came."""
    if code == ReasonCode.LLM_STREAM_CUT:
        return True
    if code not in {ReasonCode.LLM_TIMEOUT, ReasonCode.LLM_NETWORK_ERROR}:
        return False
    refused = facts.status is not None and 400 <= facts.status < 500 and code != ReasonCode.LLM_TIMEOUT
    return not refused and not table.proves_never_sent(facts.causes)
