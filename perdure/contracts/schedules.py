"""Schedules: when the clock starts a turn, in a new session each time or in an existing one."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import ConfigDict, Field, field_validator, model_validator

from perdure.contracts.budgets import Budgets
from perdure.contracts.ids import SESSION_ID_PATTERN
from perdure.contracts.queues import TurnPriority
from perdure.contracts.sends import Prompt, WhenBusy
from perdure.contracts.turn_context import ContextData
from perdure.contracts.values import JsonValue, Label, PublicValue, Value

SCHEDULE_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
"""The ids of a schedule's sessions begin with its own, and a time follows."""

SHORTEST_CATCHUP = timedelta(seconds=10)
"""Temporal's own bound."""

FIRST_YEAR, LAST_YEAR = 2000, 2099
"""Years that Temporal's calendars know."""

_CATCHUP = {"cron": timedelta(hours=1), "at": timedelta(days=1)}


class ScheduleRequest(Value):
    """A schedule to make: when it runs, for which agent or session, and with which message.

    Attributes:
        id: Id of the schedule, unique in the tenant.
        cron: Runs repeatedly: five cron fields, as in ``0 7 * * 1-5``. Give either ``cron`` or ``at``.
        at: Runs once, at this time; without an offset it is a time in ``timezone``.
        timezone: Time zone of ``cron`` and ``at`` by its name in the tz database, such as ``Europe/Berlin``.
        agent: Each run starts a new session of this agent. Give either ``agent`` or ``session``.
        session: Each run sends the prompt to this session.
        prompt: The message of each run.
        when_busy: What a run does while the run before it or the session is busy. ``queue``: it waits; with ``agent``,
            at most one run waits. ``reject``: it is skipped. The other values need a ``session`` and mean the same as
            for ``client.send``.
        model: With ``agent``: ``provider/model`` of the turns, instead of the agent's.
        max_steps: With ``agent``: step limit of each turn.
        budgets: With ``agent``: what each turn may spend.
        priority: From 1, the most urgent, to 5, where work waits for workers; None is 3. With ``session`` it counts if
            the message begins a Temporal run.
        context: Data for tools, hooks and instructions.
        by: Name of the person or service that made the schedule.
        jitter: Each run begins up to this much later.
        catchup: Runs that the Temporal server missed by less than this are made up for. None is an hour, and a day
            for ``at``.
        paused: Whether the schedule is made paused.
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
    priority: TurnPriority | None = None
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
            msg = f"a schedule cannot be for the year {at.year}; choose {FIRST_YEAR} to {LAST_YEAR}"
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
        """Longest delay after which a run is made up for."""
        return self.catchup or _CATCHUP["cron" if self.at is None else "at"]


class Schedule(PublicValue):
    """A schedule as it is now; fields without a line here are those of :class:`ScheduleRequest`.

    Attributes:
        tenant: On whose behalf its turns run.
        jitter: In seconds.
        catchup: In seconds.
        reason: Reason of the last pause or unpause, given with it; the Temporal server's, if it paused the schedule.
        next_at: Times of its next runs in ``timezone``, at most ten.
        runs: Number of runs so far.
        left_out: Number of runs skipped by ``reject``.
        missed: Number of runs missed by more than ``catchup``.
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
    priority: int | None = None
    context: dict[str, JsonValue] | None = None
    by: str = ""
    jitter: float = 0.0
    catchup: float = 0.0
    paused: bool = False
    note: str = ""
    reason: str = ""
    next_at: tuple[datetime, ...] = ()
    runs: int = 0
    left_out: int = 0
    missed: int = 0


class ScheduleRun(PublicValue):
    """One run of a schedule.

    Attributes:
        session: Id of the session that the run started, or sent its message to.
        turn: Number of its turn; None while the message is queued, or if it never got a turn.
        state: ``rejected`` if the session was busy; ``failed`` if the turn could not be started, or was refused.
        error: Error of a run that failed, or of its turn.
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
        priority: Priority of the Temporal run that the message begins, if it begins one.
        tenant: Tenant that the session must belong to.
        store: Id of the store that has the session.
    """

    session: str
    prompt: str
    when_busy: WhenBusy = "queue"
    context: dict[str, JsonValue] | None = None
    by: str = ""
    priority: int | None = None
    tenant: str = ""
    store: str = ""


class Knocked(PublicValue):
    """The result of a knock.

    Attributes:
        turn: Number of the turn that takes the message; None if the session was busy and ``reject`` dropped it.
    """

    turn: int | None
