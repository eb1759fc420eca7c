"""Events as lines for people: a pure function, so that every line is a unit test. No terminal here."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import TypeVar, cast
from unicodedata import combining, east_asian_width

from perdure.contracts import events, hooks
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.events import DelegateEnd, DelegateStart
from perdure.contracts.files import FilePart
from perdure.contracts.hooks import ModelFallback
from perdure.contracts.tools import Todo
from perdure.contracts.turns import StopReason, TurnResult

SMALLEST = Decimal("0.0001")
"""The smallest amount of money that is shown as a number."""

PREVIEW_CHARACTERS = 100
"""So much of a tool's result stands in its line; `perdure show` has the rest."""

CONTEXT_CHARACTERS = 300
"""So much of a turn's context stands in its line; `--json` has the rest."""


class Tone(StrEnum):
    """What a line is; the terminal gives it a colour."""

    PLAIN = "plain"
    HEAD = "head"
    QUIET = "quiet"
    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"


@dataclass(frozen=True)
class Line:
    """One line of the transcript."""

    text: str
    tone: Tone = Tone.PLAIN


def lines(envelope: events.Envelope) -> list[Line]:
    """The lines of one event; many events have none."""
    make = LINES.get(type(envelope.event))
    return [] if make is None else [Line(clean(line.text), line.tone) for line in make(envelope)]


def clean(text: str) -> str:
    """Text of models and tools without the characters that steer a terminal."""
    return "".join(character for character in text if character in "\n\t" or character.isprintable())


def money(amount: Decimal) -> str:
    """US dollars with two to four decimals; what is less is said to be less."""
    if 0 < amount < SMALLEST:
        return f"<${SMALLEST}"
    text = f"{amount:,.4f}".rstrip("0")
    whole, _, decimals = text.partition(".")
    return f"${whole}.{decimals:0<2}"


