"""What people read of a failed model call: the place, the cause, the rule that ended the chain, and what to do."""

from datetime import timedelta

import pytest

from perdure.contracts.errors import REASONS, ReasonCode
from perdure.contracts.retries import RetryPolicy
from perdure.engine.failure_texts import Chain, failure_text, final_text, rule_of_end
from perdure.engine.failures import FailureFacts

R = ReasonCode
PLACE = "step 1, openai/gpt-5-mini"
LIMITED = FailureFacts(status=429, class_name="RateLimitError", text="Rate limit reached.")


def chain(calls: int, seconds: float, wait: float, **more: object) -> Chain:
    return Chain(calls=calls, elapsed=timedelta(seconds=seconds), wait=timedelta(seconds=wait)).model_copy(update=more)


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
    ("code", "ended", "rule"),
    [
        (R.LLM_RATE_LIMITED, chain(9, 262.4, 256), "9 calls in 262 s: retry.max_retries is 8"),
        (
            R.LLM_RATE_LIMITED,
            chain(1, 0, 601, retry_after=601.0),
            "1 call: the provider asks to wait 601 s, and retry.max_time is 300 s",
        ),
        (
            R.LLM_NETWORK_ERROR,
            chain(5, 280.25, 32),
            "5 calls in 280 s: a wait of 32 s more is too long, as retry.max_time is 300 s",
        ),
        (
            R.LLM_NETWORK_ERROR,
            chain(5, 280.25, 32, retry_after=2.0),
            "5 calls in 280 s: a wait of 32 s more is too long, as retry.max_time is 300 s",
        ),
        (R.LLM_INVALID_RESPONSE, chain(2, 1.25, 2, most_retries=1), "2 calls in 1.2 s: another try hardly ever helps"),
        (R.LLM_AUTH_ERROR, chain(3, 3, 4), "after 3 calls in 3 s"),
        (R.LLM_AUTH_ERROR, chain(1, 0, 1), ""),
        (R.LLM_RATE_LIMITED, chain(9, 262.4, 256, told=True), ""),
    ],
)
def test_the_rule_that_ended_a_chain_is_named_with_its_calls_and_its_time(
    code: ReasonCode, ended: Chain, rule: str
) -> None:
    """S-07."""
    assert rule_of_end(RetryPolicy(), REASONS[code], ended) == rule


def test_no_retries_at_all_is_a_rule_too() -> None:
    assert rule_of_end(RetryPolicy(max_retries=0), REASONS[R.LLM_TIMEOUT], chain(1, 0, 1)) == (
        "1 call: retry.max_retries is 0"
    )


def test_the_end_of_a_chain_says_what_to_do_with_the_session_in_it() -> None:
    """S-07."""
    text = final_text(PLACE, LIMITED, REASONS[R.LLM_RATE_LIMITED], "9 calls in 262 s: retry.max_retries is 8", "job-1")
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
    text = final_text("p" * 400, long, REASONS[R.LLM_RATE_LIMITED], "1 call: retry.max_retries is 0", "s" * 200)
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
