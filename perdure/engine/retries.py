"""When a model call is sent again, and how long the wait is: one table, one formula, one decision.

Sources: Dreadnode's agent API (classes, formula, time budget), Dawn's retry (cap, patterns), and what litellm was seen
to raise for each fault: status codes are the most reliable fact it gives, then the cause chain, then its class.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from perdure.contracts.errors import REASONS, ReasonCode
from perdure.contracts.retries import RetryPolicy
from perdure.contracts.values import Value

LONGEST_WAIT = timedelta(days=365)
"""Bound of a wait under a policy that has none: the doubling would leave what a timer can hold."""

_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?")


class FailureFacts(Value):
    """A failed model call as plain facts, redacted and bounded.

    Attributes:
        status: The HTTP status, as far as the library tells one.
        retry_after_seconds: What the provider asked to wait.
        class_name: The class that was raised.
        classes: The class and its bases.
        causes: The classes of the cause chain and their bases, outermost first.
        text: The message.
    """

    status: int | None = None
    retry_after_seconds: float | None = None
    class_name: str = ""
    classes: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    text: str = ""


class _Words(Value):
    """What providers write about one kind of refusal.

    Attributes:
        pattern: Searched in the message, whatever the case.
        code: The reason it stands for.
        statuses: The statuses behind which the words count; None is an error without one.
    """

    pattern: str
    code: ReasonCode
    statuses: frozenset[int | None]

    def match(self, facts: FailureFacts) -> bool:
        """Whether the failure is of this kind."""
        return facts.status in self.statuses and re.search(self.pattern, facts.text, re.IGNORECASE) is not None


_REFUSED = frozenset({None, 400, 403, 413, 422})
_ANY = _REFUSED | {200, 401, 402, 429, 500}  # 500: some libraries give it to what was never sent

_REFUSALS = (
    _Words(
        pattern=r"\b(insufficient_quota|billing_hard_limit_reached|billing_not_active|insufficient credits)\b"
        r"|credit balance is too low|billing hard limit has been reached",
        code=ReasonCode.LLM_QUOTA_EXHAUSTED,
        statuses=_ANY,
    ),
    _Words(
        # The same words come with a time to wait when only the quota of this minute is used up.
        pattern=r"\A(?!.*\b(retry|try again) (in|after) [\d.]+)(?s:.*)(exceeded your current quota|check your billing)",
        code=ReasonCode.LLM_QUOTA_EXHAUSTED,
        statuses=_ANY,
    ),
    _Words(
        pattern=r"\bcontext_length_exceeded\b|maximum context length|(prompt|input) is too long",
        code=ReasonCode.LLM_CONTEXT_OVERFLOW,
        statuses=_REFUSED | {500},
    ),
    _Words(
        pattern=r"context window|too many (input )?tokens|exceeds? the maximum number of tokens",
        code=ReasonCode.LLM_CONTEXT_OVERFLOW,
        statuses=_REFUSED,
    ),
    _Words(
        pattern=r"\bcontent_(policy|filter)|content management policy|content filter",
        code=ReasonCode.LLM_CONTENT_FILTERED,
        statuses=_REFUSED,
    ),
    _Words(
        pattern=r"\bapi_key client option must be set|\bmissing (credentials|.{0,40}\bapi.?key)"
        r"|\bapi.?key .{0,60}(not set|is missing|required)|(didn't|did not) provide an api.?key"
        r"|no auth credentials found",
        code=ReasonCode.LLM_MISSING_KEY,
        statuses=_REFUSED | {401, 500},
    ),
)
"""Refusals that share a status with others: the status alone does not tell them, the provider's words do."""

_STATUSES: dict[int, ReasonCode] = {
    401: ReasonCode.LLM_AUTH_ERROR,
    402: ReasonCode.LLM_QUOTA_EXHAUSTED,
    403: ReasonCode.LLM_AUTH_ERROR,
    408: ReasonCode.LLM_TIMEOUT,
    409: ReasonCode.LLM_NETWORK_ERROR,
    425: ReasonCode.LLM_NETWORK_ERROR,
    429: ReasonCode.LLM_RATE_LIMITED,
    504: ReasonCode.LLM_TIMEOUT,
}
"""By HTTP status; any other of 400 to 499 is a refused request, of 500 and up a fault on the provider's side."""

