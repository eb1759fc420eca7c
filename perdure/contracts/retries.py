"""When a model call is sent again, and which model goes on when one has failed for good."""

from datetime import timedelta
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from perdure.contracts.errors import REASONS, ReasonCode
from perdure.contracts.values import Authored, Items, JsonValue, Value

StreamRetry = Literal["reissue", "never_after_first_delta"]
"""Whether a streamed call that has shown a piece of its answer is sent again when it fails."""


class RetryPolicy(Authored):
    """Retries of transient failures of a model call. One frozen value per agent.

    The wait before retry k (k = 1, 2, …) is ``min(base * 2**(k-1) + uniform(0, jitter), cap)``. A provider's
    retry-after wins when it is longer, bounded by the cap and by what is left of ``max_time``.

    Attributes:
        max_retries: Retries after the first call; 0 disables them. 8 retries are 9 calls.
        max_time: Time budget of a step from its first failure; a wait that would not fit ends the chain at once.
            Waits and calls count, time in which no worker had the call does not. None means no budget.
        base: The wait before the first retry.
        jitter: Upper bound of the uniform jitter added to each wait. Unless it is zero, a provider's retry-after gets
            up to a tenth more, as all who were refused were told the same.
        cap: Upper bound of one wait, jitter included. None means no bound.
        ambiguous: What becomes of a call that the provider may have carried out and billed although no answer came: a
            time-out, a status of 500 and up, a connection lost after the request. ``retry`` sends it again, ``fail``
            ends the chain.
        on_retry: ``silent``: the model never learns of a retry, and it uses no step. ``tell_model``: the failure is
            added to the conversation as a user message and uses a step; ``max_retries`` then bounds the failures in a
            row, over steps, and ``max_time`` a single wait.
        stream_retry: What becomes of a streamed call that fails after its first piece was shown. ``reissue``: it is
            retried like any other, and readers begin anew. ``never_after_first_delta``: it ends the chain.
    """

    max_retries: int = Field(default=8, ge=0, le=1000)
    max_time: timedelta | None = Field(default=timedelta(seconds=300), ge=timedelta(0))
    base: timedelta = Field(default=timedelta(seconds=1), ge=timedelta(0))
    jitter: timedelta = Field(default=timedelta(seconds=1), ge=timedelta(0))
    cap: timedelta | None = Field(default=None, ge=timedelta(0))
    ambiguous: Literal["retry", "fail"] = "retry"
    on_retry: Literal["silent", "tell_model"] = "silent"
    stream_retry: StreamRetry = Field(default="reissue", exclude_if=lambda mode: mode == "reissue")

    @model_validator(mode="after")
    def _cap_holds_the_base(self) -> Self:
        if self.cap is not None and self.cap < self.base:
            msg = f"cap ({self.cap}) is shorter than base ({self.base}); raise cap or lower base"
            raise ValueError(msg)
        return self

    @classmethod
    def dreadnode(cls) -> Self:
        """8 retries, 1 s doubling, jitter up to 1 s, no cap, 300 s in all: Dreadnode's documented defaults."""
        return cls()

    @classmethod
    def dawn(cls) -> Self:
        """3 calls, 1 s doubling, jitter up to 0.5 s inside a cap of 10 s, no time budget, none after a shown piece."""
        return cls(
            max_retries=2,
            max_time=None,
            jitter=timedelta(milliseconds=500),
            cap=timedelta(seconds=10),
            stream_retry="never_after_first_delta",
        )

    @classmethod
    def activegraph(cls) -> Self:
        """3 calls, 0.5 s doubling inside a cap of 8 s, no jitter, no time budget: ActiveGraph's defaults."""
        return cls(
            max_retries=2,
            max_time=None,
            base=timedelta(milliseconds=500),
            jitter=timedelta(0),
            cap=timedelta(seconds=8),
        )

    @classmethod
    def perstack(cls) -> Self:
        """The model is told of each of 5 failures in a row, after no wait but the provider's: Perstack's defaults."""
        return cls(max_retries=5, max_time=None, base=timedelta(0), jitter=timedelta(0), on_retry="tell_model")


