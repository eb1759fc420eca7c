"""Standing approvals as the client sees them: those of a session, and how one is revoked."""

from datetime import datetime
from typing import TypedDict

from perdure.client.errors import UnknownApprovalError
from perdure.client.requests import validate
from perdure.client.sessions import Sessions
from perdure.client.texts import refuses_odd_texts
from perdure.contracts.standing_approvals import AlwaysScope, RevokeRequest, StandingApproval
from perdure.store.errors import NotFoundError


class ApproveMore(TypedDict, total=False):
    """Options of an approval: the request's ``digest``, and the further calls of the session that it stands for.

    ``always`` is ``tool`` for every call of the tool, or ``arguments`` for those with the same arguments, masked ones
    left out; ``until`` is when that ends, with a UTC offset; ``reason`` is kept with it.
    """

    digest: str
    always: AlwaysScope | None
    until: datetime | None
    reason: str


@refuses_odd_texts
class StandingApprovals:
    """Standing approvals of sessions; made by :attr:`Client.approvals`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def list(self, session: str, *, ended: bool = False) -> tuple[StandingApproval, ...]:
        """The standing approvals in force, the oldest first; with ``ended`` revoked ones and those over, too.

        Raises:
            UnknownSessionError: The store has no session of that id.
        """
        await self._sessions.check_known(session)
        store = await self._sessions.store()
        return await store.standing_approvals(session, ended=ended)

    async def revoke(self, session: str, approval: str, *, by: str) -> StandingApproval:
        """Revoke a standing approval: from the model's next answer on, such calls ask again.

        One that was revoked before stays as it is, with who revoked it first.

        Raises:
            UnknownApprovalError: The session has none of that id.
            UnknownSessionError: The store has no session of that id.
        """
        asked = validate(RevokeRequest, {"approval": approval, "by": by})
        await self._sessions.check_known(session)
        store = await self._sessions.store()
        try:
            return await store.revoke_standing(session, asked.approval, by=asked.by)
        except NotFoundError as error:
            raise UnknownApprovalError(f"{error}; 'perdure approvals {session}' lists them") from None
