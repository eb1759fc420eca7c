"""Standing approvals: approvals of a tool call that stand for further calls of the tool in its session."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, ConfigDict, Field

from perdure.contracts.values import PublicValue, Value, read_moment, replace

REQUEST_ID_PATTERN = r"^[\x21-\x7e]+$"
"""Pattern of the ids of input requests, and so of standing approvals."""

Reason = Annotated[str, Field(max_length=1_000)]
"""Reason of a denial, which the model reads, or of a standing approval."""

Until = Annotated[AwareDatetime, AfterValidator(read_moment)]
"""Time at which a standing approval ends, with a UTC offset; kept in UTC."""

AlwaysScope = Literal["tool", "arguments"]
"""Calls that a standing approval is for: all of the tool, or those with the approved call's arguments."""

DESCRIBED: dict[AlwaysScope, str] = {"tool": "all calls of the tool", "arguments": "calls with these arguments"}
"""Words for what a standing approval is for."""


class StandingTerms(PublicValue):
    """Terms on which an approval stands for further calls of its tool in its session.

    Attributes:
        scope: ``tool``: for every call. ``arguments``: for calls with the digest of the approved one.
        until: Time from which it stands no longer; None: until it is revoked.
        reason: Why it was given.
        arguments: For the scope ``arguments``: the masked arguments, as people saw them; the turn adds them.
    """

    scope: AlwaysScope
    until: Until | None = None
    reason: Reason = ""
    arguments: str = ""

    def of_call(self, arguments: str) -> "StandingTerms":
        """The same with the masked arguments of the approved call, if they matter."""
        return replace(self, arguments=arguments if self.scope == "arguments" else "")

    def cover(self, approved: str, digest: str, now: datetime) -> bool:
        """Whether a call of the same tool is covered now, by the digests of the approved call and of this one."""
        return (self.scope == "tool" or approved == digest) and (self.until is None or now < self.until)


class StandingApproval(StandingTerms):
    """An approval that stands for further calls of a tool in its session, until it is revoked or its time is over.

    Attributes:
        id: The id of the input request with which it was given.
        agent: The agent whose tool it is: another agent's tool of this name is another tool.
        digest: Digest of the approved call, masked values left out.
        by: The person who gave it, as the sender names them.
        revoked_at: Time at which it was revoked; None if it was not.
    """

    id: str
    session: str
    agent: str
    tool: str
    digest: str
    by: str
    given_at: datetime
    revoked_at: datetime | None = None
    revoked_by: str = ""


class RevokeRequest(Value):
    """Request to revoke a standing approval: its id, and who asks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    approval: str = Field(min_length=1, max_length=200, pattern=REQUEST_ID_PATTERN)
    by: str = Field(min_length=1, max_length=200)


def check_always(always: AlwaysScope | None, until: datetime | None, reason: str) -> None:
    """Refuse a date or a reason without the standing approval that they are for.

    Raises:
        ValueError: They are given without ``always``.
    """
    if always is None and (until is not None or reason):
        name = "until" if until is not None else "reason"
        msg = f"{name}: it is for an approval that stands; add always, which is 'tool' or 'arguments'"
        raise ValueError(msg)
