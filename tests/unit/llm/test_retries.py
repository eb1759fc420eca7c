"""What people read of a failed model call: the place, the cause, the rule that ended the chain, and what to do."""

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.errors import REASONS, ReasonCode
from perdure.contracts.retries import RetryPolicy
from perdure.llm.failures import FailureFacts
from perdure.llm.retries import (
    Chain,
    End,
    Wait,
    compose_final_text,
    decide,
    failure_text,
    wait_before,
)
from perdure.llm.waits import wait_in_headers

R = ReasonCode
PLACE = "step 1, openai/gpt-5-mini"
LIMITED = FailureFacts(status=429, class_name="RateLimitError", text="Rate limit reached.")


def chain(calls: int, seconds: float, **more: object) -> Chain:
    return Chain(calls=calls, attempt=calls, elapsed=timedelta(seconds=seconds)).model_copy(update=more)


def rule(policy: RetryPolicy, code: ReasonCode, failed: Chain) -> str:
    ended = decide(policy, REASONS[code], failed, jitter_sample=0.0)
    assert isinstance(ended, End)
    return ended.rule


@pytest.mark.parametrize("code", ReasonCode)
def test_each_code_has_a_cause_and_one_advice(code: ReasonCode) -> None:
    """S-68: in this order, in one line."""
    cause, separator, advice = REASONS[code].text.partition("; ")
    assert (bool(cause), separator, bool(advice)) == (True, "; ", True)
    assert (REASONS[code].cause, REASONS[code].advice) == (cause, advice)
    assert "; " not in advice
    assert not cause.endswith(".")
    assert not advice.endswith(".")


@pytest.mark.parametrize(
    ("code", "failed", "said"),
    [
        (R.LLM_RATE_LIMITED, chain(9, 262.4), "9 calls in 262 s: retry.max_retries is 8"),
        (
            R.LLM_RATE_LIMITED,
            chain(1, 0, retry_after=601.0),
            "1 call: the provider asks to wait 601 s, and retry.max_time is 300 s",
        ),
        (
            R.LLM_NETWORK_ERROR,
            chain(6, 280.25),
            "6 calls in 280 s: a wait of 32 s more is too long, as retry.max_time is 300 s",
        ),
        (
            R.LLM_NETWORK_ERROR,
            chain(6, 280.25, retry_after=2.0),
            "6 calls in 280 s: a wait of 32 s more is too long, as retry.max_time is 300 s",
        ),
        (R.LLM_INVALID_RESPONSE, chain(2, 1.25, same=1), "2 calls in 1.2 s: another try hardly ever helps"),
        (R.LLM_AUTH_ERROR, chain(3, 3), "after 3 calls in 3 s"),
        (R.LLM_AUTH_ERROR, chain(1, 0), ""),
        (R.LLM_RATE_LIMITED, chain(9, 262.4, told=True), ""),
    ],
)
def test_the_rule_that_ended_a_chain_is_named_with_its_calls_and_its_time(
    code: ReasonCode, failed: Chain, said: str
) -> None:
    """S-07."""
    assert rule(RetryPolicy(), code, failed) == said


def test_no_retries_at_all_is_a_rule_too() -> None:
    assert rule(RetryPolicy(max_retries=0), R.LLM_TIMEOUT, chain(1, 0)) == "1 call: retry.max_retries is 0"


def test_more_failures_in_a_row_than_the_policy_has_are_what_the_text_begins_with() -> None:
    ended = decide(RetryPolicy(), REASONS[R.LLM_RATE_LIMITED], chain(9, 262.4, told=True), jitter_sample=0.0)
    assert ended == End(opening="more than 8 failures in a row: ")


@pytest.mark.parametrize(
    ("policy", "failed", "said"),
    [
        (RetryPolicy(ambiguous="fail"), chain(9, 0, ambiguous=True, was_shown=True), "ambiguous='fail'"),
        (RetryPolicy(ambiguous="fail"), chain(9, 0, ambiguous=True, told=True), "ambiguous='fail'"),
        (RetryPolicy.dawn(), chain(1, 0, was_shown=True), "stream_retry='never_after_first_delta'"),
    ],
)
def test_what_the_author_chose_is_said_before_any_rule(policy: RetryPolicy, failed: Chain, said: str) -> None:
    """S-12."""
    ended = decide(policy, REASONS[R.LLM_NETWORK_ERROR], failed, jitter_sample=0.0)
    assert isinstance(ended, End)
    assert (ended.rule, ended.opening, ended.choice.endswith(said)) == ("", "", True)


def test_the_end_of_a_chain_says_what_to_do_with_the_session_in_it() -> None:
    """S-07."""
    text = compose_final_text(
        PLACE, LIMITED, REASONS[R.LLM_RATE_LIMITED], End(rule="9 calls in 262 s: retry.max_retries is 8"), "job-1"
    )
    assert text == (
        f"{PLACE}: the provider limits the rate of requests (HTTP 429): Rate limit reached; 9 calls in 262 s: "
        "retry.max_retries is 8; go on with 'perdure resume job-1', raise the limit with the provider, or give the "
        "agent fallback_models"
    )


