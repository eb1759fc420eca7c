"""Which turn a cancel means, and what it changes in the mailbox. Pure, and part of the workflow."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from perdure.contracts.turns import CancelReceipt, CancelRequest
from perdure.engine.state import Mailbox


class WrongTurnError(ValueError):
    """A cancel names a turn that neither runs nor waits; the message says which do."""


@dataclass(frozen=True)
class Running:
    """The turn that runs.

    Attributes:
        last_turn: The session's highest number; that of the first message that waits is one more.
        ending: Whether it is too late to stop the turn.
    """

    turn: int
    request_id: str
    last_turn: int
    ending: bool


def cancel(mail: Mailbox, asked: CancelRequest, running: Running, now: datetime) -> tuple[Mailbox, CancelReceipt]:
    """The mailbox with the request taken in: the turn that runs is to stop, or one that waits will end when it begins.

    Raises:
        WrongTurnError: The request names another turn.
    """
    turn = _number(mail, asked, running)
    waiting = range(running.last_turn + 1, running.last_turn + 1 + len(mail.queued))
    stops, dropped = True, list[int]()
    if asked.drop_queue:
        dropped = [number for number, message in zip(waiting, mail.queued, strict=True) if message.cancelled is None]
    if turn == running.turn:
        stops = mail.cancel is not None or not running.ending
        mail = stopped(mail, asked, now)
    elif turn not in waiting:
        others = _those(waiting)
        msg = f"turn {turn} does not run: turn {running.turn} does{f', and {others}' if others else ''}"
        raise WrongTurnError(msg)
    ends = {*dropped, turn}
    queued = tuple(
        message
        if number not in ends or message.cancelled is not None
        else message.model_copy(update={"cancelled": asked.reason})
        for number, message in zip(waiting, mail.queued, strict=True)
    )
    return mail.model_copy(update={"queued": queued}), CancelReceipt(turn=turn, stops=stops, dropped=tuple(dropped))


def stopped(mail: Mailbox, asked: CancelRequest, now: datetime) -> Mailbox:
    """The mailbox of a turn that is to stop; of several requests the first one counts."""
    return mail if mail.cancel is not None else mail.model_copy(update={"cancel": asked, "cancel_at": now})


def _number(mail: Mailbox, asked: CancelRequest, running: Running) -> int:
    if asked.request_id is None:
        return running.turn if asked.turn is None else asked.turn
    if asked.request_id == running.request_id:
        return running.turn
    places = [message.request_id for message in mail.queued]
    if asked.request_id in places:
        return running.last_turn + 1 + places.index(asked.request_id)
    msg = f"no turn of request {asked.request_id!r} runs or waits; turn {running.turn} runs"
    raise WrongTurnError(msg)


def _those(waiting: Collection[int]) -> str:
    if not waiting:
        return ""
    first, last = min(waiting), max(waiting)
    return f"turn {first} waits" if first == last else f"turns {first} to {last} wait"
