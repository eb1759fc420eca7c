"""The client: start, follow, steer and cancel turns from any service."""

from perdure.client.blocks import BlockOutcome
from perdure.client.cancels import CancelOutcome
from perdure.client.client import Client
from perdure.client.connect import ConnectOptions
from perdure.client.erasures import Erased, NotErased
from perdure.client.errors import (
    BlockedError,
    ClientError,
    EventsGoneError,
    KeysMismatchError,
    NoWorkerError,
    RequestRefusedError,
    ReservedIdError,
    ScheduleExistsError,
    ServerRefusedError,
    ServerUnreachableError,
    SessionBusyError,
    SessionErasedError,
    SessionIdleError,
    StoreMismatchError,
    TemporalConfigError,
    TurnClosedError,
    UnknownAgentError,
    UnknownApprovalError,
    UnknownArtifactError,
    UnknownBlockError,
    UnknownScheduleError,
    UnknownSessionError,
    UnknownWebhookError,
    WrongTurnError,
)
from perdure.client.read import ToolMetrics
from perdure.client.replies import Replied
from perdure.client.requests import ReplyOptions
from perdure.client.resumes import ResumeOutcome
from perdure.client.tasks import Task
from perdure.client.turn import Turn
from perdure.client.views import SessionView, TurnView
from perdure.contracts.blocks import Block
from perdure.contracts.errors import KeyringError, PerdureError
from perdure.contracts.input_requests import AnswerRequest, ApproveRequest, DenyRequest, ResultRequest
from perdure.contracts.tool_choice import NamedTool
from perdure.contracts.turn_options import ResumeOptions, TaskOptions, TurnOptions
from perdure.contracts.waits import Cause, TurnWait
from perdure.settings import SettingsError
from perdure.store.errors import StoreError, StoreUnavailableError, StoreVersionError

__all__ = [
    "AnswerRequest",
    "ApproveRequest",
    "Block",
    "BlockOutcome",
    "BlockedError",
    "CancelOutcome",
    "Cause",
    "Client",
    "ClientError",
    "ConnectOptions",
    "DenyRequest",
    "Erased",
    "EventsGoneError",
    "KeyringError",
    "KeysMismatchError",
    "NamedTool",
    "NoWorkerError",
    "NotErased",
    "PerdureError",
    "Replied",
    "ReplyOptions",
    "RequestRefusedError",
    "ReservedIdError",
    "ResultRequest",
    "ResumeOptions",
    "ResumeOutcome",
    "ScheduleExistsError",
    "ServerRefusedError",
    "ServerUnreachableError",
    "SessionBusyError",
    "SessionErasedError",
    "SessionIdleError",
    "SessionView",
    "SettingsError",
    "StoreError",
    "StoreMismatchError",
    "StoreUnavailableError",
    "StoreVersionError",
    "Task",
    "TaskOptions",
    "TemporalConfigError",
    "ToolMetrics",
    "Turn",
    "TurnClosedError",
    "TurnOptions",
    "TurnView",
    "TurnWait",
    "UnknownAgentError",
    "UnknownApprovalError",
    "UnknownArtifactError",
    "UnknownBlockError",
    "UnknownScheduleError",
    "UnknownSessionError",
    "UnknownWebhookError",
    "WrongTurnError",
]
