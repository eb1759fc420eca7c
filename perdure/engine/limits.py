"""Limits of a turn, and what changes them: other limits, another model, a hold of the clock.

N allows exactly N: the call beyond it is refused, and the turn ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_DOWN, Context, Decimal
from typing import Literal

from perdure.contracts.budgets import Budgets, ExtendRequest, Spent
from perdure.contracts.dimensions import COUNTED, DIMENSIONS
from perdure.contracts.errors import REASONS, ErrorDetail, ReasonCode
from perdure.contracts.hooks import BudgetChanged, BudgetWarning, ModelFallback
from perdure.contracts.retries import HELPED, UNKNOWN_MODEL
from perdure.contracts.turns import StopReason
from perdure.contracts.values import replace
from perdure.engine.state import Ending, TurnState

Dimension = Literal["tool_calls", "behavior_calls", "events", "patches"]
"""A budget that single calls use up."""

CODES = {row.name: ReasonCode(f"budget.{row.code or row.name}_exhausted") for row in DIMENSIONS}
"""The reason code of each dimension."""

DIGITS_OF_MONEY = 4
"""Significant digits of an amount in a text."""

_PARTS = Context(prec=20, rounding=ROUND_DOWN)
"""Division of money; its sums are exact with the 28 digits that others have."""

_NOUNS = {row.name: row.noun for row in DIMENSIONS}


@dataclass(frozen=True)
class Wanted:
    """A call to admit: its tool, the budgets it uses up, and the levels of delegates it needs below this turn."""

    tool: str
    uses: tuple[Dimension, ...] = ("tool_calls", "events")
    depth: int = 0


def in_usd(amount: Decimal) -> str:
    """An amount in US dollars as text, such as $0.001235 and $1234.56: four digits, more if the cents need them."""
    digits = max(DIGITS_OF_MONEY, amount.adjusted() + 3)
    return f"${Context(prec=digits).plus(amount):f}"


def exhausted_error(dimension: str, used: str) -> ErrorDetail:
    """The error of a turn that has used up a budget; the code is a general one for a dimension unknown here."""
    code = CODES.get(dimension, ReasonCode.BUDGET_EXHAUSTED)
    return ErrorDetail(code=code, title="agent", message=f"{REASONS[code].cause}: {used}")


def is_exhausted(code: str) -> bool:
    """Whether the reason code says that a budget is used up."""
    return code == ReasonCode.BUDGET_EXHAUSTED or code in CODES.values()


def forbids_generation(budgets: Budgets, spent: Spent) -> ErrorDetail | None:
    """The budget that forbids another model call, if one does."""
    for name in ("llm_calls", "events", "cost_usd"):
        limit = getattr(budgets, name)
        if limit is not None and getattr(spent, name) >= limit:
            return exhausted_error(name, _of(budgets, spent, name))
    return None


def cost_left(budgets: Budgets, spent: Spent) -> Decimal | None:
    """US dollars that may still be spent; None without a limit."""
    return None if budgets.cost_usd is None else budgets.cost_usd - spent.cost_usd


def cut_off_error(budgets: Budgets, spent: Spent) -> ErrorDetail:
    """The error of a turn whose last answer was cut off because the rest of it was not affordable."""
    limit = budgets.cost_usd or Decimal(0)
    why = "the last answer was cut off, as more of it was not affordable"
    return exhausted_error("cost_usd", f"{in_usd(spent.cost_usd)} of {in_usd(limit)}; {why}")


def admit(
    budgets: Budgets, spent: Spent, calls: Sequence[Wanted], granted: Spent | None = None
) -> tuple[Spent, list[ErrorDetail | None], ErrorDetail | None]:
    """Decide which calls may run.

    Args:
        budgets: The limits.
        spent: What counts against them.
        calls: The calls, in order.
        granted: What background delegates may still spend, and these calls may not.

    Returns:
        The spending with the admitted calls; for each call its error, or None if it may run; and the error that ends
        the turn, if one does. A call that only lacks what is granted gets an error, but the turn goes on: a delegate
        gives back what it does not use.
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
        error = exhausted_error(dimension, _of(budgets, taken, dimension))
        message = f"{error.message}; this call did not run"
        if _refusing(budgets, spent, call) is None:
            message = f"{error.message} with those that agents in the background may make; this call did not run"
        else:
            ending = ending or error
        errors.append(replace(error, title=call.tool, message=message))
    return spent, errors, ending


