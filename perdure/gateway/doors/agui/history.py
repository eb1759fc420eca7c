"""A thread from its beginning, for a front end that has nothing of it: a page that was loaded again, or a second tab.

What is over is one snapshot of messages, in the ids of the events that told them. What came last is told as events.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

from perdure.client import EventsGoneError
from perdure.contracts import events as log
from perdure.contracts.deltas import Delta
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.events import AnyEvent, Envelope
from perdure.contracts.files import FilePart
from perdure.gateway.access import Gateway
from perdure.gateway.doors.agui.events import RunFold
from perdure.gateway.doors.responses.following import find_turn, shape_of
from perdure.gateway.doors.responses.objects import Item, Shape
from perdure.gateway.doors.responses.places import Place, ResponseId, item_id
from perdure.gateway.following import reader_at, take_log

MOST_TURNS = 50
"""Turns that are told, the last ones."""


class HistoryFold(RunFold):
    """The events of a turn with what is the client's own: words of the user, and results of the caller's calls.

    Args:
        session: The thread's id.
        turn: The turn's number.
        shape: As for the other fold.
        place: As for the other fold.
        run: The run's id.
        is_old: As for the other fold.
        known: Calls of earlier turns, whose results may stand in this one.
    """

    def __init__(
        self,
        session: str,
        turn: int,
        shape: Shape | None = None,
        place: Place | None = None,
        *,
        run: str = "",
        is_old: bool = False,
        known: Collection[str] = (),
    ) -> None:
        super().__init__(session, turn, shape, place, run=run, is_old=is_old)
        self._known = known

    def _fold(self, event: AnyEvent, envelope: Envelope) -> None:
        if isinstance(event, log.AgentStart):
            self._tell_words(event.prompt, event.parts)
        elif isinstance(event, log.UserMessageReceived):
            self._tell_words(event.content, event.parts)
        super()._fold(event, envelope)

    def _tell_words(self, text: str, parts: Sequence[FilePart]) -> None:
        told = "\n\n".join([*([text] if text else []), *(f"[{part.name}]" for part in parts)])
        if told:
            message = item_id("msg", self.session, self.turn, f"user/{self.seq}")
            self._tell("TEXT_MESSAGE_START", messageId=message, role="user")
            self._tell("TEXT_MESSAGE_CONTENT", messageId=message, delta=told)
            self._tell("TEXT_MESSAGE_END", messageId=message)

    def _close_call(self, call_id: str, tool: str, result: str | None, error: ErrorDetail | None) -> None:
        super()._close_call(call_id, tool, result, error)
        need = self.needs.get(call_id)
        is_of_before = call_id in self._known and call_id not in self._calls and need != "answer"
        if need == "result" or is_of_before:
            self._tell_result(call_id, result or (error.message if error is not None else ""))

    def describe_wait(self, requests: Iterable[str]) -> Item:
        """The outcome of a run that waits for these, of which some may have been decided."""
        return self._describe_open(requests)

    def _is_told(self, call_id: str) -> bool:
        return super()._is_told(call_id) or call_id in self._known


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
    transcript = Transcript()
    place: ResponseId | None = None
    for turn in range(max(1, last - MOST_TURNS + 1), last + 1):
        view = await find_turn(gateway, ResponseId(thread, turn))
        fold = HistoryFold(thread, turn, await shape_of(gateway, view), is_old=is_old, known=transcript.calls)
        events = _Events(fold)
        try:
            if view.started_at is not None:
                await take_log(await reader_at(gateway, thread, turn), events, turn)
        except EventsGoneError:
            place = None
            continue
        events.settle()
        is_open = bool(fold.segments) and fold.segments[-1].ending is None
        if turn == last and is_open and waiting:
            transcript.add(body for _, body in events.told)
            transcript.outcome = fold.describe_wait(waiting)
            return transcript, None
        over = len(fold.segments) - (turn == last)
        transcript.add(body for segment, body in events.told if segment <= over)
        place = ResponseId(thread, turn, max(1, over + 1))
    return transcript, place


class _Events:
    """Keeps what a fold tells, by segments."""

    def __init__(self, fold: HistoryFold) -> None:
        self._fold = fold
        self.told: list[tuple[int, Item]] = []

    @property
    def seq(self) -> int:
        return self._fold.seq

    @property
    def is_asking(self) -> bool:
        return self._fold.is_asking

    def take(self, envelope: Envelope) -> list[None]:
        self.told += [(event.segment, event.body) for event in self._fold.take(envelope)]
        return []

    def take_delta(self, delta: Delta) -> list[None]:
        return []

    def settle(self) -> list[None]:
        self.told += [(event.segment, event.body) for event in self._fold.settle()]
        return []
