"""The live rows and what earlier events add to a line, as pure functions of events and time."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from perdure.cli.progress import MOST_ROWS, TEXT_ROWS, Progress, erase_sequence_of
from perdure.cli.render import cut, duration, table, width_of
from perdure.contracts import events
from perdure.contracts.budgets import Budgets, Spent, Usage
from perdure.contracts.deltas import Delta
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.events import DelegateEnd, DelegateStart
from perdure.contracts.turns import BudgetStatus, StopReason
from perdure.contracts.waits import Cause, TurnWait

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
BROKEN = ErrorDetail(code="tool.execution_error", title="read", message="it broke")


class Told:
    """A progress that is told of events, each so many seconds after the beginning."""

    def __init__(self, progress: Progress | None = None) -> None:
        self.progress = progress or Progress()

    def lines(self, event: events.Event, seconds: float = 0, *, step: int = 3) -> list[str]:
        at = BEGAN + timedelta(seconds=seconds)
        envelope = events.Envelope(seq=1, session="job-1", turn=1, step=step, at=at, event=event)
        return [line.text for line in self.progress.note(envelope)]

    def rows(self, seconds: float) -> list[str]:
        return self.progress.rows(BEGAN + timedelta(seconds=seconds))


def start(call_id: str, tool: str = "read") -> events.ToolStart:
    return events.ToolStart(call_id=call_id, tool=tool, arguments="{}")


def end(reason: StopReason, code: str | None = None) -> events.AgentEnd:
    fields = {"error": None, "output": "", "steps": 3, "usage": Usage(), "cost_usd": Decimal(0)}
    return events.AgentEnd(stop_reason=reason, reason_code=code, **fields)  # type: ignore[arg-type]


def test_while_the_model_thinks_a_row_has_step_model_time_and_what_is_spent() -> None:
    told = Told()
    told.lines(events.GenerationStart(model="openai/m", messages=2), 10)
    assert told.rows(22.9) == ["step 3 · thinking · openai/m · 12s · 0 tokens"]
    told.progress.budget = BudgetStatus(
        max_steps=30,
        steps=2,
        limits=Budgets(cost_usd=Decimal("0.50"), tool_calls=9),
        spent=Spent(cost_usd=Decimal("0.0123"), tool_calls=4),
    )
    spent = "0 tokens · $0.0123 of $0.50 · 4 of 9 tool calls"
    assert told.rows(130) == [f"step 3 of 30 · thinking · openai/m · 2m · {spent}"]
    told.progress.budget = BudgetStatus(
        max_steps=30, steps=7, limits=Budgets(), spent=Spent(usage=Usage(input_tokens=5), delegated_steps=5)
    )
    assert told.rows(130) == ["step 3 · 7 of 30 steps with delegates · thinking · openai/m · 2m · 5 tokens"]
    told.lines(
        events.GenerationEnd(model="m", finish_reason="stop", usage=Usage(), cost_usd=Decimal("0.3"), seconds=1), 131
    )
    assert told.rows(140) == []


def test_a_clock_that_is_behind_shows_no_time_below_zero() -> None:
    told = Told()
    told.lines(events.GenerationStart(model="m", messages=2), 10)
    assert told.rows(3) == ["step 3 · thinking · m · 0s · 0 tokens"]


def test_parallel_calls_of_one_tool_are_told_apart_in_rows_and_lines() -> None:
    told = Told()
    assert told.lines(start("a")) == ["→ read {}"]
    assert told.lines(start("b"), 1) == ["→ read #2 {}"]
    assert told.lines(events.ToolProgress(call_id="b", tool="read", progress=3, total=10, message="pages"), 2) == [
        "… read #2 3 of 10 pages"
    ]
    assert told.rows(5) == ["step 3 · 2 calls · 5s · 0 tokens", "  read · 5s", "  read #2 · 3 of 10 pages · 4s"]
    assert told.lines(events.ToolEnd(call_id="b", tool="read", result="x", error=BROKEN, seconds=1))[0] == "✗ read #2"
    assert told.lines(events.ToolEnd(call_id="a", tool="read", result="text", seconds=75)) == ["✓ read · 1m 15s · text"]
    assert told.rows(5) == []
    assert told.lines(start("c"), step=4) == ["→ read {}"]


def test_many_calls_are_counted_not_shown() -> None:
    told = Told()
    for number in range(MOST_ROWS + 3):
        told.lines(start(str(number)))
    assert told.rows(1)[-1] == "  and 3 more"
    assert len(told.rows(1)) == MOST_ROWS + 2


def test_nothing_is_drawn_while_a_person_is_asked() -> None:
    told = Told()
    told.lines(start("a"))
    told.lines(events.UserInputRequired(request_id="q", needs="answer", tool="ask"))
    assert told.rows(5) == []
    told.lines(events.UserInputReceived(request_id="q", decision="answered", tool="ask", at=BEGAN))
    assert len(told.rows(5)) == 2


def test_delegates_stand_below_their_calls_and_are_told_apart() -> None:
    told = Told()
    starts = {
        call: DelegateStart(call_id=call, tool="helper", agent="helper", delegate=f"job-1-{call}") for call in "ab"
    }
    for start_of in starts.values():
        told.lines(start_of, 2)
    below = {call: Told(told.progress.progress_of_delegate(start_of)) for call, start_of in starts.items()}
    assert below["a"].lines(start("x")) == ["  helper │ → read {}"]
    assert below["b"].lines(events.GenerationStart(model="m", messages=1), 3) == []
    inner = DelegateStart(call_id="c", tool="sub", agent="sub", delegate="job-1-c")
    below["b"].lines(inner, 4)
    deepest = Told(below["b"].progress.progress_of_delegate(inner))
    assert deepest.lines(start("y")) == ["  helper #2 │ sub │ → read {}"]
    assert told.rows(5) == [
        "step 3 · 2 calls · 3s · 0 tokens",
        "  helper · job-1-a · 3s",
        "    step 3 · 1 call · 5s · 0 tokens",
        "      read · 5s",
        "  helper #2 · job-1-b · 3s",
        "    step 3 · thinking · m · 2s · 0 tokens",
        "      sub · job-1-c · 1s",
        "        step 3 · 1 call · 5s · 0 tokens",
        "          read · 5s",
    ]
    given = starts["a"].model_dump(exclude={"type", "resumed_from"}, include={"call_id", "tool", "agent", "delegate"})
    ended = DelegateEnd(stop_reason=StopReason.FINISHED, steps=1, usage=Usage(), cost_usd=Decimal(0), **given)
    assert told.lines(ended, 14)[0].endswith(" · 12s")
    assert told.rows(14)[1] == "  helper #2 · job-1-b · 12s"


def test_the_rows_say_why_the_turn_stands_still_and_what_helps() -> None:
    """A stuck turn has a line of its own above them; a call's row tells of its delegate."""
    told = Told()
    told.lines(events.GenerationStart(model="m", messages=2), 0)

    def waits(cause: Cause) -> list[str]:
        told.progress.waits = TurnWait(
            session="job-1", cause=cause, text="t", advice="a", since=BEGAN, next_at=BEGAN + timedelta(seconds=40)
        )
        return told.rows(10)[1:]

    assert waits(Cause.PROVIDER) == ["  has waited 10 s: t (next in 30 s)", "  a"]
    assert waits(Cause.STORE) == ["  has waited 10 s: t (next in 30 s)"]
    told.lines(start("a"), 10)
    assert waits(Cause.DELEGATE) == ["  read · 0s"]
    told.lines(events.ToolProgress(call_id="a", tool="read", progress=1), 11)
    assert told.rows(12)[1:] == ["  read · 1 · 2s"]


