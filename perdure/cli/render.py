"""Events as lines for people, and the formats that all verbs share. Pure, so that every line is a unit test."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from functools import singledispatch
from unicodedata import combining, east_asian_width

from perdure.contracts import events, hooks
from perdure.contracts.budgets import Usage
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.events import DelegateEnd, DelegateStart
from perdure.contracts.files import FilePart
from perdure.contracts.hooks import ModelFallback
from perdure.contracts.input_requests import InputRequest
from perdure.contracts.standing_approvals import DESCRIBED
from perdure.contracts.tools import Todo
from perdure.contracts.turns import StopReason, TurnResult

SMALLEST = Decimal("0.0001")
"""The smallest amount of money that is shown as a number."""

PREVIEW_CHARACTERS = 100
"""So much of a tool's result stands in its line; `perdure show` has the rest."""

CONTEXT_CHARACTERS = 300
"""So much of a turn's context stands in its line; `--json` has the rest."""


class Tone(StrEnum):
    """Tone of a line; the terminal gives it a colour."""

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


def to_one_line(text: str) -> str:
    """Text of models, tools and people on one line, clean."""
    return clean(" ".join(text.split()))


def money(amount: Decimal) -> str:
    """US dollars with two to four decimals; what is less is said to be less."""
    if 0 < amount < SMALLEST:
        return f"<${SMALLEST}"
    text = f"{amount:,.4f}".rstrip("0")
    whole, _, decimals = text.partition(".")
    return f"${whole}.{decimals:0<2}"


def format_used(usage: Usage, cost: Decimal | None) -> str:
    """Tokens and cost in one phrase."""
    return f"{format_tokens(usage)} · {'price unknown' if cost is None else money(cost)}"


def format_tokens(usage: Usage) -> str:
    """``1,234 tokens``, or ``about 1,234 tokens`` if a provider did not count all of them."""
    return f"{'about ' if usage.estimated else ''}{usage.total_tokens:,} tokens"


