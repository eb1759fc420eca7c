"""A slice of ``make chaos``: jobs whose worker, server or store is taken from them end as if nothing had been."""

from pathlib import Path

import pytest

from tests.chaos.faults import Fault, Kind, planned
from tests.chaos.run import Chaos
from tests.chaos.scenarios import SCENARIOS

pytestmark = pytest.mark.deep

SLICE = (
    "tools:kill:before effect:2:1:sqlite",
    "parallel:kill:committing:3:2:sqlite",
    "retry:kill:in retry wait:1:1:sqlite",
    "rotation:kill:after activation:7:2:sqlite",
    "cancel:kill:cancel sent:1:1:sqlite",
    "text:term:after model:1:2:sqlite",
    "queued:power:message sent:1:1:sqlite",
)
"""One fault of each sort; ``make chaos`` has the rest."""

REGRESSIONS = (
    # The worker died between the write of a failure that ends the turn and its report: the turn went on.
    "abort:kill:after finish_call:2:1:sqlite",
)
"""Faults that once made a difference."""


@pytest.mark.timeout(300)
async def test_a_job_that_meets_a_fault_ends_as_the_undisturbed_one(tmp_path: Path) -> None:
    """S-80: transcript, usage, effects and stop record are the same, and every history replays."""
    faults = [Fault.parse(text) for text in (*SLICE, *REGRESSIONS)]
    async with Chaos.set_up(tmp_path) as chaos:
        await chaos.calm_down(fault.scenario for fault in faults)
        verdicts = await chaos.storm({str(fault): fault for fault in faults})
    assert [(verdict.name, verdict.broken) for verdict in verdicts if verdict.broken] == []
    assert [verdict.name for verdict in verdicts if not verdict.struck] == []


def test_a_seed_stands_for_one_fault_and_a_fault_reads_itself() -> None:
    reached = {name: {"before model": 3, "at model": 3, "committing": 9} for name in SCENARIOS}
    found = [planned(seed, reached) for seed in range(300)]
    assert found == [planned(seed, reached) for seed in range(300)]
    assert [Fault.parse(str(fault)) for fault in found] == found
    assert {fault.kind for fault in found} == set(Kind)
    assert {fault.scenario for fault in found} == set(SCENARIOS)
