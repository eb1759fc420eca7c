"""The sessions that call one server: which rely on its state, and what each of them was told.

A stateful server starts a new *life* whenever its state is lost.
"""

import time
from dataclasses import dataclass

from perdure.activities.mcp.failures import ConnectionLostError, McpError, McpUnavailableError
from perdure.activities.mcp.questions import NOTHING_ASKED, Answering
from perdure.contracts.errors import ReasonCode

MOST_SESSIONS = 10_000
"""Sessions remembered for a server, the latest callers: a few megabytes."""

IN_USE = 3600.0
"""Seconds after an answer to a session during which another session's timeout may not end the server.

In between models think and people reply. After that a hung server is dropped.
"""


@dataclass(frozen=True)
class Caller:
    """The session that calls, the id of the call, and what the call's server asked before."""

    session: str
    call_id: str
    answering: Answering = NOTHING_ASKED

    @property
    def answer(self) -> str:
        """Identifies the model's answer that made the call: the call's id without its place in the answer.

        The step's number would not do: an approved call may run in the next turn.
        """
        return self.call_id.rpartition("_")[0] or self.call_id


@dataclass
class _Stake:
    """State of a session within one life of the server.

    Attributes:
        life: The number of that life.
        calls: Calls of the session that may have been carried out in it.
        told: The model's answer whose calls are told that the state of an earlier life is lost.
        answered_at: When the server last answered in time, by the monotonic clock.
    """

    life: int
    calls: int = 0
    told: str | None = None
    answered_at: float | None = None


class SessionStakes:
    """The stakes of the sessions that call one server."""

    def __init__(self) -> None:
        self._life = 0
        self._stakes: dict[str, _Stake] = {}
        """By session; the one that called last stands last."""

    def note_loss(self) -> None:
        """Note that the server's state is lost."""
        self._life += 1

    def is_in_use(self) -> bool:
        """Whether a session got an answer of this life in time, and not too long ago, so that it may rely on it."""
        since = time.monotonic() - IN_USE
        return any(
            stake.life == self._life and stake.answered_at is not None and stake.answered_at > since
            for stake in self._stakes.values()
        )

    def carry_over(self, session: str, before: str) -> None:
        """Let a session that goes on from the conversation of ``before`` rely on the same state."""
        stake = self._stakes.get(before)
        if stake is not None and stake.calls and session not in self._stakes:
            self._keep(session, _Stake(stake.life, stake.calls))

    def count_call(self, caller: Caller) -> _Stake | None:
        """Count a call that is about to be sent; None if the session must first be told that the state is lost.

        A session that used a former life is told once: by all calls of the model's answer that comes first.
        """
        stake = self._stakes.pop(caller.session, None) or _Stake(self._life)
        if stake.life != self._life:
            stake = _Stake(self._life, told=caller.answer if stake.calls else stake.told)
        self._keep(caller.session, stake)
        if stake.told == caller.answer:
            return None
        stake.calls += 1
        return stake

    def _keep(self, session: str, stake: _Stake) -> None:
        self._stakes[session] = stake
        if len(self._stakes) > MOST_SESSIONS:
            del self._stakes[next(iter(self._stakes))]


class Use:
    """One attempt to carry out a call; as a context manager it notes what became of the call."""

    def __init__(self, stakes: SessionStakes, caller: Caller) -> None:
        self._stakes = stakes
        self._caller = caller
        self._stake: _Stake | None = None

    def begin(self) -> bool:
        """Note that the call is about to be sent; False if the session must first be told that the state is lost."""
        self._stake = self._stakes.count_call(self._caller)
        return self._stake is not None

    def __enter__(self) -> "Use":
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self._stake is None:
            return
        match error:
            case None:
                self._stake.answered_at = time.monotonic()
            case ConnectionLostError(unsent=True) | McpUnavailableError():
                self._stake.calls -= 1  # the call was certainly not carried out, so it left no state
            case McpError():
                self._stake.answered_at = None if error.code == ReasonCode.TOOL_TIMEOUT else time.monotonic()
            case _:
                pass


class ListChanges:
    """Changes of a server's list of tools, as the server says them, and the sessions that know them."""

    def __init__(self) -> None:
        self._changes = 0
        self._known: dict[str, int] = {}
        """The number of changes that each session knows; the one that called last stands last."""

    def note_change(self) -> None:
        """Note that the server says so."""
        self._changes += 1

    def note_listed(self, session: str) -> None:
        """Note that a session has the list as it is now."""
        self._keep(session, self._changes)

    def note_call(self, session: str) -> None:
        """Note that a session is about to call. Changes before its first call here count as known."""
        self._keep(session, self._known.get(session, self._changes))

    def is_news(self, session: str) -> bool:
        """Whether the list has changed since the session last heard of it; it then knows."""
        known = self._known.get(session, self._changes)
        self._keep(session, self._changes)
        return known != self._changes

    def _keep(self, session: str, known: int) -> None:
        self._known.pop(session, None)
        self._known[session] = known
        if len(self._known) > MOST_SESSIONS:
            del self._known[next(iter(self._known))]
