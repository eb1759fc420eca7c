"""The client: start, follow, steer and cancel turns from any service."""

from perdure.client.client import Client
from perdure.client.errors import (
    ClientError,
    NoWorkerError,
    RequestRefusedError,
    ServerRefusedError,
    ServerUnreachableError,
    SessionBusyError,
    SessionIdleError,
    TemporalConfigError,
    TurnClosedError,
    UnknownSessionError,
)
from perdure.client.requests import TurnOptions
from perdure.client.turn import Turn

__all__ = [
    "Client",
    "ClientError",
    "NoWorkerError",
    "RequestRefusedError",
    "ServerRefusedError",
    "ServerUnreachableError",
    "SessionBusyError",
    "SessionIdleError",
    "TemporalConfigError",
    "Turn",
    "TurnClosedError",
    "TurnOptions",
    "UnknownSessionError",
]
