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
    WrongTurnError,
)
from perdure.client.requests import ResumeOptions, TaskOptions, TurnOptions
from perdure.client.tasks import Task
from perdure.client.tool_metrics import ToolMetrics
from perdure.client.turn import Turn

__all__ = [
    "Client",
    "ClientError",
    "NoWorkerError",
    "RequestRefusedError",
    "ResumeOptions",
    "ServerRefusedError",
    "ServerUnreachableError",
    "SessionBusyError",
    "SessionIdleError",
    "Task",
    "TaskOptions",
    "TemporalConfigError",
    "ToolMetrics",
    "Turn",
    "TurnClosedError",
    "TurnOptions",
    "UnknownSessionError",
    "WrongTurnError",
]
