"""The fold of this door: the events of one turn, and the pieces of answers between them, as OpenAI's stream events.

It is pure: the same log gives the same stream events with the same numbers, whoever reads it and wherever a reader
comes again. A number is ``seq * 2**20`` and a place behind it. While an answer is written, the place says how many of
its characters a reader has, so that the stored answer goes on exactly there.

A turn has several segments, each a response of its own: one ends with the requests that its turn waits for, which are
written at once, as the last thing that a step does. The next begins with the first event behind them.

Long, because one state is folded: an answer, its calls and their requests share the items and the numbers.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import cast

from perdure.contracts import events as log
from perdure.contracts.budgets import Usage
from perdure.contracts.deltas import Delta, LiveAnswer
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.events import AnyEvent, Envelope
from perdure.contracts.input_requests import DecidedRequest, Need
from perdure.contracts.turns import MAX_OUTPUT_CHARACTERS, StopReason
from perdure.gateway.doors.responses.objects import (
    NEEDS,
    STATUSES,
    Ending,
    Item,
    Shape,
    close_call,
    describe_call,
    describe_message,
    describe_part,
    describe_request,
    describe_response,
)
from perdure.gateway.doors.responses.places import (
    LIVE,
    LONGEST_LIVE,
    NOTE,
    PARKED,
    SPACE,
    Place,
    ResponseId,
    item_id,
    live_place,
)

ANSWER_AT = 10
"""Place of the first wire event of a stored answer; those that close a part of another one stand before it."""

CLIENTS = frozenset({"answer", "result"})
"""Needs of requests whose calls the client runs, or a person answers: their results are no item of perdure's."""


@dataclass(frozen=True)
class WireEvent:
    """An event as the stream has it.

    Attributes:
        segment: Number of the response that it belongs to.
        body: Its JSON, with ``type`` and ``sequence_number``.
    """

    segment: int
    body: Item

    @property
    def number(self) -> int:
        """Its sequence number."""
        return cast("int", self.body["sequence_number"])

    @property
    def is_last(self) -> bool:
        """Whether its response has ended with it."""
        return self.body["type"] in {"response.completed", "response.failed", "response.incomplete"}


@dataclass
class Segment:
    """State of one response.

    Attributes:
        inputs: What was said to the requests of the segment before, with the results that came of it.
        words: Messages beside them, until a model reads (``is_read``).
    """

    number: int
    created_at: datetime
    items: list[Item] = field(default_factory=list[Item])
    usage: Usage = field(default_factory=Usage)
    ending: Ending | None = None
    inputs: list[DecidedRequest] = field(default_factory=list[DecidedRequest])
    words: list[log.UserMessageReceived] = field(default_factory=list[log.UserMessageReceived])
    is_read: bool = False


@dataclass
class _Answer:
    """The message of the step that runs.

    Attributes:
        text: What a reader has of it; None for a reader that came again and whose text is not known yet.
        index: Its place among the items; None before it is one.
        has_part: Whether the reader has the beginning of its text.
        message: Its id, if its step does not say that.
    """

    text: str | None = ""
    index: int | None = None
    has_part: bool = False
    message: str = ""


