"""When a model call is sent again, and how long the wait is: one formula, one decision.

Sources: Dreadnode's agent API (formula, time budget), Dawn's retry (cap).
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from perdure.contracts.errors import Reason
from perdure.contracts.retries import RetryPolicy

LONGEST_WAIT = timedelta(days=365)
"""Bound of a wait under a policy that has none: the doubling would leave what a timer can hold."""

RETRY_AFTER_JITTER = 0.1
"""Share of a provider's retry-after that is added at random."""

_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?")


def parse_retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds a provider asks to wait: ``retry-after-ms``, or ``retry-after`` in seconds or as an HTTP date.

    A date is compared with the reply's own ``date``, so that a wrong clock on either side changes nothing; without one
    with ``now``.
    """
    lower = {name.lower(): value.strip() for name, value in headers.items()}
    milliseconds = lower.get("retry-after-ms", "")
    if _NUMBER.fullmatch(milliseconds):
        return float(milliseconds) / 1000
    value = lower.get("retry-after", "")
    if _NUMBER.fullmatch(value):
        return float(value)
    until = _date(value)
    if until is None:
        return None
    return max(0.0, (until - (_date(lower.get("date", "")) or now)).total_seconds())


def _date(value: str) -> datetime | None:
    """An HTTP date."""
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, IndexError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def wait_before(policy: RetryPolicy, attempt: int, *, retry_after: float | None, jitter_sample: float) -> timedelta:
    """The wait before retry ``attempt`` (1, 2, …); ``jitter_sample`` is uniform in [0, 1].

    What a provider asks for is the same for all who were refused: a policy with jitter adds up to a tenth of it.
    """
    doubled = policy.base.total_seconds() * 2.0 ** min(attempt - 1, 1000)
    spread = 1.0 + RETRY_AFTER_JITTER * jitter_sample if policy.jitter else 1.0
    seconds = max(doubled + policy.jitter.total_seconds() * jitter_sample, (retry_after or 0.0) * spread)
    wait = timedelta(seconds=min(seconds, LONGEST_WAIT.total_seconds()))
    return wait if policy.cap is None else min(wait, policy.cap)


def decide(  # noqa: PLR0913 - each is a fact of its own
    policy: RetryPolicy,
    reason: Reason,
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
        reason: What is known about the failure.
        ambiguous: Whether the provider may have carried the call out.
        attempt: The number this retry would have, from 1.
        elapsed: Time since the step's first failure, without the time in which no worker had the call.
        retry_after: Seconds the provider asked for.
        jitter_sample: A random number in [0, 1].
    """
    if not reason.transient or attempt > policy.max_retries:
        return None
    if ambiguous and policy.ambiguous == "fail":
        return None
    wait = wait_before(policy, attempt, retry_after=retry_after, jitter_sample=jitter_sample)
    if policy.max_time is None:
        return wait
    left = policy.max_time - elapsed
    if retry_after is not None and wait > left:  # what jitter adds to the provider's own wait ends no chain
        wait = max(left, wait_before(policy, attempt, retry_after=retry_after, jitter_sample=0.0))
    return None if left <= timedelta(0) or wait > left else wait
