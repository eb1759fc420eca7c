"""What a tool may know about its own call, and ask of the turn it runs in."""

from abc import ABC, abstractmethod


class ToolContext(ABC):
    """What a tool may know about its call: annotate a parameter with it, and the model never sees that parameter.

    Attributes:
        session: The session's id.
        turn: The number of the turn.
        call_id: The call's id, unique in the session.
        idempotency_key: The same on every attempt of this call; hand it to services that deduplicate.
    """

    session: str
    turn: int
    call_id: str
    idempotency_key: str

    @property
    @abstractmethod
    def cancelled(self) -> bool:
        """Whether the turn was cancelled or the call ran out of time; a blocking tool should look now and then."""

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """Block until cancelled, at most so long; True if cancelled. For sync tools, in place of ``time.sleep``."""
