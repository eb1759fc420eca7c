"""What a turn may still spend. N allows exactly N: what would be the one beyond it is refused, and the turn ends."""

from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Literal

from perdure.contracts.budgets import Budgets, Spent
from perdure.contracts.errors import REASONS, ErrorDetail, ReasonCode
from perdure.contracts.values import Value

Dimension = Literal["tool_calls", "behavior_calls", "events", "patches"]
"""A budget that single calls use up."""

CODES: dict[str, ReasonCode] = {
    "cost_usd": ReasonCode.BUDGET_COST,
    "llm_calls": ReasonCode.BUDGET_LLM_CALLS,
    "tool_calls": ReasonCode.BUDGET_TOOL_CALLS,
    "behavior_calls": ReasonCode.BUDGET_BEHAVIOR_CALLS,
    "events": ReasonCode.BUDGET_EVENTS,
    "seconds": ReasonCode.BUDGET_SECONDS,
    "patches": ReasonCode.BUDGET_PATCHES,
    "depth": ReasonCode.BUDGET_DEPTH,
}
"""The reason code of each dimension, in the order in which they are looked at."""

DIGITS_OF_MONEY = 4
"""Significant digits of an amount in a text."""

_NOUNS = {
    "llm_calls": "model calls",
    "tool_calls": "calls",
    "behavior_calls": "delegates and hooks",
    "events": "events",
    "patches": "changes",
    "depth": "levels of delegates",
}


class Wanted(Value):
    """A call that is to be made: whose it is, what it uses up, and how deep in the tree it would run."""

    tool: str
    uses: tuple[Dimension, ...] = ("tool_calls", "events")
    depth: int = 0


class Warned(Value):
    """A share of a budget has been used; the text says how much."""

    dimension: str
    share: Decimal
    used: str


def in_usd(amount: Decimal) -> str:
    """The amount for a text: with four digits, or to the cent, so that it is short and never rounded to nothing."""
    digits = max(DIGITS_OF_MONEY, amount.adjusted() + 3)
    return f"${Context(prec=digits).plus(amount):f}"


def used_up(dimension: str, used: str) -> ErrorDetail:
    """The error of a turn that has used up a budget; one that this release does not know has a code of its own."""
    code = CODES.get(dimension, ReasonCode.BUDGET_EXHAUSTED)
    return ErrorDetail(code=code, title="agent", message=f"{REASONS[code].cause}: {used}")


def is_exhausted(code: str) -> bool:
    """Whether a failure of this code is a budget that is used up."""
    return code == ReasonCode.BUDGET_EXHAUSTED or code in CODES.values()


def forbids_generation(budgets: Budgets, spent: Spent) -> ErrorDetail | None:
    """The budget that forbids another model call, if one does."""
    if budgets.llm_calls is not None and spent.llm_calls >= budgets.llm_calls:
        return used_up("llm_calls", _of(budgets, spent, "llm_calls"))
    if budgets.events is not None and spent.events >= budgets.events:
        return used_up("events", _of(budgets, spent, "events"))
    if budgets.cost_usd is not None and spent.cost_usd >= budgets.cost_usd:
        return used_up("cost_usd", f"{in_usd(spent.cost_usd)} of {in_usd(budgets.cost_usd)}")
    return None


def cost_left(budgets: Budgets, spent: Spent) -> Decimal | None:
    """US dollars that may still be spent; None without a limit."""
    return None if budgets.cost_usd is None else budgets.cost_usd - spent.cost_usd


def cut_off(budgets: Budgets, spent: Spent) -> ErrorDetail:
    """The error of a turn whose last answer was cut off where the rest of it would have cost too much."""
    limit = budgets.cost_usd or Decimal(0)
    why = "the last answer was cut off, as more of it was not affordable"
    return used_up("cost_usd", f"{in_usd(spent.cost_usd)} of {in_usd(limit)}; {why}")


def admitted(
    budgets: Budgets, spent: Spent, calls: Sequence[Wanted], granted: Spent | None = None
) -> tuple[Spent, list[ErrorDetail | None], ErrorDetail | None]:
    """What of these calls may be made.

    Args:
        budgets: The limits.
        spent: What counts against them.
        calls: The calls, in order.
        granted: What delegates in the background may still spend, and none of these calls.

    Returns:
        What is spent with those that may, the error of each that may not (None for the others), and the error of the
        turn if there was one that may not: the first. What is only granted comes back, so it ends no turn.
    """
    errors: list[ErrorDetail | None] = []
    ending: ErrorDetail | None = None
    for call in calls:
        taken = spent if granted is None else spent.with_delegate(granted, 0)
        dimension = _refusing(budgets, taken, call)
        if dimension is None:
            spent = spent.model_copy(update={str(name): getattr(spent, name) + 1 for name in call.uses})
            errors.append(None)
            continue
        error = used_up(dimension, _of(budgets, taken, dimension))
        message = f"{error.message}; this call did not run"
        if _refusing(budgets, spent, call) is None:
            message = f"{error.message} with those that agents in the background may make; this call did not run"
        else:
            ending = ending or error
        errors.append(error.model_copy(update={"title": call.tool, "message": message}))
    return spent, errors, ending


def _refusing(budgets: Budgets, spent: Spent, call: Wanted) -> str | None:
    """The first dimension in which the call would be one too many."""
    if budgets.depth is not None and call.depth > budgets.depth:
        return "depth"
    limits = [(name, getattr(budgets, name)) for name in CODES if name in call.uses]
    return next((name for name, limit in limits if limit is not None and getattr(spent, name) >= limit), None)


def _of(budgets: Budgets, spent: Spent, dimension: str) -> str:
    limit = getattr(budgets, dimension)
    used = limit if dimension == "depth" else getattr(spent, dimension)
    return f"{used} of {limit} {_NOUNS[dimension]}"


def share(budgets: Budgets, spent: Spent, children: int) -> Budgets:
    """What each of so many delegates may use, at the same time: an equal share of what is left.

    Whole numbers are rounded down, so that all of them together never use more than is left. A share may be nothing:
    ``forbids_generation`` says so, and such a delegate is not to be started.
    """
    counts = ("llm_calls", "tool_calls", "behavior_calls", "events", "patches")
    left: dict[str, object] = {
        name: max(0, limit - getattr(spent, name)) // children
        for name in counts
        if (limit := getattr(budgets, name)) is not None
    }
    if budgets.cost_usd is not None:
        left["cost_usd"] = max(Decimal(0), budgets.cost_usd - spent.cost_usd) / children
    if budgets.depth is not None:
        left["depth"] = max(0, budgets.depth - 1)
    return budgets.model_copy(update=left)


def warnings(budgets: Budgets, before: Spent, after: Spent) -> list[Warned]:
    """The shares of budgets that were passed between the two."""
    passed: list[Warned] = []
    for name in CODES:
        limit = getattr(budgets, name)
        if limit is None or name in {"seconds", "depth"}:
            continue
        was, now = getattr(before, name), getattr(after, name)
        used = f"{in_usd(now)} of {in_usd(limit)}" if name == "cost_usd" else f"{now} of {limit} {_NOUNS[name]}"
        passed += [Warned(dimension=name, share=one, used=used) for one in budgets.warn_at if was < one * limit <= now]
    return passed
