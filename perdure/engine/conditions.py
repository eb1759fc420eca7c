"""Which stop condition ends the turn at the end of a step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from perdure.contracts import conditions
from perdure.contracts.budgets import Spent, Usage
from perdure.contracts.conditions import AnyCondition, Condition, text_conditions
from perdure.contracts.hooks import StopConditionMet
from perdure.contracts.turns import StopReason
from perdure.contracts.values import replace
from perdure.engine.state import Ending, Tally, TurnState


@dataclass(frozen=True)
class Facts:
    """All that a condition may look at. ``elapsed`` leaves out waits for people, and pauses."""

    tally: Tally
    steps: int
    spent: Spent
    elapsed: timedelta


def judge_step(state: TurnState, now: datetime) -> TurnState:
    """End the turn if a stop condition holds. To be called once for each step, when all of its calls have results.

    If the model's text has ended the turn, a condition that holds replaces that ending. If a tool's error has ended
    it, only a condition on errors of tools does.
    """
    if not state.policy.stop_conditions or not state.step:
        return state
    met = _first_met(state, facts_of(state, now))
    if met is None:
        return state
    ending = Ending(stop_reason=StopReason.FINISHED, stopped_by=title_of(met))
    return replace(state, ending=ending).with_decided(StopConditionMet(condition=title_of(met)))


def facts_of(state: TurnState, now: datetime) -> Facts:
    """The facts of the turn at this moment."""
    elapsed = now - state.origin.started_at - state.waited
    return Facts(tally=state.tally, steps=state.step, spent=state.own_spent, elapsed=elapsed)


def _first_met(state: TurnState, facts: Facts) -> AnyCondition | None:
    """The first condition that holds and may finish the turn, by the rules of :func:`judge_step`."""
    known, ending = state.policy.stop_conditions, state.ending
    if ending is None or ending.is_finish:
        is_free = ending is None or ending.stopped_by is None
        return find_holding(known, facts, state.policy.conditions) if is_free else None
    if ending.error is None or not ending.error.code.startswith("tool."):
        return None
    met = (condition for condition in known if holds_by_an_error(condition, facts, state.policy.conditions))
    return next(met, None)


def find_holding(
    conditions: tuple[AnyCondition, ...], facts: Facts, known: tuple[AnyCondition, ...] | None = None
) -> AnyCondition | None:
    """The first condition that holds; ``known`` as in :func:`holds`, if they are more."""
    known = conditions if known is None else known
    return next((condition for condition in conditions if holds(condition, facts, known)), None)


def holds(condition: AnyCondition, facts: Facts, known: tuple[AnyCondition, ...]) -> bool:
    """Whether a condition holds. It is one of ``known``, whose text conditions the tally's ``matched`` counts."""
    texts = text_conditions(known)
    return _holds(condition, facts, [texts[place] for place in facts.tally.matched])


def holds_by_an_error(condition: AnyCondition, facts: Facts, known: tuple[AnyCondition, ...]) -> bool:
    """Whether a condition holds and is one on failed tools, or has a part that is and holds."""
    if not holds(condition, facts, known):
        return False
    if isinstance(condition, conditions.AllOf | conditions.AnyOf):
        return any(holds_by_an_error(part, facts, known) for part in condition.conditions)
    return isinstance(condition, conditions.ToolFailed)


def title_of(condition: AnyCondition) -> str:
    """Title of a condition in ``stopped_by``: its name, or its type with what it looks at."""
    if condition.name:
        return condition.name
    if isinstance(condition, conditions.AllOf | conditions.AnyOf):
        word = " & " if isinstance(condition, conditions.AllOf) else " | "
        return f"({word.join(map(title_of, condition.conditions))})"
    if isinstance(condition, conditions.Not):
        return f"~{title_of(condition.condition)}"
    settings = condition.model_dump(mode="json", exclude_defaults=True)
    given = ", ".join(f"{name}={value!r}" for name, value in settings.items() if name != "type")
    return f"{condition.type}({given})"


def _holds(condition: AnyCondition, facts: Facts, matched: Sequence[AnyCondition]) -> bool:
    if isinstance(condition, conditions.AllOf):
        return all(_holds(part, facts, matched) for part in condition.conditions)
    if isinstance(condition, conditions.AnyOf):
        return any(_holds(part, facts, matched) for part in condition.conditions)
    if isinstance(condition, conditions.Not):
        return not _holds(condition.condition, facts, matched)
    if isinstance(condition, conditions.Output | conditions.ToolOutput):
        return condition in matched
    return _RULES[type(condition)](condition, facts)


Rule = Callable[[Any, Facts], bool]

_RULES: dict[type[Condition], Rule] = {
    conditions.Always: lambda _, facts: facts.steps > 0,
    conditions.Never: lambda _, __: False,
    conditions.AnyToolUse: lambda condition, facts: facts.tally.results >= condition.count,
    conditions.ToolUse: lambda condition, facts: facts.tally.uses.get(condition.tool, 0) >= condition.count,
    conditions.ConsecutiveErrors: lambda condition, facts: facts.tally.most_errors_in_row >= condition.count,
    conditions.ToolFailed: lambda condition, facts: (
        condition.tool in facts.tally.failed if condition.tool else bool(facts.tally.failed)
    ),
    conditions.ElapsedTime: lambda condition, facts: facts.elapsed.total_seconds() > condition.seconds,
    conditions.EstimatedCost: lambda condition, facts: facts.spent.cost_usd > condition.limit,
    conditions.TokenUsage: lambda condition, facts: _tokens(facts.spent.usage, condition.mode) > condition.limit,
    conditions.GenerationCount: lambda condition, facts: (
        facts.tally.generations + (facts.tally.retries if condition.retries else 0) >= condition.count
    ),
    conditions.StepCount: lambda condition, facts: facts.steps >= condition.count,
    conditions.NoNewToolUsed: lambda condition, facts: facts.tally.steps_without_new >= condition.steps,
    conditions.NoToolCalls: lambda condition, facts: facts.tally.steps_without_call >= condition.steps,
}
"""The rule of each condition without parts and texts."""


def _tokens(usage: Usage, mode: conditions.Tokens) -> int:
    return {"total": usage.total_tokens, "in": usage.input_tokens, "out": usage.output_tokens}[mode]
