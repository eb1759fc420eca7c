"""Turns with scheduled faults keep what must always hold, and a fault that is planted is found."""

import asyncio
from typing import Any

import pytest

from perdure.testing import Simulated, SimulationError, simulate
from perdure.testing.simulated_checks import SimulatedRun
from perdure.testing.simulated_faults import FAULTS
from tests.simulation.agents import CASES, ENVIRONMENT, Case
from tests.simulation.planted import PLANTED

pytestmark = pytest.mark.timeout(300)

SCHEDULES = 28
"""Schedules of each agent: about 500 in all."""

MOST_SCHEDULES = 300
"""A planted fault is found within so many."""


async def simulated(name: str, schedules: int = SCHEDULES, **options: Any) -> Simulated:
    case: Case = CASES[name]
    return await simulate(case.agent, "go", case.script, schedules=schedules, **{**case.options, **options})


@pytest.fixture(autouse=True)
def set_the_canary(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("name", CASES)
async def test_whatever_happens_to_a_turn_it_keeps_what_must_hold(name: str) -> None:
    """S-17 S-18 S-34 S-46 S-54: lost attempts and workers, a failing store, rotations, messages."""
    report = await simulated(name)
    assert report.schedules == SCHEDULES
    assert len(report.applied) > len(FAULTS) // 2, report
    assert "cancelled" in report.ends


async def test_the_same_schedule_meets_the_same_points() -> None:
    """A failure can be repeated."""
    met: list[tuple[str, ...]] = []

    def note(run: SimulatedRun) -> None:
        met.append(run.points)

    for _ in range(2):
        await simulated("people", only={9: "kill", 21: "rotate"}, check=note)
    assert met[0] == met[1]


async def test_a_check_of_the_author_is_made_and_its_failure_shrunk() -> None:
    def no_message(run: SimulatedRun) -> None:
        """No message comes."""
        assert not run.accepted, "one came"

    with pytest.raises(
        SimulationError, match=r"No message comes(.|\n)*await simulate\(agent, 'go', script, only="
    ) as failed:
        await simulated("tools", check=no_message)
    assert len(failed.value.schedule) == 1
    with pytest.raises(SimulationError, match="one came"):
        await simulated("tools", only=failed.value.schedule, check=no_message)


async def test_nothing_of_a_simulation_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts that a planted fault leaves would spin in virtual time, beside every later test of the process."""
    before = asyncio.all_tasks()
    planted = PLANTED["a result counts whoever holds the call"]
    planted.plant(monkeypatch)
    with pytest.raises(SimulationError):
        await simulated(planted.case, MOST_SCHEDULES, faults=planted.faults)
    await asyncio.sleep(0)
    assert {task.get_coro().__qualname__ for task in asyncio.all_tasks() - before} == set()  # type: ignore[union-attr]


@pytest.mark.deep
@pytest.mark.parametrize("name", PLANTED)
async def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = PLANTED[name]
    planted.plant(monkeypatch)
    with pytest.raises(SimulationError, match="does not hold") as found:
        await simulated(planted.case, MOST_SCHEDULES, faults=planted.faults)
    print(f"found after {found.value.found_after}: {name}")  # noqa: T201 - the table, with pytest -s


def test_at_least_twenty_faults_are_planted() -> None:
    assert len(PLANTED) >= 20
