from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from perdure.cli.render import LINES, Tone, clean, lines, money
from perdure.contracts import events, hooks
from perdure.contracts.budgets import Usage
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.turns import StopReason

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FAILURE = ErrorDetail(code="tool.execution_error", title="read_file", message="no such file\nlook elsewhere")


def shown(event: events.Event | events.UnknownEvent, *, step: int = 3) -> list[str]:
    envelope = events.Envelope(seq=1, session="job-1", turn=2, step=step, at=NOW, event=event)
    return [line.text for line in lines(envelope)]


def end(reason: StopReason, error: str | None = None, steps: int = 5) -> events.AgentEnd:
    return events.AgentEnd(
        stop_reason=reason,
        reason_code=None,
        error=error,
        output="",
        steps=steps,
        usage=Usage(input_tokens=2000, output_tokens=345),
        cost_usd=Decimal("0.01"),
    )


def test_a_turn_begins_with_its_session_number_agent_and_model() -> None:
    event = events.AgentStart(agent="writer", model="openai/gpt-5-mini", prompt="go", definition="d")
    assert shown(event) == ["▶ job-1 turn 2 · writer · openai/gpt-5-mini"]
    known = event.model_copy(update={"tenant": "acme", "by": "ada", "context": {"customer": "Zoë", "x": "y" * 900}})
    line = shown(known)[1]
    assert line.startswith('  for acme · by ada · {"customer": "Zoë", "x": "yyy')
    assert len(line) == 300


def test_a_retry_line_has_class_wait_attempt_and_the_providers_message() -> None:
    event = events.GenerationRetry(
        attempt=1,
        max_attempts=8,
        wait_seconds=2.0,
        code="llm.rate_limited",
        error_type="RateLimitError",
        error_message="slow\ndown",
        failed_at=NOW,
    )
    assert shown(event) == ["↻ RateLimitError · retry 1 of 8 in 2.0s · slow down"]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"left_out": ("a",)}, "without 1 attachment"),
        ({"left_out": ("a", "b"), "most": 4}, "without 2 attachments, with 4 attachments at most"),
        ({"reasons": False}, "without its reasoning"),
        (
            {"most_bytes": 2_000_000, "most_characters": 50_000},
            "with 2,000,000 bytes of attachments at most, with 50,000 characters of a message at most",
        ),
    ],
)
def test_what_a_model_has_refused_is_a_line_with_the_providers_words(changed: dict[str, Any], told: str) -> None:
    event = events.GenerationAdapted(model="openai/eyes", reason="Could not\nprocess image", **changed)
    assert shown(event) == [f"↷ openai/eyes · goes on {told} · Could not process image"]


def test_a_tool_shows_its_arguments_and_then_how_long_it_took() -> None:
    start = events.ToolStart(call_id="c", tool="read_file", arguments='{"path":\n "a"}')
    done = events.ToolEnd(call_id="c", tool="read_file", result="text", seconds=0.12)
    assert shown(start) == ['→ read_file {"path": "a"}']
    assert shown(done) == ["✓ read_file · 0.1s · text"]


@pytest.mark.parametrize(
    ("report", "line"),
    [
        ({"progress": 3, "total": 10, "message": "pages read"}, "… read_file 3 of 10 pages read"),
        ({"progress": 0.25}, "… read_file 0.25"),
        ({"progress": 1_234_567, "total": 2e6}, "… read_file 1,234,567 of 2,000,000"),
    ],
)
def test_the_progress_of_a_tool_is_a_line(report: dict[str, Any], line: str) -> None:
    assert shown(events.ToolProgress(call_id="c", tool="read_file", **report)) == [line]


def test_a_turn_that_a_tool_ended_says_so() -> None:
    """S-30."""
    event = end(StopReason.FINISHED).model_copy(update={"stopped_by": "ship: the\nbuild is out"})
    assert shown(event) == ["stopped by ship: the build is out", "finished · 5 steps · 2,345 tokens · $0.01"]


def test_the_line_of_a_tool_shows_the_beginning_of_its_result() -> None:
    done = events.ToolEnd(call_id="c", tool="read_file", result="one\n\ntwo " + 99 * "x", seconds=3)
    assert shown(done) == ["✓ read_file · 3.0s · one two " + 91 * "x" + "…"]


def test_a_share_of_a_budget_that_is_used_up_is_a_line() -> None:
    """S-70."""
    event = hooks.BudgetWarning(dimension="tool_calls", share=Decimal("0.8"), used="24 of 30 calls")
    assert shown(event) == ["80% of the budget tool_calls is used: 24 of 30 calls"]


def test_every_event_has_a_line_or_says_what_another_line_says() -> None:
    silent = {"generation_start", "generation_step", "tool_step", "stop_condition_met"}
    assert {name for name, kind in events.EVENT_TYPES.items() if kind not in LINES} == silent


