"""Stops of a turn: a cancel, and how a turn ends that was cancelled or whose time is used up.

Conditions that authors give a turn, :mod:`perdure.stop`, are something else.
"""

from dataclasses import dataclass
from datetime import datetime

from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.turns import CancelReceipt, CancelRequest, StopReason
from perdure.contracts.values import replace
from perdure.engine.limits import exhausted_error
from perdure.engine.state import Ending, Mailbox, TurnState


class WrongTurnError(ValueError):
    """A cancel names a turn that neither runs nor waits; the message says which do."""


@dataclass(frozen=True)
class RunningTurn:
    """The turn that runs.

    Attributes:
        last_turn: The session's highest number; that of the first message that waits is one more.
        ending: Whether it is too late to stop the turn.
        takes_steering: Whether the turn still reads messages.
        delegated: Whether the turn is a delegate's.
    """

    turn: int
    request_id: str
    last_turn: int
    ending: bool
    takes_steering: bool = False
    delegated: bool = False


def cancel(mail: Mailbox, asked: CancelRequest, running: RunningTurn, now: datetime) -> tuple[Mailbox, CancelReceipt]:
    """Take in a cancel: the running turn is to stop, or a waiting one ends as soon as it begins.

    Raises:
        WrongTurnError: The request names another turn.
    """
    turn = _number_of(mail, asked, running)
    waiting = range(running.last_turn + 1, running.last_turn + 1 + len(mail.queued))
    stops, dropped = True, list[int]()
    if asked.drop_queue:
        dropped = [number for number, message in zip(waiting, mail.queued, strict=True) if message.cancelled is None]
    if turn == running.turn:
        stops = mail.cancel is not None or not running.ending
        mail = stop(mail, asked, now)
    elif turn not in waiting:
        others = ""
        if len(waiting) == 1:
            others = f", and turn {waiting[0]} waits"
        elif waiting:
            others = f", and turns {waiting[0]} to {waiting[-1]} wait"
        msg = f"turn {turn} does not run: turn {running.turn} does{others}"
        raise WrongTurnError(msg)
    ends = {*dropped, turn}
    queued = tuple(
        message if number not in ends or message.cancelled is not None else replace(message, cancelled=asked.reason)
        for number, message in zip(waiting, mail.queued, strict=True)
    )
    return replace(mail, queued=queued), CancelReceipt(turn=turn, stops=stops, dropped=tuple(dropped))


def stop(mail: Mailbox, asked: CancelRequest, now: datetime) -> Mailbox:
    """The mailbox of a turn that is to stop. The first request counts, later ones change nothing."""
    return mail if mail.cancel is not None else replace(mail, cancel=asked, cancel_at=now)


def _number_of(mail: Mailbox, asked: CancelRequest, running: RunningTurn) -> int:
    if asked.request_id is None:
        return running.turn if asked.turn is None else asked.turn
    if asked.request_id == running.request_id:
        return running.turn
    places = [message.request_id for message in mail.queued]
    if asked.request_id in places:
        return running.last_turn + 1 + places.index(asked.request_id)
    msg = f"no turn of request {asked.request_id!r} runs or waits; turn {running.turn} runs"
    raise WrongTurnError(msg)


def ending_of_stop(state: TurnState, mail: Mailbox) -> Ending:
    """The end of a turn that was cancelled, or whose time is used up."""
    if mail.cancel is None:
        limit = state.policy.budgets.seconds
        seconds = limit.total_seconds() if limit else 0
        error = exhausted_error("seconds", f"{seconds:g} s")
        return Ending(stop_reason=StopReason.BUDGET_EXHAUSTED, error=error)
    message = f"Operation aborted: {mail.cancel.reason}" if mail.cancel.reason else "Operation aborted"
    error = ErrorDetail(code=ReasonCode.RUNTIME_ABORTED, title="runtime", message=message)
    return Ending(stop_reason=StopReason.CANCELLED, error=error)
