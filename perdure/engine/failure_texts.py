"""What people read of a failed model call: one sentence with the place, the cause, the rule that ended it, the fix."""

from datetime import timedelta

from perdure.contracts.errors import Reason
from perdure.contracts.retries import RetryPolicy
from perdure.contracts.values import Value
from perdure.engine.failures import FailureFacts
from perdure.engine.outputs import head_and_tail

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
"""Those that say what to do as well."""


class Chain(Value):
    """The calls of a step that have failed, the last one included.

    Attributes:
        calls: How many were made.
        elapsed: Time they used of the policy's ``max_time``.
        wait: The wait that would have followed.
        retry_after: Seconds that the provider asked to wait after the last one.
        told: Whether the model was told of each, so that the failures in a row are counted over steps.
        most_retries: Retries after which the failure is final whatever the policy says.
    """

    calls: int
    elapsed: timedelta
    wait: timedelta
    retry_after: float | None = None
    told: bool = False
    most_retries: int | None = None


def failure_text(place: str, facts: FailureFacts, reason: Reason, *, longest: int = MAX_MESSAGE) -> str:
    """The failure without what is to be done: where, the cause, the reply's status if there is one, what was said."""
    status = f" (HTTP {facts.status})" if facts.status else ""
    if facts.class_name in _WHOLE:
        start, said = f"{place}: ", facts.text + status
    else:
        start, said = f"{place}: {reason.cause}{status}: ", facts.text
    return start + head_and_tail(said, max(200, longest - len(start)))


def final_text(place: str, facts: FailureFacts, reason: Reason, rule: str, session: str, *, choice: str = "") -> str:
    """The failure that ends a step: with the rule that ended its chain, what to do, and the author's own choice."""
    advice = "" if facts.class_name in _WITH_ADVICE else reason.advice.replace("SESSION", session)
    end = "".join(f"; {part}" for part in (rule, advice, choice) if part)
    text = failure_text(place, facts, reason, longest=MAX_MESSAGE - len(end))
    return (text.rstrip(".") if end else text) + end


def rule_of_end(policy: RetryPolicy, reason: Reason, chain: Chain) -> str:
    """Why a call is not sent again, with the calls and the time so far; nothing if one final failure says it all."""
    made = f"{chain.calls} calls in {_in_seconds(chain.elapsed)}" if chain.calls > 1 else "1 call"
    if chain.told or not reason.transient:
        return f"after {made}" if chain.calls > 1 and not chain.told else ""
    if chain.most_retries is not None and chain.calls > chain.most_retries:
        return f"{made}: another try hardly ever helps"
    if chain.calls > policy.max_retries:
        return f"{made}: retry.max_retries is {policy.max_retries}"
    limit = _in_seconds(policy.max_time) if policy.max_time is not None else "unlimited"
    if chain.retry_after is not None and timedelta(seconds=chain.retry_after) >= chain.wait:
        return f"{made}: the provider asks to wait {chain.retry_after:g} s, and retry.max_time is {limit}"
    return f"{made}: a wait of {_in_seconds(chain.wait)} more is too long, as retry.max_time is {limit}"


def _in_seconds(time: timedelta) -> str:
    seconds = time.total_seconds()
    return f"{seconds:.0f} s" if seconds >= 10 or seconds == int(seconds) else f"{seconds:.1f} s"
