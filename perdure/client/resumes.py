"""The resume of many sessions at once, by how their last turns ended."""

import asyncio
from datetime import datetime
from typing import Literal, NamedTuple, TypedDict

from perdure.client.errors import ClientError, RequestRefusedError, SessionBusyError
from perdure.client.read import Ask, Listed, ask_of, list_sessions
from perdure.client.requests import Admit, admit_all, turn_request
from perdure.client.sessions import Sessions
from perdure.contracts.checkpoints import ResumeFrom
from perdure.contracts.turns import RunState, StopReason
from perdure.contracts.values import Value
from perdure.store import SessionRecord, Store
from perdure.store.errors import NotFoundError
from perdure.store.records import SessionFilter

MOST = 5_000
"""Sessions that one call resumes."""

PER_SECOND = 10.0
"""Turns that begin in a second, so that a provider which has just come back is not overrun."""


class EndedFilter(TypedDict, total=False):
    """Filter of sessions whose last turn has ended; ``since`` leaves out turns that began earlier.

    Without ``reason_code`` the sessions are those whose last turn ended by an error. Delegates are left out: their
    callers' sessions are resumed.
    """

    reason_code: str | None
    agent: str | None
    tenant: str | None
    since: datetime | None


class ResumeOutcome(Value):
    """Outcome of the resume of one session.

    Attributes:
        turn: The number of the turn that goes on.
        outcome: ``would_resume`` of a dry run; ``resumed``: that turn is started; ``moved_on``: the session has gone on
            by itself since it was listed; ``failed``: it cannot be resumed, and ``error`` says why.
    """

    session: str
    turn: int
    agent: str
    outcome: Literal["would_resume", "resumed", "moved_on", "failed"]
    error: str = ""


class Pace(NamedTuple):
    """Number of turns that begin in a second, and in one call."""

    per_second: float
    limit: int


async def _list_ended(store: Store, ask: Ask, wanted: EndedFilter) -> list[Listed]:
    """The sessions that a filter means, the last turn that began first at the head."""
    code = wanted.get("reason_code")
    fields: SessionFilter = {
        "tenant": wanted.get("tenant"),
        "agent": wanted.get("agent"),
        "since": wanted.get("since"),
        "reason_code": code,
        "stop_reason": StopReason.ERROR if code is None else None,
        "state": RunState.ENDED,
        "delegates": False,
    }
    return (await list_sessions(store, ask, limit=MOST, **fields))[::-1]


async def resume_ended(
    sessions: Sessions, wanted: EndedFilter, pace: Pace, *, dry_run: bool, by: str, admit: Admit | None = None
) -> list[ResumeOutcome]:
    """Resume the sessions that a filter means one after another, at the pace.

    Raises:
        RequestRefusedError: At the pace nothing would begin.
    """
    if not pace.per_second > 0 or pace.limit < 1:
        raise RequestRefusedError("per_second: must be more than 0, and limit at least 1; correct them")
    clock, store = asyncio.get_running_loop(), await sessions.store()
    outcomes: list[ResumeOutcome] = []
    due, left = clock.time(), pace.limit
    for session, _ in await _list_ended(store, ask_of(sessions.temporal), wanted):
        if not left:
            break
        outcome, error = await _look(store, session)
        if outcome == "would_resume":
            left -= 1
            if not dry_run:
                await asyncio.sleep(due - clock.time())
                due = max(due, clock.time()) + 1 / pace.per_second
                outcome, error = await _resume(sessions, session, by, admit or admit_all)
        outcomes.append(
            ResumeOutcome(
                session=session.session, turn=session.turn + 1, agent=session.agent, outcome=outcome, error=error
            )
        )
    return outcomes


_What = tuple[Literal["would_resume", "resumed", "moved_on", "failed"], str]


async def _look(store: Store, listed: SessionRecord) -> _What:
    """Find what would refuse the session's next turn, as far as the store knows."""
    try:
        now = await store.session(listed.session)
    except NotFoundError as error:
        return "failed", str(error)
    if now.turn != listed.turn:
        return "moved_on", ""
    block = await store.find_block(listed.tenant, listed.session)
    return ("would_resume", "") if block is None else ("failed", block.describe())


async def _resume(sessions: Sessions, listed: SessionRecord, by: str, admit: Admit) -> _What:
    """Go on from the end of the listed turn, and from no other; whoever asks again gets the same turn."""
    request = turn_request(
        listed.session,
        {
            "resume_from": ResumeFrom(turn=listed.turn),
            "turn": listed.turn + 1,
            "request_id": f"resume-after-{listed.turn}",
            "by": by,
        },
    )
    try:
        async with admit(listed):
            await sessions.start(listed.session, request)
    except SessionBusyError:
        return "moved_on", ""
    except ClientError as error:
        return "failed", str(error)
    return "resumed", ""
