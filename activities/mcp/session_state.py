"""Which sessions rely on what a server with state holds, and which of them have read that it is gone."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from perdure.activities.mcp.failures import ConnectionLostError, McpError, McpUnavailableError
from perdure.contracts.errors import ReasonCode

MOST_SESSIONS = 10_000
"""Sessions that are remembered for a server, those that called last: that is a few megabytes."""

IN_USE = 3600.0
"""Seconds from a server's last answer to a session during which no other session's time-out may end it.

Models think and people answer in between. After that, one that hangs is of no use to anybody.
"""


@dataclass(frozen=True)
class Caller:
    """The session that calls, and the id of the call."""

    session: str
    call_id: str

    @property
    def answer(self) -> str:
        """The model's answer that the call is of: a call's id ends with its place in it.

        The step's number would not do: a call that a person approved goes on in the next turn.
        """
        return self.call_id.rpartition("_")[0] or self.call_id


@dataclass
class _Relying:
    """What is known of a session; ``calls`` of it may have been carried out in this ``life`` of the server."""

    life: int
    calls: int = 0
    told: str | None = None
    answered_at: float | None = None


class Use:
    """One attempt to carry out a call, of a session that may rely on what earlier ones left."""

    def __init__(self, memory: "Reliance", caller: Caller) -> None:
        self._memory = memory
        self._caller = caller
        self._known: _Relying | None = None

    def begins(self) -> bool:
        """Note that the call is about to be sent; False if the session must be told first that the state is gone."""
        self._known = self._memory.note_call(self._caller)
        return self._known is not None

    def note_break(self, *, unsent: bool) -> None:
        """The connection broke; a call that was certainly not carried out left nothing to rely on."""
        if self._known is not None and unsent:
            self._known.calls -= 1

    def answered(self, *, in_time: bool) -> None:
        """Note whether the server answered."""
        if self._known is not None:
            self._known.answered_at = time.monotonic() if in_time else None


class Reliance:
    """The memory of one server. A server begins a new life when its state is lost."""

    def __init__(self) -> None:
        self._life = 0
        self._sessions: dict[str, _Relying] = {}

    def note_loss(self) -> None:
        """What the server held is gone."""
        self._life += 1

    @contextlib.contextmanager
    def use(self, caller: Caller) -> Iterator["Use"]:
        """One attempt to carry out a call; what came of it is noted at the end."""
        use = Use(self, caller)
        try:
            yield use
        except ConnectionLostError as error:
            use.note_break(unsent=error.unsent)
            raise
        except McpUnavailableError:
            use.note_break(unsent=True)
            raise
        except McpError as error:
            use.answered(in_time=error.code != ReasonCode.TOOL_TIMEOUT)
            raise
        else:
            use.answered(in_time=True)

    def note_call(self, caller: Caller) -> _Relying | None:
        """Note a call that is about to be sent; None if the session is to be told first.

        A session that has used a life which is over is told once, with all calls of that answer of its model.
        """
        known = self._sessions.pop(caller.session, None) or _Relying(self._life)
        if known.life != self._life:
            known = _Relying(self._life, told=caller.answer if known.calls else known.told)
        self._keep(caller.session, known)
        if known.told == caller.answer:
            return None
        known.calls += 1
        return known

    def is_in_use(self) -> bool:
        """Whether a session would lose something if the server ended now, and has no sign that it hangs."""
        since = time.monotonic() - IN_USE
        return any(
            known.life == self._life and known.answered_at is not None and known.answered_at > since
            for known in self._sessions.values()
        )

    def carry_over(self, session: str, before: str) -> None:
        """A session that goes on from another's conversation relies on what that one does."""
        known = self._sessions.get(before)
        if known is not None and known.calls and session not in self._sessions:
            self._keep(session, _Relying(known.life, known.calls))

    def _keep(self, session: str, known: _Relying) -> None:
        """Remember a session as the one that called last."""
        self._sessions[session] = known
        if len(self._sessions) > MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
