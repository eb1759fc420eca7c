"""When a model call is sent again, and how long the wait is: one table, one formula, one decision.

Sources: Dreadnode's agent API (classes, formula, time budget), Dawn's retry (cap, patterns), and what litellm was seen
to raise for each fault: status codes are the most reliable fact it gives, then the cause chain, then its class.
"""

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime

from perdure.contracts.errors import REASONS, ReasonCode
from perdure.contracts.retries import RetryPolicy
from perdure.contracts.values import Value


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


_REFUSALS: tuple[tuple[re.Pattern[str], ReasonCode], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), code)
    for pattern, code in (
        (
            r"insufficient_quota|exceeded your current quota|credit balance is too low|billing",
            ReasonCode.LLM_QUOTA_EXHAUSTED,
        ),
        (
            r"context_length_exceeded|context window|maximum context length|prompt is too long|too many tokens",
            ReasonCode.LLM_CONTEXT_OVERFLOW,
        ),
        (r"content_policy|content management policy|content filter", ReasonCode.LLM_CONTENT_FILTERED),
        (
            r"api_key client option must be set|missing .*api.?key|api.?key .*(not set|is missing|required)",
            ReasonCode.LLM_MISSING_KEY,
        ),
    )
)
"""Refusals that share a status with others: the status alone does not tell them, the provider's words do."""

_STATUSES: dict[int, ReasonCode] = {
    401: ReasonCode.LLM_AUTH_ERROR,
    403: ReasonCode.LLM_AUTH_ERROR,
    408: ReasonCode.LLM_TIMEOUT,
    409: ReasonCode.LLM_NETWORK_ERROR,
    425: ReasonCode.LLM_NETWORK_ERROR,
    429: ReasonCode.LLM_RATE_LIMITED,
    504: ReasonCode.LLM_TIMEOUT,
}
"""By HTTP status; any other of 400 to 499 is a refused request, of 500 and up a fault on the provider's side."""

_CLASSES: dict[str, ReasonCode] = {
    "ContextWindowExceededError": ReasonCode.LLM_CONTEXT_OVERFLOW,
    "ContentPolicyViolationError": ReasonCode.LLM_CONTENT_FILTERED,
    "ContentFilteredError": ReasonCode.LLM_CONTENT_FILTERED,
    "EmptyAnswerError": ReasonCode.LLM_EMPTY,
    "IndexError": ReasonCode.LLM_EMPTY,
    "DeadlineExceededError": ReasonCode.LLM_TIMEOUT,
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
    "ReadTimeout": ReasonCode.LLM_TIMEOUT,
    "ConnectTimeout": ReasonCode.LLM_TIMEOUT,
    "ServerTimeoutError": ReasonCode.LLM_TIMEOUT,
    "TransportError": ReasonCode.LLM_NETWORK_ERROR,
    "ClientConnectionError": ReasonCode.LLM_NETWORK_ERROR,
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

_REFUSED_STATUSES = frozenset({None, 400, 401, 402, 403, 413, 422, 429, 500})
"""Statuses behind which the provider's words decide first; 500 is what some libraries make of a local refusal."""


def classify(facts: FailureFacts) -> ReasonCode:
    """The reason code of a failed model call. Never fails: what nobody knows is a network error, hence retried."""
    by_class = next((_CLASSES[name] for name in facts.classes if name in _CLASSES), None)
    if by_class is ReasonCode.LLM_CONTEXT_OVERFLOW or by_class is ReasonCode.LLM_CONTENT_FILTERED:
        return by_class
    if facts.status in _REFUSED_STATUSES:
        for pattern, code in _REFUSALS:
            if pattern.search(facts.text):
                return code
    return (
        _by_status(facts.status)
        or next((_CAUSES[name] for name in facts.causes if name in _CAUSES), None)
        or by_class
        or next((code for pattern, code in _PATTERNS if pattern.search(facts.text)), ReasonCode.LLM_NETWORK_ERROR)
    )


def _by_status(status: int | None) -> ReasonCode | None:
    if status is None or status < 400:
        return None
    if status in _STATUSES:
        return _STATUSES[status]
    return ReasonCode.LLM_REQUEST_ERROR if status < 500 else ReasonCode.LLM_NETWORK_ERROR


def parse_retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds a provider asks to wait: ``retry-after-ms``, or ``retry-after`` in seconds or as an HTTP date."""
    lower = {name.lower(): value for name, value in headers.items()}
    try:
        if "retry-after-ms" in lower:
            return max(0.0, float(lower["retry-after-ms"]) / 1000)
        value = lower.get("retry-after")
        if value is None:
            return None
        if re.fullmatch(r"\s*\d+(\.\d+)?\s*", value):
            return float(value)
        return max(0.0, (parsedate_to_datetime(value) - now).total_seconds())
    except (ValueError, TypeError):
        return None


def wait_before(policy: RetryPolicy, attempt: int, *, retry_after: float | None, jitter_sample: float) -> timedelta:
    """The wait before retry ``attempt`` (1, 2, …); ``jitter_sample`` is uniform in [0, 1)."""
    doubled = policy.base * int(2 ** min(attempt - 1, 30))
    wait = doubled + policy.jitter * jitter_sample
    if retry_after is not None:
        wait = max(wait, timedelta(seconds=min(retry_after, 10.0**8)))
    return wait if policy.cap is None else min(wait, policy.cap)


def decide(
    policy: RetryPolicy,
    code: ReasonCode,
    *,
    attempt: int,
    elapsed: timedelta,
    retry_after: float | None,
    jitter_sample: float,
) -> timedelta | None:
    """The wait before the call is sent again, or None when the chain ends here.

    Args:
        policy: The agent's policy.
        code: What the failure is.
        attempt: The number this retry would have, from 1.
        elapsed: Time since the step's first failure.
        retry_after: Seconds the provider asked for.
        jitter_sample: A random number in [0, 1).
    """
    if not REASONS[code].transient or attempt > policy.max_retries:
        return None
    wait = wait_before(policy, attempt, retry_after=retry_after, jitter_sample=jitter_sample)
    if policy.max_time is not None and elapsed + wait > policy.max_time:
        return None
    return wait
