"""Conversations that front ends send again, and what of them is new: pure, of a request and of the thread's last turns.

A client sends all of it with each run. By their ids a thread knows its own messages and calls. What the user says
behind the last of them is new, unless a turn has heard it, whose answer the client did not get.
"""

import re
from collections.abc import Collection, Iterator, Sequence

from perdure.gateway.doors.agui.requests import Line
from perdure.gateway.doors.responses.conversations import Heard
from perdure.gateway.doors.responses.events import TurnFold
from perdure.gateway.doors.responses.places import Origin
from perdure.gateway.doors.responses.requests import Object

_CALL = re.compile(r"call_[0-9a-f]{16}_\d+(?:~\d+)?")
"""Ids of calls of models, and of questions within them, which perdure gives."""


MOST_NEW = 100
"""Messages of the user that one prompt may be made of, the last ones."""

Behind = tuple[int, int]
"""A turn, and how many messages it had heard before a place in it."""


def place_of(line: Line, thread: str, folds: Sequence[TurnFold]) -> Behind | None:
    """The place of a message in the thread; turn 0 if it is of an earlier turn than these, None if no turn has it."""
    origin = Origin.parse(line.id)
    if origin is not None and origin.session == thread:
        fold = next((fold for fold in folds if fold.turn == origin.turn), None)
        return origin.turn, fold.heard_before.get(line.id, 1) if fold is not None else 1
    for fold in folds:
        for call in line.calls:
            if fold.knows_call(call):
                return fold.turn, fold.heard_before.get(call, 1)
    return (0, 0) if any(map(_CALL.fullmatch, line.calls)) else None


def new_words(lines: Sequence[Line], thread: str, folds: Sequence[TurnFold]) -> list[Object]:
    """The words of the user that the thread has not heard, as the parts of one message.

    What the front end has run by itself stands in it as a text. Of a conversation without a message of the thread, only
    the last one may be new.

    Args:
        lines: The conversation.
        thread: The session's id.
        folds: The last turns, the latest first.
    """
    known = ((at, place_of(lines[at], thread, folds)) for at in reversed(range(len(lines))))
    at, place = next(((at, place) for at, place in known if place is not None), (len(lines) - 2, (0, 0)))
    tail = lines[max(0, at + 1) :]
    said = [line for line in tail if line.parts][-MOST_NEW:]
    return [*_run_elsewhere(tail), *_unheard(said, [*heard_behind(place, folds)])]


def heard_behind(place: Behind, folds: Sequence[TurnFold]) -> Iterator[Heard]:
    """Words that turns have heard behind a place, in order."""
    turn, count = place
    for fold in reversed(folds):
        if fold.turn >= turn:
            yield from fold.heard[count if fold.turn == turn else 0 :]


def _unheard(said: Sequence[Line], heard: Sequence[Heard]) -> Iterator[Object]:
    """The parts of the messages that nobody has heard: turns hear them in order, some together, behind other texts."""
    words, left = [line.words for line in said], 0
    for told, files in heard:
        left += _count_told(words[left:], told, files)
    for line in said[left:]:
        yield from line.parts


def _count_told(words: Sequence[Heard], told: str, files: int) -> int:
    """Number of the messages that a turn has heard in these words, with which they end."""
    found, text, count_of_files = 0, "", 0
    for count, (one, of_it) in enumerate(words, start=1):
        text, count_of_files = f"{text}\n\n{one}" if count > 1 else one, count_of_files + of_it
        if len(text) > len(told):
            break
        if told.endswith(text) and count_of_files == files and (len(told) == len(text) or told.endswith(f"\n\n{text}")):
            found = count
    return found


def _run_elsewhere(tail: Sequence[Line]) -> Iterator[Object]:
    """Calls that the front end has made and run itself, each as a text with its result."""
    calls = {call: text for line in tail for call, text in line.calls.items()}
    for line in tail:
        if line.said is not None and line.said.call_id in calls:
            told = line.said.error or line.said.output
            yield {"type": "text", "text": f"The front end has run {calls[line.said.call_id]} itself: {told}"}


def results_for(lines: Sequence[Line], waiting: Collection[str]) -> Iterator[Line]:
    """The last result of each call that waits for one, wherever it stands."""
    found = {line.said.call_id: line for line in lines if line.said is not None and line.said.call_id in waiting}
    yield from found.values()
