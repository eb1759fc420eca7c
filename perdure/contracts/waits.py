"""Waits of a running turn: the cause, since when, and what to do about it."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

from pydantic import ConfigDict

from perdure.contracts.values import Label, PublicValue, Value

WAITS_FOR_ITS_TURN = "waits for its turn"
"""Prefix of the text that a model call at the gate of a limited key gives its pending activity."""

WAITS_FOR_SERVERS = "no answer yet from MCP server"
"""Prefix of the text of a turn's opening, before the names of the servers that it waits for."""

WAITS_FOR_A_SHARE = "waiting for what delegates may spend"
"""Activity, in the status query, of a turn that goes on when a delegate in the background gives back its share."""


class Pause(Value):
    """A pause of a session: nothing begins until somebody ends it.

    Attributes:
        since: When it was asked for.
    """

    since: datetime
    reason: str = ""
    by: str = ""

    def __str__(self) -> str:
        """Who has paused the session, and why."""
        by, why = f" by {self.by}" if self.by else "", f": {self.reason}" if self.reason else ""
        return f"paused{by}{why}"


class PauseRequest(Value):
    """The input of the updates ``pause`` and ``unpause``.

    Attributes:
        reason: Why; people who look at the session read it.
        by: Who says so.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    reason: Label = ""
    by: Label = ""


class PauseReceipt(PublicValue):
    """The result of the updates ``pause`` and ``unpause``.

    Attributes:
        turn: The turn that runs.
        changed: False if the session was paused already, or was not.
    """

    turn: int
    changed: bool


class Cause(StrEnum):
    """Cause of a turn's standing still; the first ones weigh most."""

    VERSION = "version"
    WORKFLOW_TASK = "workflow_task"
    OTHER_STORE = "other_store"
    STORE = "store"
    PAUSED = "paused"
    WORKER = "worker"
    FAILURE = "failure"
    LOST_WORKER = "lost_worker"
    MCP_STATE = "mcp_state"
    PROVIDER = "provider"
    PACE = "pace"
    QUEUED = "queued"
    OPENING = "opening"
    COMPACTION = "compaction"
    PERSON = "person"
    SHARE = "share"
    DELEGATE = "delegate"


STUCK = frozenset(
    {Cause.VERSION, Cause.WORKFLOW_TASK, Cause.OTHER_STORE, Cause.STORE, Cause.PAUSED, Cause.WORKER, Cause.FAILURE}
)
"""Causes that an operator has to remove: the turn does not go on by itself."""


class MissingVersion(Value):
    """Part of a turn's version that a worker lacks; the second detail of ``runtime.tool_missing``.

    Attributes:
        agent: The turn's agent; for a ``delegate`` that of its caller.
        what: What is missing; ``agent`` and ``delegate`` are the whole agent of a turn that is not open yet.
        changed: Whether the worker has a tool of that name that takes other arguments.
        definition: The definition that the turn keeps, or the caller of a delegate; empty for an agent.
        elsewhere: Whether a worker that polls, and may take the turn's calls, has it: the call is on its way there.
    """

    agent: str
    what: Literal["agent", "delegate", "tool", "hook", "server"]
    name: str
    definition: str = ""
    changed: bool = False
    elsewhere: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether a whole agent is missing, and any worker that has one of its name can go on."""
        return self.what in {"agent", "delegate"}

    def __str__(self) -> str:
        """As a sentence says it."""
        if self.what == "agent":
            return f"agent {self.name!r}"
        if self.what == "delegate":
            return f"agent {self.name!r}, a delegate of agent {self.agent!r}"
        what, arguments = "MCP server" if self.what == "server" else self.what, " with the arguments"
        return f"{what} {self.name!r}{arguments if self.changed else ''} of this version of agent {self.agent!r}"


class ProviderRetry(Value):
    """The retry of a model call that comes next; the second detail of its failure.

    Attributes:
        status: The HTTP status of the provider's reply; None without one.
    """

    model: str
    attempt: int
    max_attempts: int
    status: int | None = None


class TurnWait(Value):
    """Wait of a running turn.

    Attributes:
        cause: Why it stands still, in a word.
        text: The same for people, without times.
        advice: What to do, with the commands.
        since: When the wait began, by the server's clock.
        attempt: How often the server has tried to go on, where it tries again.
        next_at: When it tries next.
        session: The session to look at: the turn's own, or that of a delegate that stands still.
        missing: For the cause ``version``: what no worker has.
    """

    session: str
    cause: Cause
    text: str
    advice: str
    since: datetime | None = None
    attempt: int | None = None
    next_at: datetime | None = None
    missing: MissingVersion | None = None

    @property
    def is_stuck(self) -> bool:
        """Whether the turn stands still until somebody acts."""
        return self.cause in STUCK

    def sentence(self, now: datetime) -> str:
        """The wait in one sentence: since when, why, what comes next, what to do."""
        return f"{self.facts(now)}; {self.advice}"

    def facts(self, now: datetime) -> str:
        """The sentence without what to do."""
        return f"{self.to_brief(now)}{self._next(now)}"

    def to_brief(self, now: datetime) -> str:
        """The wait in a few words, for a line that says more than that."""
        waits = "waits" if self.since is None else f"has waited {duration(now - self.since)}"
        return f"{waits}: {self.text}"

    def _next(self, now: datetime) -> str:
        parts = [] if self.attempt is None else [f"attempt {self.attempt}"]
        if self.next_at is not None:
            parts.append(f"next in {duration(self.next_at - now)}")
        return f" ({', '.join(parts)})" if parts else ""


def duration(time: timedelta) -> str:
    """A time for people, in the unit that says most."""
    seconds = max(0, round(time.total_seconds()))
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 7_200:
        return f"{seconds // 60} min"
    return f"{seconds // 3_600} h" if seconds < 172_800 else f"{seconds // 86_400} d"
