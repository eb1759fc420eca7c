"""What a turn may spend, and what it has spent."""

from datetime import timedelta
from decimal import Decimal

from pydantic import Field

from perdure.contracts.values import Value


class Usage(Value):
    """Tokens as the provider reported them, each call counted exactly once."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Input and output together; cached tokens are part of the input."""
        return self.input_tokens + self.output_tokens

    def plus(self, other: "Usage") -> "Usage":
        """The sum of both."""
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
        )


class Budgets(Value):
    """Limits of one turn beside ``max_steps``; None is no limit, and N allows exactly N.

    Attributes:
        cost_usd: US dollars; checked before each model call against what is known to be spent.
        llm_calls: Model answers received.
        tool_calls: Tool calls dispatched; calls beyond the limit get an error result.
        seconds: Time since the turn began, by Temporal's clock.
    """

    cost_usd: Decimal | None = Field(default=None, gt=0)
    llm_calls: int | None = Field(default=None, ge=1)
    tool_calls: int | None = Field(default=None, ge=0)
    seconds: timedelta | None = Field(default=None, gt=timedelta(0))


class Spent(Value):
    """What one turn has used so far."""

    usage: Usage = Usage()
    cost_usd: Decimal = Decimal(0)
    unpriced_calls: int = 0
    """Model calls whose price is unknown: their cost is not in ``cost_usd``."""
    llm_calls: int = 0
    tool_calls: int = 0

    def with_call(self, usage: Usage, cost_usd: Decimal | None, *, tool_calls: int = 0) -> "Spent":
        """The sum after one more model call, and the tool calls that it asked for."""
        return Spent(
            usage=self.usage.plus(usage),
            cost_usd=self.cost_usd + (cost_usd or 0),
            unpriced_calls=self.unpriced_calls + (cost_usd is None),
            llm_calls=self.llm_calls + 1,
            tool_calls=self.tool_calls + tool_calls,
        )
