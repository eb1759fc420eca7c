"""A thread from its beginning, for a front end that has nothing of it: a page that was loaded again, or a second tab.

What is over is one snapshot of messages, in the ids of the events that told them. What came last is told as events.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

from perdure.contracts import events as log
from perdure.contracts.events import AnyEvent, Envelope
from perdure.contracts.files import FilePart
from perdure.gateway.access import Gateway
from perdure.gateway.doors.agui.events import RunFold
from perdure.gateway.doors.agui.framing import words_of
from perdure.gateway.doors.responses.events import WireEvent
from perdure.gateway.doors.responses.following import shape_of
from perdure.gateway.doors.responses.objects import Item, Shape
from perdure.gateway.doors.responses.places import ResponseId, item_id
from perdure.gateway.following import reader_at

MOST_TURNS = 50
"""Turns that are told, the last ones."""


class HistoryFold(RunFold):
    """The events of a turn with what is the client's own: words of the user, and results of the caller's calls."""

    def _fold(self, event: AnyEvent, envelope: Envelope) -> None:
        if isinstance(event, log.AgentStart):
            self._tell_words(event.prompt, event.parts)
        elif isinstance(event, log.UserMessageReceived) and not event.is_notice:
            self._tell_words(event.content, event.parts)
        super()._fold(event, envelope)

    def _tell_words(self, text: str, parts: Sequence[FilePart]) -> None:
        words = words_of(text)
        told = "\n\n".join([*([words] if words else []), *(f"[{part.name}]" for part in parts)])
        if told:
            message = item_id("msg", self.session, self.turn, f"user/{self.seq}")
            self._tell("TEXT_MESSAGE_START", messageId=message, role="user")
            self._tell("TEXT_MESSAGE_CONTENT", messageId=message, delta=told)
            self._tell("TEXT_MESSAGE_END", messageId=message)

    def _tells_result_of(self, call_id: str) -> bool:
        return True

    def _take_late(self, found: Sequence[WireEvent]) -> Sequence[WireEvent]:
        return self._unseen(found)  # a reader of one run has its end before

    def describe_wait(self, requests: Iterable[str]) -> Item:
        """The outcome of a run that waits for these, of which some may have been decided."""
        return self._describe_open(requests)


@dataclass
class Transcript:
    """The messages and the state of a thread, as the client of its events has them.

    Attributes:
        messages: By their ids, in order.
        calls: Ids of the calls.
        state: The last snapshot of the state; None if there was none.
        outcome: How the last run has ended, if there is nothing behind.
    """

    messages: dict[str, Item] = field(default_factory=dict[str, Item])
    calls: dict[str, Item] = field(default_factory=dict[str, Item])
    state: Item | None = None
    outcome: Item = field(default_factory=lambda: {"type": "success"})

    def add(self, events: Iterable[Item]) -> None:
        """Take events, in order."""
        for event in events:
            match event["type"]:
                case "TEXT_MESSAGE_START":
                    name = str(event["messageId"])
                    self.messages[name] = {"id": name, "role": event["role"], "content": ""}
                case "TEXT_MESSAGE_CONTENT":
                    message = self.messages[str(event["messageId"])]
                    message["content"] = f"{message['content']}{event['delta']}"
                case "TEXT_MESSAGE_END" if "metadata" in event:  # the stored answer stands behind it
                    del self.messages[str(event["messageId"])]
                case "TOOL_CALL_START":
                    name = str(event["toolCallId"])
                    called: Item = {"name": event["toolCallName"], "arguments": ""}
                    self.calls[name] = called
                    calls: Item = {"id": name, "type": "function", "function": called}
                    self.messages[name] = {"id": name, "role": "assistant", "toolCalls": [calls]}
                case "TOOL_CALL_ARGS":
                    call = self.calls[str(event["toolCallId"])]
                    call["arguments"] = f"{call['arguments']}{event['delta']}"
                case "TOOL_CALL_RESULT":
                    name = str(event["messageId"])
                    told = {"toolCallId": event["toolCallId"], "content": event["content"]}
                    self.messages[name] = {"id": name, "role": "tool", **told}
                case "STATE_SNAPSHOT":
                    self.state = cast("Item", event["snapshot"])
                case _:
                    pass

    @property
    def events(self) -> list[Item]:
        """The events that give a client all of it: an empty snapshot first, since what a client has keeps its place."""
        lists: list[list[Item]] = [[], [*self.messages.values()]] if self.messages else [[]]
        told: list[Item] = [{"type": "MESSAGES_SNAPSHOT", "messages": [*one]} for one in lists]
        return told if self.state is None else [*told, {"type": "STATE_SNAPSHOT", "snapshot": self.state}]


async def read_history(
    gateway: Gateway, thread: str, last: int, waiting: Collection[str], *, is_old: bool
) -> tuple[Transcript, ResponseId | None]:
    """A thread as far as it is over, and the segment behind; what its retention has deleted is left out.

    There is none of a thread whose last turn it has deleted, nor of one that waits on after a part of the decisions:
    the segment that they began tells nothing until the others come.

    Args:
        gateway: The gateway.
        thread: The session's id.
        last: Number of its last turn.
        waiting: The requests that it waits for, while nothing of it runs.
        is_old: As for the fold.
    """
    history = _History(gateway, thread, is_old=is_old)
    reader = await reader_at(gateway, thread, max(1, last - MOST_TURNS + 1))
    await reader.skip_swept()
    while page := await reader.read():
        for envelope in page:
            if envelope.turn <= last:
                await history.take(envelope)
        if page[-1].turn > last:
            break
    history.settle()
    transcript, fold = history.transcript, history.fold
    if fold is None:  # no worker has opened a turn, or the events of the last one were deleted
        return transcript, None if reader.after else ResponseId(thread, last)
    if fold.turn < last:
        history.end_turn(len(fold.segments))
        return transcript, ResponseId(thread, last)
    if waiting and fold.segments and fold.segments[-1].ending is None:
        history.end_turn(len(fold.segments))
        transcript.outcome = fold.describe_wait(waiting)
        return transcript, None
    over = max(0, len(fold.segments) - 1)
    history.end_turn(over)
    return transcript, ResponseId(thread, last, over + 1)


class _History:
    """A thread's log, as it is read: its turns so far, and the fold of the one that comes last."""

    def __init__(self, gateway: Gateway, thread: str, *, is_old: bool) -> None:
        self._gateway, self._thread, self._is_old = gateway, thread, is_old
        self._shapes: dict[str, Shape] = {}
        self._told: list[WireEvent] = []
        self.transcript = Transcript()
        self.fold: HistoryFold | None = None

    async def take(self, envelope: Envelope) -> None:
        """Take an event. Those of a turn whose first one is deleted are left out."""
        if isinstance(envelope.event, log.AgentStart):
            self.settle()
            self.end_turn(len(self.fold.segments) if self.fold is not None else 0)
            known, shape = self.transcript.calls, await self._shape_of(envelope.event.definition)
            self.fold = HistoryFold(self._thread, envelope.turn, shape, is_old=self._is_old, known=known)
        if self.fold is not None:
            self._told += self.fold.take(envelope)

    def settle(self) -> None:
        """Take it that the turn's last requests are all of their group."""
        self._told += self.fold.settle() if self.fold is not None else ()

    def end_turn(self, segments: int) -> None:
        """Take what so many segments of the turn have told into the transcript."""
        self.transcript.add(event.body for event in self._told if event.segment <= segments)
        self._told = []

    async def _shape_of(self, definition: str) -> Shape:
        if definition not in self._shapes:
            self._shapes[definition] = await shape_of(self._gateway, definition)
        return self._shapes[definition]