def format_count(number: int, noun: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


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
    cells = [[to_one_line(cell) for cell in row] for row in rows]
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
    return f"{format_count(end.steps, 'step')} · {format_tokens(end.usage)} · {cost_of(end)}"


def cost_of(end: TurnResult | events.AgentEnd) -> str:
    """Cost of a turn, as far as it is known."""
    if not end.unpriced_calls:
        return money(end.cost_usd)
    return f"{money(end.cost_usd)} and {end.unpriced_calls} calls of unknown price" if end.cost_usd else "price unknown"


def describe_request(request: InputRequest) -> str:
    """Describe a request to a person in one line."""
    if request.needs == "approval":
        return to_one_line(f"approve {request.tool} {request.arguments}")
    if request.needs == "result":
        return to_one_line(f"result of {request.tool} {request.arguments}")
    options = f" ({' / '.join(request.options)})" if request.options else ""
    return to_one_line(f"{request.question or request.tool}{options}")


def todo_lines(todos: Sequence[Todo]) -> Iterator[Line]:
    """An agent's list of todos, with a mark at those that are done."""
    for number, todo in enumerate(todos):
        mark, tone = ("☑", Tone.QUIET) if todo.completed else ("☐", Tone.PLAIN)
        yield Line(f"{mark} {number} {to_one_line(todo.title)}", tone)


def title_of(error: ErrorDetail) -> str:
    """Title of a failure, with the class of a plain exception."""
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
    tone = Tone.QUIET if event.is_notice else Tone.HEAD
    yield from (Line(f"> {line}", tone) for line in event.content.splitlines())
    yield from part_lines(event.parts)


@_lines_of.register
def _wait(event: events.GenerationWait, _: events.Envelope) -> Iterator[Line]:
    pace = "" if event.calls_per_second is None else f" · {event.calls_per_second:.2g} calls a second"
    place = f" · {event.ahead} before it" if event.ahead else ""
    yield Line(f"⧖ {event.model} · waits for its turn at the limited key{place}{pace}", Tone.QUIET)


@_lines_of.register
def _adapted(event: events.GenerationAdapted, _: events.Envelope) -> Iterator[Line]:
    count = len(event.left_out)
    changes = (
        f"without {count} attachment{'s' * (count != 1)}" if count else "",
        "" if event.reasons else "without its reasoning",
        "" if event.most is None else f"with {event.most} attachments at most",
        "" if event.most_bytes is None else f"with {event.most_bytes:,} bytes of attachments at most",
        "" if event.most_characters is None else f"with {event.most_characters:,} characters of a message at most",
    )
    told = f"goes on {', '.join(filter(None, changes))}"
    yield Line(f"↷ {event.model} · {told} · {to_one_line(event.reason)}", Tone.WARNING)


@_lines_of.register
def _retry(event: events.GenerationRetry, _: events.Envelope) -> Iterator[Line]:
    again = f"retry {event.attempt} of {event.max_attempts} in {duration(event.wait_seconds)}"
    yield Line(f"↻ {event.error_type or event.code} · {again} · {to_one_line(event.error_message)}", Tone.WARNING)


@_lines_of.register
def _content(event: events.GenerationContent, _: events.Envelope) -> Iterator[Line]:
    yield from (Line(line) for line in event.content.strip().splitlines())


@_lines_of.register
def _generation_end(event: events.GenerationEnd, envelope: events.Envelope) -> Iterator[Line]:
    source = " · recorded" if event.recorded else ""
    used = format_used(event.usage, event.cost_usd)
    yield Line(f"step {envelope.step} · {duration(event.seconds)} · {used}{source}", Tone.QUIET)


@_lines_of.register
def _error(event: events.GenerationError | events.ToolError | events.AgentError, _: events.Envelope) -> Iterator[Line]:
    yield from error_lines(event.error)


@_lines_of.register
def _fallback(event: ModelFallback, _: events.Envelope) -> Iterator[Line]:
    yield Line(f"↪ {event.failed} failed ({event.code}); {event.model} goes on", Tone.WARNING)


@_lines_of.register
def _compaction(event: events.CompactionEvent, _: events.Envelope) -> Iterator[Line]:
    if event.compaction_status == "completed":
        counts = f"{event.messages_before} → {event.messages_after} messages"
        used = format_used(event.usage, event.cost_usd)
        yield Line(f"compacted · {event.trigger} · {counts} · {used}", Tone.QUIET)
    elif event.compaction_status != "started":
        yield Line(f"compaction {event.compaction_status} · {event.trigger} · {event.reason}", Tone.WARNING)


@_lines_of.register
def _tool_start(event: events.ToolStart, _: events.Envelope) -> Iterator[Line]:
    yield Line(f"→ {event.tool} {to_one_line(event.arguments)}")


@_lines_of.register
def _tool_progress(event: events.ToolProgress, _: events.Envelope) -> Iterator[Line]:
    yield Line(f"… {event.tool} {event}", Tone.QUIET)


_AFTER_A_LOSS = {"run_again": "runs again", "result_found": "does not run again", "given_up": "is given up"}


@_lines_of.register
def _tool_recovery(event: events.ToolRecovery, _: events.Envelope) -> Iterator[Line]:
    was = "stopped" if event.stopped else "lost"
    text = f"{event.tool} {_AFTER_A_LOSS[event.decision]}, its worker was {was}: {to_one_line(event.reason)}"
    yield Line(text, Tone.WARNING)


@_lines_of.register
def _tool_end(event: events.ToolEnd, _: events.Envelope) -> Iterator[Line]:
    if event.error is None:
        preview = to_one_line(event.result)
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
    used = f"{format_count(event.steps, 'step')} · {format_used(event.usage, event.cost_usd)}"
    tone = Tone.QUIET if event.stop_reason == StopReason.FINISHED else Tone.WARNING
    yield Line(f"⇠ {event.tool} · {event.stop_reason} · {used}", tone)


@_lines_of.register
def _input_required(event: events.UserInputRequired, _: events.Envelope) -> Iterator[Line]:
    yield Line(f"? {describe_request(event)} · {event.request_id}", Tone.WARNING)


@_lines_of.register
def _input_received(event: events.UserInputReceived, _: events.Envelope) -> Iterator[Line]:
    who = f" by {event.by}" if event.by else ""
    standing = f" · by the standing approval {event.standing}" if event.standing else ""
    always = f" · stands for {DESCRIBED[event.always.scope]}" if event.always is not None else ""
    yield Line(f"{event.decision}{who} · {event.tool} · {event.request_id}{always}{standing}", Tone.QUIET)


@_lines_of.register
def _react_step(event: hooks.ReactStep, _: events.Envelope) -> Iterator[Line]:
    said = to_one_line(str(getattr(event.reaction, "reason", " ".join(event.reaction.texts))))
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
def _stalled(_: events.AgentStalled, __: events.Envelope) -> Iterator[Line]:
    yield Line("stalled: the model answered without finishing; send another message to continue", Tone.WARNING)


@_lines_of.register
def _agent_end(event: events.AgentEnd, _: events.Envelope) -> Iterator[Line]:
    if event.stop_reason == StopReason.MAX_STEPS_REACHED:
        text = f"the step limit of {event.steps} is reached; send another message to continue"
        yield Line(text, Tone.WARNING)
    if event.stop_reason == StopReason.CANCELLED and event.error:  # any other error has its own row
        yield Line(to_one_line(event.error), Tone.WARNING)
    if event.stopped_by is not None:
        yield Line(f"stopped by {to_one_line(event.stopped_by)}", Tone.QUIET)
    tone = Tone.GOOD if event.stop_reason == StopReason.FINISHED else Tone.WARNING
    if event.stop_reason == StopReason.ERROR:
        tone = Tone.BAD
    yield Line(f"{event.stop_reason} · {tally(event)}", tone)


LINES = _lines_of.registry
"""Functions that make the lines of an event, by its class."""
