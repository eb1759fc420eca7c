"""What a turn may spend, and what changes that: other limits, another model, a cancel.

N allows exactly N: the call beyond it is refused, and the turn ends.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Context, Decimal
from typing import Literal

from perdure.contracts.agents import ModelPolicy
from perdure.contracts.budgets import COUNTED, Budgets, ExtendRequest, Spent
from perdure.contracts.errors import REASONS, ErrorDetail, ReasonCode
from perdure.contracts.hooks import BudgetChanged, BudgetWarning, ModelFallback
from perdure.contracts.retries import HELPED, UNKNOWN_MODEL
from perdure.contracts.turns import CancelReceipt, CancelRequest, StopReason
from perdure.contracts.values import replace
from perdure.engine.state import Ending, Mailbox, TurnState

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
"""The reason code of each dimension, in the order of warnings, and of checks before a single call."""

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
    if budgets.llm_calls is not None and spent.llm_calls >= budgets.llm_calls:
        return exhausted_error("llm_calls", _of(budgets, spent, "llm_calls"))
    if budgets.events is not None and spent.events >= budgets.events:
        return exhausted_error("events", _of(budgets, spent, "events"))
    if budgets.cost_usd is not None and spent.cost_usd >= budgets.cost_usd:
        return exhausted_error("cost_usd", f"{in_usd(spent.cost_usd)} of {in_usd(budgets.cost_usd)}")
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
    used = limit if dimension == "depth" else getattr(spent, dimension)
    return f"{used} of {limit} {_NOUNS[dimension]}"


def share(budgets: Budgets, spent: Spent, parts: int) -> Budgets:
    """The budgets of one delegate, if what is left is divided into ``parts`` equal parts.

    Whole numbers are rounded down, so that all parts together are never more than what is left. A part may be nothing:
    ``forbids_generation`` says so, and such a delegate is not to be started.
    """
    left: dict[str, object] = {
        name: max(0, limit - getattr(spent, name)) // parts
        for name in COUNTED
        if (limit := getattr(budgets, name)) is not None
    }
    if budgets.cost_usd is not None:
        left["cost_usd"] = max(Decimal(0), budgets.cost_usd - spent.cost_usd) / parts
    if budgets.depth is not None:
        left["depth"] = max(0, budgets.depth - 1)
    return budgets.model_copy(update=left)


def charge(state: TurnState, spent: Spent) -> TurnState:
    """The state with ``spent`` as its spending, and a warning for each share in ``warn_at`` that this reaches."""
    return replace(state, spent=spent).with_decided(*warnings(state.policy.budgets, state.spent, spent))


def warnings(budgets: Budgets, before: Spent, after: Spent) -> list[BudgetWarning]:
    """A warning for each share in ``warn_at`` that the spending reaches between ``before`` and ``after``."""
    passed: list[BudgetWarning] = []
    for name in CODES:
        limit = getattr(budgets, name)
        if limit is None or name in {"seconds", "depth"}:
            continue
        was, now = getattr(before, name), getattr(after, name)
        used = f"{in_usd(now)} of {in_usd(limit)}" if name == "cost_usd" else f"{now} of {limit} {_NOUNS[name]}"
        passed += [
            BudgetWarning(dimension=name, share=share, used=used)
            for share in budgets.warn_at
            if was < share * limit <= now
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


def ending_of_stop(state: TurnState, mail: Mailbox) -> Ending:
    """The end of a turn that was cancelled, or whose time is used up."""
    if mail.cancel is None:
        limit = state.policy.budgets.seconds
        seconds = limit.total_seconds() if limit else 0
        error = exhausted_error("seconds", f"{seconds:g} s")
        return Ending(stop_reason=StopReason.BUDGET_EXHAUSTED, error=error)
    message = f"Operation aborted: {mail.cancel.reason}" if mail.cancel.reason else "Operation aborted"
    error = ErrorDetail(code=ReasonCode.RUNTIME_ABORTED, title="runtime", message=message)
    return Ending(stop_reason=StopReason.CANCELLED, error=error)


def waits_for_grants(state: TurnState) -> bool:
    """Whether the turn can only go on with what its running delegates may still spend."""
    if not state.running:
        return False
    return state.short or limit_reached(replace(state, spent=state.taken)) is not None


Limit = int | Decimal | timedelta

_ENDING = frozenset({"max_steps", "cost_usd", "llm_calls", "events", "seconds"})
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
    for name, limit in asked.limits.items():
        _check(name, limit, _used(state, name, now), ends=asked.end)
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


def _check(name: str, limit: Limit, used: Limit | None, *, ends: bool) -> None:
    if ends or used is None:
        return
    too_low = used >= limit if name in _ENDING else used > limit  # type: ignore[operator] # of one kind by their name
    if too_low:
        msg = f"{name}: {_shown(used)} is used already, so that {_shown(limit)} would end the turn; "
        raise ExtendError(msg + 'name more, or add "end": true to end it so')


def _used(state: TurnState, name: str, now: datetime) -> Limit | None:
    """What counts against a limit; None for ``depth``, which nothing uses up."""
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
    if not state.policy.fallbacks or not _helps(state.policy.fallbacks[0], error):
        return None
    policy = state.policy.fallen_back()
    event = ModelFallback(failed=state.policy.model, code=error.code, model=policy.model)
    # The next model may have a smaller window: it gets its own try of a compaction.
    context = replace(state.context, compacted_step=min(state.context.compacted_step, state.step))
    state = replace(state, policy=policy, fallback=state.fallback + 1, failures_in_row=0, context=context)
    return state.with_decided(event)


def _helps(model: ModelPolicy, error: ErrorDetail) -> bool:
    return error.code in HELPED or (error.code, error.type) == UNKNOWN_MODEL or error.code in model.also_on


HoldReason = Literal["people", "pause"]
"""Why the clock of the time budget is held."""


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


class WrongTurnError(ValueError):
    """A cancel names a turn that neither runs nor waits; the message says which do."""


@dataclass(frozen=True)
class RunningTurn:
    """The turn that runs.

    Attributes:
        last_turn: The session's highest number; that of the first message that waits is one more.
        ending: Whether it is too late to stop the turn.
        takes_steering: Whether the turn still reads messages.
        delegated: Whether the turn is a delegate's.
    """

    turn: int
    request_id: str
    last_turn: int
    ending: bool
    takes_steering: bool = False
    delegated: bool = False


def cancel(mail: Mailbox, asked: CancelRequest, running: RunningTurn, now: datetime) -> tuple[Mailbox, CancelReceipt]:
    """Take in a cancel: the running turn is to stop, or a waiting one ends as soon as it begins.

    Raises:
        WrongTurnError: The request names another turn.
    """
    turn = _number_of(mail, asked, running)
    waiting = range(running.last_turn + 1, running.last_turn + 1 + len(mail.queued))
    stops, dropped = True, list[int]()
    if asked.drop_queue:
        dropped = [number for number, message in zip(waiting, mail.queued, strict=True) if message.cancelled is None]
    if turn == running.turn:
        stops = mail.cancel is not None or not running.ending
        mail = stop(mail, asked, now)
    elif turn not in waiting:
        others = _those(waiting)
        msg = f"turn {turn} does not run: turn {running.turn} does{f', and {others}' if others else ''}"
        raise WrongTurnError(msg)
    ends = {*dropped, turn}
    queued = tuple(
        message if number not in ends or message.cancelled is not None else replace(message, cancelled=asked.reason)
        for number, message in zip(waiting, mail.queued, strict=True)
    )
    return replace(mail, queued=queued), CancelReceipt(turn=turn, stops=stops, dropped=tuple(dropped))


def stop(mail: Mailbox, asked: CancelRequest, now: datetime) -> Mailbox:
    """The mailbox of a turn that is to stop. The first request counts, later ones change nothing."""
    return mail if mail.cancel is not None else replace(mail, cancel=asked, cancel_at=now)


def _number_of(mail: Mailbox, asked: CancelRequest, running: RunningTurn) -> int:
    if asked.request_id is None:
        return running.turn if asked.turn is None else asked.turn
    if asked.request_id == running.request_id:
        return running.turn
    places = [message.request_id for message in mail.queued]
    if asked.request_id in places:
        return running.last_turn + 1 + places.index(asked.request_id)
    msg = f"no turn of request {asked.request_id!r} runs or waits; turn {running.turn} runs"
    raise WrongTurnError(msg)


def _those(waiting: Collection[int]) -> str:
    if not waiting:
        return ""
    first, last = min(waiting), max(waiting)
    return f"turn {first} waits" if first == last else f"turns {first} to {last} wait"
