"""When a model call is sent again: the table, the formula and the decision, without a clock and without chance."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.errors import REASONS, ReasonCode
from perdure.contracts.retries import RetryPolicy
from perdure.engine.retries import FailureFacts, classify, decide, is_ambiguous, parse_retry_after, wait_before

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)

EIGHT_RETRIED_CLASSES = {
    "RateLimitError": ReasonCode.LLM_RATE_LIMITED,
    "Timeout": ReasonCode.LLM_TIMEOUT,
    "APIConnectionError": ReasonCode.LLM_NETWORK_ERROR,
    "APIConnectionTimeoutError": ReasonCode.LLM_TIMEOUT,
    "ServiceUnavailableError": ReasonCode.LLM_NETWORK_ERROR,
    "InternalServerError": ReasonCode.LLM_NETWORK_ERROR,
    "BadGatewayError": ReasonCode.LLM_NETWORK_ERROR,
    "APIError": ReasonCode.LLM_NETWORK_ERROR,
}


def seconds(policy: RetryPolicy, *, tries: int, retry_after: float | None = None, jitter: float = 0.0) -> list[float]:
    waits = (
        wait_before(policy, attempt, retry_after=retry_after, jitter_sample=jitter) for attempt in range(1, tries + 1)
    )
    return [wait.total_seconds() for wait in waits]


def again(  # noqa: PLR0913 - each is a test's subject
    policy: RetryPolicy | None = None,
    code: ReasonCode = ReasonCode.LLM_RATE_LIMITED,
    *,
    ambiguous: bool = False,
    attempt: int = 1,
    elapsed: float = 0,
    retry_after: float | None = None,
    jitter: float = 0.0,
) -> timedelta | None:
    return decide(
        policy or RetryPolicy(),
        code,
        ambiguous=ambiguous,
        attempt=attempt,
        elapsed=timedelta(seconds=elapsed),
        retry_after=retry_after,
        jitter_sample=jitter,
    )


@pytest.mark.parametrize(("name", "code"), EIGHT_RETRIED_CLASSES.items())
def test_each_of_the_eight_retried_classes_is_transient_by_its_class_alone(name: str, code: ReasonCode) -> None:
    """S-01: the table's part of it."""
    assert classify(FailureFacts(class_name=name, classes=(name,))) is code
    assert REASONS[code].transient


@pytest.mark.parametrize(
    "name",
    ["BadRequestError", "AuthenticationError", "NotFoundError", "PermissionDeniedError", "ContextWindowExceededError"],
)
def test_a_class_that_is_not_retried_is_permanent_without_a_status(name: str) -> None:
    """S-02: the table's part of it."""
    assert not REASONS[classify(FailureFacts(class_name=name, classes=(name, "APIError")))].transient


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, ReasonCode.LLM_REQUEST_ERROR),
        (401, ReasonCode.LLM_AUTH_ERROR),
        (402, ReasonCode.LLM_QUOTA_EXHAUSTED),
        (403, ReasonCode.LLM_AUTH_ERROR),
        (404, ReasonCode.LLM_REQUEST_ERROR),
        (408, ReasonCode.LLM_TIMEOUT),
        (409, ReasonCode.LLM_NETWORK_ERROR),
        (413, ReasonCode.LLM_REQUEST_ERROR),
        (422, ReasonCode.LLM_REQUEST_ERROR),
        (425, ReasonCode.LLM_NETWORK_ERROR),
        (429, ReasonCode.LLM_RATE_LIMITED),
        (500, ReasonCode.LLM_NETWORK_ERROR),
        (502, ReasonCode.LLM_NETWORK_ERROR),
        (503, ReasonCode.LLM_NETWORK_ERROR),
        (504, ReasonCode.LLM_TIMEOUT),
        (529, ReasonCode.LLM_NETWORK_ERROR),
    ],
)
def test_a_status_decides_before_the_cause_chain_the_class_and_the_words(status: int, code: ReasonCode) -> None:
    other = "APIError" if not REASONS[code].transient else "BadRequestError"
    facts = FailureFacts(
        status=status, classes=(other,), causes=("ReadTimeout", "TimeoutException"), text="network 503"
    )
    assert classify(facts) is code