def test_a_failure_that_is_retried_has_no_advice() -> None:
    assert failure_text(PLACE, LIMITED, REASONS[R.LLM_RATE_LIMITED]) == (
        f"{PLACE}: the provider limits the rate of requests (HTTP 429): Rate limit reached."
    )


def test_the_advice_is_there_behind_the_longest_text() -> None:
    long = LIMITED.model_copy(update={"text": "x" * 1_500})
    end = End(rule="1 call: retry.max_retries is 0")
    text = compose_final_text("p" * 400, long, REASONS[R.LLM_RATE_LIMITED], end, "s" * 200)
    assert len(text) <= 2_000
    assert text.endswith("or give the agent fallback_models")


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (R.LLM_EMPTY, "EmptyAnswerError", "the model answered with neither text nor a tool call (finish_reason stop)"),
        (
            R.RUNTIME_PAYLOAD_TOO_LARGE,
            "TooManyCallsError",
            "the answer asks for 501 tool calls at once, the limit is 500",
        ),
    ],
)
def test_what_perdure_says_itself_is_said_once(code: ReasonCode, kind: str, said: str) -> None:
    text = failure_text(PLACE, FailureFacts(class_name=kind, text=said), REASONS[code])
    assert text == f"{PLACE}: {said}"


NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


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
    failed = chain(1, elapsed, attempt=attempt, ambiguous=ambiguous, retry_after=retry_after)
    decided = decide(policy or RetryPolicy(), REASONS[code], failed, jitter_sample=jitter)
    return decided.time if isinstance(decided, Wait) else None


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


@given(attempt=st.integers(1, 8), jitter=st.floats(0, 1), asked=st.floats(0, 10_000))
def test_jitter_grows_with_what_the_provider_asks_for(attempt: int, jitter: float, asked: float) -> None:
    """All who were refused were told the same, and must not come back at the same moment."""
    policy = RetryPolicy(max_time=None)
    wait = wait_before(policy, attempt, retry_after=asked, jitter_sample=jitter).total_seconds()
    own = wait_before(policy, attempt, retry_after=None, jitter_sample=jitter).total_seconds()
    assert wait == pytest.approx(max(own, asked * (1 + jitter / 10)), abs=1e-5)
    assert wait >= asked - 1e-5


def test_jitter_on_what_the_provider_asks_for_ends_no_chain() -> None:
    assert again(retry_after=299, jitter=1.0) == timedelta(seconds=300)
    assert again(retry_after=100, elapsed=195, jitter=1.0) == timedelta(seconds=105)
    assert again(retry_after=100, elapsed=201, jitter=0.0) is None


def test_the_activegraph_preset_makes_three_calls() -> None:
    """S-09."""
    policy = RetryPolicy.activegraph()
    assert [again(policy, attempt=attempt) is not None for attempt in (1, 2, 3)] == [True, True, False]


@pytest.mark.parametrize("code", [ReasonCode.LLM_NETWORK_ERROR, ReasonCode.LLM_TIMEOUT])
@pytest.mark.parametrize("ambiguous", [True, False])
def test_what_may_have_been_carried_out_is_sent_again_unless_the_policy_forbids_it(
    code: ReasonCode, ambiguous: bool
) -> None:
    """S-12."""
    assert again(code=code, ambiguous=ambiguous) is not None
    assert (again(RetryPolicy(ambiguous="fail"), code, ambiguous=ambiguous) is None) is ambiguous


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
        ({"retry-after": "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"}, None),
        ({"retry-after": "Mon, 01 Jan 2026 00:00:00 +99999999999999"}, None),
        ({"retry-after": ""}, None),
    ],
)
def test_retry_after_is_read_in_seconds_milliseconds_and_as_a_date(
    headers: dict[str, str], expected: float | None
) -> None:
    assert wait_in_headers(headers, NOW) == expected


BITS = ["Mon", "01", "Jan", "2026", "99999999999999999999", "00:00:00", "24:61:61", "GMT", "+99999999999", "-2400", ":"]
TEXTS = (
    st.text()
    | st.lists(st.sampled_from([*BITS, ",", " ", "", "-", "."]), max_size=12).map(" ".join)
    | st.builds(
        "{}, {} {} {} {}:{}:{} {}".format,
        st.sampled_from(["Mon", ""]),
        st.integers(),
        st.sampled_from(["Jan", "Feb", "Foo"]),
        st.integers(),
        *[st.integers()] * 3,
        st.sampled_from(["GMT", "-0000", ""]) | st.integers().map("{:+}".format),
    )
)
"""Any text, words of dates in any order, and dates of any numbers."""


@given(st.dictionaries(st.sampled_from(["retry-after", "Retry-After", "retry-after-ms"]), TEXTS))
def test_no_header_breaks_the_reading_of_retry_after(headers: dict[str, str]) -> None:
    """It is a wait that can be, or none."""
    value = wait_in_headers(headers, NOW)
    assert value is None or (value >= 0 and math.isfinite(value))
