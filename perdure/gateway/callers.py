"""Callers of the gateway, and the scopes of their tokens."""

from dataclasses import dataclass, field
from enum import StrEnum

from perdure.gateway.problems import ProblemCode, ProblemError


class Scope(StrEnum):
    """Scope of a token."""

    READ = "read"
    """Lists, results, transcripts, events."""
    RUN = "run"
    """Start, send, resume, fork, compact, extend, cancel."""
    APPROVE = "approve"
    """Answer, approve, deny."""
    ADMIN = "admin"
    """All of it, and what erases or concerns many sessions at once; not ``decrypt``."""
    TUNE = "tune"
    """Set parameters of an agent's model for a turn, such as its temperature."""
    DECRYPT = "decrypt"
    """Decrypt payloads of Temporal's, of whichever tenant."""


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who asks.

    Attributes:
        name: The token's name; what ``by`` of a turn or an approval is.
        tenant: Whose sessions the caller sees, and whose are those that it begins; empty is the default tenant.
        scopes: What the token allows.
        sees_all: Whether the caller sees the sessions of every tenant.
        token_hash: The token's hash; empty where no tokens are configured.
    """

    name: str
    tenant: str = ""
    scopes: frozenset[Scope] = frozenset()
    sees_all: bool = False
    token_hash: str = field(default="", repr=False)

    def may(self, scope: Scope) -> bool:
        """Whether the token has the scope; ``admin`` has all but ``decrypt``, which looks into every tenant."""
        return scope in self.scopes or (Scope.ADMIN in self.scopes and scope is not Scope.DECRYPT)

    def choose(self, tenant: str | None) -> str | None:
        """Whose sessions a list has, if the request names this tenant, or none; None is everybody's.

        Raises:
            ProblemError: It names another tenant than the token's.
        """
        if self.sees_all:
            return tenant
        if tenant not in {None, self.tenant}:
            msg = f"the token {self.name!r} sees the sessions of its own tenant only; leave tenant out"
            raise ProblemError(403, ProblemCode.FORBIDDEN, msg)
        return self.tenant


ANYBODY = Caller(name="local", scopes=frozenset(Scope), sees_all=True)
"""Who asks where no tokens are configured: the admin of all tenants, on this machine; what it begins has none."""