_SETTLED: dict[str, ReasonCode] = {
    "ContextWindowExceededError": ReasonCode.LLM_CONTEXT_OVERFLOW,
    "ContentPolicyViolationError": ReasonCode.LLM_CONTENT_FILTERED,
    "ContentFilteredError": ReasonCode.LLM_CONTENT_FILTERED,
    "MissingKeyError": ReasonCode.LLM_MISSING_KEY,
    "EmptyAnswerError": ReasonCode.LLM_EMPTY,
    "TruncatedAnswerError": ReasonCode.LLM_TRUNCATED,
    "RefusedAnswerError": ReasonCode.LLM_REFUSED,
    "DeadlineExceededError": ReasonCode.LLM_TIMEOUT,
    "TooManyCallsError": ReasonCode.RUNTIME_PAYLOAD_TOO_LARGE,
}
"""Classes that say more than any status: raised for one reason only, by litellm or by our own call."""

_CLASSES: dict[str, ReasonCode] = {
    "IndexError": ReasonCode.LLM_EMPTY,  # an answer without choices
    "AuthenticationError": ReasonCode.LLM_AUTH_ERROR,
    "PermissionDeniedError": ReasonCode.LLM_AUTH_ERROR,
    "RateLimitError": ReasonCode.LLM_RATE_LIMITED,
    "Timeout": ReasonCode.LLM_TIMEOUT,
    "APITimeoutError": ReasonCode.LLM_TIMEOUT,
    "APIConnectionTimeoutError": ReasonCode.LLM_TIMEOUT,
    "TimeoutError": ReasonCode.LLM_TIMEOUT,
    "UnsupportedParamsError": ReasonCode.LLM_REQUEST_ERROR,
    "BadRequestError": ReasonCode.LLM_REQUEST_ERROR,
    "NotFoundError": ReasonCode.LLM_REQUEST_ERROR,
    "UnprocessableEntityError": ReasonCode.LLM_REQUEST_ERROR,
    "ServiceUnavailableError": ReasonCode.LLM_NETWORK_ERROR,
    "InternalServerError": ReasonCode.LLM_NETWORK_ERROR,
    "BadGatewayError": ReasonCode.LLM_NETWORK_ERROR,
    "APIConnectionError": ReasonCode.LLM_NETWORK_ERROR,
    "APIError": ReasonCode.LLM_NETWORK_ERROR,
    "OSError": ReasonCode.LLM_NETWORK_ERROR,
}
"""By the class that was raised or one of its bases, the most derived first."""

_CAUSES: dict[str, ReasonCode] = {
    "TimeoutException": ReasonCode.LLM_TIMEOUT,  # httpx
    "ServerTimeoutError": ReasonCode.LLM_TIMEOUT,  # aiohttp
    "TimeoutError": ReasonCode.LLM_TIMEOUT,
    "TransportError": ReasonCode.LLM_NETWORK_ERROR,  # httpx
    "ClientError": ReasonCode.LLM_NETWORK_ERROR,  # aiohttp
    "OSError": ReasonCode.LLM_NETWORK_ERROR,
}
"""By a class in the cause chain: the real httpx, aiohttp or OS error behind a class that says less."""

_PATTERNS: tuple[tuple[re.Pattern[str], ReasonCode], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), code)
    for pattern, code in (
        (r"\b429\b|\brate.?limit", ReasonCode.LLM_RATE_LIMITED),
        (r"\bETIMEDOUT\b|\btime(d)?[ -]?out\b", ReasonCode.LLM_TIMEOUT),
        (
            r"\b50[023]\b|\bECONNRESET\b|\bECONNREFUSED\b|\bnetwork\b|\boverloaded\b|\bserver_error\b",
            ReasonCode.LLM_NETWORK_ERROR,
        ),
    )
)
"""By words of the message, when nothing else decides. Source: Dawn's list, with word boundaries."""


