"""What the engine decides about a turn and the event log is to know: written with the turn's next activity."""

from decimal import Decimal
from typing import Annotated, Literal

from pydantic import Field

from perdure.contracts.builtins import Todo
from perdure.contracts.reactions import AnyReaction, Boundary
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


class ReactStep(Tagged):
    """A hook has its way: what the turn now does, because of what the hook wanted at this boundary of the step."""

    type: Literal["react_step"] = "react_step"
    hook_name: str
    boundary: Boundary
    reaction: AnyReaction


class ModelFallback(Tagged):
    """A model has failed for good with this code, and another one goes on with the turn."""

    type: Literal["model_fallback"] = "model_fallback"
    failed: str
    code: str
    model: str


class TodosChanged(Tagged):
    """The agent has changed its todos; this is the whole list."""

    type: Literal["todos_changed"] = "todos_changed"
    todos: tuple[Todo, ...]


class BudgetChanged(Tagged):
    """Somebody has changed a limit of the running turn; without a limit it is None."""

    type: Literal["budget_changed"] = "budget_changed"
    dimension: str
    before: str | None
    after: str


DecidedEvent = BudgetWarning | StopConditionMet | ReactStep | ModelFallback | TodosChanged | BudgetChanged
"""An event that the engine decides, in the workflow."""


class Decided(Value):
    """A decision on its way into the event log, where the same key in the same turn is written once."""

    key: str
    step: int
    event: Annotated[DecidedEvent, Field(discriminator="type")]
