"""How often a running call beats."""

import pytest

from perdure.activities.heartbeat import BEATS_PER_SECOND, LONGEST_BEAT_SECONDS, interval
from perdure.workflows.options import HEARTBEAT_TIMEOUT


@pytest.mark.parametrize(
    ("running", "seconds"), [(1, 1.0), (200, 1.0), (250, 1.0), (500, 2.0), (1250, 5.0), (9000, 5.0)]
)
def test_a_worker_with_many_calls_beats_less_often_for_each(running: int, seconds: float) -> None:
    assert interval(running) == seconds


def test_the_slowest_beat_comes_in_time_and_the_server_is_spared() -> None:
    assert HEARTBEAT_TIMEOUT.total_seconds() > 1.5 * LONGEST_BEAT_SECONDS
    assert 500 / interval(500) <= BEATS_PER_SECOND
