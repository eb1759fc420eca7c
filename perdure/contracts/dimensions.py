"""The dimensions of a budget, each one row."""

from typing import Literal, NamedTuple


class BudgetDimension(NamedTuple):
    """A dimension of a budget; ``tests/contract/test_recipes.py`` names each place that lacks one.

    Attributes:
        name: The field in ``Budgets``.
        most: What it limits, for the help of ``perdure extend``.
        noun: What is counted, for errors and warnings.
        unit: How a limit is written: a number N, dollars X, or seconds S.
        counted_by: What uses it up, if whole numbers count it: of it a delegate gets a share, and gives back the rest.
        ends: Whether the turn ends as soon as it is used up, and not only when another call needs it.
        code: Its part of the reason code ``budget.…_exhausted``, if that is not the name.
    """

    name: str
    most: str
    noun: str = ""
    unit: Literal["N", "X", "S"] = "N"
    counted_by: Literal["answers", "calls", "both"] | None = None
    ends: bool = False
    code: str = ""


DIMENSIONS = (
    BudgetDimension("cost_usd", "US dollars, e.g. 0.50", unit="X", ends=True, code="cost"),
    BudgetDimension("llm_calls", "model answers", "model calls", counted_by="answers", ends=True),
    BudgetDimension("tool_calls", "tool calls", "calls", counted_by="calls"),
    BudgetDimension("behavior_calls", "calls of delegates and hooks", "delegates and hooks", counted_by="calls"),
    BudgetDimension("events", "model answers and results of calls together", "events", counted_by="both", ends=True),
    BudgetDimension("seconds", "seconds since the turn began, without waiting for people", unit="S", ends=True),
    BudgetDimension("patches", "changes of the session's state, such as todos", "changes", counted_by="calls"),
    BudgetDimension("depth", "levels of delegates below the agent", "levels of delegates"),
)
"""In the order of displays, of warnings, and of checks before a single call."""

COUNTED = tuple(row.name for row in DIMENSIONS if row.counted_by)
"""Dimensions that whole numbers count."""
