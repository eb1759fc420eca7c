"""Retention of a session's data, and what a sweep does with older data."""

import re
from datetime import datetime, timedelta
from typing import Annotated, Self, TypedDict, Unpack

from pydantic import AfterValidator, BeforeValidator, model_validator

from perdure.contracts.values import Authored, Value, for_code

_UNITS = {"h": "hours", "d": "days", "w": "weeks"}
_WRITTEN = re.compile(r"(\d+) ?(h|d|w|y)")
_DAYS_OF_A_YEAR = 365


def read_duration(value: object) -> object:
    """``30d``, ``12h``, ``2w`` and ``1y`` as durations; anything else is left to pydantic."""
    found = _WRITTEN.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return value
    number, unit = int(found[1]), found[2]
    return timedelta(days=number * _DAYS_OF_A_YEAR) if unit == "y" else timedelta(**{_UNITS[unit]: number})


def _check_duration(value: timedelta) -> timedelta:
    if value < SHORTEST:
        msg = "write an hour or more, such as 12h, 30d, 2w or 1y"
        raise ValueError(msg)
    return value


SHORTEST = timedelta(hours=1)

Duration = Annotated[timedelta, BeforeValidator(read_duration), AfterValidator(_check_duration)]
"""A ``timedelta``, or a text such as ``30d``: hours, days, weeks or years of 365 days."""


class RetentionSettings(TypedDict, total=False):
    """The settings of ``Retention(…)`` as authors write them."""

    events: timedelta | str | None
    artifacts: timedelta | str | None
    transcript: timedelta | str | None
    keep_latest: bool


class Retention(Authored):
    """Retention of an agent's sessions, counted from the end of a turn. None keeps it for good.

    Attributes:
        events: The event log of a turn.
        artifacts: Long outputs, images and files of a turn.
        transcript: The whole session, counted from the end of its last turn. It is then erased and leaves a tombstone,
            unless ``keep_latest`` is set.
        keep_latest: Instead of erasing the session, keep what its next turn needs: the conversation since its last
            compaction, and its last turn.
    """

    events: Duration | None = None
    artifacts: Duration | None = None
    transcript: Duration | None = None
    keep_latest: bool = False

    @for_code
    def __init__(self, **settings: Unpack[RetentionSettings]) -> None:
        Authored.__init__(self, **settings)

    @model_validator(mode="after")
    def _has_a_transcript_to_keep(self) -> Self:
        if self.keep_latest and self.transcript is None:
            msg = "keep_latest says what is left when the time of the transcript is over; set transcript too"
            raise ValueError(msg)
        return self

    @property
    def shortest(self) -> timedelta | None:
        """Before it, nothing of a session is old."""
        return min((time for time in (self.events, self.artifacts, self.transcript) if time is not None), default=None)


class Kept(Value):
    """A session that is old and was kept all the same, and why."""

    session: str
    agent: str
    why: str


class SweepSlice(Value):
    """The next sessions that a sweep looks at.

    Attributes:
        now: When the sweep began: ages are counted from it.
        dry_run: Whether nothing is deleted.
        agent: The agent whose sessions are looked at; empty before the first.
        after: The session behind which the sweep goes on.
        store: The id of the store; empty is whichever the worker has.
    """

    now: datetime
    dry_run: bool = False
    agent: str = ""
    after: str = ""
    store: str = ""


class Swept(Value):
    """Result of a sweep, or of its dry run.

    Attributes:
        erased: Sessions that were erased.
        trimmed: Sessions that keep only what their next turn needs.
        events: Events that were deleted.
        artifacts: Artifacts that were deleted.
        kept: Old sessions that were kept, the first hundred, and why.
        kept_sessions: Number of all old sessions that were kept.
        going_on: Where the next slice begins; None at the end.
    """

    erased: int = 0
    trimmed: int = 0
    events: int = 0
    artifacts: int = 0
    kept: tuple[Kept, ...] = ()
    kept_sessions: int = 0
    going_on: SweepSlice | None = None

    def plus(self, other: "Swept") -> "Swept":
        """Both together; it goes on where the other one does."""
        return Swept(
            erased=self.erased + other.erased,
            trimmed=self.trimmed + other.trimmed,
            events=self.events + other.events,
            artifacts=self.artifacts + other.artifacts,
            kept=(*self.kept, *other.kept)[:MOST_KEPT],
            kept_sessions=self.kept_sessions + other.kept_sessions,
            going_on=other.going_on,
        )


MOST_KEPT = 100
"""Kept sessions that a sweep names."""


class SweepRequest(Value):
    """A sweep as a schedule or a person asks for it; ``so_far`` is what earlier runs of a long sweep did."""

    dry_run: bool = False
    store: str = ""
    so_far: Swept = Swept()