def test_the_cause_chain_decides_before_the_class() -> None:
    causes = ("ConnectTimeout", "TimeoutException", "TransportError")
    assert classify(FailureFacts(classes=("InternalServerError",), causes=causes)) is ReasonCode.LLM_TIMEOUT


def test_a_plain_timeout_in_the_cause_chain_is_a_timeout_although_it_is_an_os_error_too() -> None:
    facts = FailureFacts(classes=("APIError",), causes=("TimeoutError", "OSError"))
    assert classify(facts) is ReasonCode.LLM_TIMEOUT


def test_our_own_deadline_is_a_timeout_although_it_is_an_os_error_too() -> None:
    facts = FailureFacts(
        classes=("DeadlineExceededError", "TimeoutError", "OSError"), causes=("TimeoutError", "OSError")
    )
    assert classify(facts) is ReasonCode.LLM_TIMEOUT


@pytest.mark.parametrize(
    ("status", "text", "code"),
    [
        (429, "You exceeded your current quota, please check your plan [insufficient_quota]", "llm.quota_exhausted"),
        (429, "You exceeded your current quota, please check your plan and billing details.", "llm.quota_exhausted"),
        (400, "Your credit balance is too low to access the Anthropic API.", "llm.quota_exhausted"),
        (429, "Billing hard limit has been reached [billing_hard_limit_reached]", "llm.quota_exhausted"),
        (429, "You exceeded your current quota. Limit 15 a minute. Please retry in 34.07s.", "llm.rate_limited"),
        (429, "Rate limit reached. Add a card under account/billing for more", "llm.rate_limited"),
        (429, "Too many tokens, please wait before trying again", "llm.rate_limited"),
        (400, "This model's maximum context length is 128000 tokens", "llm.context_overflow"),
        (400, "prompt is too long: 210000 tokens > 200000 maximum", "llm.context_overflow"),
        (400, "rejected [content_policy_violation]", "llm.content_filtered"),
        (401, "You didn't provide an API key.", "llm.missing_key"),
        (500, "Missing credentials. Please pass an `api_key`", "llm.missing_key"),
        (500, "internal: too many tokens in flight, billing service down", "llm.network_error"),
        (None, "Missing Anthropic API Key - a call is made but no key is set", "llm.missing_key"),
    ],
)
def test_words_tell_refusals_apart_that_share_a_status(status: int | None, text: str, code: str) -> None:
    """S-13: a 429 whose body says the quota is used up for good is not retried; one for this minute only is."""
    assert classify(FailureFacts(status=status, classes=("APIError",), text=text)) == code


@pytest.mark.parametrize(
    "text",
    [
        "got 429",
        "Rate limit exceeded",
        "HTTP 500",
        "HTTP 502",
        "HTTP 503",
        "read ECONNRESET",
        "connect ECONNREFUSED",
        "ETIMEDOUT",
        "timeout of 5 s",
        "network unreachable",
        "Overloaded",
        "server_error",
    ],
)
def test_each_documented_pattern_is_retried_when_nothing_else_is_known(text: str) -> None:
    """S-10: first half."""
    assert REASONS[classify(FailureFacts(classes=("Strange",), text=text))].transient


@pytest.mark.parametrize("text", ["max 500 tokens allowed", "network policy denied", "timeout must be positive"])
def test_a_false_friend_of_a_pattern_is_not_retried_when_the_status_says_400(text: str) -> None:
    """S-10: second half."""
    assert classify(FailureFacts(status=400, classes=("BadRequestError",), text=text)) is ReasonCode.LLM_REQUEST_ERROR


def test_a_number_within_a_longer_one_is_no_status() -> None:
    """S-10: patterns are bounded by words."""
    assert classify(FailureFacts(text="order 14290")) is ReasonCode.LLM_NETWORK_ERROR


def test_what_nobody_knows_is_retried() -> None:
    assert classify(FailureFacts(class_name="Strange")) is ReasonCode.LLM_NETWORK_ERROR


def test_an_answer_without_choices_is_an_empty_answer() -> None:
    assert classify(FailureFacts(classes=("IndexError", "LookupError"))) is ReasonCode.LLM_EMPTY


