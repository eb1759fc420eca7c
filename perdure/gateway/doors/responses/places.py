"""Places of this door: which part of which turn a response is, and where in the log an event of its stream stands.

All are written into what a client holds, so that the gateway remembers nothing: any replica reads them. So the ids of
items and calls say which turn of which session they are of, and a conversation that is sent again leads back to it.
"""

import base64
import binascii
import hashlib
import re
import zlib
from dataclasses import dataclass
from typing import Self

from perdure.contracts.ids import SESSION_ID_PATTERN

PATHS = "/openai/v1"
"""Prefix of the paths of this door."""

PREFIX = "resp_"

NOTE = "msg_note"
"""Prefix of the id of a message that no model has said, and none is told."""

MARK = "-"
"""Character before the turn in the id of an item or a call; names of neither have it."""

_PLACE = re.compile(rf"([1-9]\d{{0,6}})\.([1-9]\d{{0,6}})\.({SESSION_ID_PATTERN[1:-1]})")
_TURN = re.compile(rf"([1-9]\d{{0,6}})\.({SESSION_ID_PATTERN[1:-1]})")
_ITEM = re.compile(r"([a-z]+(?:_[a-z]+)?_[0-9a-f]{12})([0-9a-f]{4})")


@dataclass(frozen=True)
class ResponseId:
    """A response: a segment of a turn. A turn has one, and one more each time it has waited for somebody.

    Attributes:
        turn: Number of the turn in its session.
        segment: Number of the segment in its turn, from 1.
    """

    session: str
    turn: int
    segment: int = 1

    def __str__(self) -> str:
        return PREFIX + _encode(f"{self.turn}.{self.segment}.{self.session}")

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The response that an id names; None if this door writes no such id."""
        found = _PLACE.fullmatch(_decode(text.removeprefix(PREFIX)))
        place = None if found is None else cls(found[3], int(found[1]), int(found[2]))
        return place if str(place) == text else None


@dataclass(frozen=True)
class Origin:
    """Origin of an item or a call: the turn that its id names.

    Attributes:
        name: The id without the turn: of a call, the one that perdure has for it.
    """

    session: str
    turn: int
    name: str

    def __str__(self) -> str:
        return f"{self.name}{MARK}{_encode(f'{self.turn}.{self.session}')}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The origin that an id names; None if this door writes no such id."""
        name, _, told = text.partition(MARK)
        found = _TURN.fullmatch(_decode(told))
        if found is None:
            return None
        origin = cls(found[2], int(found[1]), name)
        item = _ITEM.fullmatch(name)
        is_whole = item is None or item[2] == _check_of(item[1], origin.session, origin.turn)
        return origin if is_whole and str(origin) == text else None


def item_id(prefix: str, session: str, turn: int, *place: object) -> str:
    """The id of an item, the same whenever it is read."""
    told = "/".join(map(str, (session, turn, *place)))
    name = f"{prefix}_{_digest(told)[:12]}"
    return str(Origin(session, turn, name + _check_of(name, session, turn)))


def wire_call(session: str, turn: int, call_id: str) -> str:
    """The id of a call as clients have it."""
    return str(Origin(session, turn, call_id))


def call_of(wire: str) -> str:
    """The id of the call that clients have this id of; one that this door has not given is its own."""
    origin = Origin.parse(wire)
    return wire if origin is None else origin.name


def _check_of(name: str, session: str, turn: int) -> str:
    """Digits by which the id of an item shows that no character of it was lost."""
    return _digest(f"{name}/{turn}/{session}")[:4]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _encode(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decode(text: str) -> str:
    """The text that is encoded so; empty for one that is not."""
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except (binascii.Error, ValueError):
        return ""


SPACE = 1 << 20
"""Numbers of one event of the log: its wire events have those from ``seq * SPACE`` on."""

PARKED = 1_000
"""Place of the wire event with which a segment ends because its turn waits, behind those of the last request."""

LIVE = 1_024
"""Place of the first wire event of an answer that is being written: those of the log's events stand before it."""

_CHARACTER = 8
"""Places of a character of such an answer: three bits say what the text before it was."""

LONGEST_LIVE = (SPACE - LIVE) // _CHARACTER - 1
"""Most characters of an answer that are shown while it is written; the others come when it is stored."""


@dataclass(frozen=True)
class Place:
    """Place of a reader of a stream: behind this wire event.

    Attributes:
        seq: Number of the event in the log.
        at: Place among the wire events of that one.
    """

    seq: int = 0
    at: int = -1

    @classmethod
    def parse(cls, number: int) -> Self:
        """The place behind the wire event of that number."""
        return cls(*divmod(number, SPACE))

    @property
    def shown(self) -> int | None:
        """Characters that the reader has of an answer that is being written; None if it has not begun."""
        return (self.at - LIVE) // _CHARACTER if self.at >= LIVE else None

    def fits(self, text: str) -> bool:
        """Whether the reader may have this text, the characters it has of an answer."""
        return len(text) == self.shown and (self.at - LIVE) % _CHARACTER == _check(text)


def live_place(text: str) -> int:
    """Place of the wire event behind which a reader has this text of an answer that is being written."""
    return LIVE + len(text) * _CHARACTER + _check(text)


def _check(text: str) -> int:
    """Three bits that differ for most other texts of that length; of none, a place for the wire events before it."""
    return zlib.crc32(text.encode(errors="replace")) % _CHARACTER if text else 1
