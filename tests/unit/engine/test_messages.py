"""Messages and cancels for a session whose turn runs: which turns they mean, and what becomes of those that wait."""

from dataclasses import replace
from datetime import timedelta

import pytest

from perdure.contracts.input_requests import Reply
from perdure.contracts.sends import QueuedMessage, SendRequest, WhenBusy
from perdure.contracts.turns import CancelReceipt, CancelRequest, Continuation
from perdure.engine.messages import find_turn_of, steer_prompt, take_message
from perdure.engine.state import Mailbox
from perdure.engine.stops import RunningTurn, WrongTurnError, cancel
from tests.unit.engine.opening import NOW

RUNNING = RunningTurn(turn=3, request_id="r3", last_turn=4, ending=False)
"""Turn 3 is carried out again, so the session has a turn 4 already."""

ENDING = replace(RUNNING, ending=True)


def message(request_id: str, when_busy: WhenBusy = "queue") -> QueuedMessage:
    return QueuedMessage(prompt=f"prompt of {request_id}", request_id=request_id, when_busy=when_busy)


WAITING = Mailbox(
    queued=(message("r5"), message("r6"), message("r7")),
    steered=(SendRequest(prompt="more", request_id="steered", when_busy="steer"),),
    taken=("read",),
)


def reasons(mail: Mailbox) -> list[str | None]:
    """Why each waiting message is cancelled; None for one that gets its turn."""
    return [waiting.cancelled for waiting in mail.queued]


@pytest.mark.parametrize(
    ("request_id", "turn"),
    [("r3", 3), ("steered", 3), ("read", 3), ("r5", 5), ("r6", 6), ("new", None)],
)
def test_a_message_that_was_sent_before_has_the_turn_that_has_it(request_id: str, turn: int | None) -> None:
    """Sending it twice is harmless: a message that runs, was steered, was read or waits is no new one."""
    assert find_turn_of(WAITING, request_id, RUNNING) == turn


@pytest.mark.parametrize("asked", [CancelRequest(turn=6, reason="b"), CancelRequest(request_id="r6", reason="b")])
def test_a_cancel_of_a_waiting_turn_ends_that_one_alone_and_the_first_reason_stands(asked: CancelRequest) -> None:
    """S-59."""
    mail, receipt = cancel(WAITING, asked, RUNNING, NOW)
    assert (reasons(mail), mail.cancel, receipt) == ([None, "b", None], None, CancelReceipt(turn=6))
    every = CancelRequest(turn=3, reason="a", drop_queue=True)
    mail, receipt = cancel(mail, every, RUNNING, NOW)
    assert (reasons(mail), mail.cancel, receipt) == (["a", "b", "a"], every, CancelReceipt(turn=3, dropped=(5, 7)))


def test_a_cancel_of_a_turn_that_neither_runs_nor_waits_is_refused() -> None:
    """S-59."""
    for asked in (CancelRequest(turn=4), CancelRequest(turn=8), CancelRequest(request_id="new")):
        with pytest.raises(WrongTurnError, match="turn 3"):
            cancel(WAITING, asked, RUNNING, NOW)


def test_the_receipt_of_a_cancel_says_whether_the_running_turn_stops_for_it() -> None:
    """S-59: also one that comes while the turn ends by an earlier cancel, which stands."""
    first, second = CancelRequest(reason="first"), CancelRequest(reason="second")
    assert cancel(WAITING, first, ENDING, NOW)[1] == CancelReceipt(turn=3, stops=False)
    mail, receipt = cancel(WAITING, first, RUNNING, NOW)
    assert receipt == CancelReceipt(turn=3)
    mail, receipt = cancel(mail, second, ENDING, NOW + timedelta(seconds=1))
    assert (mail.cancel, mail.cancel_at, receipt) == (first, NOW, CancelReceipt(turn=3))


@pytest.mark.parametrize(
    ("when_busy", "why", "replaces"), [("interrupt", "interrupted", None), ("rollback", "rolled back", 3)]
)
def test_a_message_that_does_not_wait_stops_the_turn_and_drops_what_waits(
    when_busy: WhenBusy, why: str, replaces: int | None
) -> None:
    """Those that wait keep their numbers, so its own comes behind theirs."""
    mail, turn = take_message(WAITING, message("now", when_busy), RUNNING, NOW)
    reason = f"{why} by the message of turn 8"
    assert (turn, reasons(mail)) == (8, [reason, reason, reason, None])
    assert mail.cancel is not None
    assert (mail.cancel.reason, mail.cancel_at, mail.queued[-1].replaces) == (reason, NOW, replaces)


@pytest.mark.parametrize("when_busy", ["interrupt", "rollback"])
def test_a_message_that_comes_when_the_turn_has_ended_by_itself_takes_nothing_of_it_back(when_busy: WhenBusy) -> None:
    """But a turn that a cancel has ended is rolled back, and its cancel stands."""
    mail, _ = take_message(Mailbox(), message("now", when_busy), ENDING, NOW)
    assert (mail.cancel, mail.cancel_at, mail.queued[-1].replaces) == (None, None, None)
    stopping, _ = cancel(Mailbox(), CancelRequest(reason="why"), RUNNING, NOW)
    mail, _ = take_message(stopping, message("now", when_busy), ENDING, NOW)
    assert (mail.cancel, mail.cancel_at) == (stopping.cancel, NOW)
    assert mail.queued[-1].replaces == (3 if when_busy == "rollback" else None)


def test_a_prompt_beside_replies_has_an_id_of_its_own() -> None:
    """S-88: a turn that stops before it reads the message has it begin the next one, which is another request."""
    asked = Continuation(prompt="And?", replies=(Reply(request="c", decision="answered", value=1),))
    (steered,) = steer_prompt(Mailbox(), asked, "r1").steered
    assert (steered.prompt, steered.request_id != "r1", len(steered.request_id)) == ("And?", True, 32)
    assert steer_prompt(Mailbox(), asked, "r1").steered == (steered,)
    assert steer_prompt(Mailbox(), asked.model_copy(update={"prompt": ""}), "r1") == Mailbox()
