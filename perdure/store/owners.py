"""Whose session a turn may open: its tenant's, and a delegate's only for the call that the delegate carries out.

Looked at in the transaction that claims the turn, whoever asks: no door can forget it.
"""

from sqlalchemy import bindparam, select

from perdure.contracts.ids import DELEGATED, delegate_session, refusal_of, refusal_of_request
from perdure.contracts.tools import Delegated
from perdure.contracts.turns import OpenTurn
from perdure.store import schema
from perdure.store.errors import ReservedIdError, ResumeRefusedError
from perdure.store.ids import is_signed
from perdure.store.session_lock import LockedSession

_T = schema.turns.c
_SEED = select(_T.seed).where(_T.session == bindparam("session"), _T.turn == bindparam("turn"))
_FIRST_REQUEST = select(_T.request_id).where(_T.session == bindparam("session"), _T.turn == 1)


def require_owner(locked: LockedSession, opening: OpenTurn) -> None:
    """Refuse a turn in a session that is not its tenant's, or a delegate's in one that is not its call's.

    Raises:
        ResumeRefusedError: It is somebody else's, or nobody may begin a session of that id.
    """
    request, delegated = opening.request, opening.request.delegated
    if locked.tenant != request.tenant:
        raise ResumeRefusedError(f"session {opening.session!r} is another tenant's; name another id, or none")
    if delegated is not None:
        _require_call(locked, opening, delegated)
        return
    refused = refusal_of_request(opening.request_id)
    if refused is None and locked.turn == 0 and not is_signed(locked.connection, request.tenant, opening.session):
        refused = refusal_of(opening.session)
    if refused is not None:
        raise ReservedIdError(refused)


def _require_call(locked: LockedSession, opening: OpenTurn, delegated: Delegated) -> None:
    """Refuse a delegate in a session that its call does not name, or that has a turn which the call did not begin."""
    call = (delegated.root, delegated.tool, delegated.session, delegated.call_id)
    seed = locked.connection.scalar(_SEED, {"session": delegated.session, "turn": delegated.turn})
    # A caller that a worker of an earlier release opened has no seed.
    named = opening.session in {delegate_session(*call, seed or ""), delegate_session(*call, "")}
    if named and locked.turn > 0:
        first = locked.connection.scalar(_FIRST_REQUEST, {"session": opening.session})
        named = first == opening.request_id == f"{DELEGATED}{delegated.call_id}"
        named = named and locked.caller in {None, delegated.session}
    if not named:
        msg = (
            f"session {opening.session!r} is not that of call {delegated.call_id} of session {delegated.session!r}: "
            "somebody else began it"
        )
        raise ResumeRefusedError(msg)
