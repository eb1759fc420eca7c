"""Tasks of A2A: which turn a task is, the state that its end has, and what a push notification says of it.

The gateway's door shows tasks, and workers notify of them: both know them from here.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Self

from perdure.contracts.events import AgentEnd, Envelope
from perdure.contracts.ids import SESSION_ID_PATTERN
from perdure.contracts.turns import StopReason
from perdure.contracts.values import JsonValue

MEDIA_TYPE = "application/a2a+json"

_PLACE = re.compile(rf"([1-9]\d{{0,6}})\.({SESSION_ID_PATTERN[1:-1]})")


@dataclass(frozen=True)
class TaskId:
    """A task: a turn of a session, which is the task's context.

    Attributes:
        turn: Number of the turn in its session.
    """

    session: str
    turn: int

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(f"{self.turn}.{self.session}".encode()).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The task that an id names; None if this door writes no such id."""
        try:
            found = _PLACE.fullmatch(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode())
        except (binascii.Error, ValueError):
            return None
        place = None if found is None else cls(found[2], int(found[1]))
        return place if str(place) == text else None


class TaskState(StrEnum):
    """States of a task."""

    SUBMITTED = "TASK_STATE_SUBMITTED"
    WORKING = "TASK_STATE_WORKING"
    COMPLETED = "TASK_STATE_COMPLETED"
    FAILED = "TASK_STATE_FAILED"
    CANCELED = "TASK_STATE_CANCELED"
    INPUT_REQUIRED = "TASK_STATE_INPUT_REQUIRED"
    REJECTED = "TASK_STATE_REJECTED"
    AUTH_REQUIRED = "TASK_STATE_AUTH_REQUIRED"

    @property
    def is_terminal(self) -> bool:
        """Whether the task has ended for good."""
        return self in _TERMINAL


_TERMINAL = frozenset({TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED, TaskState.REJECTED})

STATES: Mapping[StopReason, TaskState] = {
    StopReason.FINISHED: TaskState.COMPLETED,
    StopReason.WAITING_FOR_INPUT: TaskState.INPUT_REQUIRED,
    StopReason.MAX_STEPS_REACHED: TaskState.FAILED,
    StopReason.BUDGET_EXHAUSTED: TaskState.FAILED,
    StopReason.CANCELLED: TaskState.CANCELED,
    StopReason.ERROR: TaskState.FAILED,
    StopReason.STALLED: TaskState.FAILED,
}
"""State of a task whose turn ended so."""

RESUMABLE = frozenset({StopReason.MAX_STEPS_REACHED, StopReason.BUDGET_EXHAUSTED})
"""Ends after which another message goes on with the work."""


def write_time(at: datetime) -> str:
    """A moment as ProtoJSON has it: in UTC, with milliseconds."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def describe_push(event: Envelope) -> dict[str, JsonValue]:
    """The update of a task's status by the event that it ended or began to wait with; no content of the conversation.

    The state is that of the task's status in a stream, without its message: ``GetTask`` gives the rest.
    """
    state, metadata = TaskState.INPUT_REQUIRED, dict[str, JsonValue]({"seq": event.seq})
    if isinstance(event.event, AgentEnd):
        reason = event.event.stop_reason
        state = STATES.get(reason, TaskState.FAILED)
        metadata |= {"stopReason": reason.value, **({"resumable": True} if reason in RESUMABLE else {})}
        if event.event.reason_code:
            metadata["reasonCode"] = event.event.reason_code
    status: dict[str, JsonValue] = {"state": state.value, "timestamp": write_time(event.at)}
    task = str(TaskId(event.session, event.turn))
    return {"statusUpdate": {"taskId": task, "contextId": event.session, "status": status, "metadata": metadata}}
