"""What the engine decides about a turn and the event log is to know: written with the turn's next activity."""

from decimal import Decimal
from typing import Annotated, Literal

from pydantic import Field

from perdure.contracts.values import Tagged, Value


class BudgetWarning(Tagged):
    """A share of a budget is used up; ``used`` says how much of how much."""

    type: Literal["budget_warning"] = "budget_warning"
    dimension: str
    share: Decimal
    used: str


class StopConditionMet(Tagged):
    """A stop condition has ended the turn; ``condition`` is its name."""

    type: Literal["stop_condition_met"] = "stop_condition_met"
    condition: str


DecidedEvent = BudgetWarning | StopConditionMet
"""An event that the engine decides, in the workflow."""


class Decided(Value):
    """A decision on its way into the event log, where the same key in the same turn is written once."""

    key: str
    step: int
    event: Annotated[DecidedEvent, Field(discriminator="type")]
