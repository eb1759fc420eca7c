"""The retry policy of an agent's model calls, and what is known about one retry.

Source of the formula and of the presets: Dreadnode's agent API (``backoff_*``), Dawn's ``retry`` field, ActiveGraph's
retry of provider errors, and Perstack's ``maxRetries``.
"""

from datetime import timedelta
from typing import Literal, Self

from pydantic import Field, model_validator

from perdure.contracts.values import Authored, Value


class RetryPolicy(Authored):
    """How transient failures of a model call are retried. One frozen value per agent.

    The wait before retry k (k = 1, 2, …) is ``min(base * 2**(k-1) + uniform(0, jitter), cap)``. A provider's
    retry-after wins when it is longer, bounded by the cap and by what is left of ``max_time``.

    Attributes:
        max_retries: Retries after the first call; 0 disables them. 8 retries are 9 calls.
        max_time: Time budget of a step from its first failure; a wait that would not fit ends the chain at once.
            Waits and calls count, time in which no worker had the call does not. None is no budget.
        base: The wait before the first retry.
        jitter: Upper bound of the uniform jitter added to each wait. Unless it is zero, a provider's retry-after gets
            up to a tenth more, as all who were refused were told the same.
        cap: Upper bound of one wait, jitter included. None is no bound.
        ambiguous: What becomes of a call that the provider may have carried out and billed although no answer came: a
            time-out, a status of 500 and up, a connection lost after the request. ``retry`` sends it again, ``fail``
            ends the chain.
        on_retry: ``silent``: the model never learns of a retry, and it uses no step. ``tell_model``: the failure is
            added to the conversation as a user message and uses a step; ``max_retries`` then bounds the failures in a
            row, over steps, and ``max_time`` a single wait.
    """

    max_retries: int = Field(default=8, ge=0, le=1000)
    max_time: timedelta | None = Field(default=timedelta(seconds=300), ge=timedelta(0))
    base: timedelta = Field(default=timedelta(seconds=1), ge=timedelta(0))
    jitter: timedelta = Field(default=timedelta(seconds=1), ge=timedelta(0))
    cap: timedelta | None = Field(default=None, ge=timedelta(0))
    ambiguous: Literal["retry", "fail"] = "retry"
    on_retry: Literal["silent", "tell_model"] = "silent"

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
        """3 calls, 1 s doubling, jitter up to 0.5 s inside a cap of 10 s, no time budget: Dawn's defaults."""
        return cls(max_retries=2, max_time=None, jitter=timedelta(milliseconds=500), cap=timedelta(seconds=10))

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
