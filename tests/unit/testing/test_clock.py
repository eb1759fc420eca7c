"""The clock of tests in memory, and the tasks that it starts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from perdure.testing.clock import Clock, NothingComesError

NOW = datetime(2026, 11, 27, tzinfo=UTC)


@asynccontextmanager
async def ticking(ticks: list[float]) -> AsyncIterator[Clock]:
    """A clock with a task that always waits for its next second."""
    async with Clock(NOW) as clock:

        async def tick() -> None:
            while True:
                await clock.sleep(1)
                ticks.append(clock.seconds())

        clock.start(tick())
        yield clock


async def test_no_task_outlives_its_clock() -> None:
    """One that was forgotten would spin for ever, since its time has always come, and slow every later test."""
    ticks: list[float] = []
    async with ticking(ticks) as clock:
        await clock.start(clock.sleep(3))
    assert ticks
    told = len(ticks)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(ticks) == told


async def test_a_task_that_is_started_while_the_clock_closes_ends_too() -> None:
    ended: list[str] = []

    async def late() -> None:
        try:
            await clock.wait(lambda: False)
        finally:
            ended.append("late")

    async def early() -> None:
        try:
            await clock.sleep(9)
        finally:
            clock.start(late())
            ended.append("early")

    async with Clock(NOW) as clock:
        clock.start(early())
        await asyncio.sleep(0)
    assert ended[0] == "early"
    assert not [task for task in asyncio.all_tasks() if task.get_coro().__name__ in {"early", "late"}]  # type: ignore[union-attr]


async def test_who_waits_for_what_never_comes_is_told() -> None:
    async with Clock(NOW) as clock:
        with pytest.raises(NothingComesError):
            await clock.start(clock.wait(lambda: False))
