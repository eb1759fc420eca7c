import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import cast

import pytest

from perdure.cli.errors import CliError
from perdure.cli.live import EXIT_CODES, Printer, follow
from perdure.client import Turn
from perdure.contracts.budgets import Usage
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.events import AgentEnd, AgentError, Envelope, Event, GenerationError
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

    async def events(self, after: int = 0) -> AsyncIterator[Envelope]:
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


async def followed(turn: FakeTurn, *, cancels: bool = True, as_json: bool = False) -> int:
    async with asyncio.timeout(10):
        return await follow(cast("Turn", turn), Printer(as_json=as_json), cancels=cancels)


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


async def test_what_ended_the_turn_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    await followed(FakeTurn(GenerationError(error=FAILURE), AgentError(error=FAILURE), end(StopReason.ERROR)))
    assert capsys.readouterr().out.count("the provider refused the key") == 1


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
