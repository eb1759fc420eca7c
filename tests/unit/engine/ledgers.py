"""What a turn has spent and counted, added up once more from what happened in it, to compare with the engine's sums."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from typing import Any, cast

from perdure.contracts import conditions
from perdure.contracts.budgets import Budgets, Spent
from perdure.contracts.conditions import AnyCondition, text_conditions, walk_conditions
from perdure.contracts.generations import Compact, Compacted, Generate, Generation
from perdure.contracts.hooks import HookResults
from perdure.contracts.tools import ChangeTodos, ClearTodos, PlannedCall, ToolOutcome
from perdure.contracts.turns import CommitTurn, StopReason, TurnRequest, TurnResult
from perdure.engine import conditions as stops
from perdure.engine.delegates import AwaitDelegates, CallDelegates
from perdure.engine.generation import Failed
from tests.unit.engine.invariants import COUNTED, outcomes
from tests.unit.engine.scripts import DELEGATES
from tests.unit.engine.simulation import Ends, Moment, Played


@dataclass
class Ledger:
    """The sums so far: ``admitted`` has the calls that use up a budget, ``granted`` delegates in the background."""

    spent: Spent
    admitted: dict[str, PlannedCall] = field(default_factory=dict)
    granted: dict[str, TurnRequest] = field(default_factory=dict)

    def add(self, **counts: Any) -> None:
        sums = {name: getattr(self.spent, name) + count for name, count in counts.items()}
        self.spent = self.spent.model_copy(update=sums)

    def pay(self, paid: Any) -> None:
        self.spent = self.spent.model_copy(update={"usage": self.spent.usage.plus(paid.usage)})
        self.add(cost_usd=paid.cost_usd or Decimal(0))

    def heard(self, moment: Moment) -> None:
        """What came of an action."""
        came = moment.came
        if isinstance(came, Failed):
            self.pay(came.paid)
        if isinstance(came, Generation | Compacted):
            self.pay(came.failed)
        if isinstance(came, Generation) or (isinstance(came, Compacted) and came.summarised):
            self.pay(came)
            self.add(llm_calls=1, events=1, unpriced_calls=int(came.cost_usd is None))
        if isinstance(came, Generation):
            self._admit(came, moment.later.policy.budgets)
        if isinstance(came, HookResults):
            self.add(behavior_calls=came.calls)
        if isinstance(moment.action, CallDelegates):
            for start, one in zip(moment.action.starts, cast("tuple[object, ...]", came), strict=True):
                self._charge(one)
                self.granted |= {start.session: start.request} if one is None else {}

    def ended(self, ends: Ends) -> None:
        """Delegates in the background have ended: each is charged, and nothing is granted to it any more."""
        for session, one in ends:
            del self.granted[session]
            self._charge(one)

    def _charge(self, ended: object) -> None:
        if isinstance(ended, TurnResult) and ended.report is not None:
            spent, steps = ended.report.spent, ended.steps
            self.pay(spent)
            names = ("unpriced_calls", "llm_calls", "tool_calls", "behavior_calls", "events", "patches")
            self.add(delegated_steps=spent.delegated_steps + steps, **{name: getattr(spent, name) for name in names})

    def beside(self, name: str) -> Any:
        """What delegates in the background may still use up of it."""
        if name == "delegated_steps":
            return sum(one.max_steps or 0 for one in self.granted.values())
        return sum(getattr(one.budgets, name) or 0 for one in self.granted.values())

    def _admit(self, answer: Generation, limits: Budgets) -> None:
        for call in answer.calls:
            uses = uses_of(call)
            full = [name for name in uses if _is_full(getattr(limits, name), self._taken(name))]
            too_deep = call.tool in DELEGATES and limits.depth == 0
            if call.rejected is None and not full and not too_deep:
                self.add(**dict.fromkeys(uses, 1))
                self.admitted[call.call_id] = call

    def _taken(self, name: str) -> int:
        return int(getattr(self.spent, name) + self.beside(name))

    def give_back(self, call_id: str) -> None:
        """A hook has kept the call from running."""
        call = self.admitted.pop(call_id, None)
        self.add(**dict.fromkeys(uses_of(call), -1) if call is not None else {})


def _is_full(limit: int | None, used: int) -> bool:
    return limit is not None and used >= limit


def uses_of(call: PlannedCall) -> tuple[str, ...]:
    """What a call uses up."""
    made = call.builtin
    changes = isinstance(made, ClearTodos) or (isinstance(made, ChangeTodos) and made.new_titles + made.completed != ())
    delegates = ("behavior_calls",) if call.tool in DELEGATES else ()
    return ("tool_calls", *delegates, "events", *(("patches",) if changes else ()))


def what_is_spent_is_what_was_paid_once(played: Played) -> None:
    """S-54 S-62 S-70: after every action, delegates and failed tries included."""
    ledger = Ledger(played.begun.spent)
    for moment, following in pairwise(played.moments):
        ledger.ended(moment.heard[0])
        _agree(moment, ledger)
        ledger.heard(moment)
        ledger.ended(moment.heard[1])
        for outcome in following.state.calls.outcomes:
            if outcome.error is not None and outcome.error.code == "tool.denied" and outcome.decided is None:
                ledger.give_back(outcome.call_id)
    ledger.ended(played.moments[-1].heard[0])
    _agree(played.moments[-1], ledger)
    assert not ledger.granted, "no delegate works on behind the end of its caller"
    assert played.commit.spent == ledger.spent.without(played.begun.origin.earlier)


def _agree(moment: Moment, ledger: Ledger) -> None:
    assert moment.state.spent == ledger.spent
    granted = moment.state.granted
    for name in (*COUNTED, "cost_usd", "delegated_steps"):
        assert getattr(granted, name) == ledger.beside(name)


@dataclass
class Facts:
    """What conditions look at, as it happened."""

    spent: Spent = field(default_factory=Spent)
    steps: int = 0
    answers: int = 0
    calls: dict[str, PlannedCall] = field(default_factory=dict)
    last: Generation | None = None
    without_call: int = 0

    def heard(self, answer: Generation) -> None:
        self.steps += 1
        self.last = answer if answer.retry_seconds is None else None
        if self.last is not None:
            self.answers += 1
            self.without_call = 0 if answer.calls else self.without_call + 1
        self.calls |= {call.call_id: call for call in answer.calls}


def _ends_of_steps(played: Played) -> Iterator[tuple[Moment, Facts]]:
    """The first action behind each step that did not wait for people, stops excepted."""
    facts, new = Facts(calls={call.call_id: call for call in played.begun.calls.asking}), False
    before = played.begun
    for moment in played.moments:
        waits = isinstance(moment.action, AwaitDelegates) and moment.action.call is None
        if new and (waits or isinstance(moment.action, Generate | Compact | CommitTurn)) and not moment.stopped:
            new = False
            # Delegates that have ended since count for the next step.
            judged = moment.state if before.has_open_calls else before
            facts.spent = judged.spent.without(played.begun.origin.earlier)
            yield moment, facts
        if isinstance(moment.came, Generation):
            facts.heard(moment.came)
            new = True
        before = moment.later


def conditions_end_the_turn_as_soon_as_they_hold(played: Played) -> None:
    """S-34 S-35: at the end of the step, not one before, alone and combined. Hooks may come in between."""
    policy = played.begun.policy
    row = [one for one in walk_conditions(policy.stop_conditions) if isinstance(one, conditions.ConsecutiveErrors)]
    if policy.hooks or row:
        return
    titles, judged = {stops.title_of(one) for one in policy.stop_conditions}, None
    for moment, facts in _ends_of_steps(played):
        judged = moment
        held = [one for one in policy.stop_conditions if _holds(one, played, moment, facts)]
        if not moment.ends:
            assert not held
        elif played.commit.stopped_by in titles:
            on_errors = [
                one for one in held if any(isinstance(part, conditions.ToolFailed) for part in walk_conditions((one,)))
            ]
            assert played.commit.stopped_by in map(stops.title_of, [held[0], *on_errors])
        elif played.commit.stop_reason is not StopReason.WAITING_FOR_INPUT:
            by_itself = played.commit.stopped_by is not None or played.commit.stop_reason is StopReason.ERROR
            assert by_itself or not held
    if played.commit.stopped_by in titles and not played.stopped:
        assert judged is not None
        assert judged.ends, "they are looked at once for each step"


def _holds(condition: AnyCondition, played: Played, moment: Moment, facts: Facts) -> bool:
    if isinstance(condition, conditions.AllOf):
        return all(_holds(one, played, moment, facts) for one in condition.conditions)
    if isinstance(condition, conditions.AnyOf):
        return any(_holds(one, played, moment, facts) for one in condition.conditions)
    if isinstance(condition, conditions.Not):
        return not _holds(condition.condition, played, moment, facts)
    if isinstance(condition, conditions.Output):
        return _matches(condition, played, moment, facts)
    return _SIMPLE[type(condition)](condition, played, moment, facts)


def _matches(condition: AnyCondition, played: Played, moment: Moment, facts: Facts) -> bool:
    last, texts = facts.last, text_conditions(played.begun.policy.conditions)
    if last is None:
        return False
    known = outcomes(played, moment)
    mine = [known[call.call_id].matched for call in last.calls if call.call_id in known]
    return any(texts[place] == condition for matched in (last.matched, *mine) for place in matched)


def _ended(played: Played, moment: Moment, facts: Facts, tool: str | None, *, succeeded: bool) -> int:
    """How many calls of a tool have ended so; a turn that a tool ends leaves some without a result until its commit."""
    known = {key: one for key, one in outcomes(played, moment).items() if not _never_began(one)}
    ended = [call for call_id, call in facts.calls.items() if call_id in known]
    tools = [call.tool for call in ended if (known[call.call_id].error is None) is succeeded]
    return len(tools) if tool is None else tools.count(tool)


def _never_began(outcome: ToolOutcome) -> bool:
    return outcome.error is not None and outcome.error.code == "tool.cancelled" and not outcome.recorded


_SIMPLE: dict[type[object], Callable[[Any, Played, Moment, Facts], bool]] = {
    conditions.StepCount: lambda one, _, __, facts: facts.steps >= one.count,
    conditions.ToolUse: lambda one, played, moment, facts: (
        _ended(played, moment, facts, one.tool, succeeded=True) >= one.count
    ),
    conditions.AnyToolUse: lambda one, played, moment, facts: (
        sum(_ended(played, moment, facts, None, succeeded=yes) for yes in (True, False)) >= one.count
    ),
    conditions.ToolFailed: lambda one, played, moment, facts: (
        _ended(played, moment, facts, one.tool, succeeded=False) > 0
    ),
    conditions.EstimatedCost: lambda one, _, __, facts: facts.spent.cost_usd > one.limit,
    conditions.TokenUsage: lambda one, _, __, facts: facts.spent.usage.total_tokens > one.limit,
    conditions.GenerationCount: lambda one, _, __, facts: facts.answers >= one.count,
    conditions.NoToolCalls: lambda one, _, __, facts: facts.without_call >= one.steps,
    conditions.Never: lambda _, __, ___, ____: False,
    conditions.Always: lambda _, __, ___, ____: True,
}

INVARIANTS: tuple[Callable[[Played], None], ...] = (
    what_is_spent_is_what_was_paid_once,
    conditions_end_the_turn_as_soon_as_they_hold,
)
