"""What hooks are called with: the events of a step as the log has them, and what it does not have yet."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perdure.agents.hooks import Hook, HookedEvent, StepEnd
from perdure.contracts.events import (
    AgentStalled,
    DelegateEnd,
    DelegateStart,
    Envelope,
    GenerationContent,
    Heartbeat,
    ToolEnd,
    ToolError,
    UnknownEvent,
    UserInputReceived,
)
from perdure.contracts.hooks import EVENTS_AT, React
from perdure.store import StepRecord


@dataclass(frozen=True)
class Hooked:
    """An event, and its number in the log; 0 if it is not there."""

    event: HookedEvent
    seq: int = 0

    @property
    def call_id(self) -> str:
        """The tool call's id, if the event is of one: an input request has the id of its call."""
        of = "request_id" if isinstance(self.event, UserInputReceived) else "call_id"
        return str(getattr(self.event, of, ""))

    def concerns(self, hook: Hook) -> bool:
        """Whether the hook is for the event."""
        tool = getattr(self.event, "tool", None)
        return self.event.type in hook.declaration.on and (tool is None or hook.declaration.is_about(str(tool)))


def hooked(request: React, envelopes: Iterable[Envelope], step: StepRecord | None) -> list[Hooked]:
    """The events that hooks can be on at a boundary, in order.

    Each call of a step has one ``tool_end``, and a ``tool_error`` too if it failed, also where the log has one of them.
    """
    kinds = EVENTS_AT[request.boundary]
    logged = [
        Hooked(one.event, one.seq)
        for one in envelopes
        if not isinstance(one.event, UnknownEvent | Heartbeat) and (one.event.type in kinds or _is_left(request, one))
    ]
    if request.boundary == "stalled":
        return [Hooked(AgentStalled())]
    if request.boundary != "step":
        return logged
    logged = [one for one in logged if not _is_early(request, one, step)]
    told = [*_with_counterparts(logged), *_unrecorded(request, logged, step)]
    results = [one.event for one in told if isinstance(one.event, ToolEnd)]
    text = [one.event.content for one in envelopes if isinstance(one.event, GenerationContent)]
    return [*told, Hooked(StepEnd(output=text[-1] if text else "", results=tuple(results)))]


def _is_left(request: React, one: Envelope) -> bool:
    """Whether it is told at the end of the turn, because no step came in which it could have been."""
    if request.boundary != "end":
        return False
    if isinstance(one.event, DelegateStart | DelegateEnd):
        return one.event.call_id in request.ended
    return any(one.event.type == left.event.type for left in request.decided)  # others are not among them


def _is_early(request: React, one: Hooked, step: StepRecord | None) -> bool:
    """Whether it is about a delegate in the background of whose end the turn does not know yet."""
    if not isinstance(one.event, DelegateStart | DelegateEnd) or step is None or one.call_id in request.ended:
        return False
    return any(call.background and call.call_id == one.call_id for call in step.calls)


def _with_counterparts(logged: Sequence[Hooked]) -> Iterable[Hooked]:
    for one in logged:
        event = one.event
        yield one
        if isinstance(event, ToolEnd) and event.error is not None:
            yield Hooked(ToolError(call_id=event.call_id, tool=event.tool, error=event.error), one.seq)
        elif isinstance(event, ToolError):
            text = event.error.message
            yield Hooked(
                ToolEnd(call_id=event.call_id, tool=event.tool, result=text, error=event.error, seconds=0), one.seq
            )


def _unrecorded(request: React, logged: Sequence[Hooked], step: StepRecord | None) -> Iterable[Hooked]:
    """The results that only the workflow knows."""
    known = {one.call_id for one in logged if isinstance(one.event, ToolEnd | ToolError)}
    told = [one.event for one in logged if isinstance(one.event, UserInputReceived)]
    tools = {call.call_id: call.tool for call in step.calls} if step is not None else {}
    for outcome in request.failed:
        if outcome.call_id not in known and outcome.call_id in tools:
            tool = tools[outcome.call_id]
            end = ToolEnd(call_id=outcome.call_id, tool=tool, result=outcome.preview, error=outcome.error, seconds=0)
            yield from _with_counterparts([Hooked(end)])
        if outcome.decided is not None and outcome.call_id in tools:
            received = UserInputReceived(tool=tools[outcome.call_id], **dict(outcome.decided))
            if received not in told:
                yield Hooked(received)
