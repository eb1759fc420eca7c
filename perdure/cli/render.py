"""Events as lines for people: a pure function, so that every line is a unit test. No terminal here."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from functools import singledispatch
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
    return [Line(clean(line.text), line.tone) for line in _lines_of(envelope.event, envelope)]


@singledispatch
def _lines_of(_event: object, _envelope: events.Envelope) -> Iterator[Line]:
    """The lines of one event, by its class; of a class that has no function here there are none."""
    return iter(())


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
    """The text in at most ``columns`` columns, with a mark where it was cut."""
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


@_lines_of.register
def _agent_start(event: events.AgentStart, envelope: events.Envelope) -> Iterator[Line]:
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


@_lines_of.register
def _user_message(event: events.UserMessageReceived, _: events.Envelope) -> Iterator[Line]:
    yield from (Line(f"> {line}", Tone.HEAD) for line in event.content.splitlines())
    yield from part_lines(event.parts)


@_lines_of.register
def _wait(event: events.GenerationWait, _: events.Envelope) -> Iterator[Line]:
    pace = "" if event.calls_per_second is None else f" · {event.calls_per_second:.2g} calls a second"
    place = f" · {event.ahead} before it" if event.ahead else ""
    yield Line(f"⧖ {event.model} · waits for its turn at the limited key{place}{pace}", Tone.QUIET)


@_lines_of.register
def _retry(event: events.GenerationRetry, _: events.Envelope) -> Iterator[Line]:
    message = " ".join(event.error_message.split())
    again = f"retry {event.attempt} of {event.max_attempts} in {duration(event.wait_seconds)}"
    yield Line(f"↻ {event.error_type or event.code} · {again} · {message}", Tone.WARNING)


@_lines_of.register
def _content(event: events.GenerationContent, _: events.Envelope) -> Iterator[Line]:
    yield from (Line(line) for line in event.content.strip().splitlines())


@_lines_of.register
def _generation_end(event: events.GenerationEnd, envelope: events.Envelope) -> Iterator[Line]:
    cost = "price unknown" if event.cost_usd is None else money(event.cost_usd)
    source = " · recorded" if event.recorded else ""
    took = duration(event.seconds)
    yield Line(f"step {envelope.step} · {took} · {event.usage.total_tokens:,} tokens · {cost}{source}", Tone.QUIET)


@_lines_of.register
def _error(event: events.GenerationError | events.ToolError | events.AgentError, _: events.Envelope) -> Iterator[Line]:
    yield from error_lines(event.error)


@_lines_of.register
def _fallback(event: ModelFallback, _: events.Envelope) -> Iterator[Line]:
    yield Line(f"↪ {event.failed} failed ({event.code}); {event.model} goes on", Tone.WARNING)


@_lines_of.register
def _compaction(event: events.CompactionEvent, _: events.Envelope) -> Iterator[Line]:
    if event.compaction_status == "completed":
        cost = "price unknown" if event.cost_usd is None else money(event.cost_usd)
        counts = f"{event.messages_before} → {event.messages_after} messages"
        text = f"compacted · {event.trigger} · {counts} · {event.usage.total_tokens:,} tokens · {cost}"
        yield Line(text, Tone.QUIET)
    elif event.compaction_status != "started":
        yield Line(f"compaction {event.compaction_status} · {event.trigger} · {event.reason}", Tone.WARNING)


@_lines_of.register
def _tool_start(event: events.ToolStart, _: events.Envelope) -> Iterator[Line]:
    yield Line(f"→ {event.tool} {' '.join(event.arguments.split())}")


@_lines_of.register
def _tool_progress(event: events.ToolProgress, _: events.Envelope) -> Iterator[Line]:
    yield Line(f"… {event.tool} {event}", Tone.QUIET)


_AFTER_A_LOSS = {"run_again": "runs again", "result_found": "does not run again", "given_up": "is given up"}


@_lines_of.register
def _tool_recovery(event: events.ToolRecovery, _: events.Envelope) -> Iterator[Line]:
    text = f"{event.tool} {_AFTER_A_LOSS[event.decision]}, its worker was lost: {' '.join(event.reason.split())}"
    yield Line(text, Tone.WARNING)


@_lines_of.register
def _tool_end(event: events.ToolEnd, _: events.Envelope) -> Iterator[Line]:
    if event.error is None:
        preview = " ".join(event.result.split())
        shown = preview if len(preview) <= PREVIEW_CHARACTERS else preview[: PREVIEW_CHARACTERS - 1] + "…"
        parts = [f"✓ {event.tool}", duration(event.seconds), *([shown] if shown else [])]
        yield Line(" · ".join(parts), Tone.GOOD)
    else:
        yield from error_lines(event.error)


@_lines_of.register
def _delegate_start(event: DelegateStart, _: events.Envelope) -> Iterator[Line]:
    yield Line(f"⇢ {event.tool} works as {event.delegate}", Tone.QUIET)


@_lines_of.register
def _delegate_end(event: DelegateEnd, _: events.Envelope) -> Iterator[Line]:
    used = f"{format_steps(event.steps)} · {event.usage.total_tokens:,} tokens · {money(event.cost_usd)}"
    tone = Tone.QUIET if event.stop_reason == StopReason.FINISHED else Tone.WARNING
    yield Line(f"⇠ {event.tool} · {event.stop_reason} · {used}", tone)


@_lines_of.register
def _input_required(event: events.UserInputRequired, _: events.Envelope) -> Iterator[Line]:
    options = f" ({' / '.join(event.options)})" if event.options else ""
    what = f"approve {event.tool} {event.arguments}" if event.needs == "approval" else event.question
    yield Line(f"? {' '.join(what.split())}{options} · {event.request_id}", Tone.WARNING)


@_lines_of.register
def _input_received(event: events.UserInputReceived, _: events.Envelope) -> Iterator[Line]:
    who = f" by {event.by}" if event.by else ""
    yield Line(f"{event.decision}{who} · {event.tool} · {event.request_id}", Tone.QUIET)


@_lines_of.register
def _render_react_step(event: hooks.ReactStep, _: events.Envelope) -> Iterator[Line]:
    said = " ".join(str(getattr(event.reaction, "reason", " ".join(event.reaction.texts))).split())
    yield Line(f"↪ {event.hook_name} · {event.reaction.type}{': ' + said if said else ''}", Tone.WARNING)


@_lines_of.register
def _hook_end(event: events.HookEnd, _: events.Envelope) -> Iterator[Line]:
    if event.error is not None:
        yield from error_lines(event.error)


@_lines_of.register
def _todos_changed(event: hooks.TodosChanged, _: events.Envelope) -> Iterator[Line]:
    yield from todo_lines(event.todos)


@_lines_of.register
def _budget_warning(event: hooks.BudgetWarning, _: events.Envelope) -> Iterator[Line]:
    yield Line(f"{event.share:.0%} of the budget {event.dimension} is used: {event.used}", Tone.WARNING)


@_lines_of.register
def _budget_changed(event: hooks.BudgetChanged, _: events.Envelope) -> Iterator[Line]:
    yield Line(f"limit changed · {event.dimension} {event.before or 'none'} → {event.after}", Tone.WARNING)


@_lines_of.register
def _render_stalled(_: events.AgentStalled, __: events.Envelope) -> Iterator[Line]:
    yield Line("stalled: the model answered without finishing; send another message to continue", Tone.WARNING)


@_lines_of.register
def _agent_end(event: events.AgentEnd, _: events.Envelope) -> Iterator[Line]:
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


LINES = _lines_of.registry
"""What makes the lines of an event, by its class."""
