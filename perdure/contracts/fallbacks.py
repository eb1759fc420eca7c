"""Models that are called in place of one that has failed for good."""

from datetime import timedelta

from pydantic import Field, field_validator

from perdure.contracts.errors import REASONS, ReasonCode
from perdure.contracts.retries import RetryPolicy
from perdure.contracts.values import Authored, Items, JsonValue

HELPED = frozenset(
    {
        ReasonCode.LLM_RATE_LIMITED,
        ReasonCode.LLM_NETWORK_ERROR,
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
"""Code and class of a model that its provider does not have, which is no mistake in what was asked either."""

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
