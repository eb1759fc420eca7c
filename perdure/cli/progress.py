"""Live display of a running turn on a terminal: its calls and how long they take, on a screen that is drawn anew."""

import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from textwrap import wrap

import click

from perdure.cli.activity import Activity
from perdure.cli.render import Line, Tone, clean, cut, duration, format_count, lines, money
from perdure.contracts import events
from perdure.contracts.deltas import LiveAnswer
from perdure.contracts.events import DelegateEnd, DelegateStart
from perdure.contracts.turns import BudgetStatus, StopReason
from perdure.contracts.values import replace
from perdure.contracts.waits import Cause, TurnWait

MOST_ROWS = 6
"""Running calls that the live status shows."""

TEXT_ROWS = 8
"""Rows of an answer that is being written, its last ones."""

_OF_CALLS = (
    events.ToolStart
    | events.ToolProgress
    | events.ToolRecovery
    | events.ToolEnd
    | events.ToolError
    | DelegateStart
    | DelegateEnd
)


@dataclass
class Call:
    """Row of a call: ``label`` tells it from others of its tool in a step; ``below`` is its delegate."""

    label: str
    began: datetime
    progress: str = ""
    below: "Progress | None" = None


class Progress:
    """Progress of a session's turn, as far as its events tell.

    Attributes:
        step: The step that is under way, or was last.
        budget: The limits and what counts against them, if they were asked for.
        waits: Why the turn stands still, if that is known.
        answer: The answer that is being written, as far as it is shown.
    """

    def __init__(self, prefix: str = "") -> None:
        """Begin before any event; ``prefix`` stands before each line of a delegate, and tells it from others."""
        self.step = 0
        self.budget: BudgetStatus | None = None
        self.waits: TurnWait | None = None
        self.answer = LiveAnswer()
        self._prefix = prefix
        self._began: datetime | None = None
        self._activity = Activity()
        self._shown: dict[str, Call] = {}
        self._labels: dict[str, str] = {}
        self._names: Counter[tuple[int, str]] = Counter()
        self._started: dict[str, datetime] = {}
        self._failures: list[list[Line]] = []
        self._aborted: set[str] = set()

    def note(self, envelope: events.Envelope, *, shown: bool = True) -> list[Line]:
        """Take an event into account; its lines, unless they repeat what is known."""
        self.waits = None
        event = envelope.event
        if isinstance(event, events.AgentStart):
            self.__init__(self._prefix)  # type: ignore[misc]  # the next turn of the session
            self._began = envelope.at
        self._note(envelope)
        rows = list(self._lines(envelope)) if shown else []
        if rows and rows[0].tone == Tone.BAD:
            plain = lines(envelope)
            # What ended the turn was shown when it happened; calls beside it may have failed since.
            if isinstance(event, events.AgentError) and plain in self._failures:
                rows = []
            self._failures.append(plain)
        return [Line(self._prefix + row.text, row.tone) for row in rows]

    def progress_of_delegate(self, start: DelegateStart) -> "Progress":
        """The progress of a delegate that begins, whose rows stand below its call."""
        label = self._labels.get(start.call_id, start.tool)
        below = Progress(f"{self._prefix or '  '}{label} │ ")
        begun = [opened.event for opened in self._activity.of("delegates")]
        if any(isinstance(event, DelegateStart) and event.call_id == start.call_id for event in begun):
            self._shown[start.call_id].below = below
        return below

    def _lines(self, envelope: events.Envelope) -> Iterator[Line]:
        """The lines of an event, its call told apart from others, and with how long it took."""
        event = envelope.event
        if isinstance(event, _OF_CALLS) and (label := self._labels.get(event.call_id, event.tool)) != event.tool:
            changed: dict[str, object] = {"tool": label}
            if isinstance(event, events.ToolEnd | events.ToolError) and event.error is not None:
                changed["error"] = replace(event.error, title=label)
            envelope = replace(envelope, event=event.model_copy(update=changed))
        rows = lines(envelope)
        if not rows:
            return
        *before, last = rows
        yield from before
        began = self._began if isinstance(event, events.AgentEnd) else None
        if isinstance(event, DelegateEnd):
            began = self._started.get(event.call_id)
        took = f" · {duration((envelope.at - began).total_seconds())}" if began is not None else ""
        yield Line(f"{last.text}{took}", last.tone)
        if not isinstance(event, events.AgentEnd) or self._prefix:
            return
        if event.stop_reason is StopReason.ERROR and event.reason_code in self._aborted:  # a tool has ended the turn
            yield Line(f"perdure resume {envelope.session} lets the model read the error", Tone.QUIET)

    def _note(self, envelope: events.Envelope) -> None:
        event, at = envelope.event, envelope.at
        self.step = max(self.step, envelope.step)
        self._activity.note(envelope)
        match event:
            case events.GenerationRetry() | events.GenerationContent():
                self.answer.clear()
            case events.ToolStart() | DelegateStart():
                if event.call_id not in self._labels:
                    self._names[envelope.step, event.tool] += 1
                    count = self._names[envelope.step, event.tool]
                    self._labels[event.call_id] = event.tool if count == 1 else f"{event.tool} #{count}"
                label = self._labels[event.call_id]
                self._started.setdefault(event.call_id, at)
                where = f" · {event.delegate}" if isinstance(event, DelegateStart) else ""
                self._shown[event.call_id] = Call(f"{label}{where}", at)
            case events.ToolProgress():
                if (call := self._shown.get(event.call_id)) is not None:
                    call.progress = str(event)
            case events.ToolError():
                self._aborted.add(event.error.code)
            case _:
                pass

    def _calls(self) -> list[Call]:
        """The calls that run, those of delegates among them."""
        opened = (*self._activity.of("tools"), *self._activity.of("delegates"))
        started = [line.event for line in opened if isinstance(line.event, events.ToolStart | DelegateStart)]
        return [self._shown[event.call_id] for event in started]

    def rows(self, now: datetime) -> list[str]:
        """The live status: what goes on, since when, and what is spent; nothing while a person is asked."""
        if self.waits is None and self._activity.kind in {"people", None}:
            return []
        calls, model = self._calls(), self._activity.model
        doing: list[str] = []
        if model is not None:
            doing = [_describe_model(model[1].event), format_elapsed(now - model[1].at)]
        elif calls:
            doing = [format_count(len(calls), "call"), format_elapsed(now - min(call.began for call in calls))]
        parts = [*self._steps(), *doing, *self._describe_spent()]
        below = [row for call in calls[:MOST_ROWS] for row in _rows_of(call, now)]
        more = [f"and {len(calls) - MOST_ROWS} more"] if len(calls) > MOST_ROWS else []
        written = self._describe_answer()
        return [
            clean(" · ".join(parts)),
            *(clean(f"  {row}") for row in (*written, *below, *more, *self._describe_wait(now))),
        ]

    def _describe_answer(self) -> Iterator[str]:
        """The end of what is being written, in rows of the terminal's width, and the calls in it."""
        width = max(shutil.get_terminal_size().columns - 8, 20)
        said = self.answer.text or self.answer.thinking
        tail = said[-width * TEXT_ROWS :].splitlines()
        yield from [row for line in tail for row in wrap(line, width)][-TEXT_ROWS:]
        for tool, characters in self.answer.calls.values():
            yield f"writes a call{f' of {tool}' if tool else ''} · {characters:,} characters"

    def _describe_wait(self, now: datetime) -> Iterator[str]:
        """Describe why the turn stands still, and what to do unless a line above says so."""
        wait = self.waits
        if wait is not None and not (wait.cause is Cause.DELEGATE and self._calls()):
            yield wait.facts(now)
            if not wait.is_stuck:
                yield wait.advice

    def _steps(self) -> Iterator[str]:
        """The step, of how many; with delegates, whose steps count too, the sum."""
        budget = self.budget
        if budget is None:
            yield f"step {self.step}"
        elif budget.spent.delegated_steps:
            yield f"step {self.step}"
            yield f"{budget.steps} of {budget.max_steps:,} steps with delegates"
        else:
            yield f"step {self.step} of {budget.max_steps:,}"

    def _describe_spent(self) -> Iterator[str]:
        if self.budget is None:
            yield f"{self._activity.tokens:,} tokens"
            if self._activity.cost:
                yield money(self._activity.cost)
            return
        limits, spent = self.budget.limits, self.budget.spent
        yield f"{max(spent.usage.total_tokens, self._activity.tokens):,} tokens"
        cost = max(spent.cost_usd, self._activity.cost)
        if limits.cost_usd is not None:
            yield f"{money(cost)} of {money(limits.cost_usd)}"
        elif cost:
            yield money(cost)
        for name, used in (("llm_calls", spent.llm_calls), ("tool_calls", spent.tool_calls)):
            if (limit := getattr(limits, name)) is not None:
                yield f"{used} of {limit} {name.replace('_', ' ')}"