def classify(facts: FailureFacts) -> ReasonCode:
    """The reason code of a failed model call. Never fails: what nobody knows is a network error, hence retried."""
    refusal = next((words.code for words in _REFUSALS if words.match(facts)), None)
    return (
        _first(_SETTLED, facts.classes)
        or refusal
        or _by_status(facts.status)
        or _first(_CAUSES, facts.causes)
        or _first(_CLASSES, facts.classes)
        or next((code for pattern, code in _PATTERNS if pattern.search(facts.text)), ReasonCode.LLM_NETWORK_ERROR)
    )


_NEVER_SENT = frozenset({"ConnectError", "ConnectTimeout", "ClientConnectorError"})
"""Classes of httpx and aiohttp in the cause chain of a call whose connection was never made."""


def is_ambiguous(facts: FailureFacts, code: ReasonCode) -> bool:
    """Whether the provider may have carried the call out although no answer came."""
    if code not in {ReasonCode.LLM_TIMEOUT, ReasonCode.LLM_NETWORK_ERROR}:
        return False
    refused = facts.status is not None and 400 <= facts.status < 500 and code is not ReasonCode.LLM_TIMEOUT
    return not refused and not _NEVER_SENT.intersection(facts.causes)


def _first(table: Mapping[str, ReasonCode], names: Iterable[str]) -> ReasonCode | None:
    return next((table[name] for name in names if name in table), None)


def _by_status(status: int | None) -> ReasonCode | None:
    if status is None or status < 400:
        return None
    if status in _STATUSES:
        return _STATUSES[status]
    return ReasonCode.LLM_REQUEST_ERROR if status < 500 else ReasonCode.LLM_NETWORK_ERROR


def parse_retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds a provider asks to wait: ``retry-after-ms``, or ``retry-after`` in seconds or as an HTTP date."""
    lower = {name.lower(): value.strip() for name, value in headers.items()}
    milliseconds = lower.get("retry-after-ms", "")
    if _NUMBER.fullmatch(milliseconds):
        return float(milliseconds) / 1000
    value = lower.get("retry-after", "")
    if _NUMBER.fullmatch(value):
        return float(value)
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, IndexError):
        return None
    return max(0.0, ((date if date.tzinfo else date.replace(tzinfo=UTC)) - now).total_seconds())


def wait_before(policy: RetryPolicy, attempt: int, *, retry_after: float | None, jitter_sample: float) -> timedelta:
    """The wait before retry ``attempt`` (1, 2, …); ``jitter_sample`` is uniform in [0, 1]."""
    doubled = policy.base.total_seconds() * 2.0 ** min(attempt - 1, 1000)
    seconds = max(doubled + policy.jitter.total_seconds() * jitter_sample, retry_after or 0.0)
    wait = timedelta(seconds=min(seconds, LONGEST_WAIT.total_seconds()))
    return wait if policy.cap is None else min(wait, policy.cap)


def decide(  # noqa: PLR0913 - each is a fact of its own
    policy: RetryPolicy,
    code: ReasonCode,
    *,
    ambiguous: bool,
    attempt: int,
    elapsed: timedelta,
    retry_after: float | None,
    jitter_sample: float,
) -> timedelta | None:
    """The wait before the call is sent again, or None when the chain ends here.

    Args:
        policy: The agent's policy.
        code: What the failure is.
        ambiguous: Whether the provider may have carried the call out.
        attempt: The number this retry would have, from 1.
        elapsed: Time since the step's first failure.
        retry_after: Seconds the provider asked for.
        jitter_sample: A random number in [0, 1].
    """
    if not REASONS[code].transient or attempt > policy.max_retries:
        return None
    if ambiguous and policy.ambiguous == "fail":
        return None
    wait = wait_before(policy, attempt, retry_after=retry_after, jitter_sample=jitter_sample)
    if policy.max_time is not None and (elapsed >= policy.max_time or elapsed + wait > policy.max_time):
        return None
    return wait
