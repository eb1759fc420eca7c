"""Recordings: what a worker wrote down of one agent's calls, to be replayed without their outside world."""

import operator
from datetime import datetime

from pydantic import Field

from perdure.contracts.errors import ErrorDetail
from perdure.contracts.tools import ToolOutcome
from perdure.contracts.values import JsonValue, Value

RECORDING_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
"""A recording is a folder of that name, so nothing that leads elsewhere may stand in it."""

RECORDING_FORMAT = 1
"""Raised when fixtures of an earlier release cannot be read, or are named in another way."""


class RecordingInfo(Value):
    """Header of a recording, the file ``recording.json``."""

    format: int
    agent: str
    created_at: datetime


class RecordedArtifact(Value):
    """An image or a file of a recorded call, as the store has it."""

    media_type: str
    text: str
    name: str = Field(default="", exclude_if=operator.not_)


class ToolFixture(Value):
    """A recorded tool call.

    Attributes:
        request: The tool and its arguments, as they were hashed.
        content: What the model read.
        error: What went wrong, if anything did.
        ended_turn: Whether the call's failure ended the turn.
        artifact: The whole output, if the model read only its head and tail.
        seconds: How long it took; None if the worker was lost meanwhile.
        attachments: The images and files that the call gave.
        stop: Why the tool asked the turn to end, if it did.
    """

    request: dict[str, JsonValue]
    content: str
    error: ErrorDetail | None = None
    ended_turn: bool = False
    artifact: str | None = None
    recorded_at: datetime
    seconds: float | None = None
    attachments: tuple[RecordedArtifact, ...] = ()
    stop: str | None = None


class RecordedDecisions(Value):
    """The result of the activity ``ask`` in a replay: the recorded decision about each request.

    Attributes:
        outcomes: Of a call that was approved, only who did; it still runs.
    """

    outcomes: tuple[ToolOutcome, ...]
