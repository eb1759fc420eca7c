"""Ids of a run's events, behind which a reader that comes again goes on."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Self

from perdure.client import RequestRefusedError
from perdure.gateway.doors.responses.events import WireEvent
from perdure.gateway.doors.responses.places import Place

_ID = re.compile(r"(\d{1,16})(?:\.([1-9]\d?))?")


@dataclass(frozen=True)
class Seen:
    """The last event that a reader has.

    Attributes:
        number: Its sequence number.
        count: Events of that number that the reader has; 0 is all.
    """

    number: int
    count: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """The event of that id.

        Raises:
            RequestRefusedError: It does not name an event.
        """
        found = _ID.fullmatch(text) if text.isascii() else None
        if found is None:
            raise RequestRefusedError(f"Last-Event-ID: {text!r} is no id of an event; give the one seen last")
        return cls(int(found[1]), int(found[2] or 0))

    @property
    def place(self) -> Place:
        """The place that the fold goes on from: before the events of a number that the reader has in part."""
        at = Place.parse(self.number)
        return Place(at.seq, at.at - 1) if self.count else at


def name_events(found: Sequence[WireEvent], seen: Seen | None = None) -> Iterator[tuple[str, WireEvent]]:
    """The events with their ids, without those that the reader has: a number, or ``NUMBER.COUNT`` before its last."""
    for number, group in groupby(found, lambda event: event.number):
        events = [*group]
        had = seen.count if seen is not None and seen.number == number else 0
        for count, event in enumerate(events, start=1):
            if count > had:
                yield (str(number) if count == len(events) else f"{number}.{count}"), event
