import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import cast

import pytest
from click.testing import CliRunner

from perdure.cli.errors import CliError, MistakeError
from perdure.cli.live import EXIT_CODES, Printer, follow
from perdure.cli.main import cli
from perdure.cli.output import print_json, show
from perdure.cli.render import Line
from perdure.client import Turn
from perdure.contracts.budgets import Usage
from perdure.contracts.deltas import Delta
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.events import (
    AgentEnd,
    AgentError,
    Envelope,
    Event,
    GenerationError,
    Heartbeat,
    ToolEnd,
    ToolError,
)
from perdure.contracts.turns import StopReason, TurnResult

FAILURE = ErrorDetail(code="llm.auth_error", title="generation", message="the provider refused the key")


def end(reason: StopReason) -> AgentEnd:
    return AgentEnd(
        stop_reason=reason, reason_code=None, error=None, output="", steps=1, usage=Usage(), cost_usd=Decimal(0)
    )


class FakeTurn:
    """A turn whose events are given; with ``held`` it ends only when it is cancelled."""

    session = "job-1"

    def __init__(self, *events: Event, held: bool = False, stubborn: bool = False) -> None:
        self.given = events
        self.held = held
        self.stubborn = stubborn
        self.reasons: list[str] = []
        self.cancelled = asyncio.Event()
        self.presses = 0

    def press(self) -> None:
        self.presses -= 1
        os.kill(os.getpid(), signal.SIGINT)

    async def events(
        self, after: int = 7, heartbeat: timedelta | None = None, *, deltas: bool = False
    ) -> AsyncIterator[Envelope]:
        if heartbeat is not None:
            yield Envelope(seq=after, session="job-1", turn=1, step=0, at=datetime.now(UTC), event=Heartbeat())
        for seq, event in enumerate(self.given, start=1):
            yield Envelope(seq=seq, session="job-1", turn=1, step=1, at=datetime.now(UTC), event=event)
        if self.held:
            self.press()
            await self.cancelled.wait()
            if self.stubborn:
                self.press()
                await asyncio.Event().wait()
            yield Envelope(
                seq=9, session="job-1", turn=1, step=1, at=datetime.now(UTC), event=end(StopReason.CANCELLED)
            )

    async def cancel(self, reason: str) -> bool:
        self.reasons.append(reason)
        self.cancelled.set()
        return True

    async def result(self) -> TurnResult:
        return TurnResult(
            session="job-1",
            turn=None,
            agent="x",
            stop_reason=StopReason.ERROR,
            reason_code="request.unknown_agent",
            error="no agent is named 'x'",
        )


async def followed(turn: FakeTurn, *, cancels: bool = True, as_json: bool = False, types: tuple[str, ...] = ()) -> int:
    async with asyncio.timeout(120):
        return await follow(cast("Turn", turn), Printer(as_json=as_json, types=types), cancels=cancels)


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("finished", 0),
        ("error", 1),
        ("max_steps_reached", 3),
        ("stalled", 4),
        ("budget_exhausted", 5),
        ("cancelled", 6),
    ],
)
async def test_the_exit_code_says_why_the_turn_ended(reason: str, code: int) -> None:
    assert await followed(FakeTurn(end(StopReason(reason)))) == code


def test_every_stop_reason_has_an_exit_code() -> None:
    assert set(StopReason) <= set(EXIT_CODES)


async def test_a_request_that_never_became_a_turn_is_one_line_and_exit_2() -> None:
    with pytest.raises(CliError, match="no agent is named 'x'") as caught:
        await followed(FakeTurn())
    assert caught.value.exit_code == 2


async def test_json_prints_one_event_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    await followed(FakeTurn(GenerationError(error=FAILURE), end(StopReason.ERROR)), as_json=True)
    first, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (first["seq"], first["type"], last["type"], last["stop_reason"]) == (
        1,
        "generation_error",
        "agent_end",
        "error",
    )