def _refusing(budgets: Budgets, spent: Spent, call: Wanted) -> str | None:
    """The first dimension without room for the call; None if there is room in all."""
    if budgets.depth is not None and call.depth > budgets.depth:
        return "depth"
    limits = [(name, getattr(budgets, name)) for name in CODES if name in call.uses]
    return next((name for name, limit in limits if limit is not None and getattr(spent, name) >= limit), None)


def _of(budgets: Budgets, spent: Spent, dimension: str) -> str:
    limit = getattr(budgets, dimension)
    if dimension == "cost_usd":
        return f"{in_usd(spent.cost_usd)} of {in_usd(limit)}"
    used = limit if dimension == "depth" else getattr(spent, dimension)
    return f"{used} of {limit} {_NOUNS[dimension]}"


def share(budgets: Budgets, spent: Spent, parts: int) -> Budgets:
    """The budgets of one delegate, if what is left is divided into ``parts`` equal parts.

    Whole numbers and money are rounded down, so that all parts together are never more than what is left. A part may
    be nothing: ``forbids_generation`` says so, and such a delegate is not to be started.
    """
    left: dict[str, object] = {
        name: max(0, limit - getattr(spent, name)) // parts
        for name in COUNTED
        if (limit := getattr(budgets, name)) is not None
    }
    if budgets.cost_usd is not None:
        left["cost_usd"] = _PARTS.divide(max(Decimal(0), budgets.cost_usd - spent.cost_usd), Decimal(parts))
    if budgets.depth is not None:
        left["depth"] = max(0, budgets.depth - 1)
    return budgets.model_copy(update=left)


def charge(state: TurnState, spent: Spent) -> TurnState:
    """The state with ``spent`` as its spending, and a warning for each share in ``warn_at`` that this reaches."""
    return replace(state, spent=spent).with_decided(*warnings(state.policy.budgets, state.spent, spent))


def warnings(budgets: Budgets, before: Spent, after: Spent) -> list[BudgetWarning]:
    """A warning for each share in ``warn_at`` that the spending reaches between ``before`` and ``after``."""
    passed: list[BudgetWarning] = []
    for name in ("cost_usd", *COUNTED):
        limit = getattr(budgets, name)
        if limit is None:
            continue
        passed += [
            BudgetWarning(dimension=name, share=share, used=_of(budgets, after, name))
            for share in budgets.warn_at
            if getattr(before, name) < share * limit <= getattr(after, name)
        ]
    return passed


def limit_reached(state: TurnState) -> Ending | None:
    """The limit that forbids another generation, if one does. N allows exactly N."""
    if state.exhausted is not None:
        return Ending(stop_reason=StopReason.BUDGET_EXHAUSTED, error=state.exhausted)
    if state.step + state.spent.delegated_steps >= state.policy.max_steps:
        return Ending(stop_reason=StopReason.MAX_STEPS_REACHED)
    if tool_turns_used_up(state) and not state.completing:
        most = state.policy.max_tool_turns
        message = f"the model has called tools in {most} answers, which is max_tool_turns, and has not finished"
        error = ErrorDetail(code=ReasonCode.TOOL_MAX_TURNS_EXHAUSTED, title="agent", message=message)
        return Ending(stop_reason=StopReason.ERROR, error=error)
    forbidden = forbids_generation(state.policy.budgets, state.spent)
    return None if forbidden is None else Ending(stop_reason=StopReason.BUDGET_EXHAUSTED, error=forbidden)


def tool_turns_used_up(state: TurnState) -> bool:
    """Whether the model has called tools in as many answers as it may."""
    most = state.policy.max_tool_turns
    return most is not None and state.tool_turns >= most


def waits_for_grants(state: TurnState) -> bool:
    """Whether the turn can only go on with what its running delegates may still spend."""
    if not state.running:
        return False
    return state.short or limit_reached(replace(state, spent=state.taken)) is not None


Limit = int | Decimal | timedelta

_ENDING = {"max_steps", *(row.name for row in DIMENSIONS if row.ends)}
"""Limits that end a turn as soon as they are used up. The others end it only when another call needs them."""


class ExtendError(ValueError):
    """The limits cannot be set; the message is one line with the cause and the fix."""


