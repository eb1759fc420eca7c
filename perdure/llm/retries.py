"""Retries of a model call: whether it is sent again, after which wait, and the text of its failures for people.

Sources: Dreadnode's agent API (formula of the wait, time budget), Dawn's retry (cap).
"""

from datetime import timedelta

from perdure.contracts.errors import Reason
from perdure.contracts.retries import RetryPolicy
from perdure.contracts.values import Value
from perdure.llm.failures import FailureFacts
from perdure.llm.tool_output import head_and_tail

LONGEST_WAIT = timedelta(days=365)
"""Longest wait under a policy without a bound: doubling would exceed what a timer can hold."""

RETRY_AFTER_JITTER = 0.1
"""Share of a provider's retry-after that is added at random."""

NOT_AGAIN = (
    "the provider may have carried the call out, so it is not sent again: "
    "the agent's retry policy says ambiguous='fail'"
)
"""Text after a failure that another policy would have retried."""

NOT_AFTER_SHOWN = (
    "a part of its answer was shown already, so it is not sent again: "
    "the agent's retry policy says stream_retry='never_after_first_delta'"
)
"""Likewise of a stream."""


def wait_before(policy: RetryPolicy, attempt: int, *, retry_after: float | None, jitter_sample: float) -> timedelta:
    """The wait before retry ``attempt`` (1, 2, …); ``jitter_sample`` is uniform in [0, 1].

    A provider asks all refused callers for the same wait, so a policy with jitter adds up to a tenth of it.
    """
    doubled = policy.base.total_seconds() * 2.0 ** min(attempt - 1, 1000)
    spread = 1.0 + RETRY_AFTER_JITTER * jitter_sample if policy.jitter else 1.0
    seconds = max(doubled + policy.jitter.total_seconds() * jitter_sample, (retry_after or 0.0) * spread)
    wait = timedelta(seconds=min(seconds, LONGEST_WAIT.total_seconds()))
    return wait if policy.cap is None else min(wait, policy.cap)


class Chain(Value):
    """The failed calls of a step, up to the one that is judged.

    Attributes:
        calls: Number of calls that were made.
        attempt: The number that the next retry would have, from 1.
        elapsed: Time that they used of the policy's ``max_time``, without that in which no worker had the call.
        same: Number of the earlier ones that failed for the same reason.
        retry_after: Seconds that the provider asked to wait after the last call.
        ambiguous: Whether the provider may have carried out the last call.
        was_shown: Whether pieces of its answer were shown.
        told: Whether the model was told of each failure; attempts are then counted over several steps.
    """

    calls: int = 1
    attempt: int = 1
    elapsed: timedelta = timedelta(0)
    same: int = 0
    retry_after: float | None = None
    ambiguous: bool = False
    was_shown: bool = False
    told: bool = False


class Wait(Value):
    """The call is sent again, after this time."""

    time: timedelta


class End(Value):
    """The call is not sent again.

    Attributes:
        rule: The rule that ended the retries, with the calls and the time so far; empty for one failure that is never
            retried, and where the author's choice says it.
        choice: What the author chose that ends the retries.
        opening: What the text of the failure begins with.
    """

    rule: str = ""
    choice: str = ""
    opening: str = ""


def decide(policy: RetryPolicy, reason: Reason, chain: Chain, *, jitter_sample: float) -> Wait | End:
    """Whether the call is sent again; ``jitter_sample`` is a random number in [0, 1]."""
    if chain.ambiguous and policy.ambiguous == "fail":
        return End(choice=NOT_AGAIN)
    if chain.was_shown and policy.stream_retry == "never_after_first_delta":
        return End(choice=NOT_AFTER_SHOWN)
    made = f"{chain.calls} calls in {_to_seconds(chain.elapsed)}" if chain.calls > 1 else "1 call"
    if not reason.transient:
        return End(rule=f"after {made}" if chain.calls > 1 and not chain.told else "")
    wait = wait_before(policy, chain.attempt, retry_after=chain.retry_after, jitter_sample=jitter_sample)
    is_hopeless = reason.most_retries is not None and chain.same >= reason.most_retries
    is_last = chain.attempt > policy.max_retries
    fitting = None if is_hopeless or is_last else _fit(policy, chain, wait)
    if fitting is not None:
        return Wait(time=fitting)
    if chain.told:
        return End(opening=f"more than {policy.max_retries} failures in a row: " if is_last else "")
    if reason.most_retries is not None and chain.calls > reason.most_retries:
        return End(rule=f"{made}: another try hardly ever helps")
    if is_last:
        return End(rule=f"{made}: retry.max_retries is {policy.max_retries}")
    limit = _to_seconds(policy.max_time) if policy.max_time is not None else "unlimited"
    if chain.retry_after is not None and timedelta(seconds=chain.retry_after) >= wait:
        return End(rule=f"{made}: the provider asks to wait {chain.retry_after:g} s, and retry.max_time is {limit}")
    return End(rule=f"{made}: a wait of {_to_seconds(wait)} more is too long, as retry.max_time is {limit}")


def _fit(policy: RetryPolicy, chain: Chain, wait: timedelta) -> timedelta | None:
    """The wait as far as ``max_time`` has room for it; None if it has none."""
    if policy.max_time is None:
        return wait
    left = policy.max_time - chain.elapsed
    if chain.retry_after is not None and wait > left:  # the jitter on the provider's wait alone must not end the chain
        wait = max(left, wait_before(policy, chain.attempt, retry_after=chain.retry_after, jitter_sample=0.0))
    return None if left <= timedelta(0) or wait > left else wait


MAX_MESSAGE = 2_000
"""Longest message of a failure."""

_WHOLE = frozenset(
    {
        "ContentFilteredError",
        "DeadlineExceededError",
        "EmptyAnswerError",
        "PromptAssemblyError",
        "RedirectedError",
        "TooManyCallsError",
        "TruncatedAnswerError",
    }
)
"""Exceptions of perdure whose own text says the cause."""

_WITH_ADVICE = frozenset({"PromptAssemblyError", "RedirectedError"})
"""Exceptions of perdure whose own text says what to do as well."""


def failure_text(place: str, facts: FailureFacts, reason: Reason, *, longest: int = MAX_MESSAGE) -> str:
    """The text of a failure without advice: place, cause, the reply's status if there is one, and its message."""
    status = f" (HTTP {facts.status})" if facts.status else ""
    if facts.class_name in _WHOLE:
        start, said = f"{place}: ", facts.text + status
    else:
        fault = f"{facts.class_name} in {facts.fault_place}: " if facts.fault else ""
        start, said = f"{place}: {reason.cause}{status}: {fault}", facts.text
    return start + head_and_tail(said, max(200, longest - len(start)))


def compose_final_text(place: str, facts: FailureFacts, reason: Reason, end: End, session: str) -> str:
    """The text of a failure that ends a step: with the rule that ended the retries, advice, and the author's choice."""
    advice = "" if facts.class_name in _WITH_ADVICE else reason.advice.replace("SESSION", session)
    ending = "".join(f"; {part}" for part in (end.rule, advice, end.choice) if part)
    text = failure_text(place, facts, reason, longest=MAX_MESSAGE - len(ending))
    return end.opening + (text.rstrip(".") if ending else text) + ending


def _to_seconds(time: timedelta) -> str:
    seconds = time.total_seconds()
    return f"{seconds:.0f} s" if seconds >= 10 or seconds == int(seconds) else f"{seconds:.1f} s"