def duration(seconds: float) -> str:
    """A duration as people say it: ``0.4s``, ``12s``, ``3m 20s``, ``2h 5m``, ``3d 4h``."""
    if seconds < 9.95:
        return f"{max(seconds, 0):.1f}s"
    whole = round(seconds)
    for unit, size, part, below in (("d", 86_400, "h", 3_600), ("h", 3_600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size}{unit}" + (f" {rest}{part}" if rest else "")
    return f"{whole}s"


def width_of(text: str) -> int:
    """The columns that a text takes at a terminal: wide characters take two, combining ones none."""
    return sum(0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def cut(text: str, columns: int) -> str:
    """The text in so many columns at most, with a mark where something was cut off."""
    if width_of(text) <= columns:
        return text
    while text and width_of(text) > columns - 1:
        text = text[:-1]
    return f"{text}…" if columns > 0 else ""


def table(rows: Sequence[Sequence[str]], columns: int | None) -> list[str]:
    """Rows as aligned lines, the last cell cut to what is left of ``columns``; None cuts nothing."""
    cells = [[clean(" ".join(cell.split())) for cell in row] for row in rows]
    widths = [max(map(width_of, column)) for column in zip(*cells, strict=True)]
    lines: list[str] = []
    for row in cells:
        *aligned, last = row
        text = "".join(
            f"{cell}{' ' * (width - width_of(cell))}  " for cell, width in zip(aligned, widths, strict=False)
        )
        lines.append((text + (last if columns is None else cut(last, max(columns - width_of(text), 20)))).rstrip())
    return lines


def tally(end: TurnResult | events.AgentEnd) -> str:
    """Steps, tokens and cost of a turn in one phrase."""
    return f"{format_steps(end.steps)} · {end.usage.total_tokens:,} tokens · {cost_of(end)}"


def cost_of(end: TurnResult | events.AgentEnd) -> str:
    """What a turn cost, as far as that is known."""
    if not end.unpriced_calls:
        return money(end.cost_usd)
    return f"{money(end.cost_usd)} and {end.unpriced_calls} calls of unknown price" if end.cost_usd else "price unknown"


def format_steps(steps: int) -> str:
    """``1 step``, ``2 steps``."""
    return f"{steps} {'step' if steps == 1 else 'steps'}"


def todo_lines(todos: Sequence[Todo]) -> Iterator[Line]:
    """An agent's list of todos, with a mark at those that are done."""
    for number, todo in enumerate(todos):
        mark, tone = ("☑", Tone.QUIET) if todo.completed else ("☐", Tone.PLAIN)
        yield Line(f"{mark} {number} {clean(' '.join(todo.title.split()))}", tone)


def title_of(error: ErrorDetail) -> str:
    """Where a failure was, with the class of a plain exception."""
    return error.title if error.exception is None else f"{error.title} · {error.type}"


def error_lines(error: ErrorDetail) -> Iterator[Line]:
    """A failure as it looks everywhere: a cross, where it was, and below it what happened."""
    yield Line(f"✗ {title_of(error)}", Tone.BAD)
    for line in error.message.splitlines():
        yield Line(f"  {line}", Tone.BAD)


def _agent_start(envelope: events.Envelope, event: events.AgentStart) -> Iterator[Line]:
    origin = f" · from {event.resumed_from}" if event.resumed_from is not None else ""
    yield Line(f"▶ {envelope.session} turn {envelope.turn} · {event.agent} · {event.model}{origin}", Tone.HEAD)
    known = [f"for {event.tenant}"] if event.tenant else []
    known += [f"by {event.by}"] if event.by else []
    known += [json.dumps(event.context, ensure_ascii=False)] if event.context else []
    if known:
        yield Line(f"  {' · '.join(known)}"[:CONTEXT_CHARACTERS], Tone.QUIET)
    yield from part_lines(event.parts)


def part_lines(parts: Sequence[FilePart]) -> Iterator[Line]:
    """A line for each image and file of a message."""
    yield from (Line(f"> {clean(part.line)}", Tone.HEAD) for part in parts)


def _user_message(_: events.Envelope, event: events.UserMessageReceived) -> Iterator[Line]:
    yield from (Line(f"> {line}", Tone.HEAD) for line in event.content.splitlines())
    yield from part_lines(event.parts)


def _wait(_: events.Envelope, event: events.GenerationWait) -> Iterator[Line]:
    pace = "" if event.calls_per_second is None else f" · {event.calls_per_second:.2g} calls a second"
    place = f" · {event.ahead} before it" if event.ahead else ""
    yield Line(f"⧖ {event.model} · waits for its turn at the limited key{place}{pace}", Tone.QUIET)


def _retry(_: events.Envelope, event: events.GenerationRetry) -> Iterator[Line]:
    message = " ".join(event.error_message.split())
    again = f"retry {event.attempt} of {event.max_attempts} in {duration(event.wait_seconds)}"
    yield Line(f"↻ {event.error_type or event.code} · {again} · {message}", Tone.WARNING)


def _content(_: events.Envelope, event: events.GenerationContent) -> Iterator[Line]:
    yield from (Line(line) for line in event.content.strip().splitlines())


def _generation_end(envelope: events.Envelope, event: events.GenerationEnd) -> Iterator[Line]:
    cost = "price unknown" if event.cost_usd is None else money(event.cost_usd)
    source = " · recorded" if event.recorded else ""
    took = duration(event.seconds)
    yield Line(f"step {envelope.step} · {took} · {event.usage.total_tokens:,} tokens · {cost}{source}", Tone.QUIET)


def _generation_error(_: events.Envelope, event: events.GenerationError) -> Iterator[Line]:
    yield from error_lines(event.error)


def _fallback(_: events.Envelope, event: ModelFallback) -> Iterator[Line]:
    yield Line(f"↪ {event.failed} failed ({event.code}); {event.model} goes on", Tone.WARNING)


def _compaction(_: events.Envelope, event: events.CompactionEvent) -> Iterator[Line]:
    if event.compaction_status == "completed":
        cost = "price unknown" if event.cost_usd is None else money(event.cost_usd)
        counts = f"{event.messages_before} → {event.messages_after} messages"
        text = f"compacted · {event.trigger} · {counts} · {event.usage.total_tokens:,} tokens · {cost}"
        yield Line(text, Tone.QUIET)
    elif event.compaction_status != "started":
        yield Line(f"compaction {event.compaction_status} · {event.trigger} · {event.reason}", Tone.WARNING)


def _tool_start(_: events.Envelope, event: events.ToolStart) -> Iterator[Line]:
    yield Line(f"→ {event.tool} {' '.join(event.arguments.split())}")


def _tool_progress(_: events.Envelope, event: events.ToolProgress) -> Iterator[Line]:
    yield Line(f"… {event.tool} {event}", Tone.QUIET)


_AFTER_A_LOSS = {"run_again": "runs again", "result_found": "does not run again", "given_up": "is given up"}


def _tool_recovery(_: events.Envelope, event: events.ToolRecovery) -> Iterator[Line]:
    text = f"{event.tool} {_AFTER_A_LOSS[event.decision]}, its worker was lost: {' '.join(event.reason.split())}"
    yield Line(text, Tone.WARNING)


def _tool_end(_: events.Envelope, event: events.ToolEnd) -> Iterator[Line]:
    if event.error is None:
        preview = " ".join(event.result.split())
        shown = preview if len(preview) <= PREVIEW_CHARACTERS else preview[: PREVIEW_CHARACTERS - 1] + "…"
        parts = [f"✓ {event.tool}", duration(event.seconds), *([shown] if shown else [])]
        yield Line(" · ".join(parts), Tone.GOOD)
    else:
        yield from error_lines(event.error)


def _tool_error(_: events.Envelope, event: events.ToolError) -> Iterator[Line]:
    yield from error_lines(event.error)


def _delegate_start(_: events.Envelope, event: DelegateStart) -> Iterator[Line]:
    yield Line(f"⇢ {event.tool} works as {event.delegate}", Tone.QUIET)


def _delegate_end(_: events.Envelope, event: DelegateEnd) -> Iterator[Line]:
    used = f"{format_steps(event.steps)} · {event.usage.total_tokens:,} tokens · {money(event.cost_usd)}"
    tone = Tone.QUIET if event.stop_reason == StopReason.FINISHED else Tone.WARNING
    yield Line(f"⇠ {event.tool} · {event.stop_reason} · {used}", tone)


def _input_required(_: events.Envelope, event: events.UserInputRequired) -> Iterator[Line]:
    options = f" ({' / '.join(event.options)})" if event.options else ""
    what = f"approve {event.tool} {event.arguments}" if event.needs == "approval" else event.question
    yield Line(f"? {' '.join(what.split())}{options} · {event.request_id}", Tone.WARNING)


def _input_received(_: events.Envelope, event: events.UserInputReceived) -> Iterator[Line]:
    who = f" by {event.by}" if event.by else ""
    yield Line(f"{event.decision}{who} · {event.tool} · {event.request_id}", Tone.QUIET)


def _react_step(_: events.Envelope, event: hooks.ReactStep) -> Iterator[Line]:
    said = " ".join(str(getattr(event.reaction, "reason", " ".join(event.reaction.texts))).split())
    yield Line(f"↪ {event.hook_name} · {event.reaction.type}{': ' + said if said else ''}", Tone.WARNING)


def _hook_end(_: events.Envelope, event: events.HookEnd) -> Iterator[Line]:
    if event.error is not None:
        yield from error_lines(event.error)


def _todos_changed(_: events.Envelope, event: hooks.TodosChanged) -> Iterator[Line]:
    yield from todo_lines(event.todos)


def _budget_warning(_: events.Envelope, event: hooks.BudgetWarning) -> Iterator[Line]:
    yield Line(f"{event.share:.0%} of the budget {event.dimension} is used: {event.used}", Tone.WARNING)


def _budget_changed(_: events.Envelope, event: hooks.BudgetChanged) -> Iterator[Line]:
    yield Line(f"limit changed · {event.dimension} {event.before or 'none'} → {event.after}", Tone.WARNING)


def _render_stalled(_: events.Envelope, __: events.AgentStalled) -> Iterator[Line]:
    yield Line("stalled: the model answered without finishing; send another message to continue", Tone.WARNING)


def _agent_error(_: events.Envelope, event: events.AgentError) -> Iterator[Line]:
    yield from error_lines(event.error)


def _agent_end(_: events.Envelope, event: events.AgentEnd) -> Iterator[Line]:
    if event.stop_reason == StopReason.MAX_STEPS_REACHED:
        text = f"the step limit of {event.steps} is reached; send another message to continue"
        yield Line(text, Tone.WARNING)
    if event.stop_reason == StopReason.CANCELLED and event.error:  # any other error has its own row
        yield Line(" ".join(event.error.split()), Tone.WARNING)
    if event.stopped_by is not None:
        yield Line(f"stopped by {' '.join(event.stopped_by.split())}", Tone.QUIET)
    tone = Tone.GOOD if event.stop_reason == StopReason.FINISHED else Tone.WARNING
    if event.stop_reason == StopReason.ERROR:
        tone = Tone.BAD
    yield Line(f"{event.stop_reason} · {tally(event)}", tone)


_E = TypeVar("_E")
_Make = Callable[[events.Envelope], Iterator[Line]]


def _for(make: Callable[[events.Envelope, _E], Iterator[Line]]) -> _Make:
    return lambda envelope: make(envelope, cast("_E", envelope.event))


LINES: dict[type, _Make] = {
    events.AgentStart: _for(_agent_start),
    events.UserMessageReceived: _for(_user_message),
    events.GenerationWait: _for(_wait),
    events.GenerationRetry: _for(_retry),
    events.GenerationContent: _for(_content),
    events.GenerationEnd: _for(_generation_end),
    events.GenerationError: _for(_generation_error),
    ModelFallback: _for(_fallback),
    events.CompactionEvent: _for(_compaction),
    events.ToolStart: _for(_tool_start),
    events.ToolProgress: _for(_tool_progress),
    events.ToolRecovery: _for(_tool_recovery),
    events.ToolEnd: _for(_tool_end),
    events.ToolError: _for(_tool_error),
    DelegateStart: _for(_delegate_start),
    DelegateEnd: _for(_delegate_end),
    events.UserInputRequired: _for(_input_required),
    events.UserInputReceived: _for(_input_received),
    hooks.ReactStep: _for(_react_step),
    events.HookEnd: _for(_hook_end),
    hooks.TodosChanged: _for(_todos_changed),
    hooks.BudgetWarning: _for(_budget_warning),
    hooks.BudgetChanged: _for(_budget_changed),
    events.AgentStalled: _for(_render_stalled),
    events.AgentError: _for(_agent_error),
    events.AgentEnd: _for(_agent_end),
}
