"""What the client raises: each message is one line that names the cause and the next thing to try."""

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
    """There is no session, or no turn of the session, of that id."""


class UnknownAgentError(ClientError):
    """No worker has registered an agent of that name in the client's store; the message names those there are."""


class StoreMismatchError(ClientError):
    """The client uses another transcript store than all workers of its task queue; the message names both."""


class UnknownArtifactError(ClientError):
    """The session has no artifact of that handle."""


class UnknownWebhookError(ClientError):
    """There is no webhook of that id, or it is another tenant's."""


class UnknownScheduleError(ClientError):
    """There is no schedule of that id for the tenant."""


class TurnClosedError(ClientError):
    """The turn's workflow was terminated, timed out or failed before it could end the turn."""


class RequestRefusedError(ClientError):
    """The request cannot be sent as it is, for example because the prompt is over the limit."""


class WrongTurnError(RequestRefusedError):
    """The request names a turn that neither runs nor waits; the message says which do."""


class ScheduleExistsError(RequestRefusedError):
    """The tenant has a schedule of that id; update it, or choose another id."""
