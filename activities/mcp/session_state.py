"""Records which sessions rely on the state of a stateful server, and which were told that it is lost."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from perdure.activities.mcp.failures import ConnectionLostError, McpError, McpUnavailableError
from perdure.contracts.errors import ReasonCode

MOST_SESSIONS = 10_000
"""Sessions remembered for a server, the latest callers: a few megabytes."""

IN_USE = 3600.0
"""Seconds after an answer to a session during which another session's timeout may not end the server.

In between models think and people reply. After that a hung server is dropped.
"""


@dataclass(frozen=True)
class Caller:
    """The session that calls, and the id of the call."""

    session: str
    call_id: str

    @property
    def answer(self) -> str:
        """Identifies the model's answer that made the call: the call's id without its place in the answer.

        The step's number would not do: an approved call may run in the next turn.
        """
        return self.call_id.rpartition("_")[0] or self.call_id


@dataclass
class _Relying:
    """What is known of a session.

    Attributes:
        life: The life of the server that the session uses.
        calls: Calls of the session that may have been carried out in that life.
        told: The model's answer whose calls are told that the state is lost.
        answered_at: When the server last answered in time, by the monotonic clock.
    """

    life: int
    calls: int = 0
    told: str | None = None
    answered_at: float | None = None


class Use:
    """One attempt to carry out a call of a session."""

    def __init__(self, memory: "Reliance", caller: Caller) -> None:
        self._memory = memory
        self._caller = caller
        self._known: _Relying | None = None

    def begin(self) -> bool:
        """Note that the call is about to be sent; False if the session must first be told that the state is lost."""
        self._known = self._memory.note_call(self._caller)
        return self._known is not None

    def note_break(self, *, unsent: bool) -> None:
        """Note that the connection broke. If the call was certainly not carried out, it left no state."""
        if self._known is not None and unsent:
            self._known.calls -= 1

    def note_answer(self, *, in_time: bool) -> None:
        """Note whether the server answered in time."""
        if self._known is not None:
            self._known.answered_at = time.monotonic() if in_time else None


class Reliance:
    """The sessions that rely on one server's state. When the state is lost, the server begins a new *life*."""

    def __init__(self) -> None:
        self._life = 0
        self._sessions: dict[str, _Relying] = {}

    def note_loss(self) -> None:
        """Note that the server's state is lost."""
        self._life += 1

    @contextlib.contextmanager
    def use(self, caller: Caller) -> Iterator["Use"]:
        """One attempt to carry out a call in this block; its result or failure is noted at the end."""
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
            use.note_answer(in_time=error.code != ReasonCode.TOOL_TIMEOUT)
            raise
        else:
            use.note_answer(in_time=True)

    def note_call(self, caller: Caller) -> _Relying | None:
        """Note a call that is about to be sent; None if the session must first be told that the state is lost.

        A session that used a former life is told once: by all calls of the model's answer that comes first.
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
        """Whether a session got an answer of this life in time, and not too long ago, so that it may rely on it."""
        since = time.monotonic() - IN_USE
        return any(
            known.life == self._life and known.answered_at is not None and known.answered_at > since
            for known in self._sessions.values()
        )

    def carry_over(self, session: str, before: str) -> None:
        """Let a session that goes on from the conversation of ``before`` rely on the same state."""
        known = self._sessions.get(before)
        if known is not None and known.calls and session not in self._sessions:
            self._keep(session, _Relying(known.life, known.calls))

    def _keep(self, session: str, known: _Relying) -> None:
        """Remember a session as the one that called last."""
        self._sessions[session] = known
        if len(self._sessions) > MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
