"""Messages for a session: what is sent, what becomes of it while a turn runs, and what comes back."""

import operator
from typing import Annotated, Literal, TypeVar, cast

from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from perdure.contracts.files import Parts, parts_field, refuse_files
from perdure.contracts.traces import Traceparent
from perdure.contracts.turn_context import ContextData
from perdure.contracts.values import Label, PublicValue, Value

T = TypeVar("T")

MAX_PROMPT_BYTES = 128 * 1024
"""Longest prompt of a request, in UTF-8; it travels in Temporal payloads."""

MAX_WAITING_MESSAGES = 100
"""Messages that may wait at a running turn; they are carried in the workflow's state."""


def check_length(prompt: str) -> str:
    """Check the length of a prompt.

    Raises:
        ValueError: It is too long.
    """
    size = len(prompt.encode())
    if size > MAX_PROMPT_BYTES:
        msg = f"is {size:,} bytes, the limit is {MAX_PROMPT_BYTES:,}; let the agent read large input with a tool"
        raise ValueError(msg)
    return prompt


Prompt = Annotated[str, Field(min_length=1), AfterValidator(check_length)]
"""Text that a person or a service sends to an agent: not empty, at most 128 KiB."""


WhenBusy = Literal["reject", "queue", "steer", "interrupt", "rollback"]
"""Fate of a message for a session whose turn runs. On an idle session each of them starts the next turn.

``reject`` refuses the message. ``queue`` lets the message wait for its turn, behind those that wait already. ``steer``
puts the message into the running turn, before its next generation. ``interrupt`` cancels the running turn and those
that wait: the message is the next turn. ``rollback`` does the same, and the message takes the place of the running
turn's: its turn begins where the running one began.
"""


class SendRequest(Value):
    """The input of the update ``send``: a message for a session that may be busy.

    Attributes:
        request_id: The same id is the same message: sending it twice is harmless.
        when_busy: What becomes of the message while a turn runs. ``"steer": true`` is a short form of ``steer``.
        parts: The images and files that come with it; perdure's client has put them into the store.
        context: Context of the next turn, in place of the session's.
        by: The sender.
        traceparent: The sender's W3C trace context, for the spans of the turn that the message begins.
        stop_for_results: Whether the turn that the message begins ends, in place of waiting, once it needs nothing but
            results of its caller's tools.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: Prompt
    request_id: Label = ""
    when_busy: WhenBusy = "queue"
    parts: Parts = parts_field()
    context: ContextData | None = None
    by: Label = ""
    traceparent: Traceparent = ""
    stop_for_results: bool = Field(default=False, exclude_if=operator.not_)

    @model_validator(mode="before")
    @classmethod
    def _read_short_form(cls, fields: object) -> object:
        if not isinstance(fields, dict) or "steer" not in fields:
            return fields  # pyright: ignore[reportUnknownVariableType] - whatever came
        rest = dict(cast("dict[str, object]", fields))
        steer = rest.pop("steer")
        if not isinstance(steer, bool):
            kind, message = "steer", 'steer: is true or false; or name one of when_busy, as in "when_busy": "steer"'
            raise PydanticCustomError(kind, message)
        if steer and rest.setdefault("when_busy", "steer") != "steer":
            kind, message = "steer", "steer, when_busy: say different things; leave steer out"
            raise PydanticCustomError(kind, message)
        return rest

    @model_validator(mode="before")
    @classmethod
    def _without_files(cls, fields: T) -> T:
        refuse_files(fields, "use 'perdure send SESSION PROMPT --attach FILE', or start the next turn with them")
        return fields

    @field_validator("context")
    @classmethod
    def _not_into_a_running_turn(cls, context: T, others: ValidationInfo) -> T:
        if context is not None and others.data.get("when_busy") == "steer":
            kind, message = "steered", "is frozen in the running turn; send it without steer, for the next turn"
            raise PydanticCustomError(kind, message)
        return context


class QueuedMessage(SendRequest):
    """A message that waits for its turn.

    Attributes:
        cancelled: Reason with which the message's turn ends as soon as it is open; None for a turn that is carried out.
        replaces: The turn that was rolled back for the message, which begins where that turn began.
    """

    cancelled: str | None = None
    replaces: int | None = None


class SendReceipt(PublicValue):
    """The result of the update ``send``: the turn that takes the message."""

    turn: int