async def test_a_heartbeat_is_a_line_of_json_whatever_the_types_and_no_line_for_people(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """S-53."""
    ended = FakeTurn(end(StopReason.FINISHED))
    for as_json in (True, False):
        printer = Printer(as_json=as_json, types=["agent_end"], heartbeat=timedelta(seconds=5))
        assert await follow(cast("Turn", ended), printer, cancels=False) == 0
    first, last, *told = capsys.readouterr().out.splitlines()
    beat = json.loads(first)
    assert (beat["type"], beat["seq"], beat["message"]) == ("heartbeat", 7, "nothing new")
    assert json.loads(last)["type"] == "agent_end"
    assert [line.partition(" ")[0] for line in told] == ["finished"]


def test_a_heartbeat_that_nobody_would_see_is_refused() -> None:
    result = CliRunner().invoke(cli, ["follow", "job", "--heartbeat", "5"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--heartbeat prints nothing without --json; add --json, or leave --heartbeat out" in result.stderr


async def test_what_ended_the_turn_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    """S-51."""
    await followed(FakeTurn(GenerationError(error=FAILURE), AgentError(error=FAILURE), end(StopReason.ERROR)))
    assert capsys.readouterr().out.count("the provider refused the key") == 1


async def test_what_ended_the_turn_is_shown_once_also_when_another_call_failed_after_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """S-51."""
    of_first, of_second = (
        ErrorDetail(code="tool.execution_error", title=tool, message=f"{tool} broke") for tool in ("first", "second")
    )
    await followed(
        FakeTurn(
            ToolError(call_id="a", tool="first", error=of_first),
            ToolError(call_id="b", tool="second", error=of_second),
            AgentError(error=of_first),
            end(StopReason.ERROR),
        )
    )
    assert capsys.readouterr().out.splitlines()[:-1] == ["✗ first", "  first broke", "✗ second", "  second broke"]


async def test_an_error_of_another_title_is_a_row_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """S-51: the same words from another source are another fact."""
    of_tool = FAILURE.model_copy(update={"title": "login"})
    await followed(
        FakeTurn(
            ToolEnd(call_id="a", tool="login", result="", error=of_tool, seconds=0.1),
            AgentError(error=FAILURE),
            end(StopReason.ERROR),
        )
    )
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("✗")] == [
        "✗ login",
        "✗ generation",
    ]


@pytest.mark.parametrize("as_json", [True, False])
async def test_events_of_other_types_are_left_out_and_the_end_still_gives_the_exit_code(
    capsys: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    """S-50: also where the event that a failure repeats is one of those left out."""
    turn = FakeTurn(GenerationError(error=FAILURE), AgentError(error=FAILURE), end(StopReason.ERROR))
    assert await followed(turn, as_json=as_json, types=("agent_error",)) == 1
    printed = capsys.readouterr().out.splitlines()
    if as_json:
        assert [json.loads(line)["type"] for line in printed] == ["agent_error"]
    else:
        assert printed == ["✗ generation", "  the provider refused the key"]


async def test_the_first_interrupt_cancels_the_turn_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    turn = FakeTurn(held=True)
    assert await followed(turn) == 6
    assert turn.reasons == ["cancelled by Ctrl+C"]
    assert "cancelling the turn" in capsys.readouterr().err


async def test_a_second_interrupt_quits_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert await followed(FakeTurn(held=True, stubborn=True)) == 130
    assert "perdure follow job-1" in capsys.readouterr().err


async def test_an_interrupt_while_following_leaves_the_turn_alone() -> None:
    turn = FakeTurn(held=True)
    assert await followed(turn, cancels=False) == 130
    assert turn.reasons == []


ESCAPES = "a\x1b[31m\x9b2J\r\x07\u202eb"


def test_a_line_never_steers_the_terminal_that_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever made the line: a session's id may come from any service."""
    show(Line(ESCAPES))
    assert capsys.readouterr().out == "a[31m2Jb\n"


def test_neither_does_a_line_of_json_which_still_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"session": ESCAPES})
    line = capsys.readouterr().out
    assert line.removesuffix("\n").isprintable()
    assert json.loads(line) == {"session": ESCAPES}


def test_pieces_of_answers_are_json_lines_only_if_they_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """S-15, S-50."""
    piece = Delta(session="job-1", turn=1, step=1, attempt=1, n=0, text="Hel")
    printer = Printer(as_json=True, deltas=True)
    assert (printer.wants_deltas, Printer(as_json=True).wants_deltas) == (True, False)
    printer.delta(piece)
    line = json.loads(capsys.readouterr().out)
    assert (line["type"], line["text"], line["offset"], line["attempt"]) == ("delta", "Hel", 0, 1)


def test_pieces_without_json_are_refused() -> None:
    with pytest.raises(MistakeError, match="--deltas prints JSON lines; add --json"):
        Printer(as_json=False, deltas=True)
