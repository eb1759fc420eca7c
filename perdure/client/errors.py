"""Errors that the client raises: each message is one line that names the cause and the next thing to try."""

from perdure.contracts.errors import PerdureError


class ClientError(PerdureError):
    """Base of what the client itself raises. Errors of the store and of settings come with it, as ``PerdureError``."""


class ServerUnreachableError(ClientError):
    """The Temporal server cannot be reached."""


class TemporalConfigError(ClientError):
    """Temporal's own configuration, ``TEMPORAL_*`` or a profile, cannot be used."""


class ServerRefusedError(ClientError):
    """The Temporal server answered with an error: no permission, an unknown namespace, a limit."""


class NoWorkerError(ClientError):
    """No worker polls the task queue, so nothing would run."""


class SessionBusyError(ClientError):
    """The session's turn still runs; send to it, or cancel it first."""


class SessionIdleError(ClientError):
    """No turn of the session runs right now."""


class UnknownSessionError(ClientError):
    """There is no session of that id, or no turn of that number in the session."""


class SessionErasedError(UnknownSessionError):
    """The session was erased, and its id is never used again; the message names the tombstone."""


class EventsGoneError(ClientError):
    """Events were deleted by the retention of the session's agent; the message says which, and where to go on.

    Attributes:
        last: The number of the last event that was deleted: events after it can be followed.
    """

    def __init__(self, message: str, last: int = 0) -> None:
        super().__init__(message)
        self.last = last


class UnknownAgentError(ClientError):
    """No worker has registered an agent of that name in the client's store; the message lists the registered agents."""


class StoreMismatchError(ClientError):
    """The client uses another transcript store than all workers of its task queue; the message names both."""


class KeysMismatchError(ClientError):
    """This process and a worker cannot read what the other encrypts; the message names the key."""


class UnknownArtifactError(ClientError):
    """The session has no artifact of that handle."""


class UnknownWebhookError(ClientError):
    """There is no webhook of that id, or it is another tenant's."""


class UnknownScheduleError(ClientError):
    """There is no schedule of that id for the tenant."""


class UnknownBlockError(ClientError):
    """There is no block of that id, or it is not the tenant's."""


class UnknownApprovalError(ClientError):
    """The session has no standing approval of that id."""


class TurnClosedError(ClientError):
    """The turn's workflow was terminated, timed out or failed before it could end the turn."""


class RequestRefusedError(ClientError):
    """The request cannot be sent as it is, for example because the prompt is over the limit."""


class ReservedIdError(RequestRefusedError):
    """The id has a form that only perdure writes, and there is no such session; choose another id, or name none."""


class BlockedError(RequestRefusedError):
    """An operator has blocked new turns of this agent, tenant or model; the message says why, and what lifts it."""


class WrongTurnError(RequestRefusedError):
    """The request names a turn that is neither running nor queued; the message says which are."""


class ScheduleExistsError(RequestRefusedError):
    """The tenant has a schedule of that id; update it, or choose another id."""