class RetryDetails(Value):
    """One retry, the same value for the event, the transcript line, the log and the metric.

    Attributes:
        attempt: The number of the retry, from 1.
        max_attempts: The number of retries the policy allows.
        wait_seconds: Seconds until the call is sent again.
        code: The reason code of the failure.
        error_type: The class of the provider library's exception.
        error_message: The provider's message, redacted and bounded.
    """

    attempt: int
    max_attempts: int
    wait_seconds: float
    code: str
    error_type: str
    error_message: str


HELPED = frozenset(
    {
        ReasonCode.LLM_RATE_LIMITED,
        ReasonCode.LLM_NETWORK_ERROR,
        ReasonCode.LLM_STREAM_CUT,
        ReasonCode.LLM_TIMEOUT,
        ReasonCode.LLM_INVALID_RESPONSE,
        ReasonCode.LLM_AUTH_ERROR,
        ReasonCode.LLM_MISSING_KEY,
        ReasonCode.LLM_QUOTA_EXHAUSTED,
        ReasonCode.LLM_FIXTURE_MISSING,  # in a replay, of a call that failed when it was recorded
    }
)
"""Failures for which another model is called without more ado: they are the provider's, and not of what was asked."""

UNKNOWN_MODEL = (ReasonCode.LLM_REQUEST_ERROR, "NotFoundError")
"""Code and class of a model that its provider does not have; the request itself is right."""

_ALSO = frozenset(
    {
        ReasonCode.LLM_REQUEST_ERROR,
        ReasonCode.LLM_TOO_MANY_TOOLS,
        ReasonCode.LLM_CONTEXT_OVERFLOW,
        ReasonCode.LLM_CONTENT_FILTERED,
        ReasonCode.LLM_REFUSED,
        ReasonCode.LLM_EMPTY,
        ReasonCode.LLM_TRUNCATED,
    }
)
"""Failures for which another model is called if the author says so."""


def check_model(value: str) -> str:
    """The name of a model, if it is one.

    Raises:
        ValueError: It does not name its provider.
    """
    provider, slash, model = value.partition("/")
    if not (provider and slash and model):
        msg = f"write it as provider/model, for example openai/gpt-5-mini (got {value!r})"
        raise ValueError(msg)
    return value


def check_no_address(model: str) -> None:
    """Refuse the name of a model that says where calls go, in a request.

    Raises:
        ValueError: It does.
    """
    if ":/" in model:
        msg = f"model: {model!r} names an address, which may not come in a request"
        raise ValueError(msg)


class Fallback(Authored):
    """A model that goes on with a turn when the one before it has failed for good.

    Attributes:
        model: ``provider/model``.
        retry: How its transient failures are retried, from the first try on; None is the agent's policy.
        generation_timeout: Longest time one call of it may take; None is the agent's.
        generate_params: In place of the agent's. None is the agent's, without what says where a call goes if the
            provider is another one.
        also_on: Reason codes for which it is called beside those of a provider that is away, overloaded or refuses the
            key: for example ``llm.content_filtered`` or ``llm.context_overflow``.
    """

    model: str
    retry: RetryPolicy | None = None
    generation_timeout: timedelta | None = Field(default=None, gt=timedelta(0))
    generate_params: dict[str, JsonValue] | None = None
    also_on: Items[str] = ()

    @field_validator("model")
    @classmethod
    def _names_its_provider(cls, value: str) -> str:
        return check_model(value)

    @field_validator("also_on")
    @classmethod
    def _codes_are_known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        known = {str(code) for code in REASONS}
        wrong = [code for code in value if code not in _ALSO and (code in known or not code.startswith("llm."))]
        if wrong:
            msg = f"{wrong[0]!r} is none of {', '.join(sorted(_ALSO))}, and no code of your own such as 'llm.mine'"
            raise ValueError(msg)
        return value