class TurnFold:
    """The stream events of one turn.

    Args:
        session: The session's id.
        turn: The turn's number.
        shape: What the responses have in common, if it is known before the turn's first event.
        place: Where the reader stands, which has the stream events up to there.

    Attributes:
        segments: The responses so far, in order.
        prompt: The first event of the turn.
        needs: Needs of all requests so far, by the ids of their calls.
        results: Results of calls that the client runs, by their ids.
        shape: The fields that the responses have in common.
        heard: The prompt of the turn, and the messages that it has read since, each with the number of its files.
        heard_before: How many of them stand before a message or a call, by its id.
        has_ended: Whether the turn has ended.
        has_stopped: Whether it has ended for its requests, so that replies begin the next one.
        stops: Whether it is to end with those that it has asked last.
    """

    def __init__(self, session: str, turn: int, shape: Shape | None = None, place: Place | None = None) -> None:
        self.session = session
        self.turn = turn
        self.shape = shape or Shape()
        self._place = place or Place()
        self.segments: list[Segment] = []
        self.prompt: log.AgentStart | None = None
        self.results: dict[str, str] = {}
        self.heard: list[tuple[str, int]] = []
        self.heard_before: dict[str, int] = {}
        self.has_ended = self.has_stopped = self.stops = False
        self._is_asking = False
        self._seq = self._at = self._step = self._tries = self._attempt = self._stale = 0
        self._out: list[WireEvent] = []
        self._calls: dict[str, tuple[int, int]] = {}
        self._arguments: dict[str, str] = {}
        self.needs: dict[str, Need] = {}
        self._answer: _Answer | None = None
        self._asked_at: datetime | None = None
        self._live = LiveAnswer()
        self._beginning = ""

    @property
    def seq(self) -> int:
        """The number of the last event that was taken."""
        return self._seq

    @property
    def is_asking(self) -> bool:
        """Whether the last requests may not be all of their group: see :meth:`settle`."""
        return self._is_asking

    def knows_call(self, call_id: str) -> bool:
        """Whether the turn has made a call of that id."""
        return call_id in self._calls or call_id in self.needs

    def response(self, number: int) -> Item | None:
        """The response of that number as it is now; None if it has not begun."""
        if not 0 < number <= len(self.segments):
            return None
        segment = self.segments[number - 1]
        usage = segment.usage if segment.ending is not None else None
        return describe_response(
            ResponseId(self.session, self.turn, number),
            self.shape,
            created_at=segment.created_at,
            output=segment.items,
            usage=usage,
            ending=segment.ending,
        )

    def take(self, envelope: Envelope) -> list[WireEvent]:
        """The stream events of the next event of the log, and those of a group of requests that it ends."""
        if envelope.turn != self.turn or envelope.event.type == "heartbeat":
            return []
        event = envelope.event
        settled = [] if isinstance(event, log.UserInputRequired) else self.settle()
        self._out, self._seq, self._at = [], envelope.seq, 0
        if self._is_end_of_parked(event):
            self.has_ended = self.has_stopped = True
            return settled
        is_parked = not self.segments or self.segments[-1].ending is not None
        if is_parked and isinstance(event, log.ToolEnd | log.ToolError) and self.needs.get(event.call_id) in CLIENTS:
            self._fold(event, envelope)  # what was replied before the turn asked for more, and stopped
            return [*settled, *self._take_late(self._out)]
        if is_parked:
            self._begin(envelope)
        self._fold(event, envelope)
        if envelope.seq == self._place.seq and self._place.shown is not None and self._answer is not None:
            self._resume_answer()
        return [*settled, *self._unseen(self._out)]

    def take_delta(self, delta: Delta) -> list[WireEvent]:
        """The stream events of a piece of the answer that is being written."""
        answer = self._answer
        if (
            answer is None
            or self._is_structured
            or delta.kind != "text"
            or (delta.turn, delta.step) != (self.turn, self._step)
        ):
            return []
        self._attempt = max(self._attempt, delta.attempt)
        if delta.attempt <= self._stale:
            return []
        self._live.add(delta)
        whole = self._live.text[:LONGEST_LIVE]
        if answer.text is None:
            shown = whole[: self._place.shown or 0]
            if not self._place.fits(shown):
                return []
            answer.text = shown
        if not whole.startswith(answer.text) or len(whole) == len(answer.text):
            return []  # of another attempt: the reader gets the stored answer
        self._out = []
        self._open_answer(answer, LIVE)
        piece, answer.text = whole[len(answer.text) :], whole
        self._at = live_place(whole)
        self._tell_text(answer, "response.output_text.delta", delta=piece)
        return self._unseen(self._out)

    def settle(self) -> list[WireEvent]:
        """The stream events of the end of a segment, where the last requests so far are all of their group."""
        if not self._is_asking:
            return []
        self._out, self._at, self._is_asking = [], PARKED, False
        self._end(Ending("completed", self._asked_at))
        return self._unseen(self._out)

    def close(self, ending: Ending) -> list[WireEvent]:
        """The stream events of an end that the log does not have: Temporal has ended the turn's workflow."""
        if not self.segments or self.segments[-1].ending is not None:
            return []
        self._out, self._at = [], PARKED
        self._drop_answer()
        self._end(ending)
        self.has_ended = True
        return self._unseen(self._out)

    def _unseen(self, found: Iterable[WireEvent]) -> list[WireEvent]:
        """Those that a reader at the fold's place does not have."""
        after = self._place.seq * SPACE + self._place.at
        return [event for event in found if event.number > after]

    def _take_late(self, found: Sequence[WireEvent]) -> Sequence[WireEvent]:  # behind the end of a segment
        return ()

    def _is_end_of_parked(self, event: AnyEvent) -> bool:
        """Whether the turn ended as it waited, and a reply starts the next one: no response begins for that."""
        return (
            isinstance(event, log.AgentEnd)
            and event.stop_reason is StopReason.WAITING_FOR_INPUT
            and bool(self.segments)
            and self.segments[-1].ending is not None
        )

    def _begin(self, envelope: Envelope) -> None:
        event = envelope.event
        if isinstance(event, log.AgentStart):
            self.prompt = event
            self.heard.append((event.prompt, len(event.parts)))
            texts = {name: value for name, value in event.context.items() if isinstance(value, str)}
            self.shape = replace(self.shape, model=event.agent, metadata=texts)
        self.segments.append(Segment(number=len(self.segments) + 1, created_at=envelope.at))
        self._tell_response("response.created")
        self._tell_response("response.in_progress")

    def _fold(self, event: AnyEvent, envelope: Envelope) -> None:  # noqa: C901 - one arm for each kind of event
        match event:
            case log.GenerationStart():
                self.segments[-1].is_read = True
                self._store_beginning()
                self._drop_answer()
                if self._step != envelope.step:
                    self._step, self._tries, self._live = envelope.step, 0, LiveAnswer()
                    self._attempt = self._stale = 0
                else:  # a reader may have begun a message of the call that was lost
                    self._tries += 1
                self._answer = _Answer()
            case log.GenerationRetry():
                self._add_usage(event.usage)
                if not event.compaction:
                    self._give_up()
                    self._answer = _Answer()
            case log.GenerationContent():
                self._arguments = {call.call_id: call.arguments for call in event.tool_calls}
                if len(event.content) >= log.CONTENT_CHARACTERS and not event.tool_calls:
                    self._beginning = event.content  # the end of the turn has more of it
                elif not self._is_structured:
                    self._store_answer(event.content)
            case log.GenerationEnd():
                self._add_usage(event.usage)
            case log.GenerationError():
                self._add_usage(event.usage)
                self._beginning = ""
                self._give_up()
            case log.CompactionEvent() | log.DelegateEnd():
                self._add_usage(event.usage)
            case log.ToolStart():
                self._open_call(event.call_id, event.tool, event.arguments)
            case log.DelegateStart():
                self._open_call(event.call_id, event.tool)
            case log.ToolEnd():
                self._close_call(event.call_id, event.tool, event.result, event.error)
            case log.ToolError():
                self._close_call(event.call_id, event.tool, None, event.error)
            case log.UserMessageReceived() if not event.is_notice:
                self.heard.append((event.content, len(event.parts)))
                if self.segments[-1].inputs and not self.segments[-1].is_read:
                    self.segments[-1].words.append(event)
            case log.UserInputRequired():
                self._ask(event, envelope.at)
            case log.UserInputReceived():
                self.segments[-1].inputs.append(event)
                if need := NEEDS.get(event.decision):  # the turn before may have asked, and this one begun with it
                    self.needs.setdefault(event.request_id, need)
            case log.AgentEnd():
                self._end_turn(event, envelope.at)
            case _:
                pass

    @property
    def _is_structured(self) -> bool:
        """Whether the answer is JSON. Then nothing else is a message: clients read the text of each one as JSON."""
        return self.prompt is not None and self.prompt.structured

    def _add_usage(self, usage: Usage) -> None:
        segment = self.segments[-1]
        segment.usage = segment.usage.plus(usage)

    # The answer

    def _resume_answer(self) -> None:
        """Note what a reader has of the answer that is being written."""
        answer = self._answer = _Answer(text=None)
        self._add_message(answer)
        answer.has_part = self._place.at > LIVE
        if not self._place.shown:
            answer.text = ""

    def _add_message(self, answer: _Answer, more: str = "") -> None:
        """Make the message an item, with a new id where another one was."""
        segment, place = self.segments[-1], (self._step, self._tries, *([more] if more else []))
        message = answer.message or item_id("msg", self.session, self.turn, *place)
        item = describe_message(message, None, "in_progress")
        self.heard_before[message] = len(self.heard)
        if answer.index is None:
            answer.index = len(segment.items)
            segment.items.append(item)
        else:
            segment.items[answer.index] = item

    def _tell_message(self, answer: _Answer, kind: str) -> None:
        index = answer.index or 0
        self._tell_item(kind, self.segments[-1].items[index], index)

    def _open_answer(self, answer: _Answer, at: int) -> None:
        """Begin the message and its text, unless the reader has seen that."""
        self._at = at
        if answer.index is None:
            self._add_message(answer)
            self._tell_message(answer, "response.output_item.added")
        self._at = at + 1
        if not answer.has_part:
            answer.has_part = True
            self._tell_text(answer, "response.content_part.added", part=describe_part(""))

    def _store_answer(self, text: str) -> None:
        """End the message with the stored text, behind what the reader has of it."""
        answer, self._answer = self._answer or _Answer(), None
        shown = answer.text
        if shown is None:
            shown = text[: self._place.shown or 0]
            shown = shown if self._place.fits(shown) else None
        if shown is None or not text.startswith(shown) or (answer.index is not None and not text):
            self._at = 0
            self._close_message(answer, shown or "", "incomplete")
            if not text:
                self._forget_message(answer)
                return
            answer, shown = self._replace_message(answer), ""
        elif not text:
            return
        self._open_answer(answer, ANSWER_AT)
        self._at = ANSWER_AT + 2
        if rest := text[len(shown) :]:
            self._tell_text(answer, "response.output_text.delta", delta=rest)
        self._at = ANSWER_AT + 3
        self._tell_text(answer, "response.output_text.done", text=text)
        self._tell_text(answer, "response.content_part.done", part=describe_part(text))
        self._close_message(answer, text, "completed")

    def _store_beginning(self, output: str = "") -> None:
        """End the message of a long answer, of which its event has only the beginning, with as much as is known."""
        beginning, self._beginning = self._beginning, ""
        if beginning and not self._is_structured:
            self._store_answer(output if output.startswith(beginning) else beginning)

    def _replace_message(self, answer: _Answer) -> _Answer:
        """A message in the place of one that does not stand any more, as another item."""
        new = _Answer(index=answer.index)
        self._at = ANSWER_AT
        self._add_message(new, "stored")
        self._tell_message(new, "response.output_item.added")
        return new

    def _close_message(self, answer: _Answer, text: str, status: str) -> None:
        items, index = self.segments[-1].items, answer.index or 0
        items[index] = describe_message(str(items[index]["id"]), text, status)
        self._tell_message(answer, "response.output_item.done")

    def _forget_message(self, answer: _Answer) -> None:
        """Take a message out that does not stand: it is the last item, and the next one has its place."""
        if answer.index is not None:
            del self.segments[-1].items[answer.index]

    def _drop_answer(self) -> None:
        """Close what a reader has of an answer that will never be stored."""
        answer, self._answer = self._answer, None
        if answer is not None and answer.index is not None:
            self._close_message(answer, answer.text or "", "incomplete")
            self._forget_message(answer)

    def _give_up(self) -> None:
        """Drop the answer of a call that failed: what comes late of it is not shown."""
        self._drop_answer()
        self._tries += 1
        self._stale, self._live = self._attempt, LiveAnswer()

    # Calls

    def _open_call(self, call_id: str, tool: str, arguments: str | None = None) -> None:
        if call_id in self._calls or self.needs.get(call_id) in CLIENTS:
            return
        told = self._arguments.get(call_id, "{}") if arguments is None else arguments
        approved = call_id in self.needs
        segment = self.segments[-1]
        item = describe_call(self.session, self.turn, call_id, tool, told, approved=approved)
        index = len(segment.items)
        self._calls[call_id] = (segment.number, index)
        self.heard_before.setdefault(call_id, len(self.heard))
        segment.items.append(item)
        about: Item = {"item_id": item["id"], "output_index": index}
        self._tell_item("response.output_item.added", {**item, "arguments": ""}, index)
        self._tell("response.mcp_call.in_progress", **about)
        self._tell("response.mcp_call_arguments.delta", **about, delta=told)
        self._tell("response.mcp_call_arguments.done", **about, arguments=told)

    def _close_call(self, call_id: str, tool: str, result: str | None, error: ErrorDetail | None) -> None:
        if self.needs.get(call_id) in CLIENTS:
            self.results[call_id] = result or (error.message if error is not None else "")
            return
        if call_id not in self._calls and any(function["name"] == tool for function in self.shape.tools):
            return  # a call of the client's function, which was refused before the client heard of it
        self._open_call(call_id, tool)
        number, index = self._calls[call_id]
        segment = self.segments[-1]
        if number != segment.number or segment.items[index]["status"] != "in_progress":
            return
        item = segment.items[index] = close_call(segment.items[index], result, error)
        kind = "completed" if error is None else "failed"
        self._tell(f"response.mcp_call.{kind}", item_id=item["id"], output_index=index)
        self._tell_item("response.output_item.done", item, index)

    def _ask(self, event: log.UserInputRequired, at: datetime) -> None:
        segment = self.segments[-1]
        self._explain(event)
        item, index = describe_request(self.session, self.turn, event), len(segment.items)
        self._is_asking = True
        self.needs[event.request_id], self.stops = event.needs, event.stops
        self.heard_before[event.request_id] = len(self.heard)
        self._asked_at = at
        segment.items.append(item)
        if event.needs == "approval":
            self._tell_item("response.output_item.added", item, index)
        else:
            about: Item = {"item_id": item["id"], "output_index": index}
            unwritten: Item = {**item, "arguments": "", "status": "in_progress"}
            self._tell_item("response.output_item.added", unwritten, index)
            self._tell("response.function_call_arguments.delta", **about, delta=event.arguments)
            self._tell("response.function_call_arguments.done", **about, arguments=event.arguments, name=event.tool)
        self._tell_item("response.output_item.done", item, index)

    # The end

    def _end_turn(self, event: log.AgentEnd, at: datetime) -> None:
        self._store_beginning(event.output)
        self._drop_answer()
        segment = self.segments[-1]
        for index, item in enumerate(segment.items):
            if item.get("status") == "in_progress":
                segment.items[index] = {**item, "status": "incomplete"}
                self._tell_item("response.output_item.done", segment.items[index], index)
        output = _json_of(event) if self._is_structured else event.output
        if event.stop_reason is StopReason.FINISHED and output and output != self._last_text():
            self._tell_output(output)
        earlier = Usage()
        for before in self.segments[:-1]:
            earlier = earlier.plus(before.usage)
        segment.usage = event.usage.without(earlier)
        self.has_ended, self.has_stopped = True, event.stop_reason is StopReason.WAITING_FOR_INPUT
        ending = Ending(
            STATUSES.get(event.stop_reason, "failed"),
            at,
            error=event.error or "",
            code=event.reason_code or "",
            stop_reason=event.stop_reason.value,
        )
        self._end(ending)

    def _last_text(self) -> str:
        """The text of the last message, as far as an output may hold it."""
        texts = [item["content"] for item in self.segments[-1].items if item["type"] == "message"]
        parts = cast("Sequence[Item]", texts[-1]) if texts else ()
        return str(parts[0]["text"])[:MAX_OUTPUT_CHARACTERS] if parts else ""

    def _tell_output(self, text: str) -> None:
        """A message with the output of a turn that a tool or a hook has given in place of the model."""
        self._step = -1
        self._tell_whole(text)

    def _explain(self, request: log.UserInputRequired) -> None:
        """A message that says what a request waits for: some clients know no such request, and would ask again.

        No model has said it, and none is told.
        """
        if request.needs == "approval" and not self._is_structured:
            note = item_id(NOTE, self.session, self.turn, request.request_id)
            self._tell_whole(f"{request.tool} waits for an approval: {request.arguments}", note)

    def _tell_whole(self, text: str, message: str = "") -> None:
        """A message whose text is there at once, with an id of its own if there is one."""
        answer, at = _Answer(message=message), self._at
        self._open_answer(answer, at)
        self._at = at + 2
        self._tell_text(answer, "response.output_text.delta", delta=text)
        self._tell_text(answer, "response.output_text.done", text=text)
        self._tell_text(answer, "response.content_part.done", part=describe_part(text))
        self._close_message(answer, text, "completed")

    def _end(self, ending: Ending) -> None:
        self.segments[-1].ending = ending
        kind = {"completed": "completed", "failed": "failed"}.get(ending.status, "incomplete")
        self._tell_response(f"response.{kind}")

    # The wire

    def _tell(self, kind: str, **fields: object) -> None:
        number = self._seq * SPACE + self._at
        body = cast("Item", {"type": kind, "sequence_number": number, **fields})
        self._out.append(WireEvent(self.segments[-1].number, body))
        self._at += 1

    def _tell_item(self, kind: str, item: Item, index: int) -> None:
        self._tell(kind, output_index=index, item=item)

    def _tell_text(self, answer: _Answer, kind: str, **fields: object) -> None:
        index = answer.index or 0
        message = self.segments[-1].items[index]["id"]
        more: dict[str, object] = {} if "part" in fields else {"logprobs": []}
        self._tell(kind, item_id=message, output_index=index, content_index=0, **fields, **more)

    def _tell_response(self, kind: str) -> None:
        self._tell(kind, response=self.response(self.segments[-1].number))


def _json_of(end: log.AgentEnd) -> str:
    """The output of a turn that ends with JSON, without what a model has written around it."""
    try:
        json.loads(end.output)
    except ValueError:
        return end.output if end.value is None else json.dumps(end.value, ensure_ascii=False)
    return end.output


def fold_turn(session: str, turn: int, envelopes: Iterable[Envelope], shape: Shape | None = None) -> TurnFold:
    """The fold of a turn whose log so far is read to its end."""
    fold = TurnFold(session, turn, shape)
    for envelope in envelopes:
        fold.take(envelope)
    fold.settle()
    return fold