def _describe_model(event: events.AnyEvent) -> str:
    match event:
        case events.GenerationStart():
            return f"thinking · {event.model}"
        case events.GenerationWait():
            return "waits for its turn at the limited key"
        case events.GenerationRetry():
            again = f"asks again after {event.error_type or event.code}"
            return f"{again}, retry {event.attempt} of {event.max_attempts}"
        case _:
            return "summarising the conversation"


def _rows_of(call: Call, now: datetime) -> list[str]:
    """The row of a call, and below it those of its delegate."""
    row = " · ".join(part for part in (call.label, call.progress, format_elapsed(now - call.began)) if part)
    return [row, *(f"  {below}" for below in (call.below.rows(now) if call.below is not None else ()))]


def format_elapsed(since: timedelta) -> str:
    """Whole seconds in the first minute, then as any duration; a wrong clock gives none below zero."""
    seconds = max(0, int(since.total_seconds()))
    return f"{seconds}s" if seconds < 60 else duration(seconds)


FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


def can_be_live() -> bool:
    """Whether stdout is a terminal that obeys control characters."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def erase_sequence_of(rows: int) -> str:
    """Control characters that erase rows above the cursor."""
    up = f"\x1b[{rows - 1}A" if rows > 1 else ""
    return f"\r{up}\x1b[J" if rows else ""


class Screen:
    """Rows below everything printed: :meth:`erase` them before printing, :meth:`draw` them after it."""

    def __init__(self) -> None:
        self._drawn = 0
        self._frame = 0

    def erase(self) -> None:
        """Take the rows away."""
        if self._drawn:
            self._write(erase_sequence_of(self._drawn))
            self._drawn = 0

    def draw(self, rows: Sequence[str]) -> None:
        """Show these rows in place of the last ones; none takes them away."""
        size = shutil.get_terminal_size()
        kept = [cut(row, size.columns - 3) for row in rows[: max(size.lines - 2, 1)]]
        if not kept:
            self.erase()
            return
        self._frame = (self._frame + 1) % len(FRAMES)
        marks = [FRAMES[self._frame], *[" "] * (len(kept) - 1)]
        styled = [click.style(f"{mark} {row}", dim=True) for mark, row in zip(marks, kept, strict=True)]
        text = "\n".join(styled if not os.environ.get("NO_COLOR") else map(click.unstyle, styled))
        self._write(f"{erase_sequence_of(self._drawn)}{text}")
        self._drawn = len(kept)

    @staticmethod
    def _write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
