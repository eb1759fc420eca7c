"""What a call writes into its caller's log, each event once by its key: whoever carries it out, tool or delegate."""

from collections.abc import Sequence
from typing import Protocol

from perdure.activities.outputs import output_id
from perdure.contracts.events import RESULT_CHARACTERS, Event, NewEvent, ToolEnd, ToolStep, UserInputReceived
from perdure.contracts.input_requests import InputReceipt
from perdure.contracts.messages import ToolMessage
from perdure.store import Artifact


class Call(Protocol):
    """Which call it is, and who allowed it if that was needed."""

    @property
    def session(self) -> str: ...  # noqa: D102 - the same as everywhere
    @property
    def turn(self) -> int: ...  # noqa: D102
    @property
    def step(self) -> int: ...  # noqa: D102
    @property
    def call_id(self) -> str: ...  # noqa: D102
    @property
    def approval(self) -> InputReceipt | None: ...  # noqa: D102


def call_event(call: Call, event: Event, *, key: str | None = None) -> NewEvent:
    """An event of the call; it needs a key if there may be several of its type."""
    key = call_key(call.turn, call.call_id, key or event.type)
    return NewEvent(key=key, turn=call.turn, step=call.step, event=event)


def call_key(turn: int, call_id: str, key: str) -> str:
    """What the log knows an event of a call by."""
    return f"{turn}/{call_id}/{key}"


def approved(call: Call, tool: str) -> list[NewEvent]:
    """Somebody allowed the call, if that was needed."""
    if call.approval is None:
        return []
    return [call_event(call, UserInputReceived(tool=tool, **dict(call.approval)))]


def ended(
    call: Call,
    message: ToolMessage,
    artifacts: Sequence[Artifact],
    seconds: float,
    *,
    recorded: bool = False,
    traceback: str | None = None,
) -> list[NewEvent]:
    """The call has a result for the model."""
    ids = [artifact.id for artifact in artifacts]
    output = output_id(call.call_id)
    end = ToolEnd(
        call_id=message.call_id,
        tool=message.name,
        result=message.content[:RESULT_CHARACTERS],
        error=message.error,
        artifact=output if output in ids else None,
        attachments=tuple(one for one in ids if one != output),
        seconds=round(seconds, 3),
        recorded=recorded,
        traceback=traceback,
    )
    return [call_event(call, end), step_ended(call, message.name)]


def step_ended(call: Call, tool: str) -> NewEvent:
    """Nothing of the call follows any more."""
    return call_event(call, ToolStep(call_id=call.call_id, tool=tool))
