"""What hooks are called with at a boundary: each call once, also where the log does not have its result yet."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from perdure import StepEnd, hook
from perdure.activities.hooks import Hooked, hooked_events_of
from perdure.contracts.budgets import Usage
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.events import (
    DelegateEnd,
    DelegateStart,
    Envelope,
    Event,
    GenerationContent,
    ToolEnd,
    ToolError,
    ToolStart,
)
from perdure.contracts.hooks import Boundary, RunHooks
from perdure.contracts.tools import PlannedCall, ToolOutcome
from perdure.contracts.turns import StopReason
from perdure.store import StepRecord

BROKEN = ErrorDetail(code="tool.execution_error", title="work", message="broken")
STEP = StepRecord(
    id="t1",
    session="s",
    turn=1,
    step=1,
    parent="t0",
    messages=(),
    calls=tuple(PlannedCall(call_id=call_id, tool=f"tool_{call_id}") for call_id in "abc"),
)


def asked(boundary: Boundary, failed: tuple[ToolOutcome, ...] = ()) -> RunHooks:
    return RunHooks(
        session="s", turn=1, step=1, tip="t1", definition="d", boundary=boundary, calling=("h",), failed=failed
    )


def logged(*events: Event) -> list[Envelope]:
    now = datetime(2026, 11, 21, tzinfo=UTC)
    return [
        Envelope(seq=seq, session="s", turn=1, step=1, at=now, event=event) for seq, event in enumerate(events, start=1)
    ]


def at(boundary: Boundary, *events: Event, failed: tuple[ToolOutcome, ...] = ()) -> list[Hooked]:
    return hooked_events_of(asked(boundary, failed), logged(*events), STEP)


def kinds(events: list[Hooked]) -> list[tuple[str, str]]:
    return [(envelope.event.type, envelope.call_id) for envelope in events]


def end(call_id: str, error: ErrorDetail | None = None) -> ToolEnd:
    return ToolEnd(call_id=call_id, tool=f"tool_{call_id}", result="r", error=error, seconds=1)


def test_a_caught_error_is_an_error_and_an_abort_is_an_end() -> None:
    """S-36: one tool_end for each call, and one tool_error if it failed."""
    aborted = ToolError(call_id="b", tool="tool_b", error=BROKEN)
    assert kinds(at("step", end("a", BROKEN), aborted)) == [
        *(("tool_end", "a"), ("tool_error", "a")),
        *(("tool_error", "b"), ("tool_end", "b")),
        ("step_end", ""),
    ]


def test_a_result_that_only_the_workflow_knows_is_there_too() -> None:
    """S-36: a person's answer, or a call that is over a budget; not twice when the log has it."""
    failed = (
        ToolOutcome(call_id="a", preview="told", recorded=False),
        ToolOutcome(call_id="b", preview="no", error=BROKEN, recorded=False),
        ToolOutcome(call_id="c", preview="old", recorded=False),
        ToolOutcome(call_id="of another step", preview="old", recorded=False),
    )
    events = at("step", end("c"), failed=failed)
    assert kinds(events)[:-1] == [("tool_end", "c"), ("tool_end", "a"), ("tool_end", "b"), ("tool_error", "b")]
    assert [envelope.seq for envelope in events] == [1, 0, 0, 0, 0]


def test_the_end_of_a_step_has_its_text_and_all_results() -> None:
    content = GenerationContent(content="I work")
    last = at("step", content, ToolStart(call_id="a", tool="tool_a", arguments="{}"), end("a"), end("b"))[-1].event
    assert isinstance(last, StepEnd)
    assert (last.output, [result.call_id for result in last.results]) == ("I work", ["a", "b"])


def test_events_of_another_place_are_left_out() -> None:
    content = GenerationContent(content="I work")
    assert kinds(at("generation", content, end("a"))) == [("generation_content", "")]
    assert kinds(at("stalled", content)) == [("agent_stalled", "")]


def test_a_hook_for_one_tool_is_not_for_others() -> None:
    made = hook("tool_end", "step_end", tool="tool_a")(lambda event: event)
    assert [hooked.call_id for hooked in at("step", end("a"), end("b")) if hooked.is_for(made)] == ["a", ""]


@pytest.mark.parametrize(("background", "ended", "heard"), [(False, (), 2), (True, (), 0), (True, ("a",), 2)])
def test_a_delegate_in_the_background_is_heard_of_when_its_caller_knows_of_its_end(
    background: bool, ended: tuple[str, ...], heard: int
) -> None:
    """S-36 S-64: also if the log has its end already."""
    start = DelegateStart(call_id="a", tool="tool_a", agent="a", delegate="s.a")
    stop = DelegateEnd(
        **start.model_dump(exclude={"type"}),
        stop_reason=StopReason.FINISHED,
        steps=1,
        usage=Usage(),
        cost_usd=Decimal(0),
    )
    calls = tuple(call.model_copy(update={"background": background}) for call in STEP.calls)
    request = asked("step").model_copy(update={"ended": ended})
    told = hooked_events_of(request, logged(start, stop), STEP.model_copy(update={"calls": calls}))
    assert [hooked.event for hooked in told if hooked.event.type != "step_end"] == [start, stop][:heard]
