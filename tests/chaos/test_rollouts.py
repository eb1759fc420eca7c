"""Rollouts, roll-backs, drains and a restore of a whole fleet, each with every effect counted."""

from pathlib import Path

import pytest

from tests.chaos.rollouts import SCENARIOS, run
from tests.faults.prometheus import program_or_skip
from tests.postgresql import postgresql_or_skip

pytestmark = pytest.mark.deep

CUT_OFF = {"drain at 20 calls, grace shorter than each": (10, 10)}
"""Calls whose effect nobody knows, and answers that the model is asked for again, where there are any."""

RESTORED = "a restore of an older copy"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SCENARIOS)
async def test_no_work_is_lost_or_doubled_and_the_operator_is_told(name: str, tmp_path: Path) -> None:
    """S-80: with three workers and two gateways on PostgreSQL, as a Prometheus with the rules of deploy/ sees them."""
    postgresql_or_skip().cleanup()
    program_or_skip("prometheus")
    account = await run(name, tmp_path)
    assert (account.doubled, account.lost, account.wrong) == ([], [], []), account.row()
    if name == RESTORED:
        assert account.left > 0, account.row()
        assert account.ends["runtime.store_behind"] > 0, account.row()
    else:
        assert (account.unknown, account.paid_twice) == CUT_OFF.get(name, (0, 0)), account.row()
        assert account.ends.keys() == {"finished"}, account.row()
