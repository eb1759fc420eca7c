"""Budgets: what a turn and its delegates may spend, what they have spent, and how limits are changed."""

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Literal, TypedDict, Unpack

from pydantic import ConfigDict, Field

from perdure.contracts.dimensions import COUNTED
from perdure.contracts.values import Authored, Value, for_code, replace


class Usage(Value):
    """Tokens as the provider reported them, each call counted exactly once.

    Attributes:
        input_tokens: Tokens that were read, with those from the provider's cache.
        output_tokens: Tokens that were written.
        cached_tokens: Tokens that were read from the provider's cache.
        estimated: Whether a part of them is perdure's estimate, because a provider did not count it.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    estimated: bool = False

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
            estimated=self.estimated or other.estimated,
        )

    def without(self, earlier: "Usage") -> "Usage":
        """The difference: tokens since ``earlier``."""
        return Usage(
            input_tokens=self.input_tokens - earlier.input_tokens,
            output_tokens=self.output_tokens - earlier.output_tokens,
            cached_tokens=self.cached_tokens - earlier.cached_tokens,
            estimated=self.estimated,
        )


class Paid(Value):
    """Tokens and known cost of model calls."""

    usage: Usage = Usage()
    cost_usd: Decimal = Decimal(0)

    def plus(self, usage: Usage, cost_usd: Decimal | None) -> "Paid":
        """The sum with one more call."""
        return Paid(usage=self.usage.plus(usage), cost_usd=self.cost_usd + (cost_usd or 0))


DEFAULT_WARNINGS = (Decimal("0.8"),)
"""Shares of a budget at which a ``budget_warning`` is written, unless the author names others."""


MOST_USD = Decimal(10) ** 12
"""Bound of a budget: larger sums could not be exact."""

LONGEST_TURN = timedelta(days=36_500)
"""Longest time budget that timers take."""


class Dimensions(Value):
    """The limits of a turn beside ``max_steps``; :class:`Budgets` explains each."""

    cost_usd: Decimal | None = Field(default=None, gt=0, lt=MOST_USD)
    llm_calls: int | None = Field(default=None, ge=1)
    tool_calls: int | None = Field(default=None, ge=0)
    behavior_calls: int | None = Field(default=None, ge=0)
    events: int | None = Field(default=None, ge=1)
    seconds: timedelta | None = Field(default=None, gt=timedelta(0), le=LONGEST_TURN)
    patches: int | None = Field(default=None, ge=0)
    depth: int | None = Field(default=None, ge=0)


class BudgetSettings(TypedDict, total=False):
    """The settings of ``Budgets(…)`` as authors write them."""

    cost_usd: Decimal | float | str | None
    llm_calls: int | None
    tool_calls: int | None
    behavior_calls: int | None
    events: int | None
    seconds: timedelta | float | None
    patches: int | None
    depth: int | None
    warn_at: Sequence[Decimal | float | str]
    scope: Literal["turn", "session"] | None


class Budgets(Dimensions, Authored):
    """Limits of one turn beside ``max_steps``; None means no limit, and N allows exactly N.

    They count over the whole tree of delegates: a delegate gets a share of what is left, and what it does not use comes
    back. Source of the eight dimensions: ActiveGraph's runtime budgets.

    Attributes:
        cost_usd: US dollars. A model call is only made with what its longest answer could cost still there.
        llm_calls: Model answers received.
        tool_calls: Tool calls dispatched; calls beyond the limit get an error result.
        behavior_calls: Delegates and hooks called.
        events: Answers of the model and results of its calls.
        seconds: Time since the turn began, by Temporal's clock; time spent waiting for people is left out.
        patches: Changes that the agent made to its session's state, such as its todos.
        depth: Levels of delegates below the agent.
        warn_at: Shares, between 0 and 1, at which a ``budget_warning`` is written to the event log.
        scope: Whether all that is counted, ``max_steps`` too, counts over one ``turn`` or over all turns of a
            ``session``; None is a turn. ``seconds`` and ``depth`` are each turn's own.
    """

    warn_at: tuple[Annotated[Decimal, Field(gt=0, lt=1)], ...] = Field(default=DEFAULT_WARNINGS, max_length=10)
    scope: Literal["turn", "session"] | None = None

    @for_code
    def __init__(self, **limits: Unpack[BudgetSettings]) -> None:
        Authored.__init__(self, **limits)


class Spent(Value):
    """Use of one turn so far, delegates included."""

    usage: Usage = Usage()
    cost_usd: Decimal = Decimal(0)
    unpriced_calls: int = 0
    """Model calls of unknown price, left out of ``cost_usd``."""
    llm_calls: int = 0
    tool_calls: int = 0
    behavior_calls: int = 0
    events: int = 0
    patches: int = 0
    delegated_steps: int = 0
    """Steps of delegates."""

    def with_call(self, usage: Usage, cost_usd: Decimal | None) -> "Spent":
        """The sum after one more model call."""
        return replace(
            self,
            usage=self.usage.plus(usage),
            cost_usd=self.cost_usd + (cost_usd or 0),
            unpriced_calls=self.unpriced_calls + (cost_usd is None),
            llm_calls=self.llm_calls + 1,
            events=self.events + 1,
        )

    def with_failed(self, paid: Paid) -> "Spent":
        """The sum with failed calls that cost money."""
        usage, cost_usd = self.usage.plus(paid.usage), self.cost_usd + paid.cost_usd
        return replace(self, usage=usage, cost_usd=cost_usd)

    def without(self, earlier: "Spent") -> "Spent":
        """The difference: use since ``earlier``."""
        if earlier == Spent():
            return self
        others = {name: getattr(self, name) - getattr(earlier, name) for name in Spent.model_fields if name != "usage"}
        return Spent(usage=self.usage.without(earlier.usage), **others)

    def with_delegate(self, spent: "Spent", steps: int) -> "Spent":
        """The sum with a delegate's use and its ``steps``."""
        counts = ("cost_usd", "unpriced_calls", *COUNTED)
        return self.model_copy(
            update={
                "usage": self.usage.plus(spent.usage),
                "delegated_steps": self.delegated_steps + spent.delegated_steps + steps,
                **{name: getattr(self, name) + getattr(spent, name) for name in counts},
            }
        )


class Limits(TypedDict, total=False):
    """New limits of a running turn, each a whole limit and no increment; ``seconds`` count from the turn's start."""

    max_steps: int
    cost_usd: Decimal | float | str
    llm_calls: int
    tool_calls: int
    behavior_calls: int
    events: int
    seconds: timedelta | float
    patches: int
    depth: int


LIMITS = ("max_steps", *Dimensions.model_fields)
"""Names of the limits that can be set, in the order of displays."""


class ExtendRequest(Dimensions):
    """The input of the update ``extend``: new limits of the running turn, each as a whole; other limits stay.

    Attributes:
        turn: The turn that the limits are for; another running turn refuses them.
        end: Whether a limit may be used up already, which ends the turn.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_steps: int | None = Field(default=None, ge=1)
    turn: int | None = Field(default=None, ge=1)
    end: bool = False

    @property
    def limits(self) -> dict[str, int | Decimal | timedelta]:
        """The limits that are set, by name."""
        named = {name: getattr(self, name) for name in LIMITS}
        return {name: limit for name, limit in named.items() if limit is not None}
