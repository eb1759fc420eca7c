"""Schedules: when a turn is started by the clock, of a new session each time or of one that is there."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import ConfigDict, Field, field_validator, model_validator

from perdure.contracts.budgets import Budgets
from perdure.contracts.turn_context import ContextData
from perdure.contracts.turns import SESSION_ID_PATTERN, Label, Prompt, WhenBusy
from perdure.contracts.values import JsonValue, PublicValue, Value

SCHEDULE_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
"""The ids of a schedule's sessions begin with its own, and a time follows."""

SHORTEST_CATCHUP = timedelta(seconds=10)
"""Temporal's own bound."""

FIRST_YEAR, LAST_YEAR = 2000, 2099
"""What Temporal's calendars know."""

_CATCHUP = {"cron": timedelta(hours=1), "at": timedelta(days=1)}


class ScheduleRequest(Value):
    """A schedule as somebody asks for it: when, for whom, and what is said.

    Attributes:
        id: Its name, unique in the tenant.
        cron: When, again and again: five fields, as in ``0 7 * * 1-5``.
        at: When, once; without an offset it is a time of ``timezone``.
        timezone: Where the clock hangs, by its name in the tz database, such as ``Europe/Berlin``.
        agent: For each run a new session of this agent,
        session: or each run a message for this session.
        prompt: What is said.
        when_busy: What becomes of a run while the one before it works, or while the session is busy. ``queue``: it
            waits, of new sessions at most one. ``reject``: it is left out. The others are for a session, and the same
            as of a message that is sent to it.
        model: Of a new session: another model, ``provider/model``.
        max_steps: Of a new session: model calls of its turn.
        budgets: Of a new session: what its turn may spend.
        context: Data for tools, hooks and instructions.
        by: Who has made the schedule, as that person or service says.
        jitter: Each run begins up to so much later.
        catchup: After the Temporal server was away: runs that were missed by less than this are made up for. None is an
            hour, and a day for ``at``.
        paused: Whether it runs not for now.
        note: For people.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_timedelta="float")

    id: str = Field(pattern=SCHEDULE_ID_PATTERN)
    cron: str | None = Field(default=None, min_length=1, max_length=200)
    at: datetime | None = None
    timezone: str = Field(default="UTC", min_length=1, max_length=100)
    agent: Annotated[Label, Field(min_length=1)] | None = None
    session: str | None = Field(default=None, pattern=SESSION_ID_PATTERN)
    prompt: Prompt
    when_busy: WhenBusy = "queue"
    model: Annotated[Label, Field(min_length=1)] | None = None
    max_steps: int | None = Field(default=None, ge=1, le=1_000_000)
    budgets: Budgets | None = None
    context: ContextData | None = None
    by: Label = ""
    jitter: timedelta = Field(default=timedelta(0), ge=timedelta(0), le=timedelta(days=1))
    catchup: timedelta | None = Field(default=None, ge=SHORTEST_CATCHUP, le=timedelta(days=365))
    paused: bool = False
    note: str = Field(default="", max_length=1_000)

    @field_validator("cron")
    @classmethod
    def _has_its_zone_elsewhere(cls, cron: str | None) -> str | None:
        if cron is None:
            return None
        if "=" in cron or "#" in cron:
            msg = f"{cron!r} has more than a time; write five fields such as '0 7 * * 1-5', and the zone as timezone"
            raise ValueError(msg)
        if not cron.startswith("@") and len(cron.split()) != 5:
            msg = f"{cron!r} has {len(cron.split())} fields; write five: minute, hour, day, month, day of the week"
            raise ValueError(msg)
        return " ".join(cron.split())

    @field_validator("at")
    @classmethod
    def _is_in_this_age(cls, at: datetime | None) -> datetime | None:
        if at is not None and not FIRST_YEAR <= at.year <= LAST_YEAR:
            msg = f"the year {at.year} is none that a schedule can be for"
            raise ValueError(msg)
        return at

    @field_validator("timezone")
    @classmethod
    def _is_known(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (KeyError, ValueError, OSError):
            msg = f"there is no time zone {name!r}; write one of the tz database, such as Europe/Berlin or UTC"
            raise ValueError(msg) from None
        return name

    @model_validator(mode="after")
    def _is_whole(self) -> "ScheduleRequest":
        if (self.cron is None) == (self.at is None):
            msg = "say when: cron for again and again, or at for once"
            raise ValueError(msg)
        if (self.agent is None) == (self.session is None):
            msg = "say for whom: agent for a new session each time, or session for one that is there"
            raise ValueError(msg)
        told = [name for name in ("model", "max_steps", "budgets") if getattr(self, name) is not None]
        if told and self.session is not None:
            msg = f"{told[0]} is for a new session; leave it out, or name an agent instead of the session"
            raise ValueError(msg)
        if self.when_busy not in {"queue", "reject"} and self.session is None:
            msg = f"when_busy {self.when_busy!r} is for a session that is there; write queue or reject"
            raise ValueError(msg)
        return self

    @property
    def once(self) -> datetime | None:
        """The moment of a schedule that runs once."""
        if self.at is None or self.at.tzinfo is not None:
            return None if self.at is None else self.at.astimezone(UTC)
        return self.at.replace(tzinfo=ZoneInfo(self.timezone)).astimezone(UTC)

    @property
    def catchup_window(self) -> timedelta:
        """How late a run may be made up for."""
        return self.catchup or _CATCHUP["cron" if self.at is None else "at"]


class Schedule(PublicValue):
    """A schedule as it stands.

    Attributes:
        tenant: On whose behalf its turns run.
        jitter: Seconds.
        catchup: Seconds.
        next_at: Its next runs, the first ten.
        runs: How many runs there were.
        left_out: Runs that ``reject`` left out.
        missed: Runs that were missed by more than ``catchup``.
    """

    id: str
    tenant: str
    cron: str | None
    at: datetime | None
    timezone: str
    agent: str | None
    session: str | None
    prompt: str
    when_busy: WhenBusy
    model: str | None = None
    max_steps: int | None = None
    budgets: Budgets | None = None
    context: dict[str, JsonValue] | None = None
    by: str = ""
    jitter: float = 0.0
    catchup: float = 0.0
    paused: bool = False
    note: str = ""
    next_at: tuple[datetime, ...] = ()
    runs: int = 0
    left_out: int = 0
    missed: int = 0


class ScheduleRun(PublicValue):
    """One run of a schedule.

    Attributes:
        session: The session that it started or said something to.
        turn: The number of its turn; None while its message waits, or if it never had one.
        state: ``rejected`` if the session was busy; ``failed`` if the turn could not be started.
        error: Of a run that failed, or whose turn did.
    """

    schedule: str
    session: str
    turn: int | None = None
    state: Literal["running", "ended", "rejected", "failed"]
    started_at: datetime
    ended_at: datetime | None = None
    stop_reason: str | None = None
    reason_code: str | None = None
    error: str | None = None


class Knock(Value):
    """The input of the workflow ``Knock``: a message that a schedule sends to a session.

    Attributes:
        tenant: Whose the session must be.
        store: The id of the store that has the session.
    """

    session: str
    prompt: str
    when_busy: WhenBusy = "queue"
    context: dict[str, JsonValue] | None = None
    by: str = ""
    tenant: str = ""
    store: str = ""


class Knocked(PublicValue):
    """What came of a knock.

    Attributes:
        turn: The turn that takes the message; None if the session was busy and it was left out.
    """

    turn: int | None
