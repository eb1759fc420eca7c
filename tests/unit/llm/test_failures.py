"""What a failed model call is: its reason code, and whether the provider may have carried it out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.contracts.errors import REASONS, ModelError, ReasonCode, code_of_kind
from perdure.llm.failures import FailureFacts, classify, is_ambiguous, reason_of

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
    assert not reason_of(FailureFacts(class_name=name, classes=(name, "APIError"))).transient


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
    assert reason_of(FailureFacts(classes=("Strange",), text=text)).transient


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
        (FailureFacts(causes=("ConnectError", "TransportError", "ClientOSError", "ConnectionResetError")), True),
        (FailureFacts(causes=("ConnectError", "TransportError", "ClientConnectorError", "OSError")), False),
        (FailureFacts(causes=("ConnectError", "TransportError", "ConnectionRefusedError", "OSError")), False),
        (FailureFacts(causes=("ConnectError", "TransportError", "gaierror", "OSError")), False),
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


def test_a_code_of_the_agents_own_passes_through_and_is_final() -> None:
    """S-68: whatever status and class litellm has wrapped it in."""
    facts = FailureFacts(status=429, classes=("APIConnectionError", "APIError"), own_code="llm.moderated")
    assert classify(facts) == "llm.moderated"
    assert (reason_of(facts).transient, "llm.moderated" in reason_of(facts).text) == (False, True)


def test_a_code_of_the_agents_own_is_retried_if_its_exception_says_so() -> None:
    """S-68."""
    facts = FailureFacts(own_code="llm.warming_up", own_transient=True)
    assert (classify(facts), reason_of(facts).transient) == ("llm.warming_up", True)


@pytest.mark.parametrize("claimed", [True, False])
@pytest.mark.parametrize("code", [code for code in REASONS if code.startswith("llm.")])
def test_a_code_of_the_table_says_itself_whether_it_is_retried(code: ReasonCode, claimed: bool) -> None:
    """S-68."""
    facts = FailureFacts(own_code=code, own_transient=claimed)
    assert (classify(facts), reason_of(facts)) == (code, REASONS[code])


@pytest.mark.parametrize(
    "code", ["moderated", "tool.moderated", "llm.", "llm.Moderated", "llm.a.b", "llm.1", "llm.a\n"]
)
def test_a_code_of_another_form_is_refused_where_it_is_written(code: str) -> None:
    with pytest.raises(ValueError, match=r"write llm\. and a lower-case name"):
        ModelError(code, "no")


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("llm.timeout", "llm.timeout"),
        ("tool.execution_error", "tool.execution_error"),
        ("llm.moderated", "llm.moderated"),
        ("exception.KeyError", "exception.KeyError"),
        ("KeyError", "exception.KeyError"),
        ("tool.moderated", "exception.tool.moderated"),
    ],
)
def test_a_failure_without_a_code_is_named_after_its_class(kind: str, code: str) -> None:
    """S-69: what Temporal knows of it is its type."""
    assert code_of_kind(kind) == code
