"""What a followed turn does right now, and its lines with what earlier events tell. Pure: every row is a unit test."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from perdure.cli.render import Line, Tone, clean, duration, lines, money
from perdure.contracts import events
from perdure.contracts.events import DelegateEnd, DelegateStart
from perdure.contracts.turns import BudgetStatus, StopReason

MOST_ROWS = 6
"""Running calls that the live status shows."""

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
    """A call that runs; ``label`` tells it from others of its tool in the same step."""

    label: str
    began: datetime
    progress: str = ""


class Progress:
    """Where a session's turn stands, as far as its events tell.

    Attributes:
        step: The step that is under way, or was last.
        budget: The limits and what counts against them, if they were asked for.
        waits: Why the turn stands still, if that is known.
    """

    def __init__(self, depth: int = 0) -> None:
        """``depth`` counts the callers above: its lines are indented."""
        self.step = 0
        self.budget: BudgetStatus | None = None
        self.waits = ""
        self._depth = depth
        self._began: datetime | None = None
        self._doing: tuple[str, datetime] | None = None
        self._calls: dict[str, Call] = {}
        self._labels: dict[str, str] = {}
        self._names: Counter[tuple[int, str]] = Counter()
        self._started: dict[str, datetime] = {}
        self._asked: set[str] = set()
        self._failures: list[list[Line]] = []
        self._aborted: set[str] = set()
        self._tokens = 0
        self._cost = Decimal(0)

    def saw(self, envelope: events.Envelope, *, shown: bool = True) -> list[Line]:
        """Take an event into account; its lines, unless they repeat what is known."""
        self.waits = ""
        event = envelope.event
        if isinstance(event, events.AgentStart):
            self.__init__(self._depth)  # type: ignore[misc]  # the next turn of the session
            self._began = envelope.at
        self._note(envelope)
        rows = list(self._lines(envelope)) if shown else []
        if rows and rows[0].tone == Tone.BAD:
            plain = lines(envelope)
            # What ended the turn was shown when it happened; calls beside it may have failed since.
            if isinstance(event, events.AgentError) and plain in self._failures:
                rows = []
            self._failures.append(plain)
        return [Line("  │ " * self._depth + row.text, row.tone) for row in rows]

    def _lines(self, envelope: events.Envelope) -> Iterator[Line]:
        """The lines of an event, its call told apart from others, and with how long it took."""
        event = envelope.event
        if isinstance(event, _OF_CALLS) and (label := self._labels.get(event.call_id, event.tool)) != event.tool:
            changed: dict[str, object] = {"tool": label}
            if isinstance(event, events.ToolEnd | events.ToolError) and event.error is not None:
                changed["error"] = event.error.model_copy(update={"title": label})
            envelope = envelope.model_copy(update={"event": event.model_copy(update=changed)})
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
        if isinstance(event, events.AgentEnd) and self._ended_by_a_tool(event) and not self._depth:
            yield Line(f"perdure resume {envelope.session} lets the model read the error", Tone.QUIET)

    def _ended_by_a_tool(self, end: events.AgentEnd) -> bool:
        return end.stop_reason is StopReason.ERROR and end.reason_code in self._aborted

    def _note(self, envelope: events.Envelope) -> None:  # noqa: C901 - one case for each kind of event
        event, at = envelope.event, envelope.at
        self.step = max(self.step, envelope.step)
        match event:
            case events.GenerationStart():
                self._doing = (f"thinking · {event.model}", at)
            case events.GenerationWait():
                self._doing = (f"waits for its turn, {event.ahead} calls before it", at)
            case events.GenerationRetry():
                again = f"asks again after {event.error_type or event.code}"
                self._doing = (f"{again}, retry {event.attempt} of {event.max_attempts}", at)
            case events.CompactionEvent(compaction_status="started"):
                self._doing = ("summarising the conversation", at)
            case events.GenerationEnd() | events.GenerationError() | events.CompactionEvent():
                self._doing = None
                self._tokens += event.usage.total_tokens
                self._cost += event.cost_usd or 0
            case events.ToolStart() | DelegateStart():
                self._labels[event.call_id] = label = self._label(envelope.step, event.tool, event.call_id)
                self._started.setdefault(event.call_id, at)
                where = f" · {event.delegate}" if isinstance(event, DelegateStart) else ""
                self._calls[event.call_id] = Call(f"{label}{where}", at)
            case events.ToolProgress():
                if (call := self._calls.get(event.call_id)) is not None:
                    call.progress = str(event)
            case events.ToolEnd() | events.ToolError() | DelegateEnd():
                self._calls.pop(event.call_id, None)
                if isinstance(event, events.ToolError):
                    self._aborted.add(event.error.code)
            case events.UserInputRequired():
                self._asked.add(event.request_id)
            case events.UserInputReceived():
                self._asked.discard(event.request_id)
            case events.AgentEnd():
                self._doing, self._calls = None, {}
            case _:
                pass

    def _label(self, step: int, tool: str, call_id: str) -> str:
        if call_id in self._labels:
            return self._labels[call_id]
        self._names[step, tool] += 1
        count = self._names[step, tool]
        return tool if count == 1 else f"{tool} #{count}"

    def rows(self, now: datetime) -> list[str]:
        """The live status: what goes on, since when, and what is spent; nothing while a person is asked."""
        if self._asked or (self._doing is None and not self._calls and not self.waits):
            return []
        if self._doing is not None:
            what, since = self._doing
        else:
            count = len(self._calls)
            what = f"{count} {'call' if count == 1 else 'calls'}"
            since = min((call.began for call in self._calls.values()), default=now)
        parts = [f"step {self.step}", what, elapsed(now - since), *self._spent()]
        calls = list(self._calls.values())
        rows = [
            " · ".join(part for part in (call.label, call.progress, elapsed(now - call.began)) if part)
            for call in calls
        ]
        more = [f"and {len(rows) - MOST_ROWS} more"] if len(rows) > MOST_ROWS else []
        told = [f"waits: {self.waits}"] if self.waits else []
        indent = "  │ " * self._depth
        return [
            clean(indent + row)
            for row in (" · ".join(parts), *(f"  {row}" for row in (*rows[:MOST_ROWS], *more, *told)))
        ]

    def _spent(self) -> Iterator[str]:
        if self.budget is None:
            yield f"{self._tokens:,} tokens"
            if self._cost:
                yield money(self._cost)
            return
        limits, spent = self.budget.limits, self.budget.spent
        yield f"{self.budget.steps} of {self.budget.max_steps:,} steps"
        cost = money(max(spent.cost_usd, self._cost))
        yield f"{cost} of {money(limits.cost_usd)}" if limits.cost_usd is not None else cost
        for name, used in (("llm_calls", spent.llm_calls), ("tool_calls", spent.tool_calls)):
            if (limit := getattr(limits, name)) is not None:
                yield f"{used} of {limit} {name.replace('_', ' ')}"


def elapsed(since: timedelta) -> str:
    """Whole seconds in the first minute, then as any duration; a wrong clock gives none below zero."""
    seconds = max(0, int(since.total_seconds()))
    return f"{seconds}s" if seconds < 60 else duration(seconds)
