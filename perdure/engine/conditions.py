"""Which stop condition holds at the end of a step: pure functions of what the turn has counted so far."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from perdure.contracts import conditions
from perdure.contracts.budgets import Spent, Usage
from perdure.contracts.conditions import AnyCondition, Condition, text_conditions
from perdure.contracts.tools import PlannedCall, ToolOutcome
from perdure.contracts.values import Value


class Tally(Value):
    """What stop conditions count, over the turn.

    Attributes:
        uses: Successful calls of each tool.
        results: Calls that have a result, errors among them.
        failed: Tools of which a call failed.
        errors_in_row: Failed calls since the last successful one.
        most_errors_in_row: The longest such row.
        generations: Answers of the turn's own model.
        retries: Model calls that failed and were sent again.
        steps_without_call: Steps since the last one with a call.
        steps_without_new: Steps since the last one that used a tool for the first time.
        used: Tools that were called, also without success.
        matched: Places of the text conditions that hold for the step at hand.
        ended: Calls of the step at hand that have a result: the tool, and whether it succeeded.
    """

    uses: dict[str, int] = {}
    results: int = 0
    failed: tuple[str, ...] = ()
    errors_in_row: int = 0
    most_errors_in_row: int = 0
    generations: int = 0
    retries: int = 0
    steps_without_call: int = 0
    steps_without_new: int = 0
    used: tuple[str, ...] = ()
    matched: tuple[int, ...] = ()
    ended: tuple[tuple[str, bool], ...] = ()

    def with_generation(self, calls: Sequence[PlannedCall], *, matched: tuple[int, ...], retries: int) -> "Tally":
        """The model has answered, with these calls."""
        called = {call.tool for call in calls}
        new = called - set(self.used)
        rejected = [call for call in calls if call.rejected is not None]
        return self.model_copy(
            update={
                "generations": self.generations + 1,
                "retries": self.retries + retries,
                "steps_without_call": 0 if calls else self.steps_without_call + 1,
                "steps_without_new": 0 if new else self.steps_without_new + 1,
                "used": (*self.used, *sorted(new)),
                "matched": matched,
                "ended": (),
            }
        ).with_ended([(call.tool, False) for call in rejected])

    def without_calls(self) -> "Tally":
        """The step at hand has none: the model call failed, and is made again with what the model is told of it."""
        return self.model_copy(update={"retries": self.retries + 1, "matched": (), "ended": ()})

    def with_results(self, calls: Sequence[PlannedCall], outcomes: Sequence[ToolOutcome]) -> "Tally":
        """These calls have ended."""
        results = [(call.tool, outcome.error is None) for call, outcome in zip(calls, outcomes, strict=True)]
        matched = {*self.matched, *(place for outcome in outcomes for place in outcome.matched)}
        return self.model_copy(update={"matched": tuple(sorted(matched))}).with_ended(results)

    def with_ended(self, results: Sequence[tuple[str, bool]]) -> "Tally":
        """Calls of these tools have ended, with success or not."""
        uses, failed, in_row, most = dict(self.uses), list(self.failed), self.errors_in_row, self.most_errors_in_row
        for tool, succeeded in results:
            in_row = 0 if succeeded else in_row + 1
            most = max(most, in_row)
            if succeeded:
                uses[tool] = uses.get(tool, 0) + 1
            elif tool not in failed:
                failed.append(tool)
        update = {
            "uses": uses,
            "failed": tuple(failed),
            "errors_in_row": in_row,
            "most_errors_in_row": most,
            "results": self.results + len(results),
            "ended": (*self.ended, *results),
        }
        return self.model_copy(update=update)


class Facts(Value):
    """All that a condition may look at."""

    tally: Tally
    steps: int
    spent: Spent
    elapsed: timedelta


def fired(
    conditions: tuple[AnyCondition, ...], facts: Facts, known: tuple[AnyCondition, ...] | None = None
) -> AnyCondition | None:
    """The first condition that holds; ``known`` are all that were looked for in texts, if they are more."""
    known = conditions if known is None else known
    return next((condition for condition in conditions if holds(condition, facts, known)), None)


def holds(condition: AnyCondition, facts: Facts, known: tuple[AnyCondition, ...]) -> bool:
    """Whether a condition holds, which is one of those that are known."""
    texts = text_conditions(known)
    return _holds(condition, facts, [texts[place] for place in facts.tally.matched])


def holds_by_an_error(condition: AnyCondition, facts: Facts, known: tuple[AnyCondition, ...]) -> bool:
    """Whether a condition holds because a tool failed: by itself, or by a part of it that does."""
    if not holds(condition, facts, known):
        return False
    if isinstance(condition, conditions.AllOf | conditions.AnyOf):
        return any(holds_by_an_error(part, facts, known) for part in condition.conditions)
    return isinstance(condition, conditions.ToolFailed)


def title(condition: AnyCondition) -> str:
    """What ``stopped_by`` says of a condition: its name, or its type with what it looks at."""
    if condition.name:
        return condition.name
    if isinstance(condition, conditions.AllOf | conditions.AnyOf):
        word = " & " if isinstance(condition, conditions.AllOf) else " | "
        return f"({word.join(map(title, condition.conditions))})"
    if isinstance(condition, conditions.Not):
        return f"~{title(condition.condition)}"
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
"""What each condition that counts something means."""


def _tokens(usage: Usage, mode: conditions.Tokens) -> int:
    return {"total": usage.total_tokens, "in": usage.input_tokens, "out": usage.output_tokens}[mode]