@pytest.mark.parametrize(
    "event",
    [
        events.ToolEnd(call_id="c", tool="read_file", result="", error=FAILURE, seconds=0.1),
        events.ToolError(call_id="c", tool="read_file", error=FAILURE),
        events.AgentError(error=FAILURE),
        events.GenerationError(error=FAILURE),
    ],
)
def test_every_failure_is_a_cross_with_its_title_and_an_indented_body(event: events.Event) -> None:
    assert shown(event) == ["✗ read_file", "  no such file", "  look elsewhere"]


def test_the_title_of_a_call_that_perdure_did_not_run_is_the_one_in_its_event() -> None:
    """S-51: line and event say the same."""
    refused = FAILURE.model_copy(update={"title": "runtime"})
    assert shown(events.ToolEnd(call_id="c", tool="read_file", result="", error=refused, seconds=0))[0] == "✗ runtime"


@pytest.mark.parametrize(
    ("reason", "lines"),
    [(StopReason.CANCELLED, ["why not", "cancelled"]), (StopReason.BUDGET_EXHAUSTED, ["budget_exhausted"])],
)
def test_only_a_cancel_says_why_in_the_last_lines_for_every_other_error_has_its_row(
    reason: StopReason, lines: list[str]
) -> None:
    """S-51: once."""
    assert [line.partition(" · ")[0] for line in shown(end(reason, "why not"))] == lines


def test_a_generation_shows_its_text_and_what_it_used() -> None:
    used = events.GenerationEnd(
        model="m",
        finish_reason="stop",
        usage=Usage(input_tokens=1000, output_tokens=234),
        cost_usd=Decimal("0.0123"),
        seconds=1.0,
    )
    assert shown(events.GenerationContent(content="one\ntwo\n")) == ["one", "two"]
    assert shown(used) == ["step 3 · 1.0s · 1,234 tokens · $0.0123"]
    assert shown(used.model_copy(update={"cost_usd": None})) == ["step 3 · 1.0s · 1,234 tokens · price unknown"]
    estimated = used.usage.model_copy(update={"estimated": True})
    assert shown(used.model_copy(update={"usage": estimated})) == ["step 3 · 1.0s · about 1,234 tokens · $0.0123"]


def test_the_last_line_says_why_the_turn_ended_and_what_it_used() -> None:
    assert shown(end(StopReason.FINISHED)) == ["finished · 5 steps · 2,345 tokens · $0.01"]
    assert shown(end(StopReason.FINISHED, steps=1)) == ["finished · 1 step · 2,345 tokens · $0.01"]


def test_a_reached_step_limit_says_that_another_message_continues() -> None:
    first, last = shown(end(StopReason.MAX_STEPS_REACHED))
    assert first == "the step limit of 5 is reached; send another message to continue"
    assert last.startswith("max_steps_reached · 5 steps")


@pytest.mark.parametrize(
    ("reaction", "line"),
    [
        (hooks.Finish("enough"), "↪ checker · finish: enough"),
        (hooks.Retry(), "↪ checker · retry"),
        (hooks.Continue(["one", "two\nlines"]), "↪ checker · continue: one two lines"),
        (hooks.RetryWithFeedback("better"), "↪ checker · retry_with_feedback: better"),
    ],
)
def test_a_reaction_names_its_hook_and_what_it_says(reaction: hooks.AnyReaction, line: str) -> None:
    assert shown(hooks.ReactStep(hook_name="checker", boundary="step", reaction=reaction)) == [line]


def test_a_hook_has_a_line_only_where_it_failed() -> None:
    ended = events.HookEnd(hook="checker", boundary="step", event="tool_end", seconds=0.1)
    assert shown(ended) == []
    assert shown(ended.model_copy(update={"error": FAILURE})) == ["✗ read_file", "  no such file", "  look elsewhere"]


def test_a_stalled_turn_has_a_line_of_its_own() -> None:
    assert "stalled" in shown(events.AgentStalled())[0]


def test_events_that_mean_nothing_to_people_have_no_line() -> None:
    assert shown(events.GenerationStep(tip="t")) == []
    assert shown(events.UnknownEvent(name="later", body={})) == []


def test_text_of_a_model_cannot_steer_the_terminal() -> None:
    assert shown(events.GenerationContent(content="a\x1b[2Jb\x07")) == ["a[2Jb"]
    assert clean("tab\tand\nline\x00") == "tab\tand\nline"


def test_the_tone_of_a_failed_end_is_bad() -> None:
    envelope = events.Envelope(seq=1, session="s", turn=1, step=1, at=NOW, event=end(StopReason.ERROR))
    assert lines(envelope)[-1].tone == Tone.BAD


@pytest.mark.parametrize(
    ("amount", "text"),
    [("0", "$0.00"), ("0.00003", "<$0.0001"), ("0.01", "$0.01"), ("0.0123", "$0.0123"), ("1234.5", "$1,234.50")],
)
def test_money_has_two_to_four_decimals(amount: str, text: str) -> None:
    assert money(Decimal(amount)) == text