def extend(state: TurnState, asked: ExtendRequest, now: datetime) -> TurnState:
    """The state with the new limits; unchanged if it has them already.

    Raises:
        ExtendError: The request names another turn, the turn is a delegate's or is ending, or a new limit is used up
            already and the request does not say ``end``.
    """
    if asked.turn is not None and asked.turn != state.origin.turn:
        msg = f"turn {state.origin.turn} is the one that runs, and not turn {asked.turn}"
        raise ExtendError(msg)
    if state.origin.delegated is not None:
        msg = f"the limits of a delegate are its share of its caller's; extend session {state.origin.delegated.session}"
        raise ExtendError(msg)
    if state.ending is not None:
        msg = f"turn {state.origin.turn} has ended ({state.ending.stop_reason}); the next message begins another one"
        raise ExtendError(msg)
    for name, limit in () if asked.end else asked.limits.items():
        used = _used(state, name, now)
        if used is None:
            continue
        too_low = used >= limit if name in _ENDING else used > limit  # type: ignore[operator] # of one kind by their name
        if too_low:
            msg = f"{name}: {_shown(used)} is used already, so that {_shown(limit)} would end the turn; "
            raise ExtendError(msg + 'name more, or add "end": true to end it so')
    before = {name: _limit(state, name) for name in asked.limits}
    budgets = {name: limit for name, limit in asked.limits.items() if name != "max_steps"}
    policy = state.policy.model_copy(
        update={
            "max_steps": asked.max_steps or state.policy.max_steps,
            "budgets": state.policy.budgets.model_copy(update=budgets),
        }
    )
    exhausted = None if _lifts(state, asked) else state.exhausted
    changed = [
        BudgetChanged(dimension=name, before=None if was is None else _shown(was), after=_shown(asked.limits[name]))
        for name, was in before.items()
        if was != asked.limits[name]
    ]
    short = state.short and not changed
    state = replace(state, policy=policy, exhausted=exhausted, short=short)
    return state.with_decided(*changed)


def _used(state: TurnState, name: str, now: datetime) -> Limit | None:
    """Use that counts against a limit; None for ``depth``, which nothing uses up."""
    if name == "max_steps":
        return state.step + state.spent.delegated_steps
    if name == "seconds":
        return now - state.origin.started_at - state.waited
    used: Limit | None = getattr(state.spent, name, None)
    return used


def _limit(state: TurnState, name: str) -> Limit | None:
    limit: Limit | None = getattr(state.policy if name == "max_steps" else state.policy.budgets, name)
    return limit


def _lifts(state: TurnState, asked: ExtendRequest) -> bool:
    """Whether the request raises the budget that was about to end the turn."""
    if state.exhausted is None:
        return False
    name = next(name for name, code in CODES.items() if code == state.exhausted.code)
    limit, was = asked.limits.get(name), _limit(state, name)
    return limit is not None and was is not None and limit > was  # type: ignore[operator] # of one kind by their name


def _shown(limit: Limit) -> str:
    return f"{limit.total_seconds():g}" if isinstance(limit, timedelta) else str(limit)


def fall_back(state: TurnState, error: ErrorDetail) -> TurnState | None:
    """The state with its next fallback as the model; None if none is left, or the next is not for this failure."""
    if not state.policy.fallbacks:
        return None
    also_on = state.policy.fallbacks[0].also_on
    if not (error.code in HELPED or (error.code, error.type) == UNKNOWN_MODEL or error.code in also_on):
        return None
    policy = state.policy.fallen_back()
    event = ModelFallback(failed=state.policy.model, code=error.code, model=policy.model)
    # The next model may have a smaller window: it gets its own try of a compaction.
    context = replace(state.context, compacted_step=min(state.context.compacted_step, state.step))
    state = replace(state, policy=policy, fallback=state.fallback + 1, failures_in_row=0, context=context)
    return state.with_decided(event)


HoldReason = Literal["people", "pause"]
"""Reason the clock of the time budget is held."""


class Holds:
    """Holds the clock of the time budget while the turn waits for people, is paused, or both."""

    def __init__(self) -> None:
        self._reasons: set[HoldReason] = set()
        self._since: datetime | None = None

    @property
    def any(self) -> bool:
        """Whether the clock is held."""
        return bool(self._reasons)

    def hold(self, reason: HoldReason, now: datetime) -> None:
        """Hold the clock, for one more reason."""
        self._since = self._since if self._reasons else now
        self._reasons.add(reason)

    def release(self, reason: HoldReason, now: datetime) -> timedelta:
        """Take a reason back. Once none is left, return the time held that :meth:`settle` has not returned before."""
        was_held = self.any
        self._reasons.discard(reason)
        return self.settle(now) if was_held and not self._reasons else timedelta(0)

    def settle(self, now: datetime) -> timedelta:
        """Return the time held since the last call, so that none is counted twice."""
        held = timedelta(0) if self._since is None else now - self._since
        self._since = now if self._reasons else None
        return held
