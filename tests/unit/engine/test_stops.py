"""Stop conditions fire at their threshold and not one before, and combine."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from perdure import stop
from perdure.contracts.budgets import Spent, Usage
from perdure.contracts.conditions import CONDITIONS, AnyCondition
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.tools import PlannedCall, ToolOutcome
from perdure.engine.conditions import Facts, find_holding, title_of
from perdure.engine.state import Tally

ERROR = ErrorDetail(code=ReasonCode.TOOL_EXECUTION_ERROR, title="tool", message="no")


def call(tool: str, number: int = 0) -> PlannedCall:
    return PlannedCall(call_id=f"call_{tool}_{number}", tool=tool, arguments="{}")


def step(tally: Tally, *tools: str, matched: tuple[int, ...] = ()) -> Tally:
    """A step in which these tools were called; a name with ! is a failure."""
    calls = [call(name.rstrip("!"), number) for number, name in enumerate(tools)]
    outcomes = [
        ToolOutcome(call_id=one.call_id, error=ERROR if name.endswith("!") else None)
        for one, name in zip(calls, tools, strict=True)
    ]
    return tally.with_generation(calls, matched=matched, retries=0).with_results(calls, outcomes)


def after(*steps: tuple[str, ...], spent: Spent | None = None, elapsed: float = 0) -> Facts:
    tally = Tally()
    for tools in steps:
        tally = step(tally, *tools)
    spent = spent or Spent(llm_calls=len(steps))
    return Facts(tally=tally, steps=len(steps), spent=spent, elapsed=timedelta(seconds=elapsed))


def holds(condition: AnyCondition, facts: Facts) -> bool:
    return find_holding((condition,), facts) is not None


TALK: tuple[str, ...] = ()

Known = Callable[[], Facts]


def known(*steps: tuple[str, ...], spent: Spent | None = None, elapsed: float = 0) -> Known:
    """The facts, made when a test asks for them: those made by an import would not show a change of the tally."""
    return partial(after, *steps, spent=spent, elapsed=elapsed)


THRESHOLDS: dict[str, tuple[AnyCondition, Known, Known]] = {
    "any_tool_use": (stop.any_tool_use(3), known(("a", "b!")), known(("a", "b!"), ("a",))),
    "tool_use": (stop.tool_use("a", 2), known(("a", "b", "a!"), ("b",)), known(("a", "b", "a!"), ("a",))),
    "consecutive_errors": (stop.consecutive_errors(2), known(("a!", "b"), ("a!",)), known(("b",), ("a!",), ("c!",))),
    "tool_error": (stop.tool_error(), known(("a",)), known(("a",), ("b!",))),
    "tool_error of one": (stop.tool_error("a"), known(("b!", "a")), known(("b!", "a!"))),
    "elapsed_time": (stop.elapsed_time(60), known(TALK, elapsed=60), known(TALK, elapsed=60.001)),
    "estimated_cost": (
        stop.estimated_cost("0.10"),
        known(TALK, spent=Spent(cost_usd=Decimal("0.10"))),
        known(TALK, spent=Spent(cost_usd=Decimal("0.100001"))),
    ),
    "token_usage": (
        stop.token_usage(100),
        known(TALK, spent=Spent(usage=Usage(input_tokens=60, output_tokens=40))),
        known(TALK, spent=Spent(usage=Usage(input_tokens=60, output_tokens=41))),
    ),
    "token_usage in": (
        stop.token_usage(100, mode="in"),
        known(TALK, spent=Spent(usage=Usage(input_tokens=100, output_tokens=900))),
        known(TALK, spent=Spent(usage=Usage(input_tokens=101))),
    ),
    "token_usage out": (
        stop.token_usage(100, mode="out"),
        known(TALK, spent=Spent(usage=Usage(input_tokens=900, output_tokens=100))),
        known(TALK, spent=Spent(usage=Usage(output_tokens=101))),
    ),
    "generation_count": (stop.generation_count(3), known(TALK, TALK), known(TALK, TALK, TALK)),
    "step_count": (stop.step_count(2), known(TALK), known(TALK, TALK)),
    "no_new_tool_used": (stop.no_new_tool_used(2), known(("a",), ("b",), ("a",)), known(("a",), ("a", "a"), TALK)),
    "no_tool_calls": (stop.no_tool_calls(2), known(("a",), TALK), known(("a",), TALK, TALK)),
    "always": (stop.always(), known(), known(TALK)),
}


@pytest.mark.parametrize("name", THRESHOLDS)
def test_a_condition_fires_at_its_threshold_and_not_one_before(name: str) -> None:
    """S-34."""
    condition, before, at = THRESHOLDS[name]
    assert not holds(condition, before())
    assert holds(condition, at())


def test_calls_that_were_sent_again_count_as_generations_only_when_asked() -> None:
    """S-34: also those of which the model was told, which are steps of their own."""
    tally = Tally().with_generation((), matched=(), retries=1).without_calls()
    facts = Facts(tally=tally, steps=2, spent=Spent(llm_calls=2), elapsed=timedelta(0))
    assert not holds(stop.generation_count(2), facts)
    assert holds(stop.generation_count(3, retries=True), facts)
    assert not holds(stop.generation_count(4, retries=True), facts)


def test_only_the_answers_of_the_turns_own_model_are_counted() -> None:
    """S-34: not those of delegates, and no summaries."""
    spent = Spent(llm_calls=1).with_delegate(Spent(llm_calls=2), 2).with_call(Usage(), None)
    assert not holds(stop.generation_count(2), after(TALK, spent=spent))
    assert holds(stop.generation_count(2), after(TALK, TALK, spent=spent))


def test_a_rejected_call_is_an_error_of_its_tool_and_no_use() -> None:
    """S-34."""
    rejected = call("a").model_copy(update={"rejected": ERROR})
    facts = replace(after(), tally=Tally().with_generation([rejected], matched=(), retries=0))
    assert holds(stop.tool_error("a"), facts)
    assert not holds(stop.tool_use("a"), facts)


def test_what_matched_holds_for_its_step_only() -> None:
    """S-34."""
    condition = stop.output("done")
    matched = step(Tally(), matched=(0,))
    assert holds(condition, replace(after(), tally=matched))
    assert not holds(condition, replace(after(), tally=step(matched)))


def _after_all(steps: list[tuple[str, ...]]) -> Facts:
    return after(*steps)


called = st.lists(st.sampled_from(["a", "b!", "c", "a!"]), max_size=3).map(tuple)
facts = st.builds(_after_all, st.lists(called, max_size=8))
conditions = st.sampled_from([condition for condition, _, _ in THRESHOLDS.values()] + [stop.never(), stop.output("x")])


@given(conditions, conditions, facts)
def test_conditions_combine_as_booleans_do(left: AnyCondition, right: AnyCondition, known: Facts) -> None:
    """S-35."""
    a, b = holds(left, known), holds(right, known)
    assert holds(left & right, known) is (a and b)
    assert holds(left | right, known) is (a or b)
    assert holds(~left, known) is (not a)
    assert holds(~(left & right), known) is holds(~left | ~right, known)


@given(conditions, conditions, facts)
def test_a_condition_means_the_same_after_its_way_through_json(
    left: AnyCondition, right: AnyCondition, known: Facts
) -> None:
    """S-34: they also come in as JSON from another service."""
    whole = ((left & ~right).named("both"), right)
    read = CONDITIONS.validate_json(CONDITIONS.dump_json(whole))
    assert read == whole
    assert find_holding(read, known) == find_holding(whole, known)


TITLES: list[tuple[AnyCondition, str]] = [
    (stop.tool_use("deploy"), "tool_use(tool='deploy')"),
    (stop.tool_use("deploy") & ~stop.tool_error(), "(tool_use(tool='deploy') & ~tool_error())"),
    (stop.output("done").named("said done"), "said done"),
]


@pytest.mark.parametrize(("condition", "text"), TITLES)
def test_a_condition_has_a_title(condition: AnyCondition, text: str) -> None:
    assert title_of(condition) == text


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: stop.tool_use("a", 0), "greater than or equal to 1"),
    (lambda: stop.output("(", regex=True), "is no regular expression"),
    (lambda: stop.output("a", regex=True, exact=True), "exclude each other"),
    (lambda: stop.elapsed_time(0), "ElapsedTime: seconds: Input should be greater than 0 (got 0)"),
    (lambda: stop.estimated_cost("two dollars"), "EstimatedCost: limit: Input should be a valid decimal"),
    (lambda: stop.step_count(0), "StepCount: count: Input should be greater than or equal to 1 (got 0)"),
    (lambda: CONDITIONS.validate_python([{"type": "tool_usage"}]), "tool_use"),
    (lambda: CONDITIONS.validate_python([{"type": "tool_use", "tool": "a", "times": 2}]), "times"),
]


@pytest.mark.parametrize(("make", "words"), WRONG)
def test_a_condition_that_cannot_be_is_refused(make: Callable[[], object], words: str) -> None:
    """In one line where it is written; from another service, request.invalid says the same."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - its text is looked at
        make()
    assert words in str(caught.value)
    assert isinstance(caught.value, ValidationError) or "\n" not in str(caught.value)
