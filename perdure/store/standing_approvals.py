"""Standing approvals: kept with the event of the decision that gave them, and looked for where an answer is stored.

Both transactions hold the session's lock, and so does the one that revokes: what is revoked lets no later answer's call
through.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection, Row, bindparam, select, update

from perdure.contracts.events import UserInputReceived
from perdure.contracts.input_requests import InputReceipt
from perdure.contracts.standing_approvals import StandingApproval
from perdure.contracts.tools import PlannedCall
from perdure.contracts.values import replace
from perdure.store import schema
from perdure.store.errors import NotFoundError
from perdure.store.keys.sealing import Content
from perdure.store.keys.tombstones import missing_session
from perdure.store.records import StepRecord

_A = schema.standing_approvals
_OF_SESSION = select(_A).where(_A.c.session == bindparam("session")).order_by(_A.c.given_at, _A.c.id)
_IN_FORCE = _OF_SESSION.where(_A.c.revoked_at.is_(None), _A.c.until.is_(None) | (_A.c.until > bindparam("now")))
_FOR_TOOLS = _IN_FORCE.where(_A.c.agent == bindparam("agent"), _A.c.tool.in_(bindparam("tools", expanding=True)))
_FIELDS = {*StandingApproval.model_fields} - {"digest", "arguments"}
_LOCK = select(schema.sessions.c.session).where(schema.sessions.c.session == bindparam("session")).with_for_update()


def standing_row(session: str, agent: str, said: UserInputReceived) -> dict[str, object] | None:
    """The row of the standing approval that a decision about a call of an agent gives, if it gives one."""
    if said.always is None:
        return None
    always = said.always
    return {
        "session": session,
        "id": said.request_id,
        "agent": agent,
        "tool": said.tool,
        "scope": always.scope,
        "until": always.until,
        "call": Content(session, json.dumps([said.digest, always.arguments])),
        "reason": Content(session, always.reason),
        "by": said.by,
        "given_at": said.at,
        "revoked_by": "",
    }


def let_through(connection: Connection, step: StepRecord, agent: str, now: datetime) -> StepRecord:
    """The step of a new answer of an agent, whose calls need no person if a standing approval in force covers them."""
    tools = {call.tool for call in step.calls if _needs_approval(call)}
    if not tools:
        return step
    found = connection.execute(
        _FOR_TOOLS, {"session": step.session, "agent": agent, "now": now, "tools": sorted(tools)}
    )
    standing = [_approval(row) for row in found]
    return replace(step, calls=tuple(_let_through(call, standing, now) for call in step.calls)) if standing else step


def _needs_approval(call: PlannedCall) -> bool:
    return call.needs == "approval" and call.rejected is None


def _let_through(call: PlannedCall, standing: Sequence[StandingApproval], now: datetime) -> PlannedCall:
    fitting = (each for each in standing if each.tool == call.tool and each.cover(each.digest, call.digest, now))
    given = next(fitting, None) if _needs_approval(call) else None
    if given is None:
        return call
    receipt = InputReceipt(
        request_id=call.call_id,
        decision="approved",
        by=given.by,
        at=given.given_at,
        digest=call.digest,
        standing=given.id,
    )
    return replace(call, needs=None, approval=receipt)


def standing_approvals(connection: Connection, session: str, *, ended: bool = False) -> tuple[StandingApproval, ...]:
    """The standing approvals of a session in force, the oldest first; with ``ended`` also those that are no longer."""
    statement = _OF_SESSION if ended else _IN_FORCE
    return tuple(map(_approval, connection.execute(statement, {"session": session, "now": datetime.now(UTC)})))


def revoke_standing(connection: Connection, session: str, approval: str, *, by: str) -> StandingApproval:
    """Revoke a standing approval from the next answer on; one that was revoked before stays as it is.

    Raises:
        NotFoundError: There is no such session, or no such standing approval.
        SessionErasedError: The session was erased.
    """
    if connection.execute(_LOCK, {"session": session}).one_or_none() is None:
        raise missing_session(connection, session)
    this = (_A.c.session == session, _A.c.id == approval)
    revoked = update(_A).where(*this, _A.c.revoked_at.is_(None))
    connection.execute(revoked.values(revoked_at=datetime.now(UTC), revoked_by=by))
    row = connection.execute(select(_A).where(*this)).one_or_none()
    if row is None:
        msg = f"session {session!r} has no standing approval {approval!r}"
        raise NotFoundError(msg)
    return _approval(row)


def _approval(row: Row[*tuple[object, ...]]) -> StandingApproval:
    digest, arguments = json.loads(row.call)
    about = {name: getattr(row, name) for name in _FIELDS}
    return StandingApproval.model_validate({**about, "digest": digest, "arguments": arguments})
