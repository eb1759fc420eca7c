"""The fold of this door: the events of one turn, and the pieces of answers between them, as AG-UI's events.

It is the fold of the other door, whose items and segments are told in other words: a run is a segment of a turn. What
that one leaves out is told too: steps, todos, progress of tools and delegates.
"""

import json
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import cast

from perdure.contracts import events as log
from perdure.contracts.budgets import Usage
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.events import AnyEvent, Envelope
from perdure.contracts.hooks import TodosChanged
from perdure.contracts.input_requests import InputRequest, call_id_of
from perdure.contracts.turns import StopReason
from perdure.contracts.values import JsonValue
from perdure.gateway.doors.responses.events import Segment, TurnFold, WireEvent
from perdure.gateway.doors.responses.objects import Ending, Item, Shape, asked_call
from perdure.gateway.doors.responses.places import Place, ResponseId

PROTOCOL_VERSION = "1.0"

APPROVAL_SCHEMA: Item = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["approved"],
}
"""Schema of the payload that resumes a run which waits for an approval."""

_ENDS = frozenset({"response.completed", "response.failed", "response.incomplete"})


def run_started(thread: str, run: str, place: ResponseId | None) -> Item:
    """The first event of a run; it does not wait for a worker."""
    at: Item = {} if place is None else {"metadata": {"perdure": {"turn": place.turn, "segment": place.segment}}}
    return {
        "type": "RUN_STARTED",
        "threadId": thread,
        "runId": run,
        "protocolVersion": PROTOCOL_VERSION,
        **at,
    }


def answer_schema(request: InputRequest) -> Item:
    """Schema of the payload that answers a question."""
    answer: Item = {"enum": list(request.options)} if request.options else {}
    return {"type": "object", "properties": {"answer": answer}, "required": ["answer"]}


