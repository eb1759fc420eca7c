"""Places of deliveries: a receiver that is slow or silent costs its tenant's messages time, and nobody else's."""

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta

import pytest

from perdure.activities.places import LATELY, LATEST, MANY, PATIENCE, SHORT_PATIENCE, SOONEST, NoPlaceError, Places

SILENT = "silent.example"


class Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def taken(places: Places, tenant: str, receivers: Sequence[str], under_way: ExitStack) -> list[NoPlaceError]:
    """The refusals of so many deliveries at once; the others go on until the stack is closed."""
    refused: list[NoPlaceError] = []
    for receiver in receivers:
        try:
            under_way.enter_context(places.take(tenant, receiver))
        except NoPlaceError as error:
            refused.append(error)
    return refused


@pytest.mark.parametrize("receivers", [[SILENT] * 710, [f"{number}.example" for number in range(710)]])
def test_a_tenant_leaves_places_to_others_and_a_receiver_to_its_tenant_s_others(receivers: list[str]) -> None:
    """S-95: whatever a tenant's receivers do, three of four places are never its own."""
    places = Places(100, Clock())
    with ExitStack() as under_way:
        refused = taken(places, "wild", receivers, under_way)
        assert 710 - len(refused) == (10 if receivers[0] == receivers[1] else 25)
        assert not taken(places, "calm", [SILENT] * 10, under_way)
    with ExitStack() as under_way:
        assert not taken(places, "wild", [SILENT] * 10, under_way)


@pytest.mark.parametrize("most", [1, 3])
def test_each_tenant_has_a_place_in_the_smallest_worker(most: int) -> None:
    places = Places(most, Clock())
    with (
        places.take("wild", SILENT),
        places.take("calm", SILENT),
        pytest.raises(NoPlaceError, match="the tenant has as many"),
    ):
        places.take("wild", "other.example").__enter__()


def test_those_that_found_no_place_come_again_one_after_another_and_none_too_late() -> None:
    """S-95: at the pace at which places become free, as they have of late."""
    clock = Clock()
    places = Places(20, clock)
    for _ in range(20):  # what a silent receiver takes
        with places.take("wild", SILENT):
            clock.now += PATIENCE.total_seconds()
    with ExitStack() as under_way:
        waits = [error.wait for error in taken(places, "wild", [SILENT] * 200, under_way)]
        assert waits == sorted(waits)
        assert (waits[0] >= SOONEST, waits[-1]) == (True, LATEST)
        pace = waits[4] - waits[3]
        assert timedelta(seconds=7) < pace < timedelta(seconds=8)
    for _ in range(20):  # it answers again, at once
        with places.take("wild", SILENT):
            clock.now += 0.05
    clock.now += LATEST.total_seconds()
    with ExitStack() as under_way:
        waits = [error.wait for error in taken(places, "wild", [SILENT] * 20, under_way)]
        assert waits[-1] < 2 * SOONEST


def test_a_silent_receiver_has_the_whole_patience_for_one_message_at_a_time() -> None:
    """S-95: one that is only slow is found to answer again, and has all of it back."""
    clock = Clock()
    places = Places(100, clock)
    with places.take("wild", SILENT) as first, places.take("wild", SILENT) as second:
        assert (first.patience, second.patience) == (PATIENCE, PATIENCE)
        first.answered = False
    with places.take("wild", SILENT) as probe, places.take("wild", SILENT) as beside:
        assert (probe.patience, beside.patience) == (PATIENCE, SHORT_PATIENCE)
        with places.take("wild", "other.example") as other, places.take("wild", "other.example") as another:
            assert (other.patience, another.patience) == (PATIENCE, PATIENCE)
        probe.answered = True
    with places.take("wild", SILENT), places.take("wild", SILENT) as answered:
        assert answered.patience == PATIENCE
        answered.answered = False
    clock.now += LATELY.total_seconds()
    with places.take("wild", SILENT), places.take("wild", SILENT) as later:
        assert later.patience == PATIENCE


def test_idle_receivers_are_forgotten_and_busy_ones_are_not() -> None:
    clock = Clock()
    places = Places(10, clock)
    with places.take("wild", SILENT):
        for number in range(10 * MANY):
            clock.now += LATELY.total_seconds() / MANY * 2
            with places.take("calm", f"{number}.example"):
                pass
        assert len(places._lines) <= MANY
        with pytest.raises(NoPlaceError):
            places.take("wild", SILENT).__enter__()
