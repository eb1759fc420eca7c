"""Starts that are written late reopen nothing, on a terminal and on the page: one table of sequences for both."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from perdure.cli.progress import Progress
from perdure.contracts.budgets import Usage
from perdure.contracts.events import (
    AgentEnd,
    AgentStart,
    DelegateEnd,
    DelegateStart,
    Envelope,
    Event,
    GenerationContent,
    GenerationStart,
    ToolEnd,
    ToolStart,
)
from perdure.contracts.tools import MaskedCall
from perdure.contracts.turns import StopReason
from tests.ui.node import folded

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
SPENT: dict[str, Any] = {"steps": 1, "usage": Usage(), "cost_usd": Decimal(0)}
HELPER: dict[str, Any] = {"call_id": "c", "tool": "helper", "agent": "helper", "delegate": "job-1-c"}

EVENTS: dict[str, Event] = {
    "begin": AgentStart(agent="lead", model="openai/m", prompt="go", definition="d"),
    "think": GenerationStart(model="openai/m", messages=1),
    "ask": GenerationContent(content="", tool_calls=(MaskedCall(call_id="c", tool="helper", arguments="{}"),)),
    "tool": ToolStart(call_id="c", tool="helper", arguments="{}"),
    "result": ToolEnd(call_id="c", tool="helper", result='{"session": "job-1-c"}', seconds=1),
    "delegate": DelegateStart(**HELPER),
    "delegate ends": DelegateEnd(**HELPER, **SPENT, stop_reason=StopReason.FINISHED),
    "end": AgentEnd(stop_reason=StopReason.FINISHED, reason_code=None, error=None, output="", **SPENT),
}

CASES: dict[str, tuple[str, bool, str]] = {
    # name: events, with the number of their turn where it is not 1; whether anything is under way; the call's state
    "in order": ("begin, ask, tool, result, delegate, delegate ends", False, "ended"),
    "a delegate in the background works": ("begin, ask, tool, result, delegate", True, "ended"),
    "a call runs": ("begin, ask, tool", True, "running"),
    "a delegate that a call waits for": ("begin, ask, delegate", True, "running"),
    "the delegate's start behind its end": ("begin, ask, tool, result, delegate ends, delegate", False, "ended"),
    "the delegate's start behind its end, before the result": ("begin, ask, delegate ends, delegate", False, "asked"),
    "the delegate's start behind the turn": ("begin, ask, tool, result, end, delegate", False, "ended"),
    "the delegate's start in the next turn": ("begin, ask, tool, result, end, begin 2, delegate", False, "ended"),
    "and that turn ends": ("begin, ask, tool, result, end, begin 2, delegate, end 2", False, "ended"),
    "the call's start behind its result": ("begin, ask, result, tool", False, "ended"),
    "the call's start behind the turn": ("begin, ask, result, end, tool", False, "ended"),
    "the call's start in the next turn": ("begin, ask, result, end, begin 2, tool, end 2", False, "ended"),
    "the answer behind the call": ("begin, tool, result, ask, end", False, "ended"),
    "the model's call behind the turn": ("begin, ask, tool, result, end, think", False, "ended"),
    "the same id in the next turn": ("begin, ask, tool, result, end, begin 2, ask 2, tool 2", True, "running"),
    "a call that the turn leaves behind": ("begin, ask, tool, end", False, "left"),
}


def log_of(sequence: str) -> list[Envelope]:
    log: list[Envelope] = []
    for seq, entry in enumerate(sequence.split(", "), 1):
        name, turn = (entry[:-2], 2) if entry.endswith(" 2") else (entry, 1)
        at = BEGAN + timedelta(seconds=seq)
        log.append(Envelope(seq=seq, session="job-1", turn=turn, step=1, at=at, event=EVENTS[name]))
    return log


@pytest.mark.parametrize("case", CASES)
def test_the_terminal_shows_what_is_under_way(case: str) -> None:
    sequence, is_under_way, _ = CASES[case]
    progress = Progress()
    for envelope in log_of(sequence):
        progress.note(envelope)
    assert bool(progress.rows(BEGAN + timedelta(minutes=1))) is is_under_way


@pytest.mark.deep
@pytest.mark.parametrize("case", CASES)
def test_the_page_shows_the_same_and_the_state_of_the_call(case: str) -> None:
    sequence, is_under_way, state = CASES[case]
    page = folded("job-1", [envelope.line() for envelope in log_of(sequence)])
    assert bool(page["activity"]["open"] or page["activity"]["model"]) is is_under_way
    assert page["calls"]["c"]["state"] == state