class RunFold(TurnFold):
    """AG-UI's events of one turn, as the bodies of wire events; :func:`run_started` stands before those of a run.

    Args:
        session: The thread's id.
        turn: The turn's number.
        shape: As for the other fold.
        place: As for the other fold.
        run: The run's id.
        is_old: Whether the reader speaks a version before 1.0, whose types refuse what they do not know of an outcome.
        known: Calls of earlier turns that the reader was told of; None if it has the conversation.
    """

    def __init__(  # what the reader is and has, beside what each fold takes
        self,
        session: str,
        turn: int,
        shape: Shape | None = None,
        place: Place | None = None,
        *,
        run: str = "",
        is_old: bool = False,
        known: Collection[str] | None = None,
    ) -> None:
        super().__init__(session, turn, shape, place)
        self._run, self._is_old, self._known = run, is_old, known
        self._at_time: datetime | None = None
        self._open_step = ""
        self._delegates: dict[str, str] = {}
        self._requests: dict[str, InputRequest] = {}
        self._made: set[str] = set()
        self._first_at: dict[str, int] = {}
        self._value: JsonValue = None

    def take(self, envelope: Envelope) -> list[WireEvent]:
        """The events of the next event of the log."""
        if envelope.event.type != "heartbeat":
            self._at_time = envelope.at
        return super().take(envelope)

    def _fold(self, event: AnyEvent, envelope: Envelope) -> None:
        match event:
            case log.GenerationStart():
                self._begin_step(f"step {envelope.step}")
            case log.GenerationContent():
                self._made |= {call.call_id for call in event.tool_calls}
            case log.UserInputRequired():
                self._requests[event.request_id] = event
                self._note_call(event.request_id)
            case log.ToolStart() | log.ToolEnd() | log.ToolError() | log.DelegateStart():
                self._note_call(event.call_id)
            case log.AgentEnd():
                self._value = event.value
            case log.DelegateEnd():
                self._end_delegate(event)
            case _:
                pass
        super()._fold(event, envelope)
        match event:
            case log.DelegateStart():
                self._begin_delegate(event)
            case log.ToolProgress():
                self._tell_progress(event)
            case TodosChanged():
                todos: JsonValue = [{"title": todo.title, "completed": todo.completed} for todo in event.todos]
                self._tell("STATE_SNAPSHOT", snapshot={"todos": todos})
            case _:
                pass

    @property
    def _is_structured(self) -> bool:
        """Whether nothing but JSON is a message: people watch this door, and see it grow."""
        return False

    def _explain(self, request: log.UserInputRequired) -> None:
        """Nothing: every client of this door knows interrupts."""

    def _close_call(self, call_id: str, tool: str, result: str | None, error: ErrorDetail | None) -> None:
        told = len(self._out)
        super()._close_call(call_id, tool, result, error)
        if len(self._out) == told and self._is_told(call_id) and self._tells_result_of(call_id):
            content = _result_of(call_id, result or (error.message if error is not None else ""))
            self._tell("TOOL_CALL_RESULT", **content)

    def _tells_result_of(self, call_id: str) -> bool:
        """Whether the reader is told of the result: a caller has those of its own calls."""
        return self.needs.get(call_id) != "result"

    def _note_call(self, call_id: str) -> None:
        """Note which event is the first that tells of a call; of one that another turn has made, none of this turn."""
        is_earlier = self._is_of_earlier_turn(call_id_of(call_id))
        self._first_at.setdefault(call_id, 0 if is_earlier else self.seq)

    def _is_of_earlier_turn(self, call_id: str) -> bool:
        return call_id not in self._made if self._known is None else call_id in self._known

    def _is_told(self, call_id: str) -> bool:
        """Whether an event before the last one has told of the call."""
        return self._first_at.get(call_id, 0) < self.seq

    def _end(self, ending: Ending) -> None:
        waits = not ending.stop_reason and ending.status == "completed"
        for delegate in self._delegates.values():
            if waits:
                self._tell("SUBAGENT_FINISHED", subagentRunId=delegate, outcome={"type": "suspended"})
            else:
                self._tell("SUBAGENT_ERROR", subagentRunId=delegate, message="the run ended before it did")
        self._delegates = {}
        self._begin_step("")
        super()._end(ending)

    def _begin_step(self, name: str) -> None:
        if name == self._open_step:
            return
        if self._open_step:
            self._tell("STEP_FINISHED", stepName=self._open_step)
        if name:
            self._tell("STEP_STARTED", stepName=name)
        self._open_step = name

    def _begin_delegate(self, event: log.DelegateStart) -> None:
        if event.call_id not in self._delegates:
            self._delegates[event.call_id] = event.delegate
            self._tell(
                "SUBAGENT_STARTED", subagentRunId=event.delegate, name=event.agent, parentToolCallId=event.call_id
            )

    def _end_delegate(self, event: log.DelegateEnd) -> None:
        if self._delegates.pop(event.call_id, None) is None:
            return
        if event.stop_reason in {StopReason.ERROR, StopReason.STALLED}:
            said = event.error or f"the delegate ended: {event.stop_reason.value}"
            more = {"code": event.reason_code} if event.reason_code else {}
            self._tell("SUBAGENT_ERROR", subagentRunId=event.delegate, message=said, **more)
        else:
            result = {"stop_reason": event.stop_reason.value}
            self._tell("SUBAGENT_FINISHED", subagentRunId=event.delegate, result=result)

    def _tell_progress(self, event: log.ToolProgress) -> None:
        content = {"toolCallId": event.call_id, "progress": event.progress, "message": event.message}
        if event.total is not None:
            content["total"] = event.total
        message = f"progress-{event.call_id}"
        self._tell("ACTIVITY_SNAPSHOT", messageId=message, activityType="PROGRESS", content=content, replace=True)

    # In AG-UI's words

    def _unseen(self, found: Iterable[WireEvent]) -> list[WireEvent]:
        told: list[WireEvent] = []
        for event in super()._unseen(found):
            for body in self._translate(event):
                stamp: Item = {} if self._at_time is None else {"timestamp": int(self._at_time.timestamp() * 1000)}
                told.append(WireEvent(event.segment, {**body, **stamp, "sequence_number": event.number}))
        return told

    def _translate(self, event: WireEvent) -> list[Item]:
        body = event.body
        kind = str(body["type"])
        if not kind.startswith("response."):
            return [body]
        if kind in _ENDS:
            return [self._finish(self.segments[event.segment - 1])]
        if kind == "response.output_text.delta":
            return [{"type": "TEXT_MESSAGE_CONTENT", "messageId": body["item_id"], "delta": body["delta"]}]
        if kind == "response.output_item.done":
            return self._translate_item(cast("Item", body["item"]), event, is_begun=False)
        if kind == "response.output_item.added":
            item, index = cast("Item", body["item"]), cast("int", body["output_index"])
            items = self.segments[event.segment - 1].items
            if "arguments" in item:  # the other protocol tells them behind the call
                item = {**item, "arguments": items[index]["arguments"]}
            return self._translate_item(item, event, is_begun=True)
        return []

    def _translate_item(self, item: Item, event: WireEvent, *, is_begun: bool) -> list[Item]:
        match item["type"]:
            case "message":
                return [_describe_text(item, is_begun=is_begun)]
            case "mcp_call":
                where = (event.segment, cast("int", event.body["output_index"]))
                call_id = next(name for name, place in self._calls.items() if place == where)
                if is_begun:
                    return [] if self._is_told(call_id) else _describe_call(call_id, item)
                if item["status"] == "incomplete":
                    return []
                return [{"type": "TOOL_CALL_RESULT", **_result_of(call_id, _output_of(item))}]
            case _:
                call_id = asked_call(item)
                is_new = is_begun and call_id == call_id_of(call_id) and not self._is_told(call_id)
                return _describe_call(call_id, item) if is_new else []

    def _finish(self, segment: Segment) -> Item:
        """The last event of a run."""
        ending = segment.ending or Ending("failed")
        usage = _describe_usage(segment.usage, self.prompt.model if self.prompt is not None else "")
        if ending.status == "failed":
            said = ending.error or f"the turn ended: {ending.stop_reason or ending.code}"
            return {"type": "RUN_ERROR", "message": said, "code": ending.code or "runtime.internal", **usage}
        is_cancelled = ending.status == "cancelled" and not self._is_old
        outcome: Item = {"type": "cancelled"} if is_cancelled else {"type": "success"}
        result: Item = {}
        if ending.stop_reason:
            result = {"stop_reason": ending.stop_reason, **({"reason_code": ending.code} if ending.code else {})}
            if self._value is not None:
                result["value"] = self._value
        else:
            outcome = self._describe_wait(segment)
        told: Item = {"result": result} if result else {}
        return {
            "type": "RUN_FINISHED",
            "threadId": self.session,
            "runId": self._run,
            "outcome": outcome,
            **told,
            **usage,
        }

    def _describe_wait(self, segment: Segment) -> Item:
        """The outcome of a run that waits: for people, or for results of the caller's calls."""
        return self._describe_open([asked_call(item) for item in segment.items])

    def _describe_open(self, calls: Iterable[str]) -> Item:
        asked = [self._requests[call_id] for call_id in calls if call_id in self._requests]
        interrupts: list[JsonValue] = [_describe_interrupt(one) for one in asked if one.needs != "result"]
        if interrupts:
            return {"type": "interrupt", "interrupts": interrupts}
        pending: Item = {} if self._is_old else {"pendingToolCallIds": [one.request_id for one in asked]}
        return {"type": "success", **pending}


