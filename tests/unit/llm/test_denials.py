"""S-02: words which deny that something was paid say nothing of credits and quotas."""

import pytest

from perdure.contracts.errors import ReasonCode
from perdure.llm.failures import FailureFacts, classify

FLAGGED = "Your chosen model requires moderation and your input was flagged for violence."

DENIED: dict[str, tuple[int | None, str, ReasonCode]] = {
    "moderation": (403, f"{FLAGGED} No credits were charged.", ReasonCode.LLM_CONTENT_FILTERED),
    "moderation, of a balance": (403, f"{FLAGGED} No balance has been deducted.", ReasonCode.LLM_CONTENT_FILTERED),
    "a failure": (500, "Provider returned error; no credits were deducted.", ReasonCode.LLM_NETWORK_ERROR),
    "a failure without a status": (None, "upstream connect error, no credit was used", ReasonCode.LLM_NETWORK_ERROR),
    "a time-out": (408, "Request timed out. No credits will be consumed.", ReasonCode.LLM_TIMEOUT),
    "a limit": (429, "Too many requests. No quota was consumed.", ReasonCode.LLM_RATE_LIMITED),
    "a limit beside a quota of a day": (
        429,
        "Overloaded. This request does not count against your daily quota.",
        ReasonCode.LLM_RATE_LIMITED,
    ),
    "a limit beside a month": (
        429,
        "Slow down; refused requests are not counted towards your monthly limit.",
        ReasonCode.LLM_RATE_LIMITED,
    ),
    "no additional ones": (503, "Overloaded, no additional credits have been billed", ReasonCode.LLM_NETWORK_ERROR),
    "without using": (429, "Refused without using any of your daily quota.", ReasonCode.LLM_RATE_LIMITED),
}

SAID: dict[str, str] = {
    "none left": "You have no credits left.",
    "a denial beside it": "You were not charged. You have run out of credits.",
    "the cause of a denial": "Your card could not be charged because you have insufficient balance.",
    "a bill that was not paid": "We could not bill your account: insufficient balance",
    "what is used up": "You have used all available credits; 12,000 tokens were billed.",
    "no credits for what is asked": "Insufficient credits: 5 tokens were used, no credits available.",
    "a quota of a day": "Daily request quota exceeded. No more requests are served.",
}


@pytest.mark.parametrize("name", DENIED)
def test_words_that_deny_a_charge_do_not_say_that_credits_are_used_up(name: str) -> None:
    """A passing failure must not end a job, nor a refused prompt go to another provider."""
    status, text, code = DENIED[name]
    assert (
        classify(FailureFacts(status=status, text=text, class_name="ProviderError", classes=("ProviderError",))) == code
    )


@pytest.mark.parametrize("status", [200, 403, 429])
@pytest.mark.parametrize("name", SAID)
def test_words_beside_a_denial_still_say_it(name: str, status: int) -> None:
    assert classify(FailureFacts(status=status, text=SAID[name])) == ReasonCode.LLM_QUOTA_EXHAUSTED
