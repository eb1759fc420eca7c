"""Recordings: what a worker wrote down of one agent's calls, to be replayed without their outside world."""

from datetime import datetime

from perdure.contracts.errors import ErrorDetail
from perdure.contracts.values import JsonValue, Value

RECORDING_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
"""A recording is a folder of that name, so nothing that leads elsewhere may stand in it."""

RECORDING_FORMAT = 1
"""Raised when fixtures of an earlier release cannot be read, or are named in another way."""


class RecordingInfo(Value):
    """What a recording says of itself, in ``recording.json``."""

    format: int
    agent: str
    created_at: datetime


class ToolFixture(Value):
    """A recorded tool call.

    Attributes:
        request: The tool and its arguments, as they were hashed.
        content: What the model read.
        error: What went wrong, if anything did.
        ended_turn: Whether the call's failure ended the turn.
        artifact: The whole output, if the model read only its head and tail.
        seconds: How long it took; None if the worker was lost meanwhile.
    """

    request: dict[str, JsonValue]
    content: str
    error: ErrorDetail | None = None
    ended_turn: bool = False
    artifact: str | None = None
    recorded_at: datetime
    seconds: float | None = None