@given(
    st.builds(
        FailureFacts,
        status=st.none() | st.integers(0, 999),
        classes=st.tuples(st.sampled_from([*EIGHT_RETRIED_CLASSES, "BadRequestError", "X"])),
        causes=st.lists(st.sampled_from(["OSError", "ReadTimeout", "X"])).map(tuple),
        text=st.text(),
    )
)
def test_every_failure_has_a_reason_code_of_the_model(facts: FailureFacts) -> None:
    assert classify(facts).startswith("llm.")


def test_the_default_waits_double_from_one_second_and_nine_calls_are_made() -> None:
    """S-03: base 1, no jitter, no cap, always 429: 1, 2, 4, …, 128 s, then the chain ends."""
    policy = RetryPolicy()
    waits: list[float] = []
    elapsed = 0.0
    while (wait := again(policy, attempt=len(waits) + 1, elapsed=elapsed)) is not None:
        waits.append(wait.total_seconds())
        elapsed += waits[-1]
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128]


@given(attempt=st.integers(1, 8), jitter=st.floats(0, 1), base=st.floats(0.001, 60))
def test_jitter_adds_at_most_the_base(attempt: int, jitter: float, base: float) -> None:
    """S-04: each wait lies in [base * 2^(k-1), base * 2^(k-1) + base]."""
    step = timedelta(seconds=base)
    policy = RetryPolicy(base=step, jitter=step, max_time=None)
    wait = wait_before(policy, attempt, retry_after=None, jitter_sample=jitter)
    rounding = timedelta(microseconds=1)
    assert step * 2 ** (attempt - 1) - rounding <= wait <= step * 2 ** (attempt - 1) + step + rounding


@given(
    attempt=st.integers(1, 12),
    elapsed=st.floats(0, 400),
    jitter=st.floats(0, 1),
    retry_after=st.none() | st.floats(0, 1000),
)
def test_no_wait_ever_leaves_the_time_budget(
    attempt: int, elapsed: float, jitter: float, retry_after: float | None
) -> None:
    """S-05: retries stop when the next wait exceeds what is left of max_time."""
    wait = again(attempt=attempt, elapsed=elapsed, jitter=jitter, retry_after=retry_after)
    if wait is None:
        least = wait_before(RetryPolicy(), attempt, retry_after=retry_after, jitter_sample=jitter)
        assert attempt > 8 or elapsed >= 300 or timedelta(seconds=elapsed) + least > timedelta(seconds=300)
    else:
        assert timedelta(seconds=elapsed) + wait <= timedelta(seconds=300)


def test_a_wait_that_just_fits_is_taken_and_one_that_does_not_ends_the_chain() -> None:
    """S-05: the edge."""
    assert again(attempt=1, elapsed=299) == timedelta(seconds=1)
    assert again(attempt=1, elapsed=299.000001) is None


def test_a_used_up_time_budget_ends_the_chain_even_without_a_wait() -> None:
    """S-05: elapsed at max_time is enough."""
    policy = RetryPolicy(base=timedelta(0), jitter=timedelta(0))
    assert again(policy, elapsed=300) is None
    assert again(policy, elapsed=299.9) == timedelta(0)


def test_no_retries_are_made_when_there_are_none() -> None:
    """S-05: max_retries 0 disables them."""
    assert again(RetryPolicy(max_retries=0)) is None


@pytest.mark.parametrize("code", [code for code, reason in REASONS.items() if not reason.transient])
def test_a_permanent_failure_is_never_retried(code: ReasonCode) -> None:
    assert again(code=code) is None


@pytest.mark.parametrize(("attempt", "least", "most"), [(1, 1.0, 1.5), (2, 2.0, 2.5), (5, 10.0, 10.0), (9, 10.0, 10.0)])
def test_the_dawn_preset_keeps_its_jitter_inside_its_cap(attempt: int, least: float, most: float) -> None:
    """S-08: 3 calls, 1000 ms, 500 ms of jitter, never above 10 s."""
    policy = RetryPolicy.dawn()
    assert wait_before(policy, attempt, retry_after=None, jitter_sample=0.0).total_seconds() == least
    assert wait_before(policy, attempt, retry_after=None, jitter_sample=1.0).total_seconds() == most