def _describe_text(item: Item, *, is_begun: bool) -> Item:
    if is_begun:
        return {"type": "TEXT_MESSAGE_START", "messageId": item["id"], "role": "assistant"}
    lost: Item = {"metadata": {"perdure": {"superseded": True}}} if item["status"] == "incomplete" else {}
    return {"type": "TEXT_MESSAGE_END", "messageId": item["id"], **lost}


def _describe_call(call_id: str, item: Item) -> list[Item]:
    arguments = "" if item.get("arguments") is None else str(item["arguments"])
    return [
        {"type": "TOOL_CALL_START", "toolCallId": call_id, "toolCallName": item["name"]},
        {"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": arguments_of(arguments)},
        {"type": "TOOL_CALL_END", "toolCallId": call_id},
    ]


def arguments_of(text: str) -> str:
    """Arguments of a call as JSON: the log shortens long ones, which are none then."""
    if not text:
        return "{}"
    try:
        json.loads(text)
    except ValueError:
        return json.dumps({"shortened": text})
    return text


def _output_of(item: Item) -> str:
    output = item.get("output")
    if output is not None:
        return str(output)
    failure = item.get("error")
    parts = failure.get("content") if isinstance(failure, dict) else None
    first = parts[0] if isinstance(parts, list) and parts else None
    return str(first.get("text") or "") if isinstance(first, dict) else ""


def _result_of(call_id: str, content: str) -> Item:
    return {"messageId": f"result-{call_id}", "toolCallId": call_id, "content": content, "role": "tool"}


def _describe_interrupt(request: InputRequest) -> Item:
    is_approval, at = request.needs == "approval", request.expires_at
    about: Item = {"tool": request.tool, "arguments": request.arguments, "digest": request.digest}
    told: Item = {
        "id": request.request_id,
        "reason": "tool_call" if is_approval else "input_required",
        "message": f"May {request.tool} run?" if is_approval else request.question or f"{request.tool} asks",
        "toolCallId": call_id_of(request.request_id),
        "responseSchema": APPROVAL_SCHEMA if is_approval else answer_schema(request),
        "metadata": {"perdure": {**about, **({"expires_at": at.isoformat()} if at is not None else {})}},
    }
    return told


def _describe_usage(usage: Usage, model: str) -> Item:
    if not usage.total_tokens:
        return {}
    told: Item = {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.total_tokens,
        "cachedInputTokens": usage.cached_tokens,
    }
    return {"usage": [{"model": model, **told} if model else told]}
