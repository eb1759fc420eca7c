"""What the person at a terminal reads of a request, and when a question is taken back."""

import asyncio
import io
import shlex
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from unittest.mock import Mock

import pytest

from perdure.cli import asking, reply
from perdure.cli.asking import Asking, Terminal, command_for, prompt_for, say_what_waits
from perdure.cli.errors import CliError
from perdure.cli.live import Printer
from perdure.client import Client, Turn
from perdure.contracts.budgets import Spent
from perdure.contracts.events import Envelope, UserInputRequired
from perdure.contracts.input_requests import InputRequest
from perdure.contracts.turns import RunState, TurnStatus


def question(number: int = 1, **fields: Any) -> InputRequest:
    return InputRequest(request_id=f"call_{number}", needs="answer", tool="ask_user", question="Sure?", **fields)


def status(*requests: InputRequest) -> TurnStatus:
    return TurnStatus(
        session="s",
        turn=1,
        agent="a",
        model="p/m",
        state=RunState.WAITING_FOR_INPUT if requests else RunState.RUNNING,
        step=1,
        max_steps=9,
        activity="",
        queued=0,
        cancelling=False,
        spent=Spent(),
        requests=requests,
    )


def event_of(request: InputRequest) -> Envelope:
    event = UserInputRequired(**dict(request))
    return Envelope(seq=1, session="s", turn=1, step=1, at=datetime(2026, 11, 21, tzinfo=UTC), event=event)


class StatedTurn:
    """A turn that says one thing after another, the last of them for ever."""

    session = "s"

    def __init__(self, *said: TurnStatus | None) -> None:
        self._said = list(said)
        self.said_all = asyncio.Event()

    async def status(self) -> TurnStatus | None:
        if len(self._said) > 1:
            return self._said.pop(0)
        self.said_all.set()
        return self._said[0]

    async def requests(self) -> tuple[InputRequest, ...]:
        return (question(),)


class Taking:
    """A client that takes answers."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, object]] = []

    async def answer(self, _session: str, request: str, value: object, *, by: str) -> None:
        self.taken.append((request, value))
        assert by


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> "asyncio.Queue[str]":
    """What somebody types at the terminal."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    monkeypatch.setattr(asking, "LOOK", timedelta(0))
    monkeypatch.setattr(asking, "CATCH_UP", timedelta(0))
    monkeypatch.setattr(asking, "is_at_a_terminal", lambda: True)
    monkeypatch.setattr(asking, "_line", lines.get)
    monkeypatch.setattr("termios.tcflush", Mock())
    monkeypatch.setattr("sys.stdin", io.FileIO(0, closefd=False))
    return lines


async def test_a_question_stays_while_no_worker_can_say_whether_it_is_open(typed: "asyncio.Queue[str]") -> None:
    """S-60: every worker is gone for a while; the person answers when one is back."""
    turn, client, notes = StatedTurn(status(question()), *[None] * 100), Taking(), list[str]()
    what = Asking(cast("Turn", turn), cast("Client", client), Terminal(notes.append, lambda: None, lambda _: None))
    what.start()
    async with asyncio.timeout(120):
        await turn.said_all.wait()
        assert notes == []
        await typed.put("yes")
        while not client.taken:
            await asyncio.sleep(0)
    what.stop()
    assert (client.taken, notes) == ([("call_1", "yes")], [])


async def test_a_question_that_others_have_answered_is_taken_back_and_the_next_one_asked(
    typed: "asyncio.Queue[str]", capsys: pytest.CaptureFixture[str]
) -> None:
    turn, notes = StatedTurn(status(question(1), question(2)), status(question(2))), list[str]()
    what = Asking(cast("Turn", turn), cast("Client", Taking()), Terminal(notes.append, lambda: None, lambda _: None))
    what.start()
    async with asyncio.timeout(120):
        await turn.said_all.wait()
        while not notes or capsys.readouterr().out != "? Sure?\n> ":
            await asyncio.sleep(0)
    what.stop()
    assert (notes, typed.empty()) == (["somebody else has decided"], True)


@pytest.mark.parametrize("option", ["red", "--help", "-1", "two words", "it's"])
def test_the_command_that_is_printed_gives_the_option(option: str) -> None:
    """Also one that looks like an option of the command."""
    printed = command_for("s", question(options=(option, "no")))
    context = reply.answer_command.make_context("answer", shlex.split(printed)[2:])
    assert (context.params["request"], context.params["value"]) == ("call_1", option)


def test_an_option_that_a_terminal_cannot_show_is_not_in_the_command() -> None:
    assert command_for("s", question(options=("a\nperdure: all is well", "b"))) == "perdure answer s call_1 VALUE"


def test_what_a_model_writes_cannot_look_like_a_line_or_an_option_of_its_own() -> None:
    asked = question(options=("a\n  2. keep everything", "delete")).model_copy(
        update={"question": "Delete?\nperdure: all is well\x1b[2J\n"}
    )
    assert prompt_for(asked) == ("? Delete?\n    perdure: all is well[2J\n  1. a 2. keep everything\n  2. delete\n> ")


def test_a_note_and_an_error_are_one_line_that_steers_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    say_what_waits("s", [question(options=("\x1b[2Jyes",))], Printer(as_json=False).note)
    Printer(as_json=False).note("refused:\nperdure: \x1b]0;owned\x07fine")
    CliError("refused:\n\x1b[2Jfine").show()
    assert capsys.readouterr().err == (
        "perdure: waiting for an answer: Sure?; perdure answer s call_1 VALUE\n"
        "perdure: refused: perdure: ]0;ownedfine\n"
        "perdure: refused: [2Jfine\n"
    )


async def test_a_request_is_dealt_with_when_its_event_has_been_printed(
    typed: "asyncio.Queue[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker says that it waits before the log has been read so far."""
    monkeypatch.setattr(asking, "CATCH_UP", timedelta(minutes=1))
    monkeypatch.setattr(asking, "is_at_a_terminal", lambda: False)
    turn, left = StatedTurn(status(question())), asyncio.Event()
    what = Asking(cast("Turn", turn), None, Terminal(list[str]().append, left.set, lambda _: None))
    what.start()
    async with asyncio.timeout(120):
        await turn.said_all.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        assert not left.is_set()
        what.note(event_of(question()))
        await left.wait()
    what.stop()
    assert (what.left, typed.empty()) == ((question(),), True)


async def test_a_turn_that_has_stopped_for_people_is_followed_to_its_last_event(
    typed: "asyncio.Queue[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-66: its requests stand in its result before the end of its log has been read."""
    monkeypatch.setattr(asking, "is_at_a_terminal", lambda: False)
    turn, left = StatedTurn(None), asyncio.Event()
    what = Asking(cast("Turn", turn), None, Terminal(list[str]().append, left.set, lambda _: None))
    what.start()
    what.note(event_of(question()))
    await asyncio.wait_for(turn.said_all.wait(), 10)
    for _ in range(100):
        await asyncio.sleep(0)
    what.stop()
    assert (left.is_set(), what.left, typed.empty()) == (False, (), True)