def test_the_end_has_a_duration_and_after_an_aborting_tool_the_way_on() -> None:
    begin = events.AgentStart(agent="a", model="m", prompt="go", definition="d")
    told = Told()
    told.lines(begin, 0)
    assert told.lines(end(StopReason.FINISHED), 3)[0].endswith(" · 3.0s")
    told.lines(begin, 10)
    told.lines(events.ToolError(call_id="a", tool="read", error=BROKEN), 11)
    assert told.lines(events.AgentError(error=BROKEN), 12) == []
    last = told.lines(end(StopReason.ERROR, "tool.execution_error"), 13)
    assert last[-1] == "perdure resume job-1 lets the model read the error"
    told.lines(begin, 20)
    assert len(told.lines(end(StopReason.ERROR, "tool.execution_error"), 13)) == 1


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.44, "0.4s"), (9.96, "10s"), (59.6, "1m"), (200, "3m 20s"), (7_500, "2h 5m"), (273_600, "3d 4h"), (-1, "0.0s")],
)
def test_a_duration_is_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_table_is_aligned_and_as_wide_as_the_terminal() -> None:
    rows = [("job", "what"), ("会議", "a\x1b[2J very long\nprompt that does not fit"), ("longer-name", "")]
    assert table(rows, 34) == ["job          what", "会議         a[2J very long promp…", "longer-name"]
    assert table(rows, None)[1] == "会議         a[2J very long prompt that does not fit"
    assert all(width_of(line) <= 34 for line in table(rows, 34))
    assert (cut("会議", 3), cut("abc", 3), cut("abc", 2)) == ("会…", "abc", "a…")


def test_rows_are_erased_from_the_first() -> None:
    assert (erase_sequence_of(0), erase_sequence_of(1), erase_sequence_of(3)) == ("", "\r\x1b[J", "\r\x1b[2A\x1b[J")


def piece(text: str = "", *, n: int = 0, attempt: int = 1, offset: int = 0, **fields: Any) -> Delta:
    return Delta(session="job-1", turn=1, step=3, attempt=attempt, n=n, offset=offset, text=text, **fields)


def test_an_answer_that_is_being_written_stands_below_until_it_is_stored() -> None:
    """S-15: a higher attempt clears what was there, and so does a piece that does not fit."""
    told = Told()
    told.lines(events.GenerationStart(model="openai/m", messages=2))
    answer = told.progress.answer
    answer.add(piece("Hello\nwor"))
    answer.add(piece("ld", n=1, offset=9))
    answer.add(piece(kind="tool_call", tool="pay", characters=12, n=2))
    assert told.rows(1)[1:] == ["  Hello", "  world", "  writes a call of pay · 12 characters"]
    answer.add(piece("late", n=3, offset=30))
    assert told.rows(1)[1:] == ["  writes a call of pay · 12 characters"]
    answer.add(piece("Anew", attempt=2))
    answer.add(piece("of a lost worker", n=9, offset=4))
    assert told.rows(1)[1:] == ["  Anew"]
    told.lines(events.GenerationContent(content="Anew, and whole"))
    assert told.rows(1)[1:] == []


def test_only_the_end_of_a_long_answer_is_shown() -> None:
    told = Told()
    told.lines(events.GenerationStart(model="openai/m", messages=2))
    told.progress.answer.add(piece("word " * 5_000 + "the end"))
    rows = told.rows(1)[1:]
    assert len(rows) == TEXT_ROWS
    assert rows[-1].endswith("the end")