def test_the_dawn_preset_makes_three_calls() -> None:
    """S-08: attempts include the first."""
    assert [again(RetryPolicy.dawn(), attempt=attempt) is not None for attempt in (1, 2, 3)] == [True, True, False]


def test_retry_after_wins_when_it_is_longer_and_the_cap_bounds_it() -> None:
    """S-09: 0.5 and 1.0 s; 5 is honoured, 60 is clamped to 8."""
    policy = RetryPolicy.activegraph()
    assert seconds(policy, tries=2) == [0.5, 1.0]
    assert seconds(policy, tries=2, retry_after=5) == [5, 5]
    assert seconds(policy, tries=2, retry_after=60) == [8, 8]
    assert seconds(policy, tries=2, retry_after=0.1) == [0.5, 1.0]


def test_the_activegraph_preset_makes_three_calls() -> None:
    """S-09."""
    policy = RetryPolicy.activegraph()
    assert [again(policy, attempt=attempt) is not None for attempt in (1, 2, 3)] == [True, True, False]


@pytest.mark.parametrize(
    ("facts", "ambiguous"),
    [
        (FailureFacts(status=500), True),
        (FailureFacts(status=503), True),
        (FailureFacts(status=529), True),
        (FailureFacts(status=504), True),
        (FailureFacts(status=408), True),
        (FailureFacts(classes=("DeadlineExceededError", "TimeoutError", "OSError")), True),
        (FailureFacts(classes=("Timeout",), causes=("ReadTimeout", "TimeoutException")), True),
        (FailureFacts(causes=("ServerDisconnectedError", "ClientError")), True),
        (FailureFacts(causes=("ConnectError", "TransportError")), False),
        (FailureFacts(causes=("ConnectTimeout", "TimeoutException", "TransportError")), False),
        (FailureFacts(status=409), False),
        (FailureFacts(status=425), False),
        (FailureFacts(status=429), False),
        (FailureFacts(status=400), False),
        (FailureFacts(classes=("EmptyAnswerError",)), False),
    ],
)
def test_a_failure_is_ambiguous_when_the_provider_may_have_done_the_work(facts: FailureFacts, ambiguous: bool) -> None:
    """S-12: what is never sent again under ``ambiguous: fail``."""
    code = classify(facts)
    assert is_ambiguous(facts, code) is ambiguous
    fail = RetryPolicy(ambiguous="fail")
    if REASONS[code].transient:
        assert (again(code=code, ambiguous=ambiguous) is not None, again(fail, code, ambiguous=ambiguous) is None) == (
            True,
            ambiguous,
        )


def test_a_retry_after_that_does_not_fit_ends_the_chain_at_once() -> None:
    assert again(retry_after=301) is None
    assert again(retry_after=300) == timedelta(seconds=300)


@given(attempt=st.integers(1, 1001), base=st.timedeltas(timedelta(0), timedelta.max), asked=st.floats(0, 1e300))
def test_a_wait_is_always_one_that_a_timer_can_hold(attempt: int, base: timedelta, asked: float) -> None:
    policy = RetryPolicy(base=base, max_retries=1000, max_time=None)
    assert wait_before(policy, attempt, retry_after=asked, jitter_sample=1.0) <= timedelta(days=365)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2.0),
        ({"Retry-After": " 2.5 "}, 2.5),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "2"}, 2.0),
        ({"retry-after": "Sat, 21 Nov 2026 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Sat, 21 Nov 2026 12:00:30 -0000"}, 30.0),
        ({"retry-after": "Sat, 21 Nov 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": ""}, None),
    ],
)
def test_retry_after_is_read_in_seconds_milliseconds_and_as_a_date(
    headers: dict[str, str], expected: float | None
) -> None:
    assert parse_retry_after(headers, NOW) == expected


@given(st.dictionaries(st.sampled_from(["retry-after", "Retry-After", "retry-after-ms"]), st.text()))
def test_no_header_breaks_the_reading_of_retry_after(headers: dict[str, str]) -> None:
    value = parse_retry_after(headers, NOW)
    assert value is None or value >= 0
