"""What a tool may know about its own call, and ask of the turn it runs in."""

from abc import ABC, abstractmethod

from perdure.agents.errors import InvalidInputError
from perdure.agents.files import File
from perdure.contracts.values import JsonValue


class ToolContext(ABC):
    """What a tool may know about its call: annotate a parameter with it, and the model never sees that parameter.

    Its methods may be called from sync and from async bodies, and from threads of their own.

    Attributes:
        session: The session's id.
        turn: The number of the turn.
        call_id: The call's id, unique in the session.
        idempotency_key: The same on every attempt of this call; hand it to services that deduplicate.
        data: What the turn's starter gave as ``context``, with what ``${PERDURE_CONTEXT_…}`` stands for; a copy.
        tenant: On whose behalf the turn runs; empty if the starter did not say.
        by: Who started the turn, as the starter says; perdure does not check it.
    """

    session: str
    turn: int
    call_id: str
    idempotency_key: str
    data: dict[str, JsonValue] = {}
    tenant: str = ""
    by: str = ""

    @property
    @abstractmethod
    def cancelled(self) -> bool:
        """Whether the turn was cancelled or the call ran out of time; a blocking tool should look now and then."""

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """Block until cancelled, at most so long; True if cancelled. For sync tools, in place of ``time.sleep``."""

    def report_progress(self, progress: float, total: float | None = None, message: str = "") -> None:  # noqa: B027 - a context of one's own needs none
        """Say how far the call is, as often as you like: it takes no time, and never fails.

        People see it in the Temporal UI and in the event log, at most once a second; the last report always.
        """

    def stop_turn(self, reason: str) -> None:  # noqa: B027 - the same
        """Ask that the turn ends, as finished, once all calls of this answer have their results.

        The model is not asked again; what the body returns is kept as its result. A call that fails asks for nothing.
        """

    def read_artifact(self, handle: str) -> File:
        """An output, an image or a file of this session by its handle. An async tool calls it with ``to_thread``.

        Raises:
            InvalidInputError: This session has no such artifact; the model is told so unless you catch it.
        """
        msg = f"there is no artifact {handle!r} here"
        raise InvalidInputError(msg)
