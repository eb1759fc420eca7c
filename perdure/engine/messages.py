"""Messages for a session whose turn runs: which turn gets each, and the request that begins a waiting one's turn."""

from datetime import datetime

from perdure.contracts.errors import ReasonCode
from perdure.contracts.input_requests import digest_of
from perdure.contracts.sends import QueuedMessage, SendRequest
from perdure.contracts.turns import CancelRequest, Continuation
from perdure.contracts.values import replace
from perdure.engine.state import Mailbox
from perdure.engine.stops import RunningTurn, cancel

_OVERTAKEN = {"interrupt": "interrupted", "rollback": "rolled back"}


_OF_ITS_TURN = {"cancelled", "replaces", "traceparent", "stop_for_results"}
"""Fields of a message that count for the turn that it begins."""


class MessageRefusedError(ValueError):
    """A message cannot be taken; the text is one line with the cause and the fix.

    Attributes:
        code: The reason code of the refusal.
    """

    def __init__(self, code: ReasonCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def find_turn_of(mail: Mailbox, request_id: str, running: RunningTurn) -> int | None:
    """Number of the turn that has the message of this request already; None for a new message."""
    steered = (message.request_id for message in mail.steered)
    if request_id == running.request_id or request_id in mail.taken or request_id in steered:
        return running.turn
    places = [message.request_id for message in mail.queued]
    return running.last_turn + 1 + places.index(request_id) if request_id in places else None


def check_message(message: SendRequest, running: RunningTurn) -> None:
    """Refuse a message that the running turn cannot take. One that it has already is not checked here.

    Raises:
        MessageRefusedError: The sender does not want to wait, or the turn is a delegate's.
    """
    if message.when_busy == "reject":
        text = f"turn {running.turn} runs, and the message is not to wait; send it when the turn has ended"
        raise MessageRefusedError(ReasonCode.REQUEST_SESSION_BUSY, text)
    if running.delegated and not (message.when_busy == "steer" and running.takes_steering):
        text = "a delegate works for one call; send with steer while it runs"
        raise MessageRefusedError(ReasonCode.REQUEST_INVALID, text)


def take_message(mail: Mailbox, message: QueuedMessage, running: RunningTurn, now: datetime) -> tuple[Mailbox, int]:
    """The mailbox with a new message, and the number of the turn that has it.

    A message that interrupts or rolls back cancels the running turn and every waiting message. The waiting ones keep
    their turn numbers, which senders know: their turns end as cancelled, and this message's turn comes after them.
    A turn that is ending by itself already is not cancelled.

    Raises:
        MessageRefusedError: As :func:`check_message`.
    """
    check_message(message, running)
    if message.when_busy == "steer" and running.takes_steering:
        steered = message.model_dump(exclude=_OF_ITS_TURN, exclude_unset=True)
        return mail.with_steered(SendRequest.model_validate(steered)), running.turn
    number = running.last_turn + 1 + len(mail.queued)
    overtaken = _OVERTAKEN.get(message.when_busy)
    if overtaken is None:
        return mail.with_queued(message), number
    asked = CancelRequest(reason=f"{overtaken} by the message of turn {number}", drop_queue=True)
    too_late = running.ending and mail.cancel is None  # the turn has ended by itself: nothing of it is taken back
    mail, _ = cancel(mail, asked, running, now)
    if too_late:
        return replace(mail, cancel=None, cancel_at=None).with_queued(message), number
    if message.when_busy == "rollback":
        message = replace(message, replaces=running.turn)
    return mail.with_queued(message), number


def steer_prompt(mail: Mailbox, asked: Continuation, request_id: str) -> Mailbox:
    """The mailbox with the prompt that stands beside replies: the model reads it behind their results.

    It has an id of its own: if the turn stops before it is read, it begins the next one.
    """
    if not asked.prompt:
        return mail
    own = digest_of("prompt", request_id)
    steered = SendRequest(prompt=asked.prompt, request_id=own, when_busy="steer", parts=asked.parts, by=asked.by)
    return mail.with_steered(steered)


def request_of(message: QueuedMessage, *, store: str = "", tenant: str = "") -> Continuation:
    """The request for the turn of a message that has waited."""
    return Continuation(
        prompt=message.prompt,
        request_id=message.request_id,
        parts=message.parts,
        cancelled=message.cancelled,
        replaces=message.replaces,
        context=message.context,
        by=message.by,
        traceparent=message.traceparent,
        stop_for_results=message.stop_for_results,
        tenant=tenant,
        store=store,
    )
