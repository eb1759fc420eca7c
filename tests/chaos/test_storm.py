"""A short storm over a whole fleet; ``make storm`` has a long one."""

from pathlib import Path

import pytest

from tests.chaos.storm import storm
from tests.postgresql import postgresql_or_skip

pytestmark = pytest.mark.deep


@pytest.mark.timeout(600)
async def test_a_fleet_that_is_restarted_and_killed_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """S-46, S-80: three workers and two gateways on PostgreSQL, under load."""
    postgresql_or_skip().cleanup()
    said, broken = await storm(tmp_path, seconds=12, at_once=6, seed=3)
    assert broken == [], said
